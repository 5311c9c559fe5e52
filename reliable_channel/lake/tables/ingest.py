"""The tables that ingest writes: the records as received, and the SDS messages decoded from them."""

from __future__ import annotations

from reliable_channel.lake.tables import columns
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

ENVELOPES = Table(
    "envelopes",
    "Every Kafka record that is a Waku envelope: raw bytes, message hash, Kafka coordinates. Plain Waku"
    " traffic is only here.",
    "jobs/ingest.py",
    (
        *columns.COORDINATES,
        columns.RECORD_TIME,
        columns.EVENT_TIME,
        columns.INGEST_TIME,
        columns.SOURCE,
        columns.PUBSUB_TOPIC.describe("Waku pubsub topic, from the Kafka header"),
        columns.CONTENT_TOPIC.describe("Waku content topic, from the envelope"),
        columns.MESSAGE_HASH.describe("Waku message hash (14/WAKU2-MESSAGE)"),
        Column("value", "BINARY", "WakuMessage as received, in protobuf", example="0x0a9e95010a03626f62"),
        Column("value_bytes", "INT", "size of the WakuMessage", unit="bytes", example="19174"),
        columns.SENDER_TIMESTAMP,
        Column("ephemeral", "BOOLEAN", "the envelope's flag that stores need not keep it", example="false"),
        Column(
            "kind",
            "STRING",
            "sds: also in sds_messages; plain: other traffic; quarantined: also in quarantine",
            example="sds",
        ),
    ),
    columns.RECORD_KEY,
    z_order_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
)

SDS_MESSAGES = Table(
    "sds_messages",
    "One row per SDS message, decoded and validated. For the jobs only, it also has rows of the recorded"
    " clock (sds_kind = 'tick') in record order.",
    "jobs/ingest.py",
    (
        *columns.COORDINATES,
        columns.EVENT_TIME,
        columns.INGEST_TIME,
        columns.SOURCE,
        *columns.CHANNEL,
        *columns.SDS_METADATA,
        Column(
            "content",
            "BINARY",
            "SDS content: a bare payload or an encoded segment; of an ephemeral message the payload, without the"
            " segment around it; if encrypted, the ciphertext",
            example="0x7573206167656e206f7665723f",
        ),
        Column(
            "segment_dialect",
            "STRING",
            "wire dialect: v0.1, lip243 or lip243-length; null without segment",
            example="v0.1",
        ),
        Column(
            "encrypted",
            "BOOLEAN",
            "content is ciphertext, because plaintext is not stored (store_plaintext of its content topic)",
            example="false",
        ),
        Column(
            "encryption_layer",
            "STRING",
            "what was encrypted: around_sds, the SDS message, or inside_sds, its content; null if nothing",
            example="around_sds",
        ),
        Column(
            "id_scheme",
            "STRING",
            "scheme by which the SDS id was recomputed: keccak, keccak_content, keccak_joined, sha256; null if by none",
            example="keccak",
        ),
    ),
    columns.RECORD_KEY,
    z_order_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
    clock_rows="sds_kind",
)

QUARANTINE = Table(
    "quarantine",
    "Quarantined records: undecodable, forbidden or suspicious ones, with reason and bytes (docs/quarantine.md).",
    "jobs/ingest.py",
    (
        *columns.COORDINATES,
        columns.RECORD_TIME,
        columns.EVENT_TIME,
        columns.INGEST_TIME,
        Column(
            "stage",
            "STRING",
            "step that failed: record, envelope, decryption, sds, segment or quota",
            example="envelope",
        ),
        Column("reason", "STRING", "reason code; docs/quarantine.md lists all", example="malformed_envelope"),
        columns.DETAIL.describe(
            columns.DETAIL.meaning,
            "Error parsing message with type 'waku.message.v1.WakuMessage': Wire format was corrupt",
        ),
        Column(
            "disposition",
            "STRING",
            "dropped; kept: still used as a bare payload; requeued: decoded later",
            example="dropped",
        ),
        columns.SOURCE,
        columns.PUBSUB_TOPIC.describe("Waku pubsub topic; null if the header is unreadable"),
        columns.CONTENT_TOPIC.describe("Waku content topic; null if the envelope is unreadable"),
        columns.MESSAGE_HASH.describe("Waku message hash; null if the envelope is unreadable"),
        Column(
            "raw",
            "BINARY",
            "first pipeline.quarantine_raw_bytes of the record's value",
            example="0x0aeea8010a05686569646912",
        ),
        Column("raw_bytes", "INT", "size of the record's value; null if it has none", unit="bytes", example="10843"),
        Column(
            "raw_digest",
            "BINARY",
            "SHA-256 of the record's whole value",
            unit="32 bytes",
            example="0x21920029b91c672b535716df3890e1a99266bba7370056bd193f1606aa58c7cd",
        ),
    ),
    (*columns.RECORD_KEY, "reason"),
    z_order_by=("reason", "event_time"),
    retention_ms=90 * DAY_MS,
)

SOURCE_GAPS = Table(
    "source_gaps",
    "Observation gaps: Kafka offsets lost to retention, deletion or compaction, and times when a bridge was not"
    " listening, or could not copy an envelope. The markers of transactions and aborted records are none.",
    "jobs/ingest.py, jobs/evidence.py",
    (
        columns.KAFKA_TOPIC,
        Column("kafka_partition", "INT", "Kafka partition; -1 for a bridge gap", nullable=False, example="0"),
        Column(
            "first_offset",
            "BIGINT",
            "first missing offset; of a bridge gap, that of its evidence record",
            nullable=False,
            example="318",
        ),
        Column("last_offset", "BIGINT", "last missing offset, inclusive", nullable=False, example="320"),
        Column(
            "cause",
            "STRING",
            "offset_jump: Kafka had deleted the offsets; compaction: records of a compacted topic may be among them;"
            " of a bridge: bridge_restart, bridge_suspended (its machine slept), node_unreachable, cache_full,"
            " resubscribed, too_large (an envelope for its Kafka topic)",
            example="offset_jump",
        ),
        Column(
            "name",
            "STRING",
            "name of the gap; of several rows with one name, the last counts",
            example="waku.envelopes/0/318",
        ),
        Column(
            "status",
            "STRING",
            "open; of a bridge also filled (except ephemeral messages) or unfilled (no store that can know). A filled"
            " gap counts as unfilled if a store lacks what another bridge saw in it (`sightings`)",
            example="open",
        ),
        Column(
            "from_time",
            "TIMESTAMP",
            "event time of the last record before the gap; in a partition that was not read before, the earliest one"
            " that the others had reached; null if there is none",
            example="2026-01-01T00:04:55.756Z",
        ),
        Column(
            "to_time", "TIMESTAMP", "event time of the first record after the gap", example="2026-01-01T00:04:58.101Z"
        ),
        columns.INGEST_TIME.describe("clock of the micro-batch or bridge that recorded it"),
        Column("attempts", "INT", "queries of the bridge to store nodes; null for offsets of Kafka", example="2"),
        Column("vantage", "STRING", "bridge that was not listening; null for offsets of Kafka", example="bridge"),
        Column(
            "pubsub_topics",
            "ARRAY<STRING>",
            "filled: the pubsub topics of which a store node returned everything, under message hashes; else null",
            example='["/waku/2/rs/1/0"]',
        ),
        Column(
            "content_topics",
            "ARRAY<STRING>",
            "of these, the content topics that it was queried for; null: all",
            example='["/reliable-channel/1/chat/proto"]',
        ),
    ),
    ("kafka_topic", "kafka_partition", "first_offset"),
    retention_ms=365 * DAY_MS,
    retention_column="ingest_time",
)


LATEST_SEND_TIME = """CASE WHEN lamport_timestamp BETWEEN 1000000000000 AND unix_millis(event_time)
    THEN timestamp_millis(lamport_timestamp) ELSE event_time END"""
"""SQL for the latest time at which the message of a row of ``sds_messages`` can have been sent.

A message from a store is observed late, and a Lamport timestamp in ms is not below the time of sending, but a sender
may set any value."""
