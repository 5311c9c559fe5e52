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
    """One column: name, Spark SQL type, and a comment that ends with the unit where there is one."""

    name: str
    type: str
    comment: str
    nullable: bool = True


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


_COORDINATES = (
    Column("kafka_topic", "STRING", "Kafka topic of the record", nullable=False),
    Column("kafka_partition", "INT", "Kafka partition of the record", nullable=False),
    Column("kafka_offset", "BIGINT", "Kafka offset of the record", nullable=False),
)
_CHANNEL = (
    Column("pubsub_topic", "STRING", "Waku pubsub topic; first part of the channel key"),
    Column("content_topic", "STRING", "Waku content topic; second part of the channel key"),
    Column("channel_id", "STRING", "SDS channel id, the sender's word; third part of the channel key"),
)
_EVENT_TIME = Column(
    "event_time",
    "TIMESTAMP",
    "min(Kafka record time, ingest clock + max_clock_skew), as a running maximum of its Kafka partition",
)
_RECORD_TIME = Column("record_time", "TIMESTAMP", "Kafka record time: LogAppendTime in production, else a claim")
_SOURCE = Column("source", "STRING", "how it reached us: relay, filter, store, repair or sender")
_SENDER = Column("sender_id", "STRING", "SDS sender id")
_SDS_ID = Column("sds_id", "STRING", "SDS message id, opaque")
_LAMPORT = Column("lamport_timestamp", "BIGINT", "Lamport timestamp of the SDS message, ms")
_ENVELOPE_HASH = Column("envelope_hash", "BINARY", "Waku message hash of the envelope, 32 bytes")
_ENTIRE_HASH = Column("entire_message_hash", "BINARY", "Keccak-256 of the whole payload, 32 bytes")
_DATA_COUNT = Column("data_count", "INT", "data segments of the message (k); null where not said")
_PARITY_COUNT = Column("parity_count", "INT", "parity segments of the message (m); null where not said")
_WRITTEN_AT = Column(
    "written_at", "TIMESTAMP", "wall clock of the micro-batch that wrote the row; not stable in a rebuild"
)

_SDS_METADATA = (
    _SENDER,
    _SDS_ID,
    Column("sds_kind", "STRING", "content, sync, ephemeral; tick for a row of the recorded clock (no SDS message)"),
    _LAMPORT,
    Column("causal_history", HISTORY_TYPE, "ids this message depends on, with retrieval hints"),
    Column("bloom_filter", "BINARY", "the filter's bytes as on the wire"),
    Column("repair_request", HISTORY_TYPE, "ids whose rebroadcast the sender asks for (SDS-R)"),
    Column("content_digest", "BINARY", "SHA-256 of the SDS content, 32 bytes"),
    Column("content_bytes", "INT", "size of the SDS content, bytes"),
    _ENVELOPE_HASH,
    Column("sender_timestamp_ns", "BIGINT", "timestamp of the envelope, the sender's word, Unix ns"),
    Column("segment_kind", "STRING", "bare, data or parity; null without content"),
    _ENTIRE_HASH,
    Column("segment_index", "INT", "index among the data segments, or among the parity segments"),
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
        Column("ingest_time", "TIMESTAMP", "clock of the ingest micro-batch, the same when it is replayed"),
        _SOURCE,
        Column("pubsub_topic", "STRING", "Waku pubsub topic, from the Kafka header"),
        Column("content_topic", "STRING", "Waku content topic, from the envelope"),
        Column("message_hash", "BINARY", "Waku message hash (14/WAKU2-MESSAGE), 32 bytes"),
        Column("value", "BINARY", "the WakuMessage as received"),
        Column("value_bytes", "INT", "size of the WakuMessage, bytes"),
        Column("sender_timestamp_ns", "BIGINT", "timestamp of the envelope, the sender's word, Unix ns"),
        Column("ephemeral", "BOOLEAN", "the envelope says that stores need not keep it"),
        Column("kind", "STRING", "sds: a row of segments; plain: other traffic; quarantined: a row of quarantine"),
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
        Column("ingest_time", "TIMESTAMP", "clock of the ingest micro-batch, the same when it is replayed"),
        _SOURCE,
        *_CHANNEL,
        *_SDS_METADATA,
        Column(
            "content", "BINARY", "SDS content: a bare payload or an encoded segment; null unless plaintext is stored"
        ),
        Column("segment_dialect", "STRING", "wire dialect of the segment: v0.1, lip243 or lip243-length"),
        Column(
            "sealed", "BOOLEAN", "content is null because only hashes and sizes are kept; envelopes has the ciphertext"
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
        Column("ingest_time", "TIMESTAMP", "clock of the ingest micro-batch, the same when it is replayed"),
        Column("stage", "STRING", "where it failed: record, envelope, decryption, sds, segment or quota"),
        Column("reason", "STRING", "from the fixed list in docs/quarantine.md"),
        Column("detail", "STRING", "more, for people; never holds payload bytes"),
        Column(
            "disposition",
            "STRING",
            "dropped; kept: it is used as a bare payload all the same; requeued: decoded after all",
        ),
        _SOURCE,
        Column("pubsub_topic", "STRING", "Waku pubsub topic, where the header could be read"),
        Column("content_topic", "STRING", "Waku content topic, where the envelope could be read"),
        Column("message_hash", "BINARY", "Waku message hash, where the envelope could be read; 32 bytes"),
        Column("raw", "BINARY", "the record's value, at most pipeline.quarantine_raw_bytes of it"),
        Column("raw_bytes", "INT", "size of the record's value, bytes; null for a null value"),
        Column("raw_digest", "BINARY", "SHA-256 of the record's whole value, 32 bytes"),
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
        Column("kafka_topic", "STRING", "Kafka topic", nullable=False),
        Column("kafka_partition", "INT", "Kafka partition; -1 for a gap of the bridge", nullable=False),
        Column("first_offset", "BIGINT", "first missing offset; of a bridge gap its record's", nullable=False),
        Column("last_offset", "BIGINT", "last missing offset, inclusive", nullable=False),
        Column("cause", "STRING", "offset_jump (ingest) or bridge_restart (the bridge was not listening)"),
        Column("name", "STRING", "what names the gap; its last row counts"),
        Column("status", "STRING", "open; the bridge's also filled (ephemeral messages stay lost) or unfilled"),
        Column("from_time", "TIMESTAMP", "event time of the last record before the gap; null when there is none"),
        Column("to_time", "TIMESTAMP", "event time of the first record after the gap"),
        Column("ingest_time", "TIMESTAMP", "clock of the micro-batch that saw it"),
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
        Column("sub_order", "INT", "0: the record itself; repaired rows from 1; the completed row after them"),
        Column("row_kind", "STRING", "message, repaired, completed, or tick (the recorded clock)"),
        _EVENT_TIME,
        _SOURCE,
        *_CHANNEL,
        *_SDS_METADATA,
        Column("repaired_by", "STRING", "repaired rows: parity, or message (encoded again from the complete payload)"),
        Column("id_scheme", "STRING", "repaired rows: how the id was recomputed, keccak or sha256 (protocol.md §4)"),
        Column("sds_ids", "ARRAY<STRING>", "completed rows: SDS ids of the set, data then parity; null where unknown"),
        Column("payload_bytes", "BIGINT", "completed rows: size of the payload, bytes"),
        Column(
            "first_lamport_timestamp", "BIGINT", "completed rows: Lamport timestamp of the first segment as sent, ms"
        ),
        Column("position_exact", "BOOLEAN", "completed rows: the first segment was seen, or its id recomputed"),
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
        Column("event_time", "TIMESTAMP", "event time of the record that completed the set"),
        *_CHANNEL,
        _SENDER,
        _ENTIRE_HASH,
        Column("first_sds_id", "STRING", "SDS id of the first segment as sent, or of the first one held"),
        Column("first_lamport_timestamp", "BIGINT", "Lamport timestamp of the first segment as sent, ms"),
        Column("position_exact", "BOOLEAN", "the first segment was seen, or its id recomputed"),
        Column("payload", "BINARY", "the payload; null unless plaintext is stored"),
        Column("payload_bytes", "BIGINT", "size of the payload, bytes"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("data_received", "INT", "data segments held when it was rebuilt"),
        Column("parity_received", "INT", "parity segments held when it was rebuilt"),
        Column("repaired", "ARRAY<INT>", "indices of the data segments that parity rebuilt"),
        Column("sds_ids", "ARRAY<STRING>", "SDS ids of the set, data then parity; null where unknown"),
        Column("segment_dialect", "STRING", "wire dialect of the segments"),
        Column("first_seen", "TIMESTAMP", "event time of the first segment of the set"),
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
        Column("event_time", "TIMESTAMP", "when it was given up: the time its expiry was due"),
        Column("reason", "STRING", "expired, hash_mismatch, over_limit, or another reason of the reassembler"),
        Column("detail", "STRING", "more, for people; never holds payload bytes"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("data_held", "ARRAY<INT>", "indices of the data segments held"),
        Column("parity_held", "ARRAY<INT>", "indices of the parity segments held"),
        Column("data_missing", "ARRAY<INT>", "indices of the data segments that are missing; null when k is unknown"),
        Column("sds_ids", "ARRAY<STRING>", "SDS ids of the segments held"),
        Column("first_seen", "TIMESTAMP", "event time of the first segment held"),
        Column("last_seen", "TIMESTAMP", "event time of the last segment held"),
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
        Column("row_seq", "BIGINT", "running number of the row in this channel, from 1"),
        Column("row_kind", "STRING", "segment, or message"),
        Column("delivery_seq", "BIGINT", "message rows: running number of the message in this channel, from 1"),
        Column("event_time", "TIMESTAMP", "when it was delivered, in event time"),
        _SENDER,
        _SDS_ID,
        _LAMPORT,
        Column("sds_kind", "STRING", "content or ephemeral"),
        Column("segment_kind", "STRING", "bare, data or parity; null on the message row of a segmented message"),
        _ENTIRE_HASH,
        Column("segment_index", "INT", "index among the data segments, or among the parity segments"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("first_sds_id", "STRING", "message rows: SDS id of the first segment as sent, or of the first one held"),
        Column("first_lamport_timestamp", "BIGINT", "message rows: Lamport timestamp of the first segment as sent, ms"),
        Column("position_exact", "BOOLEAN", "message rows: the first segment was seen, or its id recomputed"),
        Column("kafka_topic", "STRING", "Kafka topic of the record it came with"),
        Column("kafka_partition", "INT", "Kafka partition of the record that brought it, or completed it"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record"),
        Column("first_seen", "TIMESTAMP", "event time of that record; of the first segment for a segmented message"),
        Column("payload_bytes", "BIGINT", "message rows: size of the payload, bytes"),
        Column("sender_timestamp_ns", "BIGINT", "timestamp of the envelope, the sender's word, Unix ns"),
        Column("repaired_by", "STRING", "parity or message when the segment was not received but rebuilt; else null"),
        Column("repaired_segments", "INT", "message rows: how many of its segments were rebuilt"),
        Column("late", "BOOLEAN", "it came after it had been declared irretrievably lost"),
        Column("lost_dependencies", "ARRAY<STRING>", "SDS ids declared lost that it depends on"),
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
        Column("sender_id", "STRING", "sender of the acknowledged message"),
        Column("acknowledged_by", "STRING", "the participant who acknowledges; never the sender"),
        Column("evidence", "STRING", "causal_history, causal_past (of one that is named: implied), or filter"),
        Column("certainty", "STRING", "certain, or probable (in the filters of enough different messages)"),
        Column("evidence_sds_id", "STRING", "SDS id of the message that carried the evidence"),
        _ENTIRE_HASH,
        Column("event_time", "TIMESTAMP", "when the evidence arrived, in event time"),
        Column("latency_ms", "BIGINT", "from the first sight of the message to this evidence, event time, ms"),
        Column("copies", "INT", "copies of the message seen until then; more than one are retransmissions"),
        Column("kafka_partition", "INT", "Kafka partition of the record that carried the evidence"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record"),
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
        Column("sender_id", "STRING", "sender of the missing message, where the history says it"),
        Column("retrieval_hint", "BINARY", "Waku message hash to ask for; null where none is known"),
        Column("attempt", "INT", "number of the attempt, from 1"),
        Column("needed_by", "STRING", "SDS id of a message that waits for it"),
        Column("event_time", "TIMESTAMP", "when the attempt was due, in event time"),
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
        Column("sender_id", "STRING", "sender of the missing message, where the history says it"),
        Column("retrieval_hint", "BINARY", "Waku message hash; null where none is known"),
        Column("status", "STRING", "lost, before_observation, or recovered (it came late after all)"),
        Column("needed_by", "STRING", "SDS id of a message that depends on it"),
        Column("missing_since", "TIMESTAMP", "when it was first missed, in event time"),
        Column("event_time", "TIMESTAMP", "when the status was reached, in event time"),
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
        Column("sender_id", "STRING", "sender of the wanted message, where the request says it"),
        Column("requested_by", "STRING", "the participant who asks"),
        Column("request_sds_id", "STRING", "SDS id of the message that carried the request"),
        Column("held_here", "BOOLEAN", "the message had been seen here when the request came"),
        Column("event_time", "TIMESTAMP", "when the request arrived, in event time"),
        Column("kafka_partition", "INT", "Kafka partition of the record that carried the request"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record"),
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
        Column("event", "STRING", "name of the event, of SDS or of reassembly"),
        _SDS_ID,
        _SENDER,
        Column("detail", "STRING", "more, for people; never holds payload bytes"),
        Column("event_time", "TIMESTAMP", "when it happened, in event time"),
        Column("kafka_partition", "INT", "Kafka partition of the record that caused it; null for a timer"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record"),
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
        Column("delivery_seq", "BIGINT", "running number of the message in this channel at this observer, from 1"),
        Column("event_time", "TIMESTAMP", "when it was delivered, in event time"),
        _SENDER,
        _ENTIRE_HASH,
        Column("causal_lamport", "BIGINT", "causal position, first part: Lamport timestamp of the first segment, ms"),
        Column("causal_sds_id", "STRING", "causal position, second part: SDS id of the first segment"),
        Column("position_exact", "BOOLEAN", "the first segment was seen, or its id recomputed"),
        Column("payload", "BINARY", "the payload; null unless plaintext is stored"),
        Column("payload_bytes", "BIGINT", "size of the payload, bytes"),
        Column("ephemeral", "BOOLEAN", "sent as an ephemeral message"),
        _DATA_COUNT,
        _PARITY_COUNT,
        Column("repaired_segments", "INT", "how many of its segments were rebuilt"),
        Column("late", "BOOLEAN", "it came after it had been declared irretrievably lost"),
        Column("lost_dependencies", "ARRAY<STRING>", "SDS ids declared lost that it depends on"),
        Column("sender_timestamp_ns", "BIGINT", "timestamp of its envelope, the sender's word, Unix ns"),
        Column("first_seen", "TIMESTAMP", "event time of its first segment here"),
        Column("kafka_partition", "INT", "Kafka partition of the record that brought or completed it"),
        Column("kafka_offset", "BIGINT", "Kafka offset of that record"),
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
        Column("kafka_topic", "STRING", "Kafka topic", nullable=False),
        Column("kafka_partition", "INT", "Kafka partition", nullable=False),
        Column("query_id", "STRING", "id of the ingest query (its checkpoint)", nullable=False),
        Column("batch_id", "BIGINT", "micro-batch, or the last one before an idle tick", nullable=False),
        Column("kind", "STRING", "batch, idle (wall clock) or closing (the end of a back-fill)"),
        Column("event_time", "TIMESTAMP", "largest event time so far; later records are not before it"),
        Column("next_offset", "BIGINT", "the offset that comes next"),
        Column("recorded_at", "TIMESTAMP", "wall clock"),
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
        Column("job", "STRING", "reassembly or ack", nullable=False),
        Column("query_id", "STRING", "id of the job's query (its checkpoint)", nullable=False),
        Column("batch_id", "BIGINT", "micro-batch of the change", nullable=False),
        Column("key", "STRING", "hex of the hash (reassembly), JSON of the channel key (ack)", nullable=False),
        Column("due", "TIMESTAMP", "when its next timer is due; null when the key is closed"),
        Column("kafka_topic", "STRING", "Kafka topic its rows come in"),
        Column("kafka_partition", "INT", "Kafka partition its rows come in"),
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
        Column("event", "STRING", "queued, sent, rate_limited, dropped or failed"),
        Column("envelope_hash", "BINARY", "Waku message hash of the dispatched envelope, 32 bytes; null if none"),
        Column("detail", "STRING", "more, for people"),
        Column("event_time", "TIMESTAMP", "when, by the sender's clock"),
    ),
    ("pubsub_topic", "content_topic", "channel_id", "sender_id", "sds_id", "event", "event_time"),
    retention_ms=30 * DAY_MS,
)

STORE_PRESENCE = Table(
    "store_presence",
    "Which store node had which envelope when asked: refetches, and a sampled audit of hashes that were seen.",
    "jobs/refetch.py",
    (
        Column("node", "STRING", "address of the store node, without credentials", nullable=False),
        Column("message_hash", "BINARY", "Waku message hash that was asked for, 32 bytes"),
        Column("pubsub_topic", "STRING", "Waku pubsub topic"),
        Column("content_topic", "STRING", "Waku content topic"),
        Column("channel_id", "STRING", "SDS channel id, where known"),
        Column("sds_id", "STRING", "SDS message id, where known"),
        Column("attempt", "INT", "refetch: which attempt of the request it answers"),
        Column("outcome", "STRING", "present, absent, or error"),
        Column("purpose", "STRING", "refetch, gap or audit"),
        Column("detail", "STRING", "gap: its topic, partition and first offset; else why it failed"),
        Column("asked_at", "TIMESTAMP", "wall clock of the question"),
    ),
    ("node", "message_hash", "asked_at"),
    retention_ms=30 * DAY_MS,
    retention_column="asked_at",
)

DELIVERY_STATUS = Table(
    "delivery_status",
    "Verdict and cause per message known to exist, as of a time; later verdicts replace earlier ones.",
    "jobs/verdict.py",
    (
        *_CHANNEL,
        Column("message_key", "STRING", "hex of the payload's hash and first Lamport timestamp, or an SDS id alone"),
        Column("as_of", "TIMESTAMP", "event time up to which the evidence was read"),
        _SENDER,
        _ENTIRE_HASH,
        Column("sds_ids", "ARRAY<STRING>", "SDS ids known of it"),
        Column("verdict", "STRING", "delivered, missing or unknown"),
        Column(
            "cause",
            "STRING",
            "why it is missing or unknown: never_sent, rate_limited, propagated_not_stored, segment_missing,"
            " undecodable, undecryptable, dependency_missing, late, hash_mismatch, source_gap, unsettled,"
            " before_observation",
        ),
        Column("detail", "STRING", "what is missing, for people"),
        Column("data_missing", "ARRAY<INT>", "indices of the data segments that are missing, where known"),
        Column(
            "acknowledged_by", "ARRAY<STRING>", "participants who can rebuild it: any k of its segments acknowledged"
        ),
        Column("first_seen", "TIMESTAMP", "first trace of it here, in event time"),
        Column("delivered_at", "TIMESTAMP", "when it was delivered, in event time"),
        Column("settled", "BOOLEAN", "the settle delay has passed; else it is looked at again"),
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
        Column("query", "STRING", "name of the query", nullable=False),
        Column("query_id", "STRING", "id of the query (its checkpoint)"),
        Column("run_id", "STRING", "id of this run of it"),
        Column("batch_id", "BIGINT", "micro-batch"),
        Column("metric", "STRING", "name of the metric, with its unit"),
        Column("value", "DOUBLE", "value"),
        Column("recorded_at", "TIMESTAMP", "wall clock"),
    ),
    ("query", "run_id", "batch_id", "metric"),
    retention_ms=30 * DAY_MS,
    retention_column="recorded_at",
)

ALERTS = Table(
    "alerts",
    "What somebody should look at: rows dropped by a watermark, a content topic in two partitions, a full budget.",
    "every job",
    (
        Column("alert", "STRING", "name of the alert", nullable=False),
        Column("query", "STRING", "name of the query that raised it"),
        Column("subject", "STRING", "what it is about"),
        Column("detail", "STRING", "more, for people"),
        Column("recorded_at", "TIMESTAMP", "wall clock"),
    ),
    ("alert", "subject", "recorded_at"),
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
    DELIVERY_STATUS,
    PIPELINE_METRICS,
    ALERTS,
)
"""All tables, in the order of the data flow."""

BY_NAME: dict[str, Table] = {table.name: table for table in TABLES}
