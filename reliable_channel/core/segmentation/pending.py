"""Represents one send at the receiver: an open set with the bytes of its segments, or the record of a completed one."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from reliable_channel.core.segmentation.events import HeldSegment, IncompleteSet, Scope
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS, Dialect, Segment

PARITY = MAX_TOTAL_SEGMENTS
"""A *slot* is a segment's position in its set: the index of a data segment, or ``PARITY`` + the index of a parity
segment."""

Shard = tuple[str, int | None, bytes, int]
"""The content of a slot: SDS id, Lamport timestamp, payload, and its number in the order of all accepted segments."""

SetKey = tuple[Scope, bytes]

MAX_CONFLICTS = 16
"""Maximum number of rival payloads that an open set keeps for occupied slots under the same SDS id."""

MAX_OPEN_SENDS = 16
"""Maximum number of open sends of one hash by one sender, because a segment may belong to each of them."""


def slot_of(segment: Segment) -> int:
    """Return the slot of a segment."""
    return segment.index + PARITY if segment.is_parity else segment.index


def describe_segment(slot: int, sds_id: str, lamport: int | None) -> HeldSegment:
    """Return the public description of a slot's content."""
    return HeldSegment(slot >= PARITY, slot % PARITY, sds_id, lamport)


@dataclass(slots=True, eq=False, repr=False)
class Owner:
    """The open sets of one sender, least recently updated first, and their payload bytes."""

    open: OrderedDict[OpenSet, None] = field(default_factory=OrderedDict)
    buffered_bytes: int = 0


@dataclass(slots=True, eq=False)  # equal and hashed by identity: it is a key of several dictionaries while it changes
class OpenSet:
    """One incomplete send. ``conflicts`` are rival payloads per slot; ``mismatch``: the hash refused a rebuild.

    ``attempts`` and ``tried`` are the choices of segments that were tried, ``lengths_key`` and ``lengths_tried`` the
    progress of the search for the true length of one of them. ``unfinished``: the work of an input did not suffice, and
    the search continues with the next input, or at ``search_due`` (ms), once for each of the ``credit`` segments that
    caused no work on arrival."""

    key: SetKey
    send: int
    dialect: Dialect
    codec: str
    data_count: int | None
    parity_count: int | None
    original_length: int | None
    first_seen: int
    last_seen: int
    slots: dict[int, Shard] = field(default_factory=dict)
    conflicts: list[tuple[int, Shard]] = field(default_factory=list)
    buffered_bytes: int = 0
    attempts: int = 0
    tried: frozenset[int] = frozenset()
    lengths_key: int = 0
    lengths_tried: int = 0
    credit: int = 0
    unfinished: bool = False
    search_due: int | None = None
    mismatch: bool = False
    bound: bool | None = None
    """Whether the id of the first received segment proves its send; ``None``: not checked yet."""
    refused_loan: int = 0
    """The last choice with borrowed segments that did not match the hash."""
    asks: int = 0
    """How often its missing segments were asked for; above 0 it is *overdue*."""
    ask_due: int = 0
    """When (ms) they are asked for next, if it is overdue."""
    parked: bool = False
    """Whether the payloads of its segments are in a store, and empty here
    (:mod:`~reliable_channel.core.segmentation.parking`)."""
    owner: Owner = field(default_factory=Owner, repr=False)
    """That of its sender, once the set is held; cached so that an update need not hash the scope again."""

    def fits(self, segment: Segment, codec: str) -> bool:
        """Whether the segment's counts, length and layout are consistent with this message."""
        if self.codec != codec or self.original_length != segment.original_length:
            return False
        if (self.dialect is Dialect.LIP243_LENGTH) is not (segment.dialect is Dialect.LIP243_LENGTH):
            return False
        k, m = segment.data_count, segment.parity_count
        if not (agree(k, self.data_count) and agree(m, self.parity_count)):
            return False
        k, m = k or self.data_count, m or self.parity_count
        return k is None or m is None or k + m <= MAX_TOTAL_SEGMENTS

    def fits_but_for_counts(self, other: OpenSet) -> bool:
        """Whether two sets of one hash may hold segments of the same message, ignoring their counts."""
        lengths = Dialect.LIP243_LENGTH
        return (
            self.codec == other.codec
            and self.original_length == other.original_length
            and (self.dialect is lengths) is (other.dialect is lengths)
        )

    def agrees_on_parity(self, other: OpenSet) -> bool:
        """Whether the parity counts of two sets do not contradict each other."""
        return agree(self.parity_count, other.parity_count)

    def learn(self, segment: Segment) -> None:
        """Adopt the counts that the segment contains."""
        if segment.data_count is not None:
            self.data_count = segment.data_count
        if segment.parity_count is not None:
            self.parity_count = segment.parity_count
        if segment.dialect is Dialect.LIP243:
            self.dialect = Dialect.LIP243

    def first(self, data_count: int | None) -> int | None:
        """The Lamport timestamp of the send's first segment, computed from the first received segment, in a message of
        ``data_count`` data segments: the segments of a send are wrapped in one step, data then parity, with consecutive
        timestamps (docs/spec/sds-messages.md, *Message ids*)."""
        slot, shard = next(iter(self.slots.items()))
        return first_of(slot, shard[1], data_count)

    def origins(self) -> set[int]:
        """The first Lamport timestamps computed from each of the held segments."""
        firsts = {first_of(slot, shard[1], self.data_count) for slot, shard in self.slots.items()}
        return {first for first in firsts if first is not None}

    def list_segments(self) -> tuple[HeldSegment, ...]:
        """The held segments, data then parity."""
        return tuple(describe_segment(slot, shard[0], shard[1]) for slot, shard in sorted(self.slots.items()))

    def incomplete(self) -> IncompleteSet:
        """Describe the set for the event of its expiry or eviction."""
        k = self.data_count
        return IncompleteSet(
            scope=self.key[0],
            entire_message_hash=self.key[1],
            data_count=k,
            parity_count=self.parity_count,
            held=self.list_segments(),
            missing_data=() if k is None else tuple(index for index in range(k) if index not in self.slots),
            lacking=None if k is None else max(k - len(self.slots), 0),
            buffered_bytes=self.buffered_bytes,
            first_seen=self.first_seen,
            last_seen=self.last_seen,
            mismatch=self.mismatch or self.unfinished,
        )


@dataclass(slots=True, eq=False)
class CompletedSet:
    """The record of a finished send: which SDS id was seen in which slot. It was delivered, or, if ``lost``, given up.
    ``origin`` is its first segment's Lamport timestamp if that is certain: it distinguishes a late segment from one of
    another send. ``strange`` are the Lamport timestamps, per slot, of late segments that do not match ``origin``.
    ``data_count`` is ``None`` if it was given up before it was known."""

    key: SetKey
    send: int
    data_count: int | None
    parity_count: int | None
    origin: int | None
    completed_at: int
    slots: dict[int, str]
    strange: dict[int, int] = field(default_factory=dict)
    lost: bool = False

    def lamport(self, slot: int) -> int | None:
        """The Lamport timestamp (ms) of the segment in a slot, if known."""
        position = ordinal(slot, self.data_count)
        return self.strange.get(slot, None if self.origin is None or position is None else self.origin + position)

    def first(self, data_count: int) -> int | None:
        """Its first segment's Lamport timestamp if that is certain, in a message of ``data_count`` data segments. The
        count only matters for a send of v0.1 parity that was given up."""
        if self.data_count is not None or not self.strange:
            return self.origin
        slot, lamport = next(iter(self.strange.items()))
        return first_of(slot, lamport, data_count)

    def take_late(self, slot: int, sds_id: str, lamport: int | None) -> None:
        """Remember a late segment."""
        self.slots[slot] = sds_id
        if lamport is not None and lamport != self.lamport(slot):
            self.strange[slot] = lamport

    def may_hold(self, segment: Segment) -> bool:
        """Whether the segment's counts are consistent with this message."""
        return agree(segment.data_count, self.data_count) and agree(segment.parity_count, self.parity_count)


def agree(one: int | None, other: int | None) -> bool:
    """Whether two counts, ``None`` if unknown, do not contradict each other."""
    return one is None or other is None or one == other


def ordinal(slot: int, data_count: int | None) -> int | None:
    """The position of a slot in its send, data then parity; ``None`` while the data count is unknown."""
    if slot < PARITY:
        return slot
    return None if data_count is None else slot - PARITY + data_count


def first_of(slot: int, lamport: int | None, data_count: int | None) -> int | None:
    """The Lamport timestamp of a send's first segment, counted back from that of the segment in ``slot``."""
    position = ordinal(slot, data_count)
    return None if lamport is None or position is None else lamport - position


def find_first_lamport(slots: dict[int, Shard], data_count: int | None) -> int | None:
    """The Lamport timestamp of the first segment: its own, or computed from the earliest sibling that has one."""
    for slot in sorted(slots):
        first = first_of(slot, slots[slot][1], data_count)
        if first is not None and first >= 0:
            return first
    return None


def find_agreed_lamport(slots: dict[int, Shard], data_count: int | None) -> int | None:
    """The first segment's Lamport timestamp if two or more segments are held and all of them imply the same one."""
    firsts = {first_of(slot, lamport, data_count) for slot, (_, lamport, _, _) in slots.items()}
    return firsts.pop() if len(firsts) == 1 and len(slots) > 1 else None
