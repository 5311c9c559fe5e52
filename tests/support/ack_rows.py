"""Rows as the ack job reads them, for tests."""

from __future__ import annotations

from typing import Any

from reliable_channel.core.wire.hashing import sha256
from reliable_channel.pipeline.ack.records import InputRow

KEY = ("p", "c", "talk", "spec")
NOW = 1_767_225_600_000
PLACE = ("waku.envelopes", 0)


def content_row(content: bytes, **fields: Any) -> InputRow:
    """A bare content message of Alice; ``fields`` say what is different."""
    given: dict[str, Any] = {
        "sender_id": "alice",
        "sds_id": "X",
        "sds_kind": "content",
        "lamport_timestamp": NOW,
        "segment_kind": "bare",
        "entire_message_hash": sha256(content),
    }
    given |= {"content_digest": sha256(content), "content_bytes": len(content)} | fields
    return InputRow("message", *PLACE, 0, NOW * 1000, **given)
