"""Segments in any order into payloads (protocol.md §3 *Receiving*). Knows nothing of SDS, envelopes or clocks."""

from __future__ import annotations

from collections.abc import Iterator

from reliable_channel.segmentation.config import SegmentationConfig
from reliable_channel.segmentation.events import (
    CompletedSend,
    EvictionReason,
    HashMismatch,
    HeldSegment,
    MessageCompleted,
    PoisonedSegmentExcluded,
    Refusal,
    Scope,
    SegmentationEvent,
    SegmentConflict,
    SegmentDuplicate,
    SegmentRefused,
    SetEvicted,
    SetExpired,
)
from reliable_channel.segmentation.held import HeldSets
from reliable_channel.segmentation.pending import (
    MAX_CONFLICTS,
    PARITY,
    CompletedSet,
    OpenSet,
    Owner,
    SetKey,
    Shard,
    agreed_lamport,
    first_lamport,
    held_segment,
    slot_of,
)
from reliable_channel.segmentation.placing import place_segment
from reliable_channel.segmentation.rebuild import Rebuilt, genuine_slots, ready, rebuild, rescue
from reliable_channel.segmentation.siblings import completed_by_loans, rivals_of
from reliable_channel.segmentation.snapshot import read_snapshot, write_snapshot
from reliable_channel.wire.segment import Dialect, Segment

_NEVER = 1 << 63


class Reassembler:
    """Collects segments of many messages and tells what became of them.

    Sets are separate per (scope, hash, send): ``scope`` names the sender in its channel, and a segment whose index is
    held or completed under another SDS id opens a new send. ``now`` is ms; it never runs backwards inside: an earlier
    ``now`` counts as the latest one given. Not safe for threads.
    """

    def __init__(self, config: SegmentationConfig | None = None) -> None:
        self.config = config or SegmentationConfig()
        self._now = -_NEVER
        self._sets = HeldSets()
        self._due = _NEVER  # never later than the true one

    def add(
        self, segment: Segment, now: int, *, scope: Scope = (), sds_id: str = "", lamport: int | None = None
    ) -> list[SegmentationEvent]:
        """Take one validated segment; what follows from it, in order. First gives up what is due at ``now``.

        ``sds_id`` and ``lamport`` (ms) are those of the SDS message that carried it; without ids a second send of the
        same payload cannot be told from a duplicate.
        """
        events: list[SegmentationEvent] = []
        if now > self._now:
            self._now = now
        if self._now >= self._due:
            events = self.expire(self._now)
        slot = slot_of(segment)
        codec = "klauspost" if _is_status_go(segment) else self.config.codec
        key: SetKey = (scope, segment.entire_message_hash)
        sends = self._sets.by_key.get(key)
        chosen: OpenSet | None = None
        if sends is not None:
            for send in sends:
                shard = send.slots.get(slot)
                if shard is not None and (shard if isinstance(send, CompletedSet) else shard[0]) == sds_id:
                    events += self._again(send, slot, sds_id, lamport, segment.payload)
                    return events
            found = place_segment(sends, segment, slot, codec, lamport)
            if isinstance(found, CompletedSet):
                found.slots[slot] = sds_id
                events.append(_duplicate(found, slot, sds_id))
                return events
            chosen = found
        refusal = self._refusal(segment, chosen)
        if refusal is not None:
            events.append(
                SegmentRefused(scope, segment.entire_message_hash, segment.is_parity, segment.index, sds_id, refusal)
            )
            return events
        self._make_room(scope, len(segment.payload), chosen, events)
        if chosen is None:
            chosen = OpenSet(
                key,
                self._sets.next_send(key),
                segment.dialect,
                codec,
                segment.data_count,
                segment.parity_count,
                segment.original_length,
                self._now,
                self._now,
            )
            self._sets.open(chosen)
        else:
            chosen.learn(segment)
            chosen.last_seen = self._now
            self._sets.touch(chosen)
        new: Shard = (sds_id, lamport, segment.payload)
        chosen.slots[slot] = new
        self._sets.grow(chosen, len(segment.payload))
        due = self._now + self.config.set_timeout_ms
        if due < self._due:
            self._due = due
        if chosen.data_count is not None and (
            len(chosen.slots) >= chosen.data_count or len(self._sets.by_key[key]) > 1
        ):
            self._try(chosen, new, events)
        return events

    def remember(self, completed: CompletedSend) -> None:
        """Take a send as completed: one that another Reassembler completed, or one of this, with the ids that were
        recomputed since. In the order in which they were completed. A late segment of it is then a duplicate."""
        key, k = (completed.scope, completed.entire_message_hash), completed.data_count
        slots = {
            place if place < k else place - k + PARITY: sds_id
            for place, sds_id in enumerate(completed.sds_ids)
            if sds_id is not None
        }
        known = self._sets.completed(key, completed.send)
        if known is not None:
            known.slots, known.origin, known.parity_count = slots, completed.origin, None
            return
        memory = CompletedSet(key, completed.send, k, None, completed.origin, completed.completed_at, slots)
        self._sets.remember(memory)
        self._sets.keep_completed(self.config.max_completed_sets)
        self._sets.order_sends({})
        self._due = min(self._due, completed.completed_at + self.config.completed_memory_ms)

    def expire(self, now: int) -> list[SegmentationEvent]:
        """Give up every incomplete set that is due, oldest first, and forget completed ones past their memory."""
        self._now = max(self._now, now)
        events: list[SegmentationEvent] = []
        while (oldest := self._sets.least_recent()) is not None:
            if oldest.last_seen + self.config.set_timeout_ms > self._now:
                break
            self._sets.close(oldest)
            events.append(SetExpired(oldest.incomplete(), self._now))
        while (first := self._sets.first_completed()) is not None:
            if first.completed_at + self.config.completed_memory_ms > self._now:
                break
            self._sets.forget(first)
        due = self.next_due()
        self._due = _NEVER if due is None else due
        return events

    def next_due(self) -> int | None:
        """When (ms) ``expire`` next has something to do, or ``None``: nothing is held and nothing remembered."""
        oldest, first = self._sets.least_recent(), self._sets.first_completed()
        dues = []
        if oldest is not None:
            dues.append(oldest.last_seen + self.config.set_timeout_ms)
        if first is not None:
            dues.append(first.completed_at + self.config.completed_memory_ms)
        return min(dues, default=None)

    def open_segments(self) -> Iterator[tuple[Scope, bytes, HeldSegment]]:
        """Every segment held in an incomplete set: what a combiner hands on to keyed state."""
        for held in self._sets.all_open():
            for slot, shard in held.slots.items():
                yield (*held.key, held_segment(slot, shard[0], shard[1]))

    @property
    def open_sets(self) -> int:
        """How many incomplete sets are held."""
        return self._sets.open_count

    @property
    def completed_sets(self) -> int:
        """How many completed sets are remembered."""
        return self._sets.completed_count

    @property
    def buffered_bytes(self) -> int:
        """Payload bytes held in incomplete sets."""
        return self._sets.buffered_bytes

    def to_bytes(self) -> bytes:
        """A snapshot: versioned protobuf, deterministic, as large as what is held."""
        return write_snapshot(self._sets, self._now)

    @classmethod
    def from_bytes(cls, data: bytes, config: SegmentationConfig | None = None) -> Reassembler:
        """Restore a snapshot of this or an older version; raises :class:`LocalError` for anything else. What the
        configuration's bounds no longer allow is given up at the next segment that needs the room."""
        restored = cls(config)
        restored._sets, restored._now = read_snapshot(data)
        due = restored.next_due()
        restored._due = _NEVER if due is None else due
        return restored

    def _again(
        self, send: OpenSet | CompletedSet, slot: int, sds_id: str, lamport: int | None, payload: bytes
    ) -> list[SegmentationEvent]:
        """The slot is taken under the same SDS id: a duplicate, or other bytes that claim to be the same message."""
        if isinstance(send, CompletedSet) or send.slots[slot][2] == payload:
            return [_duplicate(send, slot, sds_id)]
        rivals = [shard for other, shard in send.conflicts if other == slot]
        if any(shard[2] == payload for shard in rivals):
            return [_duplicate(send, slot, sds_id)]
        scope, whole = send.key
        is_parity, index = slot >= PARITY, slot % PARITY
        if len(send.conflicts) >= MAX_CONFLICTS or self._alone_over_quota(len(payload), send):
            return [SegmentRefused(scope, whole, is_parity, index, sds_id, Refusal.OVER_QUOTA)]
        events: list[SegmentationEvent] = [SegmentConflict(scope, whole, is_parity, index, sds_id)]
        self._make_room(scope, len(payload), send, events)
        rival: Shard = (sds_id, lamport, payload)
        send.conflicts.append((slot, rival))
        self._sets.grow(send, len(payload))
        if send.mismatch:
            self._try(send, rival, events)
        return events

    def _refusal(self, segment: Segment, chosen: OpenSet | None) -> Refusal | None:
        """A segment that no message within the limits can have."""
        config, size = self.config, len(segment.payload)
        k = segment.data_count or (chosen.data_count if chosen is not None else None) or 1
        full = segment.is_parity or segment.index < k - 1
        if (k - 1) * size >= config.max_message_bytes if full else size > config.max_message_bytes:
            return Refusal.OVER_MESSAGE_LIMIT
        if segment.dialect is Dialect.LIP243_LENGTH and (segment.original_length or 0) > config.max_message_bytes:
            return Refusal.OVER_MESSAGE_LIMIT
        return Refusal.OVER_QUOTA if self._alone_over_quota(size, chosen) else None

    def _make_room(self, scope: Scope, size: int, chosen: OpenSet | None, events: list[SegmentationEvent]) -> None:
        """Keep the bounds, at the least recently updated set's cost, never at that of ``chosen``."""
        sets, config = self._sets, self.config
        owner = sets.owner(scope) if chosen is None else chosen.owner
        if chosen is None:
            if len(owner.open) >= config.max_open_sets_per_sender:
                self._evict(owner, chosen, EvictionReason.OPEN_SETS_PER_SENDER, events)
            if sets.open_count >= config.max_open_sets:
                self._evict(None, chosen, EvictionReason.OPEN_SETS, events)
        while owner.buffered_bytes + size > config.max_buffered_bytes_per_sender:
            self._evict(owner, chosen, EvictionReason.BUFFERED_BYTES_PER_SENDER, events)
        while sets.buffered_bytes + size > config.max_buffered_bytes:
            self._evict(None, chosen, EvictionReason.BUFFERED_BYTES, events)

    def _evict(
        self, owner: Owner | None, but: OpenSet | None, reason: EvictionReason, events: list[SegmentationEvent]
    ) -> None:
        """There is always a victim: what would break a bound alone has been refused before."""
        victim = self._sets.victim(owner, but)
        self._sets.close(victim)
        events.append(SetEvicted(victim.incomplete(), reason, self._now))

    def _alone_over_quota(self, size: int, chosen: OpenSet | None) -> bool:
        """Whether the set would break a byte bound by itself: no eviction can make room for that."""
        own = size + (0 if chosen is None else chosen.buffered_bytes)
        return own > min(self.config.max_buffered_bytes, self.config.max_buffered_bytes_per_sender)

    def _try(self, held: OpenSet, new: Shard, events: list[SegmentationEvent]) -> None:
        """Rebuild ``held`` if it is ready; and its siblings whose hash was refused, which ``new`` may rescue."""
        siblings = self._siblings(held)
        candidates = [sibling for sibling in siblings if sibling.mismatch]
        if held.mismatch or ready(held) or (siblings and completed_by_loans(held, siblings)):
            candidates.insert(0, held)
        for candidate in candidates:
            if self._try_one(candidate, new, events):
                return

    def _try_one(self, held: OpenSet, new: Shard, events: list[SegmentationEvent]) -> bool:
        config, known = self.config, held.mismatch
        if held.attempts >= config.max_rebuild_attempts:
            return False
        rebuilt = None
        if not known and len(held.slots) >= (held.data_count or 0):
            rebuilt = rebuild(held, config)
        if rebuilt is None:
            rebuilt = rescue(held, rivals_of(held, self._siblings(held)), config, new if known else None)
        if rebuilt is None:
            held.mismatch = True
            exhausted = held.attempts >= config.max_rebuild_attempts
            events.append(HashMismatch(*held.key, held.data_count or 0, held.held(), held.attempts, exhausted))
            return False
        self._complete(held, rebuilt, events)
        return True

    def _complete(self, held: OpenSet, rebuilt: Rebuilt, events: list[SegmentationEvent]) -> None:
        k = held.data_count or 1
        genuine = dict(held.slots)
        if held.mismatch or held.attempts > 1:
            events += self._exclude_poison(held, rebuilt, genuine)
        lamport, seen = first_lamport(genuine, k)
        agreed = agreed_lamport(genuine, k)
        scope, whole = held.key
        events.append(
            MessageCompleted(
                scope=scope,
                entire_message_hash=whole,
                payload=rebuilt.payload,
                data_count=k,
                parity_count=held.parity_count,
                received=tuple(held_segment(slot, shard[0], shard[1]) for slot, shard in sorted(genuine.items())),
                rebuilt_indices=tuple(index for index in range(k) if index not in genuine),
                used_parity=tuple(sorted(slot - PARITY for slot in rebuilt.choice if slot >= PARITY)),
                shard_length=rebuilt.shard_length,
                dialect=held.dialect,
                codec=held.codec,
                original_length=held.original_length,
                first_lamport=lamport,
                first_lamport_seen=seen,
                first_seen=held.first_seen,
                completed_at=self._now,
                send=held.send,
            )
        )
        ids = {slot: shard[0] for slot, shard in genuine.items()}
        self._sets.complete(held, CompletedSet(held.key, held.send, k, held.parity_count, agreed, self._now, ids))
        self._sets.keep_completed(self.config.max_completed_sets)
        self._due = min(self._due, self._now + self.config.completed_memory_ms)

    def _exclude_poison(self, held: OpenSet, rebuilt: Rebuilt, genuine: dict[int, Shard]) -> list[SegmentationEvent]:
        """Name the false segments, replace them by what the verified payload was made of, and take back siblings that
        only a false segment had opened."""
        truth = genuine_slots(rebuilt, held)
        events: list[SegmentationEvent] = []
        for slot, shard in (*held.slots.items(), *held.conflicts):
            if slot in truth and truth[slot] != shard[2]:
                events.append(PoisonedSegmentExcluded(*held.key, slot >= PARITY, slot % PARITY, shard[0]))
                if genuine.get(slot) is shard:
                    del genuine[slot]
        genuine.update(rebuilt.choice)
        for sibling in self._siblings(held):
            if all(genuine.get(slot) is shard for slot, shard in sibling.slots.items()):
                self._sets.close(sibling)
        return events

    def _siblings(self, held: OpenSet) -> list[OpenSet]:
        sends = self._sets.by_key[held.key]
        return [send for send in sends if isinstance(send, OpenSet) and send is not held]


def _is_status_go(segment: Segment) -> bool:
    return segment.original_length is not None and segment.dialect is Dialect.V01


def _duplicate(send: OpenSet | CompletedSet, slot: int, sds_id: str) -> SegmentDuplicate:
    return SegmentDuplicate(*send.key, slot >= PARITY, slot % PARITY, sds_id, late=isinstance(send, CompletedSet))
