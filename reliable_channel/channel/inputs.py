"""What can happen to a channel, as values, and their bytes in the journal.

A channel's state follows from the sequence of these inputs alone (protocol.md §5: time is an input), so keeping them
keeps the channel. ``now`` is Unix ms and never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from reliable_channel.channel.errors import DamagedStore
from reliable_channel.wire._pb import channel_state_pb2 as pb
from reliable_channel.wire.framing import field, field_unless_empty


@dataclass(frozen=True, slots=True)
class Opened:
    """The channel was started: what is unacknowledged goes out again."""

    now: int


@dataclass(frozen=True, slots=True)
class SendRequested:
    """The application sends ``payload``. ``send_id`` is what the send was called when it first happened; empty then."""

    now: int
    payload: bytes
    send_id: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """An SDS message of another participant, decrypted; ``retrieval_hint``: the hash of the envelope it came in."""

    now: int
    data: bytes
    retrieval_hint: bytes | None


@dataclass(frozen=True, slots=True)
class DispatchDone:
    """The node says that the envelope with this SDS message went out. ``own``: a segment of an own send."""

    now: int
    sds_id: str
    message_hash: bytes
    own: bool = True


@dataclass(frozen=True, slots=True)
class DispatchFailed:
    """The node gave up on an own segment. ``final``: nothing will send it again, so the send has failed; otherwise it
    may be on the network all the same, and the wait for its acknowledgement begins."""

    now: int
    sds_id: str
    final: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Ticked:
    """Timers that were due ran."""

    now: int


@dataclass(frozen=True, slots=True)
class Closing:
    """The channel is about to stop: content that is held is acknowledged before that."""

    now: int


Input = Opened | SendRequested | Heard | DispatchDone | DispatchFailed | Ticked | Closing


def encode_input(given: Input) -> bytes:
    """The journal entry of one input."""
    entry = pb.JournalEntry(now=given.now)
    match given:
        case Opened():
            entry.opened.SetInParent()
        case Ticked():
            entry.ticked.SetInParent()
        case Closing():
            entry.closing.SetInParent()
        case SendRequested(_, payload, send_id):
            rest = pb.SendRequested(send_id=send_id).SerializeToString()
            return b"".join((entry.SerializeToString(), *field(3, *field_unless_empty(1, payload), rest)))
        case Heard(_, data, hint):
            entry.heard.data = data
            entry.heard.retrieval_hint = hint or b""
        case DispatchDone(_, sds_id, message_hash, own):
            entry.dispatched.sds_id = sds_id
            entry.dispatched.message_hash = message_hash
            entry.dispatched.own = own
        case DispatchFailed(_, sds_id, final, detail):
            entry.failed.sds_id = sds_id
            entry.failed.final = final
            entry.failed.detail = detail
    return entry.SerializeToString()


def decode_input(data: bytes) -> Input:
    """The input of a journal entry. Raises :class:`DamagedStore`."""
    try:
        entry = pb.JournalEntry.FromString(data)
    except DecodeError:
        raise _damaged() from None
    now = entry.now
    match entry.WhichOneof("input"):
        case "opened":
            return Opened(now)
        case "ticked":
            return Ticked(now)
        case "closing":
            return Closing(now)
        case "send":
            return SendRequested(now, entry.send.payload, entry.send.send_id)
        case "heard":
            return Heard(now, entry.heard.data, entry.heard.retrieval_hint or None)
        case "dispatched":
            done = entry.dispatched
            return DispatchDone(now, done.sds_id, done.message_hash, done.own)
        case "failed":
            return DispatchFailed(now, entry.failed.sds_id, entry.failed.final, entry.failed.detail)
    raise _damaged()


def _damaged() -> DamagedStore:
    return DamagedStore("The journal of this channel cannot be read.", "Restore the database, or begin a new one.")
