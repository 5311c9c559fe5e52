"""Messages as the two dialects of the fake Waku node write and read them (docs/spec/waku-rest.md *Common*)."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from reliable_channel.core.wire.waku import WakuMessage
from tests.support.fake_waku_faults import Dialect, Reply

MAX_MESSAGE_BYTES: dict[Dialect, int] = {"nwaku": 153_600, "go-waku": 150_000}
"""What a node publishes at most, encoded."""


def message_to_json(dialect: Dialect, message: WakuMessage, relay: bool, store: bool = False) -> dict[str, Any]:
    """A message as that dialect writes it."""
    entry: dict[str, Any] = {
        "payload": base64.b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
    }
    if message.meta:
        entry["meta"] = base64.b64encode(message.meta).decode()
    if dialect == "nwaku":
        entry |= {
            "version": message.version or 0,
            "timestamp": message.timestamp or 0,
            "ephemeral": bool(message.ephemeral),
        }
        if relay:
            entry["proof"] = ""
    else:
        if message.version is not None:
            entry["version"] = message.version
        if message.timestamp is not None:
            entry["timestamp"] = str(message.timestamp) if store else message.timestamp
        entry["ephemeral"] = message.ephemeral
    return entry


def message_of(dialect: Dialect, body: Any) -> WakuMessage:
    """A request's message, or the node's refusal."""
    go = dialect == "go-waku"
    if not isinstance(body, dict):
        raise Reply(400, "Invalid content body, could not decode: not an object", "text")
    known = {"payload", "contentTopic", "version", "timestamp", "meta", "ephemeral", "proof"}
    if not go and set(body) - known:
        raise Reply(400, "Invalid content body, could not decode: unknown field", "text")
    if not body.get("payload"):
        raise Reply(400, "missing Payload field" if go else "Invalid content body, could not decode: payload", "text")
    if not body.get("contentTopic"):
        raise Reply(
            400,
            "missing ContentTopic field" if go else "Invalid content body, could not decode: contentTopic",
            "text",
        )
    if isinstance(body.get("timestamp"), str):
        raise Reply(
            400,
            "json: cannot unmarshal string into Go struct field RestWakuMessage.timestamp of type int64"
            if go
            else "Invalid content body, could not decode: timestamp",
            "text",
        )
    payload = str(body["payload"])
    if go:
        payload = payload.replace("-", "+").replace("_", "/")
        payload += "=" * (-len(payload) % 4)
    try:
        decoded = base64.b64decode(payload, validate=True)
        meta = base64.b64decode(body.get("meta") or "", validate=True)
    except binascii.Error:
        raise Reply(
            400,
            "illegal base64 data at input byte 0" if go else "Invalid content body, could not decode: base64",
            "text",
        ) from None
    if len(meta) > 64:
        raise Reply(
            400, "invalid length for Meta field" if go else "Invalid content body, could not decode: meta", "text"
        )
    return WakuMessage(
        decoded,
        body["contentTopic"],
        body.get("version"),
        body.get("timestamp"),
        meta or None,
        None,
        body.get("ephemeral"),
    )
