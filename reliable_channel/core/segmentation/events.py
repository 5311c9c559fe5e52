"""Defines the events of a :class:`~reliable_channel.core.segmentation.Reassembler`, one class per kind.

``scope`` is whatever the caller gave ``Reassembler.add``: strings that name the sender in its channel, such as (pubsub
topic, content topic, channel id, sender id); the last one is the sender id. Times are ms.

Events must not be changed after they are made. They are not ``frozen``, for the reason given in ``core/sds/events.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.core.wire.segment import Dialect

Scope = tuple[str, ...]


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

    ``received`` is every genuine segment of the send held at completion, data then parity; ``rebuilt_indices`` are the
    data segments that parity rebuilt or another send of the payload lent; ``used_parity`` the parity segments that were
    needed for it. ``parity_count`` is
    ``None`` where no segment contained it. ``shard_length`` is the payload bytes of a full data segment, ``None`` for a
    single one. ``first_lamport`` is the Lamport timestamp of the send's first segment, computed from a sibling's
    when the first was not seen (then ``first_lamport_seen`` is false). ``send`` counts the sends of this hash in this
    scope, from 0, as far as they are remembered. ``one_send``: all that was received is surely of one send, as ids
    prove it, or several segments agree on the first one's timestamp.

    What was not received is listed, encoded again, by :func:`reliable_channel.core.segmentation.missing_segments`.
    """

    scope: Scope
    entire_message_hash: bytes
    payload: bytes
    data_count: int
    parity_count: int | None
    received: tuple[HeldSegment, ...]
    rebuilt_indices: tuple[int, ...]
    used_parity: tuple[int, ...]
    shard_length: int | None
    dialect: Dialect
    codec: str
    original_length: int | None
    first_lamport: int | None
    first_lamport_seen: bool
    first_seen: int
    completed_at: int
    send: int = 0
    one_send: bool = False


@dataclass(slots=True, unsafe_hash=True)
class CompletedSend:
    """The memory of a completed send, in a form that can be stored elsewhere: see :meth:`Reassembler.remember`.

    ``sds_ids`` are those of its segments, data then parity, ``None`` where unknown. ``origin`` is the first segment's
    Lamport timestamp where all that came is surely of one send (``MessageCompleted.one_send``), else ``None``: then
    segments of several sends may have been mixed. ``completed_at`` is ms."""

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
    wrote, ``lamport`` its Lamport timestamp where a sibling's determines it; its SDS id is computed from both
    (docs/spec/sds-messages.md, *Message ids*)."""

    is_parity: bool
    index: int
    content: bytes
    lamport: int | None


@dataclass(slots=True, unsafe_hash=True)
class SegmentDuplicate:
    """A segment that changed nothing: held already, or (``late``) of a message completed before."""

    scope: Scope
    entire_message_hash: bytes
    is_parity: bool
    index: int
    sds_id: str
    late: bool


@dataclass(slots=True, unsafe_hash=True)
class SegmentConflict:
    """Other bytes for an index under the SDS id that is held already: both are kept until the hash decides."""

    scope: Scope
    entire_message_hash: bytes
    is_parity: bool
    index: int
    sds_id: str


class Refusal(StrEnum):
    """Why a valid segment was not taken."""

    OVER_MESSAGE_LIMIT = "over_message_limit"
    OVER_QUOTA = "over_quota"
    FALSE_ID = "false_id"
    """Other bytes under an SDS id that the segment held can prove to be its own."""


@dataclass(slots=True, unsafe_hash=True)
class SegmentRefused:
    """A segment that would break a bound on its own, or whose counts no message of this hash can have."""

    scope: Scope
    entire_message_hash: bytes
    is_parity: bool
    index: int
    sds_id: str
    reason: Refusal


@dataclass(slots=True, unsafe_hash=True)
class HashMismatch:
    """A rebuilt payload does not hash to ``entire_message_hash`` and is discarded. The segments are kept: one of them
    is false, and a further one may complete the set. Emitted with the first mismatch of a set and once more, with
    ``exhausted``, when no further combination of segments will be tried; ``attempts`` counts those that were.
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
class PoisonedSegmentExcluded:
    """A false segment, found by comparison with the verified payload; comes right before its
    :class:`MessageCompleted`."""

    scope: Scope
    entire_message_hash: bytes
    is_parity: bool
    index: int
    sds_id: str


class EvictionReason(StrEnum):
    """Which bound made room at an incomplete set's cost."""

    OPEN_SENDS = "open_sends_of_one_payload"
    OPEN_SETS = "open_sets"
    OPEN_SETS_PER_SENDER = "open_sets_per_sender"
    BUFFERED_BYTES = "buffered_bytes"
    BUFFERED_BYTES_PER_SENDER = "buffered_bytes_per_sender"
    LIFETIME = "set_lifetime"


@dataclass(slots=True, unsafe_hash=True)
class IncompleteSet:
    """An incomplete set as it was given up: what it held, and what it lacks.

    ``data_count`` is ``None`` when only v0.1 parity came, ``parity_count`` when no segment contained it;
    ``missing_data`` and ``lacking`` (how many further segments would have done) are then empty and ``None``.
    ``mismatch``: a rebuild was tried, and its hash was another one.
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
class SetExpired:
    """No segment came for ``set_timeout_ms``."""

    incomplete: IncompleteSet
    expired_at: int


@dataclass(slots=True, unsafe_hash=True)
class SetEvicted:
    """A bound was reached; this was the least recently updated set of the sender that it applies to, for a bound in all
    the one that holds most; for the lifetime the set itself."""

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
    | SetExpired
    | SetEvicted
)
