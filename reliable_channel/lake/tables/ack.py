"""The tables that ack writes: messages that SDS delivered, acknowledgements, requests, and lost dependencies."""

from reliable_channel.lake.tables import columns
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

DELIVERIES = Table(
    "deliveries",
    "What SDS delivered at this observer, in causal order: every segment (row_kind 'segment'), and every"
    " application message once enough of its segments were delivered (row_kind 'message'; a bare payload"
    " has only this row).",
    "jobs/ack.py",
    (
        *columns.CHANNEL,
        columns.FAMILY,
        Column("row_seq", "BIGINT", "number of the row in its channel and family, from 1", example="109"),
        Column("row_kind", "STRING", "segment, or message", example="message"),
        Column(
            "delivery_seq",
            "BIGINT",
            "message rows: number of the message in its channel and family, from 1",
            example="110",
        ),
        columns.DELIVERY_TIME,
        columns.SENDER,
        columns.SDS_ID,
        columns.LAMPORT,
        Column("sds_kind", "STRING", "content or ephemeral", example="content"),
        Column(
            "segment_kind",
            "STRING",
            "bare, data or parity; null on the message row of a segmented message",
            example="data",
        ),
        columns.ENTIRE_HASH,
        columns.SEGMENT_INDEX,
        columns.DATA_COUNT,
        columns.PARITY_COUNT,
        *(
            column.describe(f"message rows: {column.meaning}")
            for column in (columns.FIRST_SDS_ID, columns.FIRST_LAMPORT, columns.POSITION_EXACT)
        ),
        Column("kafka_topic", "STRING", "Kafka topic of the record that brought it", example="waku.envelopes"),
        Column("kafka_partition", "INT", "Kafka partition of that record", example="0"),
        columns.OFFSET_OF_THAT_RECORD,
        columns.FIRST_SEEN.describe("event time of that record; for a segmented message of its first segment"),
        columns.PAYLOAD_BYTES.describe("message rows: size of the payload"),
        columns.EARLIEST_SENDER_TIMESTAMP,
        columns.SENDER_VERIFIED,
        Column(
            "repaired_by", "STRING", "parity or message if the segment was repaired; null if received", example="parity"
        ),
        Column("repaired_segments", "INT", "message rows: number of data segments rebuilt from parity", example="1"),
        columns.LATE,
        columns.LOST_IDS,
    ),
    (*columns.CHANNEL_KEY, "family", "row_seq"),
    z_order_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)

ACKS = Table(
    "acks",
    "Which participant acknowledged which SDS message, by what evidence, after how long. One row for the"
    " first evidence and for each stronger one.",
    "jobs/ack.py",
    (
        *columns.CHANNEL,
        columns.SDS_ID,
        columns.SENDER.describe("sender of the acknowledged message"),
        Column("acknowledged_by", "STRING", "participant that acknowledges; never the sender", example="frank"),
        Column(
            "evidence",
            "STRING",
            "causal_history, implied (in the causal past and the participant's filter), or filter",
            example="causal_history",
        ),
        Column(
            "certainty",
            "STRING",
            "certain (named in a causal history), implied, or probable (in enough filters); see docs/sds.md",
            example="certain",
        ),
        Column(
            "evidence_sds_id", "STRING", "SDS id of the message that carried the evidence", example=columns.ANOTHER_ID
        ),
        columns.ENTIRE_HASH,
        columns.EVENT_TIME.describe("event time of the evidence"),
        Column(
            "latency_ms",
            "BIGINT",
            "event time from the first sight of the message to this evidence",
            unit="ms",
            example="15527",
        ),
        Column("copies", "INT", "copies of the message seen by then; more than 1 means retransmissions", example="1"),
        Column("kafka_partition", "INT", "Kafka partition of the record that carried the evidence", example="0"),
        columns.OFFSET_OF_THAT_RECORD,
    ),
    (*columns.CHANNEL_KEY, "sds_id", "acknowledged_by", "evidence", "evidence_sds_id"),
    z_order_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)

REFETCH_REQUESTS = Table(
    "refetch_requests",
    "Missing dependencies to request from store nodes, one row per attempt.",
    "jobs/ack.py",
    (
        *columns.CHANNEL,
        columns.SDS_ID,
        columns.MISSING_SENDER,
        Column(
            "retrieval_hint",
            "BINARY",
            "as a sender wrote it; stores are queried by a hint of 32 bytes (Waku message hash), otherwise by"
            " content topic and time; null if unknown",
            example=columns.AN_ENVELOPE,
        ),
        Column("attempt", "INT", "number of the attempt, from 1", example="1"),
        columns.NEEDED_BY,
        columns.EVENT_TIME.describe("event time at which it was due"),
    ),
    (*columns.CHANNEL_KEY, "sds_id", "attempt"),
    retention_ms=30 * DAY_MS,
)

LOST_DEPENDENCIES = Table(
    "lost_dependencies",
    "Dependencies that are declared irretrievably lost, or older than the observation of their channel.",
    "jobs/ack.py",
    (
        *columns.CHANNEL,
        columns.SDS_ID,
        columns.MISSING_SENDER,
        Column(
            "retrieval_hint",
            "BINARY",
            "the hint of the first message that named it; null if it gave none, or unless status is lost",
            example=columns.AN_ENVELOPE,
        ),
        Column("status", "STRING", "lost, before_observation, or recovered (arrived late)", example="lost"),
        columns.NEEDED_BY.describe(f"{columns.NEEDED_BY.meaning}; null if recovered"),
        Column(
            "missing_since",
            "TIMESTAMP",
            "event time of the first miss; null if recovered",
            example="2026-01-01T00:04:03.144Z",
        ),
        columns.EVENT_TIME.describe("event time of the status"),
    ),
    (*columns.CHANNEL_KEY, "sds_id", "status"),
    retention_ms=90 * DAY_MS,
)

REPAIR_REQUESTS = Table(
    "repair_requests",
    "Which participant asked the channel for which message (SDS-R): evidence that it lacks the message.",
    "jobs/ack.py",
    (
        *columns.CHANNEL,
        columns.SDS_ID,
        columns.SENDER.describe("sender of the requested message; null if not stated"),
        Column("requested_by", "STRING", "participant that requests it", example="carol"),
        Column(
            "request_sds_id", "STRING", "SDS id of the message that carried the request", example=columns.ANOTHER_ID
        ),
        Column("held_here", "BOOLEAN", "the message had been received here when the request arrived", example="false"),
        columns.EVENT_TIME.describe("event time of the request"),
        Column("kafka_partition", "INT", "Kafka partition of the record that carried the request", example="0"),
        columns.OFFSET_OF_THAT_RECORD,
    ),
    # A sync message may come in several copies, each of which requests again.
    (*columns.CHANNEL_KEY, "sds_id", "requested_by", "request_sds_id", "kafka_partition", "kafka_offset"),
    retention_ms=30 * DAY_MS,
)

CHANNEL_EVENTS = Table(
    "channel_events",
    "Other events of a channel, so that no loss is silent: conflicts, saturated filters, limits reached,"
    " and rows on which the program itself failed (row_failed).",
    "jobs/ack.py, jobs/reassembly.py",
    (
        *columns.CHANNEL,
        Column("event", "STRING", "name of the event, from SDS or reassembly", example="saturated_filter"),
        columns.SDS_ID,
        columns.SENDER,
        columns.DETAIL.describe(columns.DETAIL.meaning, "0.731 of the bits are set"),
        columns.EVENT_TIME.describe("event time at which it happened"),
        Column(
            "kafka_topic",
            "STRING",
            "Kafka topic of the record that caused it; null for a timer",
            example="waku.envelopes",
        ),
        Column("kafka_partition", "INT", "Kafka partition of that record", example="0"),
        columns.OFFSET_OF_THAT_RECORD,
    ),
    (*columns.CHANNEL_KEY, "event", "sds_id", "event_time"),
    retention_ms=30 * DAY_MS,
)
