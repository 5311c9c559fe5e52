"""Defines ``MessageRecord``, and the events that a change of one causes (MESSAGING-API, *Message Storage* and
*Events*). Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.events import EventName
from reliable_channel.transport.waku_json import hash_to_hex

MAX_ERROR_CHARACTERS = 500
"""Error texts come from outside, so they are cut."""


@dataclass(frozen=True, slots=True)
class MessageRecord:
    """The record of one message. The first seven properties are those of MESSAGING-API; ``message`` is the newest
    envelope.

    ``queued``: it is ``sending`` and has left this node, and no Waku node has accepted it yet: it waits in Kafka for a
    bridge, or for the rate limit.

    ``message_hash`` (32 bytes) and ``pubsub_topic`` belong to that envelope. ``record_id`` orders records by when they
    were added, ``change_seq`` by their latest change (the cursor for long polling). ``from_store``: a store gave the
    envelope that was received just now; it is not kept.
    """

    message: WakuMessage
    sending: bool = False
    sent: bool = False
    stored: bool = False
    received: bool = False
    request_id: str | None = None
    error: str | None = None
    queued: bool = False
    message_hash: bytes = b""
    pubsub_topic: str = ""
    record_id: int = 0
    change_seq: int = 0
    created_ms: int = 0
    from_store: bool = field(default=False, compare=False)

    @property
    def hash_hex(self) -> str:
        """The message hash as running nodes write it: ``0x`` and 64 hex digits."""
        return hash_to_hex(self.message_hash)


def events_of(before: MessageRecord | None, after: MessageRecord, failed: bool = False) -> list[EventName]:
    """The ``message:*`` events of a stored change, the general one first. ``before`` is None for a new record;
    ``failed``: an error occurred now (it may read the same as the one before)."""
    was = before or MessageRecord(after.message)
    names = []
    if before is None or _list_flags(before) != _list_flags(after):
        names.append(EventName.MESSAGE_CHANGE)
    if not was.sent and after.sent:
        names.append(EventName.MESSAGE_SENT)
    if failed:
        names.append(EventName.MESSAGE_ERROR)
    if not was.received and after.received:
        names.append(EventName.MESSAGE_RECEIVED)
    if not was.stored and after.stored:
        names.append(EventName.MESSAGE_STORED)
    return names


def _list_flags(record: MessageRecord) -> tuple[bool, ...]:
    return record.sending, record.queued, record.sent, record.stored, record.received


NOT_STORED = "not_stored"
"""The beginning of the error of a record that was sent and that no store has. It is cleared when a store has it."""


def shorten(error: str) -> str:
    """An error text of bounded length, in one line."""
    return " ".join(error.split())[:MAX_ERROR_CHARACTERS]
