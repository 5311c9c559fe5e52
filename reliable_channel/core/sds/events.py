"""Defines the events of an SDS channel (LIP-109), one class per kind. A step returns its events in the order in which
they happened.

``at`` is the ``now`` (ms) of the call or timer that reports the event. Ids are SDS message ids. There are no callbacks:
``send``, ``receive``, ``tick`` and the others return their events in an :class:`SdsStep`.

Events must not be changed after construction. Like SDS messages they are nevertheless not ``frozen``: constructing a
frozen dataclass takes three times as long, which would be a twelfth of the ack job's time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.core.wire.sds import SdsMessage


class OutgoingReason(StrEnum):
    """Why a message is dispatched."""

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
    """The reliability of an acknowledgement, strongest first."""

    CERTAIN = "certain"
    IMPLIED = "implied"
    PROBABLE = "probable"


class Evidence(StrEnum):
    """The evidence for an acknowledgement, strongest first. Stronger evidence may follow weaker."""

    CAUSAL_HISTORY = "causal_history"
    """Named in the causal history of a message of the participant: certain."""
    IMPLIED = "implied"
    """In the causal past of a message that the participant has named, and in a filter of the participant. Less than
    certain: a peer that delivers a message before its dependencies names it without having them, and a filter has false
    positives."""
    FILTER = "filter"
    """In the filters of enough different messages: probable."""

    @property
    def certainty(self) -> Certainty:
        """The reliability of this evidence."""
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
    """A content message is delivered: all its dependencies were delivered before, or are listed here as lost.

    The causal position, the same for every observer, is ``(lamport_timestamp, message_id)``; ``sequence`` is the
    running number of deliveries on this channel at this observer, from 1.
    """

    message_id: str
    sender_id: str
    lamport_timestamp: int
    sequence: int
    received_at: int
    content: bytes | None
    """``None`` if the caller passed a digest instead of the content."""
    retrieval_hint: bytes | None = None
    lost_dependencies: tuple[str, ...] = ()
    """Delivered without these: irretrievably lost."""
    before_observation: tuple[str, ...] = ()
    """Delivered without these: older than the first observation of the channel."""
    late: bool = False
    """It had been declared lost or before observation, so messages that depend on it may have been delivered
    already."""
    repaired: bool = False
    """Not received but rebuilt, its id recomputed (verified repair)."""
    replaces: bool = False
    """A message with this id and other content was delivered before; this one's id was recomputed, so it wins."""
    digest: bytes = b""
    """The first 16 bytes of the SHA-256 of its content: it identifies which of several records with one id was
    accepted."""
    repeat: bool = False
    """A further send of an id with equal content, by another sender or by the same one. It is one SDS message,
    delivered before or waiting; sender and Lamport timestamp distinguish this send."""


@dataclass(slots=True, unsafe_hash=True)
class EphemeralReceived(SdsEvent):
    """An ephemeral message, delivered at once and not remembered."""

    message_id: str
    sender_id: str
    content: bytes | None


@dataclass(slots=True, unsafe_hash=True)
class Buffered(SdsEvent):
    """A content message waits in the incoming buffer for ``waiting_for``."""

    message_id: str
    sender_id: str
    waiting_for: tuple[str, ...]
    digest: bytes = b""
    repeat: bool = False
    """Both fields as in :class:`Delivered`."""


@dataclass(slots=True, unsafe_hash=True)
class DuplicateSeen(SdsEvent):
    """A content message that was seen before; only the new acknowledgements it carries are processed."""

    message_id: str
    sender_id: str


@dataclass(slots=True, unsafe_hash=True)
class Conflict(SdsEvent):
    """Two different messages with one id. The one whose id can be recomputed wins, even if it arrives second, but only
    once; if neither id can, the first is kept."""

    message_id: str
    sender_id: str
    """The sender of the second message."""
    winner: str
    """``first`` or ``second``."""
    why: str
    content: bytes | None = None
    """The content of the second message: both are kept."""


class RefusalReason(StrEnum):
    """Why a message, or a part of it, was refused."""

    LAMPORT_TOO_FAR = "lamport_too_far"
    HISTORY_TOO_LONG = "history_too_long"
    FILTER_SIZE = "filter_size"
    """Only the filter is refused; the rest of the message is accepted."""
    OLDER_THAN_LOG = "older_than_log"
    """Older than the horizon of the bounded log: it may have been delivered long ago."""
    NOT_CAUSAL = "not_causal"
    """Only a dependency is refused: it names a message whose Lamport timestamp is not below that of the naming
    message."""
    INVALID_KIND = "invalid_kind"
    INVALID_ID = "invalid_id"
    """The id begins with a NUL character, which is reserved here, or a message in the local participant's name has an
    id that is not recomputed from it."""


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
    """An id that is named but has not arrived; reported once."""

    message_id: str
    named_by: str
    named_by_sender: str
    retrieval_hint: bytes | None
    sender_id: str | None
    """The missing message's sender, if the naming message contains it."""


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
    """A missing message has arrived."""

    message_id: str
    missing_since: int
    refetches: int
    repaired: bool


@dataclass(slots=True, unsafe_hash=True)
class DependencyLost(SdsEvent):
    """A missing message is declared lost. The id is remembered as lost, and the messages that waited for it are
    delivered."""

    message_id: str
    missing_since: int
    refetches: int
    sender_id: str | None
    retrieval_hint: bytes | None
    """The hint of the first message that named it."""
    waiting: tuple[str, ...]
    """The ids of the messages that waited for it, without those that wait for another id first."""
    evicted: bool = False
    """Declared lost before its time-out, because a sender or the channel had too many missing ids."""


class Memory(StrEnum):
    """The bounded memory from which an :class:`Evicted` event removed entries."""

    MISSING = "missing"
    """Missing ids: declared lost."""
    WAITING = "waiting"
    """Messages in the incoming buffer: delivered, with the ids they waited for listed as lost."""


@dataclass(slots=True, unsafe_hash=True)
class Evicted(SdsEvent):
    """A bounded memory was full, so the oldest entries of the sender that used most of it were removed. One event per
    input and sender."""

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
    """A filter of ``by`` contains the id. ``count``: in how many different messages' filters it was so far, over all
    participants."""

    message_id: str
    by: str
    via: str
    count: int


@dataclass(slots=True, unsafe_hash=True)
class Acknowledged(SdsEvent):
    """``by`` has acknowledged a segment. Reported again when stronger evidence arrives."""

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
    """An own segment leaves the outgoing buffer: it is acknowledged by a participant, or in the filters of enough
    different messages."""

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
    """The weakest evidence among its acknowledgements of the send's segments."""


@dataclass(slots=True, unsafe_hash=True)
class SendDelivered(SdsEvent):
    """``required`` segments of a send are acknowledged end to end (``reliable:message:delivered``); once per send."""

    send_id: str
    after_error: bool


@dataclass(slots=True, unsafe_hash=True)
class DeliveryError(SdsEvent):
    """Fewer than ``required`` segments of a send can still be acknowledged: retransmissions are exhausted."""

    send_id: str
    exhausted: tuple[int, ...]
    acknowledged: tuple[int, ...]
    required: int
    total: int


@dataclass(slots=True, unsafe_hash=True)
class SaturatedFilter(SdsEvent):
    """A received filter has too many bits set to be meaningful; it acknowledged nothing."""

    message_id: str
    sender_id: str
    saturation: float


@dataclass(slots=True, unsafe_hash=True)
class FilterRolledOver(SdsEvent):
    """The own filter reached its capacity and was rebuilt from the most recent log."""

    kept: int


@dataclass(slots=True, unsafe_hash=True)
class TrackingEnded(SdsEvent):
    """The acknowledgements of another participant's message are no longer tracked, because newer messages took its
    place."""

    message_id: str


# ---- repair (SDS-R) ----------------------------------------------------------------------------------------------


@dataclass(slots=True, unsafe_hash=True)
class RepairRequested(SdsEvent):
    """An own message carries a request for a missing message."""

    message_id: str
    via: str


@dataclass(slots=True, unsafe_hash=True)
class RepairRequestSeen(SdsEvent):
    """Another participant requests a message."""

    message_id: str
    by: str
    via: str
    have: bool
    """Whether it is in the log here."""
    sender_id: str | None
    """The sender of the requested message, as the request states it."""


@dataclass(slots=True, unsafe_hash=True)
class RepairScheduled(SdsEvent):
    """This participant will rebroadcast a message at ``due`` (T_resp), unless another participant does so first."""

    message_id: str
    due: int


@dataclass(slots=True, unsafe_hash=True)
class RepairSent(SdsEvent):
    """A message is rebroadcast with its original bytes."""

    message_id: str


@dataclass(slots=True, unsafe_hash=True)
class RepairCancelled(SdsEvent):
    """An own request or answer is cancelled: ``cause`` is ``requested`` or ``answered`` (by another participant), or
    ``dropped``: the message had to make room for newer ones (``max_kept_bytes``)."""

    message_id: str
    cause: str


@dataclass(slots=True, unsafe_hash=True)
class SdsStep:
    """The result of one call: the messages to dispatch, and the events, both in order."""

    outgoing: tuple[Outgoing, ...] = ()
    events: tuple[SdsEvent, ...] = ()


NOTHING = SdsStep()
