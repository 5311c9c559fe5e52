"""Columns that several tables share, and shared values for their examples."""

from reliable_channel.lake.tables.model import HISTORY_TYPE, Column

# The examples of all tables use the same values, so that they fit together.
A_PAST_ID = "07608298401adebbfd9f35fbe8109edfd0ab855fccef8de10de6d1cf08ed03c0"

AN_ID = "91882f16cd97414b6cfa0cb6875b4b27f64450c4b4a3a5b646eaac3927cb359e"

ANOTHER_ID = "e98b7ce50f56e24c2a31cf6dcb4af3a9057bc7fd15e39075b670023f77a86527"

A_HASH = "0x3f0f097a844c44dc4a2e2e2bd8d8b286855f00d0cdeb5770121d92f5ddc65755"

AN_ENVELOPE = "0xe2f4528bdd9b3a1f0d6c7e5a4b3c2d1e0f9a8b7c6d5e4f3a2b1c0d9e8f7a6b5c"

AN_ENTRY = f'[{{"sds_id": "{A_PAST_ID}", "retrieval_hint": "{AN_ENVELOPE}", "sender_id": "bob"}}]'

COORDINATES = (
    Column("kafka_topic", "STRING", "Kafka topic of the record", nullable=False, example="waku.envelopes"),
    Column("kafka_partition", "INT", "Kafka partition of the record", nullable=False, example="0"),
    Column("kafka_offset", "BIGINT", "Kafka offset of the record", nullable=False, example="326"),
)

RECORD_KEY = tuple(column.name for column in COORDINATES)
"""The columns that identify a Kafka record."""

PUBSUB_TOPIC = Column("pubsub_topic", "STRING", "Waku pubsub topic", example="/waku/2/rs/1/0")

CONTENT_TOPIC = Column("content_topic", "STRING", "Waku content topic", example="/reliable-channel/1/chat/proto")

CHANNEL = (
    PUBSUB_TOPIC.describe("Waku pubsub topic; first part of the channel key"),
    CONTENT_TOPIC.describe("Waku content topic; second part of the channel key"),
    Column("channel_id", "STRING", "SDS channel id, set by the sender; third part of the channel key", example="talk"),
)

CHANNEL_KEY = tuple(column.name for column in CHANNEL)
"""The columns that identify a channel."""

FAMILY = Column(
    "family",
    "STRING",
    "wire family of SDS: spec or nim. Each family of a channel is followed by itself, as two channels are",
    example="spec",
)

EVENT_TIME = Column(
    "event_time",
    "TIMESTAMP",
    "min(Kafka record time, ingest_time + pipeline.max_clock_skew_ms), never decreasing in a partition; a record"
    " without a time after 1970 counts as of ingest_time",
    example="2026-01-01T00:01:12.455Z",
)

RECORD_TIME = Column(
    "record_time",
    "TIMESTAMP",
    "Kafka record time: the broker's with LogAppendTime, else the producer's",
    example="2026-01-01T00:01:12.455Z",
)

SOURCE = Column("source", "STRING", "how it arrived: relay, filter, store, repair or sender", example="relay")

SENDER = Column("sender_id", "STRING", "SDS sender id", example="alice")

SDS_ID = Column("sds_id", "STRING", "SDS message id, opaque", example=AN_ID)

LAMPORT = Column(
    "lamport_timestamp",
    "BIGINT",
    "Lamport timestamp (LIP-109); null if ephemeral",
    unit="ms since 1970",
    example="1767226185235",
)

ENVELOPE_HASH = Column(
    "envelope_hash", "BINARY", "Waku message hash; equals envelopes.message_hash", unit="32 bytes", example=AN_ENVELOPE
)

MESSAGE_HASH = Column("message_hash", "BINARY", "Waku message hash", unit="32 bytes", example=AN_ENVELOPE)

ENTIRE_HASH = Column(
    "entire_message_hash", "BINARY", "Keccak-256 of the payload (Segmentation 0.1)", unit="32 bytes", example=A_HASH
)

DATA_COUNT = Column("data_count", "INT", "number of data segments (k); null if unknown", example="3")

PARITY_COUNT = Column("parity_count", "INT", "number of parity segments (m); null if unknown", example="1")

WRITTEN_AT = Column(
    "written_at", "TIMESTAMP", "wall clock of the write; differs after a rebuild", example="2026-11-21T14:26:26.834148Z"
)

INGEST_TIME = Column(
    "ingest_time",
    "TIMESTAMP",
    "clock of the ingest micro-batch; unchanged by a replay",
    example="2026-11-21T14:25:47.730Z",
)

SENDER_TIMESTAMP = Column(
    "sender_timestamp_ns",
    "BIGINT",
    "timestamp of the envelope, set by the sender",
    unit="ns since 1970",
    example="1767226190235000000",
)

EARLIEST_SENDER_TIMESTAMP = SENDER_TIMESTAMP.describe(
    "timestamp of its envelope, the earliest of several, set by the sender"
)

KAFKA_TOPIC = Column("kafka_topic", "STRING", "Kafka topic", nullable=False, example="waku.envelopes")

FIRST_SDS_ID = Column("first_sds_id", "STRING", "SDS id of the first segment, or of the first one known", example=AN_ID)

FIRST_LAMPORT = Column(
    "first_lamport_timestamp",
    "BIGINT",
    "Lamport timestamp of the send's first segment",
    unit="ms since 1970",
    example="1767226185235",
)

SDS_IDS = Column(
    "sds_ids",
    "ARRAY<STRING>",
    "SDS ids of the segments, data then parity; null if unknown",
    example=f'["{AN_ID}", null, "{ANOTHER_ID}"]',
)

POSITION_EXACT = Column(
    "position_exact", "BOOLEAN", "the first segment's SDS id was received or recomputed", example="true"
)

PAYLOAD = Column("payload", "BINARY", "payload; null if plaintext is not stored", example="0x68656c6c6f20426f62")

PAYLOAD_BYTES = Column("payload_bytes", "BIGINT", "size of the payload", unit="bytes", example="300000")

DELIVERY_TIME = EVENT_TIME.describe("event time of the delivery")

FIRST_SEEN = Column(
    "first_seen", "TIMESTAMP", "event time of the first segment of the set", example="2026-01-01T00:00:56.928Z"
)

OFFSET_OF_THAT_RECORD = Column("kafka_offset", "BIGINT", "Kafka offset of that record", example="326")

SENDER_VERIFIED = Column(
    "sender_verified",
    "BOOLEAN",
    "the SDS id (of every segment used) was recomputed from sender id, Lamport timestamp and content, so"
    " none of them was altered; does not authenticate the sender, because anyone can state any sender id",
    example="true",
)

LATE = Column("late", "BOOLEAN", "arrived after it was declared lost or before_observation", example="false")

LOST_IDS = Column(
    "lost_dependencies", "ARRAY<STRING>", "SDS ids of its dependencies declared lost", example=f'["{A_PAST_ID}"]'
)

MISSING_SENDER = SENDER.describe("sender of the missing message; null if not stated")

NEEDED_BY = Column("needed_by", "STRING", "SDS id of a message that depends on it", example=ANOTHER_ID)

RECORDED_AT = Column("recorded_at", "TIMESTAMP", "wall clock of the write", example="2026-11-21T14:26:26.834148Z")

DETAIL = Column(
    "detail",
    "STRING",
    "human-readable detail, no payload bytes",
    example="Keccak-256 of the rebuilt payload differs",
)

SEGMENT_INDEX = Column("segment_index", "INT", "index among the data or the parity segments, from 0", example="1")

SDS_METADATA = (
    FAMILY,
    SENDER,
    SDS_ID,
    Column(
        "sds_kind",
        "STRING",
        "content, sync or ephemeral; tick: a row of the recorded clock, no message",
        example="content",
    ),
    LAMPORT,
    Column("causal_history", HISTORY_TYPE, "messages it depends on (LIP-109), with hints", example=AN_ENTRY),
    Column(
        "bloom_filter", "BINARY", "Bloom filter (LIP-109) as on the wire", example="0x00000040000000000000100000000000"
    ),
    Column("repair_request", HISTORY_TYPE, "messages that the sender wants rebroadcast (SDS-R)", example=AN_ENTRY),
    Column(
        "content_digest",
        "BINARY",
        "SHA-256 of the plaintext SDS content, of an ephemeral message its payload",
        unit="32 bytes",
        example="0x3e7b18acce28ce5bc3bb86640240efc417bd4cf87a9d086ec33ceab46927a22b",
    ),
    Column(
        "id_verified",
        "BOOLEAN",
        "the SDS id was recomputed from the message; null if undecidable (docs/sds.md, Unproven ids)",
        example="true",
    ),
    Column(
        "content_bytes",
        "INT",
        "size of the plaintext SDS content, of an ephemeral message its payload",
        unit="bytes",
        example="2155",
    ),
    ENVELOPE_HASH,
    SENDER_TIMESTAMP,
    Column("segment_kind", "STRING", "data, parity or bare (no segment); null without content", example="data"),
    ENTIRE_HASH,
    SEGMENT_INDEX,
    DATA_COUNT,
    PARITY_COUNT,
)
