"""The inputs and effects of a channel's state machine, as values, and the inputs' encoding in the journal.

The state follows from the sequence of inputs alone, because time is an input, so persisting the inputs persists the
state. Effects are instructions: dispatch, report, fetch; the channel carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.events import ChannelEvent, ChunkInfo, MessageLost, MessageReceived, SendEvent
from reliable_channel.core.sds import Outgoing
from reliable_channel.core.wire._pb import channel_state_pb2 as pb
from reliable_channel.core.wire.framing import field, field_unless_empty


@dataclass(frozen=True, slots=True)
class Opened:
    """The channel was started: unacknowledged messages are sent again."""

    now: int


@dataclass(frozen=True, slots=True)
class SendRequested:
    """The application sends ``payload``. ``send_id`` and ``ciphertexts`` are empty at the first execution. In a replay
    they are the id assigned then, and the encrypted segments if the channel encrypts inside SDS: encrypting again would
    give others."""

    now: int
    payload: bytes
    send_id: str = ""
    ciphertexts: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class EnvelopeReceived:
    """An SDS message of another participant; ``retrieval_hint``: the hash of the envelope it came in. ``data``: its
    bytes, decrypted if it was encrypted as a whole. ``content``: its decrypted content, if only that was encrypted."""

    now: int
    data: bytes
    retrieval_hint: bytes | None
    content: bytes | None = None


@dataclass(frozen=True, slots=True)
class DispatchDone:
    """The node has dispatched the envelope with this SDS message. ``own``: a segment of an own send."""

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
    """The channel is about to stop, and first acknowledges the content it holds."""

    now: int


@dataclass(frozen=True, slots=True)
class SyncWithdrawn:
    """The node gave back the sync message that waited for the rate limit, because a newer one acknowledges more."""

    now: int


Input = Opened | SendRequested | EnvelopeReceived | DispatchDone | DispatchFailed | Ticked | Closing | SyncWithdrawn


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
        case SyncWithdrawn():
            entry.withdrawn.SetInParent()
        case SendRequested(_, payload, send_id, ciphertexts):
            # The payload is written beside protobuf, which would copy it (docs/channel.md, *Figures*).
            rest = pb.SendRequested(send_id=send_id, ciphertexts=ciphertexts).SerializeToString()
            return b"".join((entry.SerializeToString(), *field(3, *field_unless_empty(1, payload), rest)))
        case EnvelopeReceived(_, data, hint, content):
            entry.received.data = data
            entry.received.retrieval_hint = hint or b""
            entry.received.content = content or b""
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
        raise _damage_error() from None
    now = entry.now
    match entry.WhichOneof("input"):
        case "opened":
            return Opened(now)
        case "ticked":
            return Ticked(now)
        case "closing":
            return Closing(now)
        case "withdrawn":
            return SyncWithdrawn(now)
        case "send":
            return SendRequested(now, entry.send.payload, entry.send.send_id, tuple(entry.send.ciphertexts))
        case "received":
            received = entry.received
            return EnvelopeReceived(now, received.data, received.retrieval_hint or None, received.content or None)
        case "dispatched":
            done = entry.dispatched
            return DispatchDone(now, done.sds_id, done.message_hash, done.own)
        case "failed":
            return DispatchFailed(now, entry.failed.sds_id, entry.failed.final, entry.failed.detail)
    raise _damage_error()


def _damage_error() -> DamagedStore:
    return DamagedStore("The journal of this channel cannot be read.", "Restore the database, or begin a new one.")


@dataclass(frozen=True, slots=True)
class SdsDispatch:
    """Dispatch one SDS message in a fresh envelope. ``counts``: it is the first dispatch of the first segment of a
    message, the only one that a rate limit in messages counts (docs/spec/rate-limit.md). ``send_id`` is ``None`` for
    control traffic."""

    outgoing: Outgoing
    send_id: str | None = None
    payload_hash: str = ""
    total: int = 1
    counts: bool = False
    ephemeral: bool = False

    @property
    def sds_id(self) -> str:
        return self.outgoing.message.message_id

    def describe(self, channel_id: str, now: int) -> dict[str, Any]:
        """The fields of an event about this segment of an own send (``SegmentEvent``)."""
        return {
            "channel_id": channel_id,
            "at": now,
            "request_id": self.send_id,
            "message_id": self.payload_hash,
            "sds_id": self.sds_id,
            "chunk_info": ChunkInfo(self.outgoing.index, self.total),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Report an event to the application. ``message_key``, of a received message, is the same whenever a replay yields
    it again, and empty for an ephemeral message, which is not kept."""

    event: ChannelEvent
    message_key: str = ""

    @property
    def key(self) -> str:
        """Identifies the event in the record of reported events; empty when no restart reports it again."""
        event = self.event
        if isinstance(event, MessageReceived):
            return f"{event.name} {self.message_key}" if self.message_key else ""
        if isinstance(event, MessageLost):
            return f"{event.name} {event.sender_id} {event.message_id} {event.at}"
        return f"{event.name} {event.request_id}" if isinstance(event, SendEvent) else ""

    @property
    def size(self) -> int:
        """Payload bytes."""
        return len(self.event.message) if isinstance(self.event, MessageReceived) else 0


@dataclass(frozen=True, slots=True)
class Fetch:
    """Query a store for a missing segment. ``attempt`` counts from 1."""

    retrieval_hint: bytes | None
    attempt: int


@dataclass(frozen=True, slots=True)
class FetchRange:
    """Query a store for everything since ``start_ms`` (Unix ms): segments of a set are missing."""

    start_ms: int


@dataclass(frozen=True, slots=True)
class AskForSegments:
    """Ask for the missing segments of an overdue set by every way there is. ``named``: (id, the segment of the set that
    names it) of those whose ids its histories name. ``since_ms``: when (Unix ms) its first segment was sent or seen."""

    sender_id: str
    named: tuple[tuple[str, str], ...]
    since_ms: int


Effect = SdsDispatch | Report | Fetch | FetchRange


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one input. ``keep``: it changed the state, so ``given`` belongs into the journal."""

    given: Input
    effects: tuple[Effect, ...]
    keep: bool = True
    send_id: str = ""
    required: int = 0
