"""The one place that says which Delta tables exist: columns, units, keys, clustering, retention, and who writes them.

Values only; :mod:`reliable_channel.pipeline.ddl` creates them, ``reliable-channel tables docs`` prints them as
``docs/tables.md``. Times are Spark ``TIMESTAMP`` (µs, UTC) unless the name says ``_ns`` or ``_ms``; hashes are bytes.
Deletion vectors stay off, so that plain readers (delta-rs, DuckDB, Polars) read every table (design.md *Decisions*).
"""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 24 * 3600 * 1000

HISTORY_TYPE = "ARRAY<STRUCT<sds_id: STRING, retrieval_hint: BINARY, sender_id: STRING>>"
"""The type of a causal history and of a repair request: SDS ``HistoryEntry`` (protocol.md §4)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, Spark SQL type, what it means, the unit where there is one, and a value as an example.

    ``example`` is text in the form of the reference (docs): binary as ``0x`` hex, times as ISO 8601 in UTC, arrays and
    structs as JSON; a test holds that it fits type and unit."""

    name: str
    type: str
    meaning: str
    nullable: bool = True
    unit: str = ""
    example: str = ""

    @property
    def comment(self) -> str:
        """The column's comment in Delta's own schema: the meaning, with the unit."""
        return f"{self.meaning} ({self.unit})" if self.unit else self.meaning


@dataclass(frozen=True, slots=True)
class Table:
    """One Delta table. ``key`` are the columns that are unique; ``retention_ms`` is ``None`` where rows are kept."""

    name: str
    comment: str
    writer: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    retention_ms: int | None = None
    retention_column: str = "event_time"

    def ddl(self) -> str:
        """The columns as a Spark DDL string, for ``StructType.fromDDL`` and the schemas of UDFs."""
        return ", ".join(f"`{c.name}` {c.type}" for c in self.columns)

    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(c.name for c in self.columns)


# What the examples have in common, so that they tell one story.
_A_PAST_ID = "07608298401adebbfd9f35fbe8109edfd0ab855fccef8de10de6d1cf08ed03c0"
_AN_ID = "91882f16cd97414b6cfa0cb6875b4b27f64450c4b4a3a5b646eaac3927cb359e"
_ANOTHER_ID = "e98b7ce50f56e24c2a31cf6dcb4af3a9057bc7fd15e39075b670023f77a86527"
_A_HASH = "0x3f0f097a844c44dc4a2e2e2bd8d8b286855f00d0cdeb5770121d92f5ddc65755"
_AN_ENVELOPE = "0xe2f4528bdd9b3a1f0d6c7e5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"
_AN_ENTRY = f'[{{"sds_id": "{_A_PAST_ID}", "retrieval_hint": "{_AN_ENVELOPE}", "sender_id": "bob"}}]'

_COORDINATES = (
    Column("kafka_topic", "STRING", "Kafka topic of the record", nullable=False, example="waku.envelopes"),
    Column("kafka_partition", "INT", "Kafka partition of the record", nullable=False, example="0"),
    Column("kafka_offset", "BIGINT", "Kafka offset of the record", nullable=False, example="326"),
)
_CHANNEL = (
    Column("pubsub_topic", "STRING", "Waku pubsub topic; first part of the channel key", example="/waku/2/rs/1/0"),
    Column(
        "content_topic",
        "STRING",
        "Waku content topic; second part of the channel key",
        example="/reliable-channel/1/chat/proto",
    ),
    Column("channel_id", "STRING", "SDS channel id, the sender's word; third part of the channel key", example="talk"),
)
_EVENT_TIME = Column(
    "event_time",
    "TIMESTAMP",
    "min(Kafka record time, ingest clock + max_clock_skew), as a running maximum of its Kafka partition",
    example="2026-01-01T00:01:12.455Z",
)
_RECORD_TIME = Column(
    "record_time",
    "TIMESTAMP",
    "Kafka record time: LogAppendTime in production, else a claim",
    example="2026-01-01T00:01:12.455Z",
)
_SOURCE = Column("source", "STRING", "how it reached us: relay, filter, store, repair or sender", example="relay")
_SENDER = Column("sender_id", "STRING", "SDS sender id", example="alice")
_SDS_ID = Column(
    "sds_id",
    "STRING",
    "SDS message id, opaque",
    example=_AN_ID,
)
_LAMPORT = Column(
    "lamport_timestamp", "BIGINT", "Lamport timestamp of the SDS message", unit="ms since 1970", example="1767226185235"
)
_ENVELOPE_HASH = Column(
    "envelope_hash",
    "BINARY",
    "Waku message hash of the envelope",
    unit="32 bytes",
    example=_AN_ENVELOPE,
)
_ENTIRE_HASH = Column(
    "entire_message_hash",
    "BINARY",
    "Keccak-256 of the whole payload",
    unit="32 bytes",
    example=_A_HASH,
)
_DATA_COUNT = Column("data_count", "INT", "data segments of the message (k); null where not said", example="3")
_PARITY_COUNT = Column("parity_count", "INT", "parity segments of the message (m); null where not said", example="1")
_WRITTEN_AT = Column(
    "written_at",
    "TIMESTAMP",
    "wall clock of the micro-batch that wrote the row; not stable in a rebuild",
    example="2026-11-21T14:26:26.834148Z",
)

_SDS_METADATA = (
    _SENDER,
    _SDS_ID,
    Column(
        "sds_kind",
        "STRING",
        "content, sync, ephemeral; tick for a row of the recorded clock (no SDS message)",
        example="content",
    ),
    _LAMPORT,
    Column(
        "causal_history",
        HISTORY_TYPE,
        "ids this message depends on, with retrieval hints",
        example=_AN_ENTRY,
    ),
    Column("bloom_filter", "BINARY", "the filter's bytes as on the wire", example="0x00000040000000000000100000000000"),
    Column(
        "repair_request",
        HISTORY_TYPE,
        "ids whose rebroadcast the sender asks for (SDS-R)",
        example=_AN_ENTRY,
    ),
    Column(
        "content_digest",
        "BINARY",
        "SHA-256 of the SDS content",
        unit="32 bytes",
        example="0x3e7b18acce28ce5bc3bb86640240efc417bd4cf87a9d086ec33ceab46927a22b",
    ),
    Column("content_bytes", "INT", "size of the SDS content", unit="bytes", example="2155"),
    _ENVELOPE_HASH,
    Column(
        "sender_timestamp_ns",
        "BIGINT",
        "timestamp of the envelope, the sender's word",
        unit="ns since 1970",
        example="1767226190235000000",
    ),
    Column("segment_kind", "STRING", "bare, data or parity; null without content", example="data"),
    _ENTIRE_HASH,
    Column("segment_index", "INT", "index among the data segments, or among the parity segments", example="1"),
    _DATA_COUNT,
    _PARITY_COUNT,
)

ENVELOPES = Table(
    "envelopes",
    "Every record that is a Waku envelope: raw bytes, message hash, Kafka coordinates. Plain Waku traffic stays here.",
    "jobs/ingest.py",
    (
        *_COORDINATES,
        _RECORD_TIME,
        _EVENT_TIME,
        Column(
            "ingest_time",
            "TIMESTAMP",
            "clock of the ingest micro-batch, the same when it is replayed",
            example="2026-11-21T14:25:47.730Z",
        ),
        _SOURCE,
        Column("pubsub_topic", "STRING", "Waku pubsub topic, from the Kafka header", example="/waku/2/rs/1/0"),
        Column(
            "content_topic", "STRING", "Waku content topic, from the envelope", example="/reliable-channel/1/chat/proto"
        ),
        Column(
            "message_hash",
            "BINARY",
            "Waku message hash (14/WAKU2-MESSAGE)",
            unit="32 bytes",
            example=_AN_ENVELOPE,
        ),
        Column("value", "BINARY", "the WakuMessage as received", example="0x0a9e95010a03626f62"),
        Column("value_bytes", "INT", "size of the WakuMessage", unit="bytes", example="19174"),
        Column(
            "sender_timestamp_ns",
            "BIGINT",
            "timestamp of the envelope, the sender's word",
            unit="ns since 1970",
            example="1767226190235000000",
        ),
        Column("ephemeral", "BOOLEAN", "the envelope says that stores need not keep it", example="false"),
        Column(
            "kind",
            "STRING",
            "sds: a row of segments; plain: other traffic; quarantined: a row of quarantine",
            example="sds",
        ),
    ),
    ("kafka_topic", "kafka_partition", "kafka_offset"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
)

SEGMENTS = Table(
    "segments",
    "One row per SDS message, decoded and validated; and the ticks of the recorded clock (sds_kind = 'tick') at their"
    " place in the record order.",
    "jobs/ingest.py",
    (
        *_COORDINATES,
        _EVENT_TIME,
        Column(
            "ingest_time",
            "TIMESTAMP",
            "clock of the ingest micro-batch, the same when it is replayed",
            example="2026-11-21T14:25:47.730Z",
        ),
        _SOURCE,
        *_CHANNEL,
        *_SDS_METADATA,
        Column(
            "content",
            "BINARY",
            "SDS content: a bare payload or an encoded segment; null unless plaintext is stored",
            example="0x7573206167656e206f7665723f",
        ),
        Column(
            "segment_dialect", "STRING", "wire dialect of the segment: v0.1, lip243 or lip243-length", example="v0.1"
        ),
        Column(
            "sealed",
            "BOOLEAN",
            "content is null because only hashes and sizes are kept; envelopes has the ciphertext",
            example="false",
        ),
    ),
    ("kafka_topic", "kafka_partition", "kafka_offset"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
)

QUARANTINE = Table(
    "quarantine",
    "What could not be decoded or was refused, with reason and bytes (docs/quarantine.md).",
    "jobs/ingest.py",
    (
        *_COORDINATES,
        _RECORD_TIME,
        _EVENT_TIME,
        Column(
            "ingest_time",
            "TIMESTAMP",
            "clock of the ingest micro-batch, the same when it is replayed",
            example="2026-11-21T14:25:47.730Z",
        ),
        Column(
            "stage",
            "STRING",
            "where it failed: record, envelope, decryption, sds, segment or quota",
            example="envelope",
        ),
        Column("reason", "STRING", "from the fixed list in docs/quarantine.md", example="malformed_envelope"),
        Column(
            "detail",
            "STRING",
            "more, for people; never holds payload bytes",
            example="Error parsing message with type 'waku.message.v1.WakuMessage': Wire format was corrupt",
        ),
        Column(
            "disposition",
            "STRING",
            "dropped; kept: it is used as a bare payload all the same; requeued: decoded after all",
            example="dropped",
        ),
        _SOURCE,
        Column("pubsub_topic", "STRING", "Waku pubsub topic, where the header could be read", example="/waku/2/rs/1/0"),
        Column(
            "content_topic",
            "STRING",
            "Waku content topic, where the envelope could be read",
            example="/reliable-channel/1/chat/proto",
        ),
        Column(
            "message_hash",
            "BINARY",
            "Waku message hash, where the envelope could be read",
            unit="32 bytes",
            example=_AN_ENVELOPE,
        ),
        Column(
            "raw",
            "BINARY",
            "the record's value, at most pipeline.quarantine_raw_bytes of it",
            example="0x0aeea8010a05686569646912",
        ),
        Column("raw_bytes", "INT", "size of the record's value; null for a null value", unit="bytes", example="10843"),
        Column(
            "raw_digest",
            "BINARY",
            "SHA-256 of the record's whole value",
            unit="32 bytes",
            example="0x21920029b91c672b535716df3890e1a99266bba7370056bd193f1606aa58c7cd",
        ),
    ),
    ("kafka_topic", "kafka_partition", "kafka_offset", "reason"),
    cluster_by=("reason", "event_time"),
    retention_ms=90 * DAY_MS,
)

SOURCE_GAPS = Table(
    "source_gaps",
    "What was never seen: Kafka offsets lost to retention or deleted, and times at which the bridge did not listen.",
    "jobs/ingest.py, jobs/evidence.py",
    (
        Column("kafka_topic", "STRING", "Kafka topic", nullable=False, example="waku.envelopes"),
        Column("kafka_partition", "INT", "Kafka partition; -1 for a gap of the bridge", nullable=False, example="0"),
        Column(
            "first_offset",
            "BIGINT",
            "first missing offset; of a bridge gap its record's",
            nullable=False,
            example="318",
        ),
        Column("last_offset", "BIGINT", "last missing offset, inclusive", nullable=False, example="320"),
        Column(
            "cause",
            "STRING",
            "offset_jump (ingest) or bridge_restart (the bridge was not listening)",
            example="offset_jump",
        ),
        Column("name", "STRING", "what names the gap; its last row counts", example="waku.envelopes/0/318"),
        Column(
            "status",
            "STRING",
            "open; the bridge's also filled (ephemeral messages stay lost) or unfilled",
            example="open",
        ),
        Column(
            "from_time",
            "TIMESTAMP",
            "event time of the last record before the gap; null when there is none",
            example="2026-01-01T00:04:55.756Z",
        ),
        Column(
            "to_time", "TIMESTAMP", "event time of the first record after the gap", example="2026-01-01T00:04:58.101Z"
        ),
        Column("ingest_time", "TIMESTAMP", "clock of the micro-batch that saw it", example="2026-11-21T14:25:47.730Z"),
    ),
    ("kafka_topic", "kafka_partition", "first_offset"),
    retention_ms=365 * DAY_MS,
    retention_column="ingest_time",
)

SDS_INPUT = Table(
    "sds_input",
    "What the ack job reads, in record order (kafka_partition, kafka_offset, sub_order): the metadata of every SDS"
    " message, and right after the record that completed a set its repaired and completed rows.",
    "jobs/reassembly.py",
    (
        *_COORDINATES,
        Column(
            "sub_order", "INT", "0: the record itself; repaired rows from 1; the completed row after them", example="0"
        ),
        Column("row_kind", "STRING", "message, repaired, completed, or tick (the recorded clock)", example="message"),
        _EVENT_TIME,
        _SOURCE,
        *_CHANNEL,
        *_SDS_METADATA,
        Column(
            "repaired_by",
            "STRING",
            "repaired rows: parity, or message (encoded again from the complete payload)",
            example="parity",
        ),
        Column(
            "id_scheme",
            "STRING",
            "repaired rows: how the id was recomputed, keccak or sha256 (protocol.md §4)",
            example="keccak",
        ),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "completed rows: SDS ids of the set, data then parity; null where unknown",
            example=f'["{_AN_ID}", null, "{_ANOTHER_ID}"]',
        ),
        Column("payload_bytes", "BIGINT", "completed rows: size of the payload", unit="bytes", example="300000"),
        Column(
            "first_lamport_timestamp",
            "BIGINT",
            "completed rows: Lamport timestamp of the first segment as sent",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column(
            "position_exact",
            "BOOLEAN",
            "completed rows: the first segment was seen, or its id recomputed",
            example="true",
        ),
    ),
    ("kafka_topic", "kafka_partition", "kafka_offset", "sub_order"),
    retention_ms=7 * DAY_MS,
)

MESSAGES = Table(
    "messages",
    "Payloads rebuilt from segments; their Keccak-256 was verified. (Bare payloads stand in segments.)",
    "jobs/reassembly.py",
    (
        *_COORDINATES,
        Column(
            "event_time",
            "TIMESTAMP",
            "event time of the record that completed the set",
            example="2026-01-01T00:01:12.455Z",
        ),
        *_CHANNEL,
        _SENDER,
        _ENTIRE_HASH,
        Column(
            "first_sds_id",
            "STRING",
            "SDS id of the first segment as sent, or of the first one held",
            example=_AN_ID,
        ),
        Column(
            "first_lamport_timestamp",
            "BIGINT",
            "Lamport timestamp of the first segment as sent",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column("position_exact", "BOOLEAN", "the first segment was seen, or its id recomputed", example="true"),
        Column("payload", "BINARY", "the payload; null unless plaintext is stored", example="0x68656c6c6f20426f62"),
        Column("payload_bytes", "BIGINT", "size of the payload", unit="bytes", example="300000"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("data_received", "INT", "data segments held when it was rebuilt", example="2"),
        Column("parity_received", "INT", "parity segments held when it was rebuilt", example="1"),
        Column("repaired", "ARRAY<INT>", "indices of the data segments that parity rebuilt", example="[1]"),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "SDS ids of the set, data then parity; null where unknown",
            example=f'["{_AN_ID}", null, "{_ANOTHER_ID}"]',
        ),
        Column("segment_dialect", "STRING", "wire dialect of the segments", example="v0.1"),
        Column(
            "first_seen", "TIMESTAMP", "event time of the first segment of the set", example="2026-01-01T00:00:56.928Z"
        ),
        Column(
            "send",
            "INT",
            "number of this send of the payload by its sender, from 0, while earlier ones are remembered",
            example="0",
        ),
        Column(
            "one_send",
            "BOOLEAN",
            "two or more segments came and agree on the Lamport timestamp of the first; else they may be of two sends",
            example="true",
        ),
    ),
    ("kafka_topic", "kafka_partition", "kafka_offset"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=30 * DAY_MS,
)

INCOMPLETE_MESSAGES = Table(
    "incomplete_messages",
    "Sets of segments that expired, and what they lack.",
    "jobs/reassembly.py",
    (
        *_CHANNEL,
        _SENDER,
        _ENTIRE_HASH,
        Column(
            "event_time",
            "TIMESTAMP",
            "when it was given up: the time its expiry was due",
            example="2026-01-01T00:09:03.285Z",
        ),
        Column(
            "reason",
            "STRING",
            "expired, hash_mismatch, over_limit, or another reason of the reassembler",
            example="expired",
        ),
        Column(
            "detail",
            "STRING",
            "more, for people; never holds payload bytes",
            example="Keccak-256 of the rebuilt payload differs",
        ),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("data_held", "ARRAY<INT>", "indices of the data segments held", example="[0, 2]"),
        Column("parity_held", "ARRAY<INT>", "indices of the parity segments held", example="[0]"),
        Column(
            "data_missing",
            "ARRAY<INT>",
            "indices of the data segments that are missing; null when k is unknown",
            example="[1]",
        ),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "SDS ids of the segments held",
            example=f'["{_AN_ID}", "{_ANOTHER_ID}"]',
        ),
        Column("first_seen", "TIMESTAMP", "event time of the first segment held", example="2026-01-01T00:00:56.928Z"),
        Column("last_seen", "TIMESTAMP", "event time of the last segment held", example="2026-01-01T00:04:03.285Z"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sender_id", "entire_message_hash", "event_time"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)

DELIVERIES = Table(
    "deliveries",
    "What SDS delivered at this observer, in causal order: every segment (row_kind 'segment'), and every application"
    " message once enough of its segments were delivered (row_kind 'message'; a bare payload is both and stands once).",
    "jobs/ack.py",
    (
        *_CHANNEL,
        Column("row_seq", "BIGINT", "running number of the row in this channel, from 1", example="109"),
        Column("row_kind", "STRING", "segment, or message", example="message"),
        Column(
            "delivery_seq",
            "BIGINT",
            "message rows: running number of the message in this channel, from 1",
            example="110",
        ),
        Column("event_time", "TIMESTAMP", "when it was delivered, in event time", example="2026-01-01T00:01:12.455Z"),
        _SENDER,
        _SDS_ID,
        _LAMPORT,
        Column("sds_kind", "STRING", "content or ephemeral", example="content"),
        Column(
            "segment_kind",
            "STRING",
            "bare, data or parity; null on the message row of a segmented message",
            example="data",
        ),
        _ENTIRE_HASH,
        Column("segment_index", "INT", "index among the data segments, or among the parity segments", example="1"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column(
            "first_sds_id",
            "STRING",
            "message rows: SDS id of the first segment as sent, or of the first one held",
            example=_AN_ID,
        ),
        Column(
            "first_lamport_timestamp",
            "BIGINT",
            "message rows: Lamport timestamp of the first segment as sent",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column(
            "position_exact",
            "BOOLEAN",
            "message rows: the first segment was seen, or its id recomputed",
            example="true",
        ),
        Column("kafka_topic", "STRING", "Kafka topic of the record it came with", example="waku.envelopes"),
        Column("kafka_partition", "INT", "Kafka partition of the record that brought it, or completed it", example="0"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record", example="326"),
        Column(
            "first_seen",
            "TIMESTAMP",
            "event time of that record; of the first segment for a segmented message",
            example="2026-01-01T00:00:56.928Z",
        ),
        Column("payload_bytes", "BIGINT", "message rows: size of the payload", unit="bytes", example="300000"),
        Column(
            "sender_timestamp_ns",
            "BIGINT",
            "timestamp of the envelope, the sender's word",
            unit="ns since 1970",
            example="1767226190235000000",
        ),
        Column(
            "repaired_by",
            "STRING",
            "parity or message when the segment was not received but rebuilt; else null",
            example="parity",
        ),
        Column("repaired_segments", "INT", "message rows: how many of its segments were rebuilt", example="1"),
        Column("late", "BOOLEAN", "it came after it had been declared irretrievably lost", example="false"),
        Column(
            "lost_dependencies",
            "ARRAY<STRING>",
            "SDS ids declared lost that it depends on",
            example=f'["{_A_PAST_ID}"]',
        ),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "row_seq"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)

ACKS = Table(
    "acks",
    "Who acknowledged which SDS message, on which evidence, how late. One row when the evidence first appears and one"
    " for each stronger evidence.",
    "jobs/ack.py",
    (
        *_CHANNEL,
        _SDS_ID,
        Column("sender_id", "STRING", "sender of the acknowledged message", example="alice"),
        Column("acknowledged_by", "STRING", "the participant who acknowledges; never the sender", example="frank"),
        Column(
            "evidence",
            "STRING",
            "causal_history, causal_past (of one that is named: implied), or filter",
            example="causal_history",
        ),
        Column(
            "certainty",
            "STRING",
            "certain, or probable (in the filters of enough different messages)",
            example="certain",
        ),
        Column(
            "evidence_sds_id",
            "STRING",
            "SDS id of the message that carried the evidence",
            example=_ANOTHER_ID,
        ),
        _ENTIRE_HASH,
        Column(
            "event_time", "TIMESTAMP", "when the evidence arrived, in event time", example="2026-01-01T00:01:12.455Z"
        ),
        Column(
            "latency_ms",
            "BIGINT",
            "from the first sight of the message to this evidence, event time",
            unit="ms",
            example="15527",
        ),
        Column(
            "copies", "INT", "copies of the message seen until then; more than one are retransmissions", example="1"
        ),
        Column("kafka_partition", "INT", "Kafka partition of the record that carried the evidence", example="0"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record", example="326"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sds_id", "acknowledged_by", "evidence", "evidence_sds_id"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=90 * DAY_MS,
)

REFETCH_REQUESTS = Table(
    "refetch_requests",
    "Missing dependencies to ask store nodes for, one row per attempt.",
    "jobs/ack.py",
    (
        *_CHANNEL,
        _SDS_ID,
        Column("sender_id", "STRING", "sender of the missing message, where the history says it", example="alice"),
        Column(
            "retrieval_hint",
            "BINARY",
            "Waku message hash to ask for; null where none is known",
            unit="32 bytes",
            example=_AN_ENVELOPE,
        ),
        Column("attempt", "INT", "number of the attempt, from 1", example="1"),
        Column(
            "needed_by",
            "STRING",
            "SDS id of a message that waits for it",
            example=_ANOTHER_ID,
        ),
        Column(
            "event_time", "TIMESTAMP", "when the attempt was due, in event time", example="2026-01-01T00:01:12.455Z"
        ),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sds_id", "attempt"),
    retention_ms=30 * DAY_MS,
)

LOST_DEPENDENCIES = Table(
    "lost_dependencies",
    "Dependencies that are not here: declared irretrievably lost, or older than the observation of their channel.",
    "jobs/ack.py",
    (
        *_CHANNEL,
        _SDS_ID,
        Column("sender_id", "STRING", "sender of the missing message, where the history says it", example="alice"),
        Column(
            "retrieval_hint",
            "BINARY",
            "Waku message hash; null where none is known",
            unit="32 bytes",
            example=_AN_ENVELOPE,
        ),
        Column("status", "STRING", "lost, before_observation, or recovered (it came late after all)", example="lost"),
        Column(
            "needed_by",
            "STRING",
            "SDS id of a message that depends on it",
            example=_ANOTHER_ID,
        ),
        Column(
            "missing_since", "TIMESTAMP", "when it was first missed, in event time", example="2026-01-01T00:04:03.144Z"
        ),
        Column(
            "event_time", "TIMESTAMP", "when the status was reached, in event time", example="2026-01-01T00:01:12.455Z"
        ),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sds_id", "status"),
    retention_ms=90 * DAY_MS,
)

REPAIR_REQUESTS = Table(
    "repair_requests",
    "Who asked the channel for which message (SDS-R): evidence that somebody lacks it.",
    "jobs/ack.py",
    (
        *_CHANNEL,
        _SDS_ID,
        Column("sender_id", "STRING", "sender of the wanted message, where the request says it", example="alice"),
        Column("requested_by", "STRING", "the participant who asks", example="carol"),
        Column(
            "request_sds_id",
            "STRING",
            "SDS id of the message that carried the request",
            example=_ANOTHER_ID,
        ),
        Column("held_here", "BOOLEAN", "the message had been seen here when the request came", example="false"),
        Column(
            "event_time", "TIMESTAMP", "when the request arrived, in event time", example="2026-01-01T00:01:12.455Z"
        ),
        Column("kafka_partition", "INT", "Kafka partition of the record that carried the request", example="0"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record", example="326"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sds_id", "requested_by", "request_sds_id"),
    retention_ms=30 * DAY_MS,
)

CHANNEL_EVENTS = Table(
    "channel_events",
    "What else a channel has to say, so that nothing is lost silently: conflicts, saturated filters, bounds reached.",
    "jobs/ack.py, jobs/reassembly.py",
    (
        *_CHANNEL,
        Column("event", "STRING", "name of the event, of SDS or of reassembly", example="saturated_filter"),
        _SDS_ID,
        _SENDER,
        Column(
            "detail",
            "STRING",
            "more, for people; never holds payload bytes",
            example="0.731 of the bits are set",
        ),
        Column("event_time", "TIMESTAMP", "when it happened, in event time", example="2026-01-01T00:01:12.455Z"),
        Column("kafka_partition", "INT", "Kafka partition of the record that caused it; null for a timer", example="0"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record", example="326"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "event", "sds_id", "event_time"),
    retention_ms=30 * DAY_MS,
)

DELIVERED_MESSAGES = Table(
    "delivered_messages",
    "What an application here would have seen: payload, sender, causal position, times.",
    "jobs/deliver.py",
    (
        *_CHANNEL,
        Column(
            "delivery_seq",
            "BIGINT",
            "running number of the message in this channel at this observer, from 1",
            example="110",
        ),
        Column("event_time", "TIMESTAMP", "when it was delivered, in event time", example="2026-01-01T00:01:12.455Z"),
        _SENDER,
        _ENTIRE_HASH,
        Column(
            "causal_lamport",
            "BIGINT",
            "causal position, first part: Lamport timestamp of the first segment",
            unit="ms since 1970",
            example="1767226185235",
        ),
        Column(
            "causal_sds_id",
            "STRING",
            "causal position, second part: SDS id of the first segment",
            example=_AN_ID,
        ),
        Column("position_exact", "BOOLEAN", "the first segment was seen, or its id recomputed", example="true"),
        Column("payload", "BINARY", "the payload; null unless plaintext is stored", example="0x68656c6c6f20426f62"),
        Column("payload_bytes", "BIGINT", "size of the payload", unit="bytes", example="300000"),
        Column("ephemeral", "BOOLEAN", "sent as an ephemeral message", example="false"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("repaired_segments", "INT", "how many of its segments were rebuilt", example="1"),
        Column("late", "BOOLEAN", "it came after it had been declared irretrievably lost", example="false"),
        Column(
            "lost_dependencies",
            "ARRAY<STRING>",
            "SDS ids declared lost that it depends on",
            example=f'["{_A_PAST_ID}"]',
        ),
        Column(
            "sender_timestamp_ns",
            "BIGINT",
            "timestamp of its envelope, the sender's word",
            unit="ns since 1970",
            example="1767226190235000000",
        ),
        Column("first_seen", "TIMESTAMP", "event time of its first segment here", example="2026-01-01T00:00:56.928Z"),
        Column("kafka_partition", "INT", "Kafka partition of the record that brought or completed it", example="0"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record", example="326"),
        _WRITTEN_AT,
    ),
    ("pubsub_topic", "content_topic", "channel_id", "delivery_seq"),
    cluster_by=("content_topic", "event_time"),
    retention_ms=365 * DAY_MS,
)

CLOCK = Table(
    "clock",
    "The recorded clock: per ingest micro-batch and Kafka partition how far it read, and the ticks that move silent"
    " keys.",
    "jobs/ingest.py",
    (
        Column("kafka_topic", "STRING", "Kafka topic", nullable=False, example="waku.envelopes"),
        Column("kafka_partition", "INT", "Kafka partition", nullable=False, example="0"),
        Column(
            "query_id",
            "STRING",
            "id of the ingest query (its checkpoint)",
            nullable=False,
            example="7cab319c-c9fc-41f1-8a4d-4d9c7d6f60d4",
        ),
        Column("batch_id", "BIGINT", "micro-batch, or the last one before an idle tick", nullable=False, example="17"),
        Column("kind", "STRING", "batch, idle (wall clock) or closing (the end of a back-fill)", example="batch"),
        Column(
            "event_time",
            "TIMESTAMP",
            "largest event time so far; later records are not before it",
            example="2026-01-01T00:01:12.455Z",
        ),
        Column("next_offset", "BIGINT", "the offset that comes next", example="643"),
        Column("recorded_at", "TIMESTAMP", "wall clock", example="2026-11-21T14:26:26.834148Z"),
    ),
    ("kafka_topic", "kafka_partition", "query_id", "batch_id", "kind", "event_time"),
    retention_ms=7 * DAY_MS,
    retention_column="recorded_at",
)

OPEN_KEYS = Table(
    "open_keys",
    "Keys of stateful jobs with a timer: a log of changes, the last one of a key counts.",
    "jobs/reassembly.py, jobs/ack.py",
    (
        Column("job", "STRING", "reassembly or ack", nullable=False, example="reassembly"),
        Column(
            "query_id",
            "STRING",
            "id of the job's query (its checkpoint)",
            nullable=False,
            example="cd4ec860-ba3f-478f-ae9d-22fc6ee78c37",
        ),
        Column("batch_id", "BIGINT", "micro-batch of the change", nullable=False, example="17"),
        Column(
            "key",
            "STRING",
            "hex of the hash (reassembly), JSON of the channel key (ack)",
            nullable=False,
            example=_A_HASH[2:],
        ),
        Column(
            "due",
            "TIMESTAMP",
            "when its next timer is due; null when the key is closed",
            example="2026-01-01T00:13:03.190Z",
        ),
        Column("kafka_topic", "STRING", "Kafka topic its rows come in", example="waku.envelopes"),
        Column("kafka_partition", "INT", "Kafka partition its rows come in", example="0"),
    ),
    ("job", "query_id", "batch_id", "key"),
    partition_by=("job",),
)

SENDER_EVENTS = Table(
    "sender_events",
    "The sender's own records: what it took, dispatched, held back or dropped.",
    "jobs/evidence.py",
    (
        *_CHANNEL,
        _SENDER,
        _SDS_ID,
        _ENTIRE_HASH,
        Column("event", "STRING", "queued, sent, rate_limited, dropped or failed", example="rate_limited"),
        Column(
            "envelope_hash",
            "BINARY",
            "Waku message hash of the dispatched envelope; null if none",
            unit="32 bytes",
            example=_AN_ENVELOPE,
        ),
        Column("detail", "STRING", "more, for people", example="epoch quota is used up"),
        Column("event_time", "TIMESTAMP", "when, by the sender's clock", example="2026-01-01T00:01:12.455Z"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sender_id", "sds_id", "event", "event_time"),
    retention_ms=30 * DAY_MS,
)

STORE_PRESENCE = Table(
    "store_presence",
    "Which store node had which envelope when asked: refetches, and a sampled audit of hashes that were seen.",
    "jobs/refetch.py",
    (
        Column(
            "node",
            "STRING",
            "address of the store node, without credentials",
            nullable=False,
            example="http://127.0.0.1:8645",
        ),
        Column(
            "message_hash",
            "BINARY",
            "Waku message hash that was asked for",
            unit="32 bytes",
            example=_AN_ENVELOPE,
        ),
        Column("pubsub_topic", "STRING", "Waku pubsub topic", example="/waku/2/rs/1/0"),
        Column("content_topic", "STRING", "Waku content topic", example="/reliable-channel/1/chat/proto"),
        Column("channel_id", "STRING", "SDS channel id, where known", example="talk"),
        Column(
            "sds_id",
            "STRING",
            "SDS message id, where known",
            example=_AN_ID,
        ),
        Column("attempt", "INT", "refetch: which attempt of the request it answers", example="1"),
        Column("outcome", "STRING", "present, absent, or error", example="present"),
        Column("purpose", "STRING", "refetch, gap or audit", example="refetch"),
        Column(
            "detail",
            "STRING",
            "gap: its topic, partition and first offset; else why it failed",
            example="unreachable",
        ),
        Column("asked_at", "TIMESTAMP", "wall clock of the question", example="2026-11-21T14:26:26.834148Z"),
    ),
    ("node", "message_hash", "asked_at"),
    retention_ms=30 * DAY_MS,
    retention_column="asked_at",
)

SENT_ROWS = Table(
    "sent_rows",
    "Which row of a table of outgoing messages became which segments; joined with acks: who has acknowledged it.",
    "jobs/send.py",
    (
        Column("row_id", "STRING", "the row's own id: the label of its send", nullable=False, example="order-4711"),
        Column("send_id", "STRING", "the ReliableSendId: the SDS id of the first segment", example=_AN_ID),
        *_CHANNEL,
        Column("sender_id", "STRING", "the participant who sent it", example="alice"),
        Column("required", "INT", "how many of the segments rebuild the message", example="1"),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "SDS ids of the segments, data then parity",
            example=f'["{_AN_ID}", "{_ANOTHER_ID}"]',
        ),
        Column("recorded_at", "TIMESTAMP", "wall clock of the note", example="2026-11-21T14:26:26.834148Z"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sender_id", "row_id"),
    retention_ms=90 * DAY_MS,
    retention_column="recorded_at",
)

DELIVERY_STATUS = Table(
    "delivery_status",
    "Verdict and cause per message known to exist, as of a time; later verdicts replace earlier ones.",
    "jobs/verdict.py",
    (
        *_CHANNEL,
        Column(
            "message_key",
            "STRING",
            "hex of the payload's hash and first Lamport timestamp, or an SDS id alone",
            example=f"{_A_HASH[2:]}-1767226185235",
        ),
        Column(
            "as_of", "TIMESTAMP", "event time up to which the evidence was read", example="2026-01-01T01:13:13.539Z"
        ),
        _SENDER,
        _ENTIRE_HASH,
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "SDS ids known of it",
            example=f'["{_AN_ID}", "{_ANOTHER_ID}"]',
        ),
        Column("verdict", "STRING", "delivered, missing or unknown", example="missing"),
        Column(
            "cause",
            "STRING",
            "why it is missing or unknown: never_sent, rate_limited, propagated_not_stored, segment_missing,"
            " undecodable, undecryptable, dependency_missing, late, hash_mismatch, source_gap, unsettled,"
            " before_observation",
            example="segment_missing",
        ),
        Column("detail", "STRING", "what is missing, for people", example="2 of 3 needed segments came"),
        Column(
            "data_missing", "ARRAY<INT>", "indices of the data segments that are missing, where known", example="[1]"
        ),
        Column(
            "acknowledged_by",
            "ARRAY<STRING>",
            "participants who can rebuild it: any k of its segments acknowledged",
            example='["bob", "frank"]',
        ),
        Column("first_seen", "TIMESTAMP", "first trace of it here, in event time", example="2026-01-01T00:00:56.928Z"),
        Column("delivered_at", "TIMESTAMP", "when it was delivered, in event time", example="2026-01-01T00:01:12.455Z"),
        Column("settled", "BOOLEAN", "the settle delay has passed; else it is looked at again", example="true"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "message_key"),
    cluster_by=("content_topic", "as_of"),
    retention_ms=365 * DAY_MS,
    retention_column="as_of",
)

PIPELINE_METRICS = Table(
    "pipeline_metrics",
    "Progress of every streaming query, one row per metric and micro-batch.",
    "every job (listener)",
    (
        Column("query", "STRING", "name of the query", nullable=False, example="ingest"),
        Column(
            "query_id", "STRING", "id of the query (its checkpoint)", example="7cab319c-c9fc-41f1-8a4d-4d9c7d6f60d4"
        ),
        Column("run_id", "STRING", "id of this run of it", example="0f3f8a4e-2c56-4d0c-9f7e-6f2b9a1f5d11"),
        Column("batch_id", "BIGINT", "micro-batch", example="17"),
        Column("metric", "STRING", "name of the metric, with its unit", example="processed_rows_per_second"),
        Column("value", "DOUBLE", "value", example="2412.5"),
        Column("recorded_at", "TIMESTAMP", "wall clock", example="2026-11-21T14:26:26.834148Z"),
    ),
    ("query", "run_id", "batch_id", "metric"),
    retention_ms=30 * DAY_MS,
    retention_column="recorded_at",
)

ALERTS = Table(
    "alerts",
    "What somebody should look at, by the rules of conf/alerts.yaml: one row when an alert is raised, one when it is"
    " cleared. The last row of an alert and subject is its state.",
    "jobs/alerts.py",
    (
        Column("sequence", "BIGINT", "running number of the change, from 1", nullable=False, example="17"),
        Column("alert", "STRING", "name of the rule", nullable=False, example="loss_rate"),
        Column("kind", "STRING", "what the rule measures (docs/alerts.md)", example="loss_rate"),
        Column(
            "subject",
            "STRING",
            "what it is about: the channel key as JSON, a content topic, a query, or pipeline",
            example='["/waku/2/rs/1/0", "/reliable-channel/1/chat/proto", "talk"]',
        ),
        Column("state", "STRING", "raised or cleared", example="raised"),
        Column("severity", "STRING", "info, warning or critical", example="warning"),
        Column(
            "value",
            "DOUBLE",
            "what was measured, in the unit of the kind; null when there was nothing to measure",
            example="0.031",
        ),
        Column("threshold", "DOUBLE", "the rule's value above which it is raised, in the same unit", example="0.01"),
        Column(
            "detail",
            "STRING",
            "more, for people; in words of this program only",
            example="4 of 129 settled messages are missing",
        ),
        Column(
            "as_of",
            "TIMESTAMP",
            "recorded clock up to which the tables were read; null without one",
            example="2026-01-01T00:14:00Z",
        ),
        Column("recorded_at", "TIMESTAMP", "wall clock", example="2026-01-01T00:14:12Z"),
    ),
    ("sequence",),
    retention_ms=90 * DAY_MS,
    retention_column="recorded_at",
)

TABLES: tuple[Table, ...] = (
    ENVELOPES,
    SEGMENTS,
    QUARANTINE,
    SOURCE_GAPS,
    SDS_INPUT,
    MESSAGES,
    INCOMPLETE_MESSAGES,
    DELIVERIES,
    ACKS,
    REFETCH_REQUESTS,
    LOST_DEPENDENCIES,
    REPAIR_REQUESTS,
    CHANNEL_EVENTS,
    DELIVERED_MESSAGES,
    CLOCK,
    OPEN_KEYS,
    SENDER_EVENTS,
    STORE_PRESENCE,
    SENT_ROWS,
    DELIVERY_STATUS,
    PIPELINE_METRICS,
    ALERTS,
)
"""All tables, in the order of the data flow."""

BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}
