"""The tables of evidence from senders, store nodes and bridges, and the table of the send job."""

from __future__ import annotations

from reliable_channel.lake.tables.columns import (
    AN_ENVELOPE,
    AN_ID,
    ANOTHER_ID,
    CHANNEL,
    CHANNEL_KEY,
    ENTIRE_HASH,
    PUBSUB_TOPIC,
    SDS_ID,
    SENDER,
)
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

SENDER_EVENTS = Table(
    "sender_events",
    "The sender's own records: what it took, dispatched, held back or dropped.",
    "jobs/evidence.py",
    (
        *CHANNEL,
        SENDER,
        SDS_ID,
        ENTIRE_HASH,
        Column("event", "STRING", "queued, sent, rate_limited, dropped or failed", example="rate_limited"),
        Column(
            "envelope_hash",
            "BINARY",
            "Waku message hash of the dispatched envelope; null if none",
            unit="32 bytes",
            example=AN_ENVELOPE,
        ),
        Column("detail", "STRING", "more, for people", example="epoch quota is used up"),
        Column("event_time", "TIMESTAMP", "when, by the sender's clock", example="2026-01-01T00:01:12.455Z"),
    ),
    (*CHANNEL_KEY, "sender_id", "sds_id", "event", "event_time"),
    retention_ms=30 * DAY_MS,
)

SIGHTINGS = Table(
    "sightings",
    "Which bridge (vantage point) got which envelope from which node, and when.",
    "jobs/evidence.py",
    (
        Column("message_hash", "BINARY", "Waku message hash", unit="32 bytes", example=AN_ENVELOPE),
        Column("vantage", "STRING", "name of the bridge (`bridge.vantage`)", nullable=False, example="north"),
        Column("node", "STRING", "the node it came from, without credentials", example="http://127.0.0.1:8645"),
        Column(
            "source",
            "STRING",
            "relay or filter of its own node; store: a store node had what it missed; sender: it dispatched it",
            example="relay",
        ),
        PUBSUB_TOPIC,
        Column("seen_at", "TIMESTAMP", "when, by the clock of the bridge", example="2026-01-01T00:01:12.455Z"),
    ),
    ("message_hash", "vantage", "node", "source", "seen_at"),
    retention_ms=30 * DAY_MS,
    retention_column="seen_at",
)

UNPROVEN = "unproven"
"""The ``store_presence.detail`` of an encrypted envelope found by a hint: it may contain another message."""

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
            example=AN_ENVELOPE,
        ),
        PUBSUB_TOPIC,
        Column("content_topic", "STRING", "Waku content topic", example="/reliable-channel/1/chat/proto"),
        Column("channel_id", "STRING", "SDS channel id, where known", example="talk"),
        Column(
            "sds_id",
            "STRING",
            "SDS message id, where known",
            example=AN_ID,
        ),
        Column(
            "attempt",
            "INT",
            "refetch: which attempt of the request it answers; 0: its sender says that it was sent",
            example="1",
        ),
        Column("outcome", "STRING", "present, absent, or error", example="present"),
        Column(
            "purpose",
            "STRING",
            "refetch (by hash), range (a request without a hint, by content topic and time), gap or audit",
            example="refetch",
        ),
        Column(
            "detail",
            "STRING",
            "gap: its topic, partition and first offset; `unproven`: present, but encrypted, so it may hold another"
            " message; else why it failed",
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
        Column("send_id", "STRING", "the ReliableSendId: the SDS id of the first segment", example=AN_ID),
        *CHANNEL,
        Column("sender_id", "STRING", "the participant who sent it", example="alice"),
        Column("required", "INT", "how many of the segments rebuild the message", example="1"),
        Column(
            "sds_ids",
            "ARRAY<STRING>",
            "SDS ids of the segments, data then parity",
            example=f'["{AN_ID}", "{ANOTHER_ID}"]',
        ),
        Column("recorded_at", "TIMESTAMP", "wall clock of the note", example="2026-11-21T14:26:26.834148Z"),
    ),
    (*CHANNEL_KEY, "sender_id", "row_id"),
    retention_ms=90 * DAY_MS,
    retention_column="recorded_at",
)
