"""Defines the bridge's JSON records of facts that envelopes do not carry, written to a Kafka topic for the pipeline.

Three kinds, told apart by ``kind``; times are Unix ms of the bridge's clock, hashes lower-case hex::

    {"kind": "gap", "name", "status": "open" | "filled" | "unfilled", "from_ms", "to_ms", "cause", "node",
     "vantage", "pubsub_topics": [...], "content_topics": [...], "attempts": n, "recovered": n,
     "stores": {"<node>": "complete" | "complete_unverified" | "known_content_topics" | "was_unreachable" | "incomplete"
     | "<fault>"}, "at_ms"}
    {"kind": "dispatch", "event": "rate_limited" | "failed", "reason", "detail", "request_id",
     "pubsub_topic", "content_topic", "envelope_hash", "at_ms"}
    {"kind": "sightings", "vantage", "node", "source", "pubsub_topic", "hashes": [...], "at_ms"}

A sighting records which bridge received which envelopes from which node: ``relay`` or ``filter`` of its own node,
``store`` of a store node that had what it missed, ``sender`` for what it dispatched itself.

A dispatched envelope needs no record: its copy with ``source=sender`` is in the envelopes topic. A later record of a
gap with the same ``name`` replaces the earlier one. ``known_content_topics``: the node answers only queries that name
content topics, and was queried for those that the bridge had seen. ``complete_unverified``: all of it, by a store
protocol without message hashes. A gap that is ``filled`` still lost its ephemeral
messages: no store keeps them. ``unfilled`` means that no store node is configured that can know what was sent: it was
unreachable itself, or lacks what others have of the gap.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_state import BridgeGap

GAP_KEY_PREFIX = "gap:"
SIGHTINGS_PER_RECORD = 500
"""The number of envelopes in one record: 33 KB, below the limit of a reader of the topic."""


def gap_record(
    gap: BridgeGap,
    status: str,
    node: str,
    topics: Sequence[tuple[str, str | None]],
    at_ms: int,
    recovered: int = 0,
    stores: Mapping[str, str] | None = None,
    vantage: str = "",
) -> tuple[bytes, bytes]:
    """Key and value of a gap's record."""
    value = {
        "kind": "gap",
        "name": gap.name,
        "status": status,
        "from_ms": gap.from_ms,
        "to_ms": gap.to_ms,
        "cause": gap.cause,
        "node": node,
        "vantage": vantage,
        "pubsub_topics": sorted({p for p, _ in topics}),
        "content_topics": sorted({c for _, c in topics if c is not None}),
        "attempts": gap.attempts,
        "recovered": recovered,
        "stores": dict(stores or {}),
        "at_ms": at_ms,
    }
    return (GAP_KEY_PREFIX + gap.name).encode(), _encode(value)


def dispatch_record(
    event: str,
    pubsub_topic: str,
    message: WakuMessage,
    request_id: str | None,
    reason: str,
    detail: str,
    at_ms: int,
) -> tuple[bytes, bytes]:
    """Key and value of a dispatch's record."""
    value = {
        "kind": "dispatch",
        "event": event,
        "reason": reason,
        "detail": detail[:300],
        "request_id": request_id,
        "pubsub_topic": pubsub_topic,
        "content_topic": message.content_topic,
        "envelope_hash": message_hash(pubsub_topic, message).hex(),
        "at_ms": at_ms,
    }
    return message.content_topic.encode(), _encode(value)


def sightings_record(
    vantage: str, node: str, source: Source, pubsub_topic: str, hashes: Sequence[bytes], at_ms: int
) -> tuple[bytes, bytes]:
    """Key and value of the record that a bridge saw envelopes; at most :data:`SIGHTINGS_PER_RECORD` of them."""
    value = {
        "kind": "sightings",
        "vantage": vantage,
        "node": node,
        "source": source.value,
        "pubsub_topic": pubsub_topic,
        "hashes": [one.hex() for one in hashes],
        "at_ms": at_ms,
    }
    return f"sightings:{vantage}".encode(), _encode(value)


def _encode(value: dict[str, Any]) -> bytes:
    # "replace": the text of a node's error may hold half a surrogate pair, which JSON can and UTF-8 cannot.
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")
