"""Defines the events of an SDS channel (LIP-109), one class per kind. A step returns its events in the order in which
they happened.

``at`` is the ``now`` (ms) of the call or timer that reports. Ids are SDS message ids. There are no callbacks: ``send``,
``receive``, ``tick`` and the others return their events in an :class:`SdsStep`.

Events must not be changed after they are made. They are not ``frozen`` all the same, nor are SDS messages: setting the
fields of a frozen dataclass takes three times as long, which would be a twelfth of the ack job's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.core.wire.sds import SdsMessage


class OutgoingReason(StrEnum):
    """Why a message goes out."""

    CONTENT = "content"
    RESEND = "resend"
    SYNC = "sync"
    REPAIR = "repair"
    EPHEMERAL = "ephemeral"


@dataclass(slots=True, unsafe_hash=True)
class Outgoing:
    """One SDS message to dispatch in one new envelope. ``data`` is its bytes on the wire; a resend and a repair are bit
    for bit the original. ``send_id`` names the send (the SDS id of its first segment), ``index`` the segment in it."""

    data: bytes
    message: SdsMessage
    reason: OutgoingReason
    send_id: str | None = None
    index: int = 0
    attempt: int = 0


class Certainty(StrEnum):
    """How much an acknowledgement may be relied on, the strongest first."""

    CERTAIN = "certain"
    IMPLIED = "implied"
    PROBABLE = "probable"


class Evidence(StrEnum):
    """The evidence of an acknowledgement, the strongest first. Stronger evidence may follow weaker."""

    CAUSAL_HISTORY = "causal_history"
    """Named in the causal history of a message of the participant: certain."""
    IMPLIED = "implied"
    """In the causal past of what the participant has named, and in the filter of a message of its own. Below certain: a
    peer that delivers a message before its dependencies names the message without having them, and a filter may err."""
    FILTER = "filter"
    """In the filters of enough different messages: probable."""

    @property
    def certainty(self) -> Certainty:
        """How much it may be relied on."""
        return _CERTAINTY[self]

    def is_stronger_than(self, other: Evidence | None) -> bool:
        """Whether this evidence is stronger than ``other``; any evidence is stronger than ``None``."""
        return other is None or _RANK[self] < _RANK[other]


_CERTAINTY = dict(zip(Evidence, Certainty, strict=True))
_RANK = {evidence: rank for rank, evidence in enumerate(Evidence)}


@dataclass(slots=True, unsafe_hash=True)
class SdsEvent:
    """Base of all events."""

    at: int


# ---- incoming ----------------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)
class Delivered(SdsEvent):
    """A content message is delivered: everything it depends on was delivered before, or is named here as lost.

    The causal position, the same for every observer, is ``(lamport_timestamp, message_id)``; ``sequence`` is the
    running number of deliveries on this channel at this observer, from 1.
    """

    message_id: str
    sender_id: str
    lamport_timestamp: int
    sequence: int
    received_at: int
    content: bytes | None
    """``None`` when the caller gave a digest instead of the content."""
    retrieval_hint: bytes | None = None
    lost_dependencies: tuple[str, ...] = ()
    """Delivered without these: irretrievably lost."""
    before_observation: tuple[str, ...] = ()
    """Delivered without these: older than the first observation of the channel."""
    late: bool = False
    """It had been given up as lost, or as before observation, and something that depends on it may have been
    delivered already."""
    repaired: bool = False
    """Not received but rebuilt, its id recomputed (verified repair)."""
    replaces: bool = False
    """A message with this id and other content was delivered before; this one's id was recomputed, so it wins."""
    digest: bytes = b""
    """The first 16 bytes of the SHA-256 of its content: it tells which of several records of one id was accepted."""
    repeat: bool = False
    """A further send of an id with equal content: by another sender, or once more. One SDS message, delivered here
    before or waiting; its sender and Lamport timestamp tell this send apart."""


@dataclass(slots=True, unsafe_hash=True)
class EphemeralReceived(SdsEvent):
    """An ephemeral message, delivered at once and remembered nowhere."""

    message_id: str
    sender_id: str
    content: bytes | None


@dataclass(slots=True, unsafe_hash=True)
class SyncReceived(SdsEvent):
    """A sync message of another participant."""

    message_id: str
    sender_id: str
    lamport_timestamp: int


@dataclass(slots=True, unsafe_hash=True)
class Buffered(SdsEvent):
    """A content message waits in the incoming buffer for ``waiting_for``."""

    message_id: str
    sender_id: str
    waiting_for: tuple[str, ...]
    digest: bytes = b""
    repeat: bool = False
    """Both as in :class:`Delivered`."""


@dataclass(slots=True, unsafe_hash=True)
class DuplicateSeen(SdsEvent):
    """A content message that was seen before: nothing but the acknowledgements it newly carries is taken."""

    message_id: str
    sender_id: str


@dataclass(slots=True, unsafe_hash=True)
class Conflict(SdsEvent):
    """Two messages with one id that are no sends of one message. The one whose id can be recomputed wins, also when it
    comes second, but only once; when neither can, the first stands."""

    message_id: str
    sender_id: str
    """Of the second message."""
    winner: str
    """``first`` or ``second``."""
    why: str
    content: bytes | None = None
    """Of the second message: both are kept."""


class RefusalReason(StrEnum):
    """Why a message, or a part of it, was refused."""

    LAMPORT_TOO_FAR = "lamport_too_far"
    HISTORY_TOO_LONG = "history_too_long"
    FILTER_SIZE = "filter_size"
    """Only the filter is refused; the rest of the message is taken."""
    OLDER_THAN_LOG = "older_than_log"
    """Older than everything the bounded log still knows: it may have been delivered long ago."""
    NOT_CAUSAL = "not_causal"
    """Only a dependency is refused: it names a message whose Lamport timestamp is not below the namer's."""
    INVALID_KIND = "invalid_kind"
    INVALID_ID = "invalid_id"
    """The id begins with a NUL character, which is reserved here, or a message in one's own name has an id that is not
    recomputed from it."""


@dataclass(slots=True, unsafe_hash=True)
class MessageRefused(SdsEvent):
    """A message (for ``filter_size`` its filter, for ``not_causal`` a dependency) was refused and changed nothing."""

    message_id: str
    sender_id: str
    reason: RefusalReason
    detail: str = ""


# ---- dependencies ------------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)
class MissingDependency(SdsEvent):
    """An id that is named but not here; reported once."""

    message_id: str
    named_by: str
    named_by_sender: str
    retrieval_hint: bytes | None
    sender_id: str | None
    """The missing message's sender, where the naming message says so."""


@dataclass(slots=True, unsafe_hash=True)
class RefetchDue(SdsEvent):
    """Ask a store for a missing message. ``attempt`` counts from 1."""

    message_id: str
    retrieval_hint: bytes | None
    attempt: int
    missing_since: int
    sender_id: str | None


@dataclass(slots=True, unsafe_hash=True)
class DependencyFound(SdsEvent):
    """A message that was missing is here."""

    message_id: str
    missing_since: int
    refetches: int
    repaired: bool


@dataclass(slots=True, unsafe_hash=True)
class DependencyLost(SdsEvent):
    """A missing message is irretrievably lost; remembered as such, and what waited for it is delivered."""

    message_id: str
    missing_since: int
    refetches: int
    sender_id: str | None
    waiting: tuple[str, ...]
    """The ids of the messages that waited for it, those left out that wait for another id first."""
    evicted: bool = False
    """Given up before its time, because a sender or the channel had too many missing ids."""


class Memory(StrEnum):
    """The bounded memory from which an :class:`Evicted` event removed entries."""

    MISSING = "missing"
    """Missing ids: given up as lost."""
    WAITING = "waiting"
    """Messages in the incoming buffer: delivered, what they waited for stated as lost."""


@dataclass(slots=True, unsafe_hash=True)
class Evicted(SdsEvent):
    """A bounded memory was full, and the sender that held most of it gave up its oldest entries. One event for an input
    and sender."""

    memory: Memory
    sender_id: str
    count: int


@dataclass(slots=True, unsafe_hash=True)
class DependencyBeforeObservation(SdsEvent):
    """An id that is named but older than the first observation of the channel; reported once, not waited for."""

    message_id: str
    named_by: str


# ---- acknowledgements --------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)
class PossiblyAcknowledged(SdsEvent):
    """A filter of ``by`` holds the id. ``count`` different messages of all participants did so far."""

    message_id: str
    by: str
    via: str
    count: int


@dataclass(slots=True, unsafe_hash=True)
class Acknowledged(SdsEvent):
    """``by`` has acknowledged a segment. Reported again when stronger evidence comes."""

    message_id: str
    sender_id: str
    by: str
    evidence: Evidence
    via: str
    """The message that carried the evidence."""
    since: int
    """When the segment was first sent or received here (ms)."""


@dataclass(slots=True, unsafe_hash=True)
class SegmentAcknowledged(SdsEvent):
    """An own segment leaves the outgoing buffer: acknowledged by someone, or in enough different messages' filters."""

    message_id: str
    send_id: str
    index: int
    evidence: Evidence
    acknowledged: tuple[int, ...]
    """All indices of this send that are acknowledged so far."""
    total: int


@dataclass(slots=True, unsafe_hash=True)
class RecipientAcknowledged(SdsEvent):
    """Participant ``by`` has acknowledged ``required`` segments of a send: it can rebuild the message."""

    send_id: str
    by: str
    required: int
    total: int
    evidence: Evidence
    """The weakest among its acknowledgements of the send's segments."""


@dataclass(slots=True, unsafe_hash=True)
class SendDelivered(SdsEvent):
    """``required`` segments of a send are acknowledged end to end (``reliable:message:delivered``); once per send."""

    send_id: str
    after_error: bool


@dataclass(slots=True, unsafe_hash=True)
class Retransmitted(SdsEvent):
    """An unacknowledged segment goes out again. ``attempt`` counts from 1."""

    message_id: str
    send_id: str
    index: int
    attempt: int


@dataclass(slots=True, unsafe_hash=True)
class SendError(SdsEvent):
    """Fewer than ``required`` segments of a send can still be acknowledged: retransmissions are exhausted."""

    send_id: str
    exhausted: tuple[int, ...]
    acknowledged: tuple[int, ...]
    required: int
    total: int


@dataclass(slots=True, unsafe_hash=True)
class SaturatedFilter(SdsEvent):
    """A received filter has too many bits set to mean anything; it acknowledged nothing."""

    message_id: str
    sender_id: str
    saturation: float


@dataclass(slots=True, unsafe_hash=True)
class FilterRolledOver(SdsEvent):
    """The own filter reached its capacity and was rebuilt from the most recent log."""

    kept: int


@dataclass(slots=True, unsafe_hash=True)
class TrackingEnded(SdsEvent):
    """The acknowledgements of a message of someone else's are no longer tracked: newer ones took its place."""

    message_id: str


# ---- repair (SDS-R) ----------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)
class RepairRequested(SdsEvent):
    """An own message carries a request for a missing message."""

    message_id: str
    via: str


@dataclass(slots=True, unsafe_hash=True)
class RepairRequestSeen(SdsEvent):
    """Another participant asks for a message."""

    message_id: str
    by: str
    via: str
    have: bool
    """Whether it is in the log here."""


@dataclass(slots=True, unsafe_hash=True)
class RepairScheduled(SdsEvent):
    """This participant will rebroadcast a message at ``due`` (T_resp), unless someone else does before."""

    message_id: str
    due: int


@dataclass(slots=True, unsafe_hash=True)
class RepairSent(SdsEvent):
    """A message is rebroadcast, its original bytes."""

    message_id: str


@dataclass(slots=True, unsafe_hash=True)
class RepairCancelled(SdsEvent):
    """An own request or answer is not needed for now: ``cause`` is ``requested`` or ``answered`` (by another)."""

    message_id: str
    cause: str


@dataclass(slots=True, unsafe_hash=True)
class SdsStep:
    """The result of one call: the messages to dispatch, and the events, both in order."""

    outgoing: tuple[Outgoing, ...] = ()
    events: tuple[SdsEvent, ...] = ()


NOTHING = SdsStep()
