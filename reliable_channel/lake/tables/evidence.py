"""The tables of evidence from senders, store nodes and bridges, and the table of the send job."""

from reliable_channel.lake.tables import columns
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

LOST = "lost"
"""The ``sender_events.event`` that recipients report; all others are of the sender."""

SENDER_EVENTS = Table(
    "sender_events",
    "What senders report about their own messages (queued, dispatched, held back or dropped), and recipients about"
    " messages that they gave up (lost: one row for each segment they held).",
    "jobs/evidence.py",
    (
        *columns.CHANNEL,
        columns.SENDER,
        columns.SDS_ID,
        Column(
            "send_id",
            "STRING",
            "SDS id of the first segment of the same message; null: the row is of that segment, or does not say",
            example=columns.AN_ID,
        ),
        columns.ENTIRE_HASH.describe("Keccak-256 of the payload; only with it a row shows that there is a message"),
        Column(
            "event",
            "STRING",
            "queued, sent, resent, delayed, rate_limited, not_stored, dropped or failed; lost, of a recipient",
            example="rate_limited",
        ),
        columns.ENVELOPE_HASH.describe("Waku message hash of the envelope; null if there is none"),
        columns.DETAIL.describe("human-readable detail", "epoch quota is used up"),
        columns.EVENT_TIME.describe("time of the event by the clock of who reports it"),
        Column("reported_by", "STRING", "lost: the recipient that gave it up; else null", example="carol"),
    ),
    (*columns.CHANNEL_KEY, "sender_id", "sds_id", "event", "event_time"),
    retention_ms=30 * DAY_MS,
)

SIGHTINGS = Table(
    "sightings",
    "Which bridge, or node whose log was read (vantage), did what with which envelope, and when.",
    "jobs/evidence.py, reliable-channel evidence logs",
    (
        columns.MESSAGE_HASH,
        Column(
            "vantage",
            "STRING",
            "name of the bridge (`bridge.vantage`), or of the node whose log was read",
            nullable=False,
            example="north",
        ),
        Column(
            "node",
            "STRING",
            "address of the node it came from, without credentials; of a log: peer id of the other node, null if the"
            " line has none",
            example="http://127.0.0.1:8645",
        ),
        Column(
            "source",
            "STRING",
            "of a bridge: relay or filter: its own node; store: a store node, after it missed it; sender: it dispatched"
            " it; of a log: what the node did (docs/howto/node-logs.md): received, relayed, publishing, published,"
            " stored, not_stored, pushed, not_pushed, filtered_out, rejected, confirmed or failed",
            example="relay",
        ),
        columns.PUBSUB_TOPIC,
        Column(
            "seen_at",
            "TIMESTAMP",
            "time of the sighting by the clock of the bridge or node",
            example="2026-01-01T00:01:12.455Z",
        ),
    ),
    ("message_hash", "vantage", "node", "source", "seen_at"),
    retention_ms=30 * DAY_MS,
    retention_column="seen_at",
)

BRIDGE_SOURCES = ("relay", "filter", "store", "sender")
"""The values of ``sightings.source`` that bridges write; all others are of logs."""

NOT_SEEN_SOURCES = ("publishing", "failed")
"""The values of ``sightings.source`` of logs that do not show that the network had the envelope."""

UNPROVEN = "unproven"
"""The ``store_presence.detail`` of an encrypted envelope found by a hint: it may contain another message."""

STORE_PRESENCE = Table(
    "store_presence",
    "Which store node had which envelope when queried: refetches, and a sampled audit of envelopes seen here.",
    "jobs/refetch.py",
    (
        Column(
            "node",
            "STRING",
            "address of the store node, without credentials",
            nullable=False,
            example="http://127.0.0.1:8645",
        ),
        columns.MESSAGE_HASH.describe("Waku message hash queried; null for range, gap"),
        columns.PUBSUB_TOPIC,
        columns.CONTENT_TOPIC,
        Column("channel_id", "STRING", "SDS channel id; null if unknown", example="talk"),
        columns.SDS_ID.describe("SDS message id; null if unknown"),
        Column(
            "attempt",
            "INT",
            "refetch_requests.attempt; 0 if only sender_events name the envelope; set: number of its overdue rows",
            example="1",
        ),
        Column("outcome", "STRING", "present, absent or error", example="present"),
        Column(
            "purpose",
            "STRING",
            "refetch (by hash), range (by content topic and time, without a hint), set (likewise, for an overdue"
            " set of segments), gap or audit",
            example="refetch",
        ),
        columns.DETAIL.describe(
            "gap: source_gaps.name; set: entire_message_hash (hex); `unproven`: present, but encrypted, so it may"
            " contain another message; else why it failed",
            "unreachable",
        ),
        Column("asked_at", "TIMESTAMP", "wall clock when the node was queried", example="2026-11-21T14:26:26.834148Z"),
    ),
    ("node", "message_hash", "asked_at"),
    retention_ms=30 * DAY_MS,
    retention_column="asked_at",
)

SENT_ROWS = Table(
    "sent_rows",
    "Which row of a source table was sent as which segments. Join acks on sds_ids to see who acknowledged it.",
    "jobs/send.py",
    (
        Column(
            "row_id", "STRING", "id of the row, used as the label of its send", nullable=False, example="order-4711"
        ),
        Column("send_id", "STRING", "ReliableSendId: the SDS id of the first segment", example=columns.AN_ID),
        *columns.CHANNEL,
        columns.SENDER.describe("participant that sent it"),
        Column("required", "INT", "number of segments needed to rebuild the message (k)", example="1"),
        columns.SDS_IDS.describe(
            "SDS ids of the segments, data then parity", f'["{columns.AN_ID}", "{columns.ANOTHER_ID}"]'
        ),
        columns.RECORDED_AT,
    ),
    (*columns.CHANNEL_KEY, "sender_id", "row_id"),
    retention_ms=90 * DAY_MS,
    retention_column="recorded_at",
)
