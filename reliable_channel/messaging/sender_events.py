"""Records the steps of each request for the pipeline, including requests that never left this node.

One row per step of a request; :func:`to_json` is its record in the evidence topic, beside the bridge's records and told
apart from them by ``"kind": "sender"``. Envelopes that are plain SDS messages name their channel, sender and SDS id, so
that a verdict can be *never sent* for a message that no other participant saw. A :class:`LossReport` has
``"kind": "loss"``.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import ClassVar

from reliable_channel.core.aes_gcm import EncryptionLayer, may_be_ciphertext
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_in_families
from reliable_channel.core.wire.segment import Segment, decode_segment
from reliable_channel.messaging.records import MessageRecord


class SenderEventKind(StrEnum):
    """The kind of a sender record."""

    QUEUED = "queued"
    SENT = "sent"
    DELAYED = "delayed"
    """An attempt failed; it will be tried again."""
    RATE_LIMITED = "rate_limited"
    """The peer's rate limit or our own delays it."""
    RESENT = "resent"
    """The store did not have it; it is sent again."""
    NOT_STORED = "not_stored"
    """Sent again as often as it may be, and no store has it."""
    FAILED = "failed"
    """Never sent: refused, or the retries are used up."""
    DROPPED = "dropped"
    """The sender cancelled it, or it is ephemeral and the rate limit had no room for it."""


@dataclass(frozen=True, slots=True)
class SenderEvent:
    """One row. ``at_ms`` is Unix ms by the sender's clock; hashes are 32 bytes; ``detail`` holds no payload.

    ``channel_id``, ``sender_id``, ``sds_id`` and ``entire_message_hash`` are None unless the payload is a readable SDS
    message (an encrypted one is not); the hash also if its content is encrypted. ``send_id``: the ReliableSendId, which
    is the SDS id of the first segment. Without it, a row with a hash is of a message of its own."""

    kind: ClassVar[str] = "sender"
    event: SenderEventKind
    at_ms: int
    request_id: str
    pubsub_topic: str
    content_topic: str
    envelope_hash: bytes | None = None
    channel_id: str | None = None
    sender_id: str | None = None
    sds_id: str | None = None
    send_id: str | None = None
    entire_message_hash: bytes | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LossReport:
    """A participant's report that it gave up a message of ``sender_id``. ``at_ms`` is Unix ms by its own clock;
    ``sds_ids`` are those of the segments it held; ``data_count`` is None if it never learned the number of segments."""

    kind: ClassVar[str] = "loss"
    at_ms: int
    reported_by: str
    pubsub_topic: str
    content_topic: str
    channel_id: str
    sender_id: str
    entire_message_hash: bytes
    sds_ids: tuple[str, ...]
    data_count: int | None
    reason: str
    detail: str = ""


def make_sender_event(kind: SenderEventKind, now: int, record: MessageRecord, detail: str = "") -> SenderEvent:
    """A row about a request, with the channel's fields from its payload."""
    decoded = decode_in_families(record.message.payload, tuple(WireFamily))
    known: dict[str, object] = {}
    if not isinstance(decoded, Malformed):
        sds = decoded[1]
        known = {"channel_id": sds.channel_id, "sender_id": sds.sender_id, "sds_id": sds.message_id}
        if sds.content and not may_be_ciphertext(sds.content, EncryptionLayer.INSIDE_SDS):
            segment = decode_segment(sds.content)
            if not isinstance(segment, Segment):
                known["entire_message_hash"] = keccak256(sds.content)
            elif segment.index == 0 and not segment.is_parity:  # a further one does not state of which send it is
                known["entire_message_hash"] = segment.entire_message_hash
    return SenderEvent(
        event=kind,
        at_ms=now,
        request_id=str(record.request_id),
        pubsub_topic=record.pubsub_topic,
        content_topic=record.message.content_topic,
        envelope_hash=record.message_hash,
        detail=detail,
        **known,  # type: ignore[arg-type]
    )


def to_json(event: SenderEvent | LossReport) -> bytes:
    """The record value: one JSON object, hashes as lower-case hex, what is absent left out."""
    row = {"kind": event.kind} | {
        name: value.hex() if isinstance(value, bytes) else value
        for name, value in asdict(event).items()
        if value is not None
    }
    return json.dumps(row, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
