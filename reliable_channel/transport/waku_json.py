"""Reads and writes envelopes and hashes as the REST API does, in all the forms that running nodes use
(docs/spec/waku-rest.md)."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.waku import MAX_META_BYTES, WakuMessage

MAX_PAYLOAD_BYTES = 1024 * 1024
"""Payloads over it are refused: running nodes relay at most 150 KiB."""

_INT64 = range(-(2**63), 2**63)
_UINT32 = range(2**32)


def message_to_json(message: WakuMessage) -> dict[str, Any]:
    """An envelope as a request body; only fields that both dialects know, absent ones left out."""
    body: dict[str, Any] = {
        "payload": base64.b64encode(message.payload).decode(),
        "contentTopic": message.content_topic,
    }
    if message.timestamp is not None:
        body["timestamp"] = message.timestamp
    if message.version is not None:
        body["version"] = message.version
    if message.meta:
        body["meta"] = base64.b64encode(message.meta).decode()
    if message.ephemeral is not None:
        body["ephemeral"] = message.ephemeral
    return body


def message_from_json(value: Any) -> WakuMessage | Malformed:
    """An envelope from a node's answer: times as numbers or strings, both namings, any base64, ``null`` for absent."""
    if not isinstance(value, dict):
        return _refuse("a message is not an object")
    content_topic = value.get("contentTopic", value.get("content_topic"))
    if not isinstance(content_topic, str) or not content_topic:
        return Malformed(Reason.EMPTY_CONTENT_TOPIC, "a message has no content topic")
    try:
        content_topic.encode("utf-8")
    except UnicodeEncodeError:
        return _refuse("a content topic is not Unicode")
    payload = decode_base64(value.get("payload") or "")
    if payload is None:
        return _refuse("a payload is not base64")
    if len(payload) > MAX_PAYLOAD_BYTES:
        return Malformed(Reason.TOO_LARGE, f"a payload is {len(payload)} bytes")
    meta = decode_base64(value.get("meta") or "")
    if meta is None:
        return _refuse("meta is not base64")
    if len(meta) > MAX_META_BYTES:
        return Malformed(Reason.META_TOO_LONG, f"meta is {len(meta)} bytes")
    timestamp, version = integer(value.get("timestamp")), integer(value.get("version"))
    if timestamp is False or (timestamp is not None and timestamp not in _INT64):
        return _refuse("a timestamp is no 64-bit integer")
    if version is False or (version is not None and version not in _UINT32):
        return _refuse("a version is no 32-bit integer")
    proof = decode_base64(value.get("proof") or value.get("rateLimitProof") or "") or None
    ephemeral = value.get("ephemeral")
    return WakuMessage(
        payload=payload,
        content_topic=content_topic,
        version=version,
        timestamp=timestamp,
        meta=meta or None,
        rate_limit_proof=proof,
        ephemeral=ephemeral if isinstance(ephemeral, bool) else None,
    )


def decode_base64(text: Any) -> bytes | None:
    """Standard or url-safe, padded or not; ``None`` for anything else."""
    if not isinstance(text, str):
        return None
    plain = text.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        return base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
    except (binascii.Error, ValueError):
        return None


def integer(value: Any) -> int | bool | None:
    """A number or its text; ``None`` when absent, ``False`` when it is something else."""
    if value is None or value == "":
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.removeprefix("-").isdecimal():
        return int(value)
    return False


def hash_to_hex(message_hash: bytes) -> str:
    """nwaku's form of a hash."""
    return "0x" + message_hash.hex()


def hash_to_urlsafe(message_hash: bytes) -> str:
    """go-waku's form of a hash in queries."""
    return base64.urlsafe_b64encode(message_hash).decode()


def hash_from_hex(text: str) -> bytes | None:
    """A hash of 32 bytes from 64 hex digits with or without ``0x``; ``None`` for anything else."""
    digits = text.removeprefix("0x").removeprefix("0X")
    if len(digits) != 64 or not digits.isalnum():  # fromhex skips spaces
        return None
    try:
        return bytes.fromhex(digits)
    except ValueError:
        return None


def hash_from_text(text: Any) -> bytes | None:
    """A hash in either form, 32 bytes; ``None`` for anything else."""
    if not isinstance(text, str):
        return None
    digest = hash_from_hex(text) or decode_base64(text)
    return digest if digest is not None and len(digest) == 32 else None


def as_list(value: Any) -> list[Any]:
    """A list that may be ``null`` or missing."""
    return value if isinstance(value, list) else []


def _refuse(detail: str) -> Malformed:
    return Malformed(Reason.MALFORMED_ENVELOPE, detail)
