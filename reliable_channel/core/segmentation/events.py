"""Defines the events of a :class:`~reliable_channel.core.segmentation.Reassembler`, one class per kind.

``scope`` is the caller's argument of ``Reassembler.add``: strings that identify the sender in its channel, such as
(pubsub topic, content topic, channel id, sender id); the last one is the sender id. Times are ms.

Events must not be changed after construction. They are not ``frozen``, for the reason given in ``core/sds/events.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.core.wire.segment import Dialect

Scope = tuple[str, ...]


def get_sender(scope: Scope) -> str:
    """The sender that a scope names last; empty without one."""
    return scope[-1] if scope else ""


@dataclass(slots=True, unsafe_hash=True)
class HeldSegment:
    """The identity of a segment that was received; ``lamport`` is its SDS message's Lamport timestamp, if known."""

    is_parity: bool
    index: int
    sds_id: str
    lamport: int | None = None


@dataclass(slots=True, unsafe_hash=True)
class MessageCompleted:
    """A payload whose Keccak-256 is ``entire_message_hash`` (Segmentation 0.1, *Receiving*).

    ``received`` lists the genuine segments of the send held at completion, data then parity; ``rebuilt_indices`` are
    the data segments rebuilt from parity or borrowed from another send of the payload. ``parity_count`` is ``None`` if
    no segment contained it. ``shard_length`` is the payload bytes of a full data segment, ``None`` for a single one.
    ``first_lamport`` is the Lamport timestamp of the send's first segment, computed from a sibling's when the first was
    not seen. ``send`` counts the remembered sends of this hash in this scope, from 0. ``one_send``: all received
    segments certainly belong to one send, because ids prove it or several segments agree on the first one's timestamp.

    :func:`reliable_channel.core.segmentation.missing_segments` re-encodes the segments that were not received.
    """

    scope: Scope
    entire_message_hash: bytes
    payload: bytes
    data_count: int
    parity_count: int | None
    received: tuple[HeldSegment, ...]
    rebuilt_indices: tuple[int, ...]
    shard_length: int | None
    dialect: Dialect
    codec: str
    original_length: int | None
    first_lamport: int | None
    first_seen: int
    completed_at: int
    send: int = 0
    one_send: bool = False


@dataclass(slots=True, unsafe_hash=True)
class CompletedSend:
    """The record of a completed send, in a form that can be stored elsewhere: see :meth:`Reassembler.remember`.

    ``sds_ids`` are those of its segments, data then parity, ``None`` where unknown. ``origin`` is the first segment's
    Lamport timestamp if all received segments certainly belong to one send (``MessageCompleted.one_send``), else
    ``None``: segments of several sends may be mixed. ``completed_at`` is ms."""

    scope: Scope
    entire_message_hash: bytes
    send: int
    data_count: int
    origin: int | None
    completed_at: int
    sds_ids: tuple[str | None, ...]


@dataclass(slots=True, unsafe_hash=True)
class MissingSegment:
    """A segment of a completed message that was never received: ``content`` is the SDS content (bytes) its sender
    wrote, ``lamport`` its Lamport timestamp if a sibling's determines it; its SDS id is computed from both
    (docs/spec/sds-messages.md, *Message ids*)."""

    is_parity: bool
    index: int
    content: bytes
    lamport: int | None


@dataclass(slots=True, unsafe_hash=True)
class ReceivedSegmentEvent:
    """Base of the events about one segment that was received."""

    scope: Scope
    entire_message_hash: bytes
    is_parity: bool
    index: int
    sds_id: str


@dataclass(slots=True, unsafe_hash=True)
class SegmentDuplicate(ReceivedSegmentEvent):
    """A segment that changed nothing: it was held already, or (``late``) its message was already completed."""

    late: bool


@dataclass(slots=True, unsafe_hash=True)
class SegmentConflict(ReceivedSegmentEvent):
    """Different bytes for an index under the same SDS id as the held segment: both are kept until the hash decides."""


class Refusal(StrEnum):
    """Why a valid segment was refused."""

    OVER_MESSAGE_LIMIT = "over_message_limit"
    OVER_QUOTA = "over_quota"
    FALSE_ID = "false_id"
    """Different bytes under an SDS id that provably belongs to the held segment."""


@dataclass(slots=True, unsafe_hash=True)
class SegmentRefused(ReceivedSegmentEvent):
    """A segment that alone would exceed a bound, or whose counts are impossible for a message of this hash."""

    reason: Refusal


@dataclass(slots=True, unsafe_hash=True)
class HashMismatch:
    """A rebuilt payload does not hash to ``entire_message_hash`` and is discarded. The segments are kept: one of them
    is false, and another one may complete the set. Emitted with the first mismatch of a set and once more, with
    ``exhausted``, when no further combination of segments will be tried; ``attempts`` counts the tried ones.
    ``contested`` are the segments, also of other open sends of this hash, that claim one position with different
    bytes."""

    scope: Scope
    entire_message_hash: bytes
    data_count: int
    held: tuple[HeldSegment, ...]
    attempts: int
    exhausted: bool
    contested: tuple[HeldSegment, ...] = ()


@dataclass(slots=True, unsafe_hash=True)
class PoisonedSegmentExcluded(ReceivedSegmentEvent):
    """A false segment, found by comparison with the verified payload; emitted right before its
    :class:`MessageCompleted`."""


class EvictionReason(StrEnum):
    """Which bound caused an incomplete set to be evicted."""

    OPEN_SENDS = "open_sends_of_one_payload"
    OPEN_SETS = "open_sets"
    OPEN_SETS_PER_SENDER = "open_sets_per_sender"
    BUFFERED_BYTES = "buffered_bytes"
    BUFFERED_BYTES_PER_SENDER = "buffered_bytes_per_sender"


@dataclass(slots=True, unsafe_hash=True)
class IncompleteSet:
    """The state of an incomplete set when it was overdue, expired or was evicted.

    ``data_count`` is ``None`` if only v0.1 parity arrived, ``parity_count`` if no segment contained it;
    ``missing_data`` and ``lacking`` (how many more segments were needed) are then empty and ``None``. ``mismatch``: a
    rebuild was tried, and its hash did not match.
    """

    scope: Scope
    entire_message_hash: bytes
    data_count: int | None
    parity_count: int | None
    held: tuple[HeldSegment, ...]
    missing_data: tuple[int, ...]
    lacking: int | None
    buffered_bytes: int
    first_seen: int
    last_seen: int
    mismatch: bool


@dataclass(slots=True, unsafe_hash=True)
class SetOverdue:
    """No segment arrived for ``set_timeout_ms``: ask for what is missing. The set is kept. Repeated after growing waits
    (``asks`` counts from 1), the last time ``set_timeout_ms`` before the set expires."""

    incomplete: IncompleteSet
    asks: int
    overdue_at: int


@dataclass(slots=True, unsafe_hash=True)
class SetExpired:
    """A set was given up ``max_set_lifetime_ms`` after its first segment."""

    incomplete: IncompleteSet
    expired_at: int


@dataclass(slots=True, unsafe_hash=True)
class SetEvicted:
    """A set was given up because of a bound: the least recently updated set of the sender to whom the bound applies
    (for a total bound, the sender that holds most)."""

    incomplete: IncompleteSet
    reason: EvictionReason
    evicted_at: int


SegmentationEvent = (
    MessageCompleted
    | SegmentDuplicate
    | SegmentConflict
    | SegmentRefused
    | HashMismatch
    | PoisonedSegmentExcluded
    | SetOverdue
    | SetExpired
    | SetEvicted
)
