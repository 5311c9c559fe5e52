"""Encodes and decodes Waku envelopes and computes their message hash (14/WAKU2-MESSAGE).

Envelopes are values. They are not ``frozen``, for the reason given in ``core/sds/events.py``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from reliable_channel.core.wire._pb.waku_message_pb2 import WakuMessage as WakuMessageProto
from reliable_channel.core.wire.framing import field_unless_empty
from reliable_channel.core.wire.malformed import Malformed, Reason

MAX_META_BYTES = 64
MAX_ENVELOPE_BYTES = 150_000
"""The smallest size limit of running nodes (go-waku; nwaku accepts 153 600 bytes)."""

RELIABLE_CHANNEL_META = b"RELIABLE-CHANNEL-API/1"
"""The value that this project's sender writes into ``meta``; a receiver never requires it."""


@dataclass(slots=True, unsafe_hash=True)
class WakuMessage:
    """One envelope. ``timestamp`` is set by the sender: Unix time in ns, signed 64-bit. ``None`` means absent."""

    payload: bytes
    content_topic: str
    version: int | None = None
    timestamp: int | None = None
    meta: bytes | None = None
    rate_limit_proof: bytes | None = None
    ephemeral: bool | None = None

    @property
    def size(self) -> int:
        """The bytes of the payload and of the proof: both are a stranger's, and have no limit of their own."""
        return len(self.payload) + len(self.rate_limit_proof or b"")


def encode_waku_message(message: WakuMessage) -> bytes:
    """Serialize an envelope."""
    rest = WakuMessageProto(
        content_topic=message.content_topic,
        version=message.version,
        timestamp=message.timestamp,
        meta=message.meta,
        rate_limit_proof=message.rate_limit_proof,
        ephemeral=message.ephemeral,
    )
    return b"".join((*field_unless_empty(1, message.payload), rest.SerializeToString()))


def decode_waku_message(data: bytes | None) -> WakuMessage | Malformed:
    """Parse an envelope, or return why it is malformed. Unknown fields are ignored, as protobuf requires."""
    if data is None:
        return Malformed(Reason.NULL_VALUE, "the record has no value")
    try:
        proto = WakuMessageProto.FromString(data)
    except DecodeError as error:
        return Malformed(Reason.MALFORMED_ENVELOPE, str(error)[:200])
    # Every access to a field creates a new object, so each field is read once.
    content_topic, meta, timestamp = proto.content_topic, proto.meta, proto.timestamp
    if not content_topic:
        return Malformed(Reason.EMPTY_CONTENT_TOPIC, "an envelope needs a content topic")
    if len(meta) > MAX_META_BYTES:
        return Malformed(Reason.META_TOO_LONG, f"meta is {len(meta)} bytes, at most {MAX_META_BYTES} are allowed")
    return WakuMessage(
        proto.payload,
        content_topic,
        proto.version if proto.HasField("version") else None,
        timestamp if timestamp or proto.HasField("timestamp") else None,
        meta if meta or proto.HasField("meta") else None,
        proto.rate_limit_proof if proto.HasField("rate_limit_proof") else None,
        proto.ephemeral if proto.HasField("ephemeral") else None,
    )


def message_hash(pubsub_topic: str, message: WakuMessage) -> bytes:
    """Compute the deterministic message hash (32 bytes): the key in every store and the ``retrieval_hint`` of SDS
    (14/WAKU2-MESSAGE, *Deterministic message hashing*)."""
    digest = hashlib.sha256(pubsub_topic.encode("utf-8"))
    digest.update(message.payload)
    digest.update(message.content_topic.encode("utf-8"))
    if message.meta is not None:
        digest.update(message.meta)
    if message.timestamp is not None:
        digest.update(message.timestamp.to_bytes(8, "big", signed=True))
    return digest.digest()
