"""The result tables: delivered messages, and the verdict on every message known to exist."""

from reliable_channel.lake.tables import columns
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

DELIVERED_MESSAGES = Table(
    "delivered_messages",
    "The messages delivered at this observer: payload, sender, causal position, times.",
    "jobs/ack.py",
    (
        *columns.CHANNEL,
        columns.FAMILY,
        Column(
            "delivery_seq",
            "BIGINT",
            "number of the message in its channel and family at this observer, from 1",
            example="110",
        ),
        columns.DELIVERY_TIME,
        columns.SENDER,
        columns.ENTIRE_HASH,
        Column(
            "causal_lamport",
            "BIGINT",
            "causal position, part 1: Lamport timestamp of the first segment",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column(
            "causal_sds_id", "STRING", "causal position, part 2: SDS id of the first segment", example=columns.AN_ID
        ),
        columns.POSITION_EXACT,
        columns.PAYLOAD,
        columns.PAYLOAD_BYTES,
        Column("ephemeral", "BOOLEAN", "sent as an ephemeral message (LIP-109)", example="false"),
        columns.DATA_COUNT,
        columns.PARITY_COUNT,
        Column("repaired_segments", "INT", "number of its data segments rebuilt from parity", example="1"),
        columns.LATE,
        columns.LOST_IDS,
        columns.EARLIEST_SENDER_TIMESTAMP,
        columns.SENDER_VERIFIED,
        columns.FIRST_SEEN.describe("event time of its first segment here"),
        Column("kafka_partition", "INT", "Kafka partition of the record that brought or completed it", example="0"),
        columns.OFFSET_OF_THAT_RECORD,
        columns.WRITTEN_AT,
    ),
    (*columns.CHANNEL_KEY, "family", "delivery_seq"),
    z_order_by=("content_topic", "event_time"),
    retention_ms=365 * DAY_MS,
)

DELIVERY_STATUS = Table(
    "delivery_status",
    "Verdict and cause of every message known to exist, as of a time; a later verdict replaces an earlier one.",
    "jobs/verdict.py",
    (
        *columns.CHANNEL,
        Column(
            "message_key",
            "STRING",
            "hex entire_message_hash, '-', and a Lamport timestamp or SDS id; or an SDS id alone",
            example=f"{columns.A_HASH[2:]}-1767226185235",
        ),
        Column(
            "as_of", "TIMESTAMP", "event time up to which the evidence was read", example="2026-01-01T01:13:13.539Z"
        ),
        columns.SENDER,
        columns.ENTIRE_HASH,
        columns.SDS_IDS.describe("known SDS ids of its segments", f'["{columns.AN_ID}", "{columns.ANOTHER_ID}"]'),
        Column("verdict", "STRING", "delivered, missing or unknown", example="missing"),
        Column(
            "cause",
            "STRING",
            "cause of the verdict, null if none is known: never_sent, rate_limited, propagated_not_stored,"
            " segment_missing, undecodable, undecryptable, refused, dependency_missing, late, hash_mismatch,"
            " source_gap, unsettled, before_observation, not_followed, claimed_by_one",
            example="segment_missing",
        ),
        columns.DETAIL.describe(
            "how many segments arrived, which evidence would show the cause, and which nodes' logs have it; null if"
            " delivered",
            "2 of 3 needed segments arrived",
        ),
        Column(
            "data_missing",
            "ARRAY<INT>",
            "indices of the missing data segments; null if unknown, or delivered",
            example="[1]",
        ),
        Column(
            "acknowledged_by",
            "ARRAY<STRING>",
            "participants that acknowledged k of its segments, so can rebuild it, and do not report it lost",
            example='["bob", "frank"]',
        ),
        columns.FIRST_SEEN.describe("time of its first evidence: event time, or its sender's clock"),
        Column("delivered_at", "TIMESTAMP", "event time of the delivery", example="2026-01-01T00:01:12.455Z"),
        Column(
            "settled", "BOOLEAN", "delivered, or the settle delay has passed; if false, judged again", example="true"
        ),
        Column(
            "lost_by",
            "ARRAY<STRING>",
            "participants that report that they gave it up; this outranks their acknowledgements",
            example='["carol"]',
        ),
    ),
    (*columns.CHANNEL_KEY, "message_key"),
    z_order_by=("content_topic", "as_of"),
    retention_ms=365 * DAY_MS,
    retention_column="as_of",
)
