"""Reassembles segments that arrive in any order into payloads (Segmentation 0.1, *Receiving*). Independent of SDS,
envelopes and clocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import cast

from reliable_channel.core.segmentation.completion import record_of_lost
from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.core.segmentation.events import (
    CompletedSend,
    EvictionReason,
    IncompleteSet,
    PoisonedSegmentExcluded,
    Refusal,
    Scope,
    SegmentationEvent,
    SegmentConflict,
    SegmentDuplicate,
    SegmentRefused,
    SetEvicted,
    SetExpired,
    SetOverdue,
    get_sender,
)
from reliable_channel.core.segmentation.held import HeldSets
from reliable_channel.core.segmentation.identity import id_verifies, segment_of, shard_binds, verification_cost
from reliable_channel.core.segmentation.parking import SegmentStore, park, unpark
from reliable_channel.core.segmentation.pending import (
    MAX_CONFLICTS,
    MAX_OPEN_SENDS,
    PARITY,
    CompletedSet,
    OpenSet,
    SetKey,
    Shard,
    first_of,
    slot_of,
)
from reliable_channel.core.segmentation.placing import Arrival, continues, copy_of, place_segment
from reliable_channel.core.segmentation.rebuilder import Rebuilder
from reliable_channel.core.segmentation.snapshot import read_snapshot, write_snapshot
from reliable_channel.core.segmentation.work import Work
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS, Dialect, Segment

_NEVER = 1 << 63  # later than any ms

MAX_CREDIT = 256
"""Maximum number of search rounds for which duplicates give credit."""


class Reassembler:
    """Collects the segments of many messages and reports the results as events.

    Sets are separate per (scope, hash, send): ``scope`` identifies the sender in its channel, and a segment whose index
    is held or completed under another SDS id opens a new send. ``now`` is ms; an earlier ``now`` than the latest one
    counts as the latest. Not thread-safe.

    ``max_work_per_segment`` bounds the cost of a call; ``work_spent`` is the cost of the last one.
    """

    def __init__(self, config: SegmentationConfig | None = None, store: SegmentStore | None = None) -> None:
        """``store`` takes the payloads of overdue sets; without one they stay in memory."""
        self.config = config or SegmentationConfig()
        self._store = store
        self._now = -_NEVER
        self.spared_until = 0
        """Until when (ms) no set is given up; read-only for other modules."""
        self._patience = min(self.config.set_timeout_ms, self.config.max_set_lifetime_ms)
        self._sets = HeldSets(self.config.max_completed_sets)
        self._due = _NEVER  # a lower bound of when the next set expires
        self._next_number = 0
        self.work_spent = 0

    def add(
        self, segment: Segment, now: int, *, scope: Scope = (), sds_id: str = "", lamport: int | None = None
    ) -> list[SegmentationEvent]:
        """Process one validated segment, after expiring sets that are due at ``now``; returns the events in order.

        ``sds_id`` and ``lamport`` (ms) are those of the SDS message that carried it; without ids a second send of the
        same payload cannot be distinguished from a duplicate.
        """
        events: list[SegmentationEvent] = []
        self._now = max(self._now, now)
        if self._now >= self._due:
            events = self._give_up()
        slot = slot_of(segment)
        codec = "klauspost" if _is_status_go(segment) else self.config.codec
        key: SetKey = (scope, segment.entire_message_hash)
        sends = self._load_sends(key)
        chosen: OpenSet | None = None
        early: list[OpenSet] = []
        work: Work | None = None
        self.work_spent = 0
        if sends is not None and len(sends) == 1 and continues(sends[0], segment, slot, codec, lamport):
            chosen = cast(OpenSet, sends[0])
        elif sends is not None:
            work = Work(self.config.max_work_per_segment)
            new = Arrival(segment, slot, codec, sds_id, get_sender(scope), lamport)
            same = copy_of(sends, new, work)
            if same is not None:
                events += self._repeat(same, slot, sds_id, lamport, segment.payload, work)
                self.work_spent = work.spent
                return events
            target = place_segment(sends, new, work)
            self.work_spent = work.spent
            if isinstance(target, CompletedSet):
                if not target.lost:
                    target.take_late(slot, sds_id, lamport)
                events.append(_make_duplicate(target, slot, sds_id))
                return events
            chosen = target
            if segment.data_count is not None:
                # v0.1 parity that came before a data count was known may be of this segment's send, or of another.
                early = [send for send in sends if isinstance(send, OpenSet) and send.data_count is None]
        refusal = self._find_refusal(segment, chosen)
        if refusal is not None:
            events.append(
                SegmentRefused(scope, segment.entire_message_hash, segment.is_parity, segment.index, sds_id, refusal)
            )
            return events
        self._make_room(scope, sends, len(segment.payload), chosen, events)
        if chosen is None:
            chosen = self._open(key, codec, segment)
        else:
            chosen.learn(segment)
            self._touch(chosen)
        chosen.slots[slot] = (sds_id, lamport, segment.payload, self._next_number)
        self._next_number += 1
        self._sets.grow(chosen, len(segment.payload))
        self._due = min(self._due, self._now + self._patience)
        # A segment that causes no work itself pays for a later step of a search (docs/segmentation.md, *Work*).
        chosen.credit += 1
        if early and work is not None:
            self._distribute_early_parity(chosen, early, work)
        # With enough segments of its own, or beside other sends of the payload, which may lend some.
        if (chosen.data_count or MAX_TOTAL_SEGMENTS) <= len(chosen.slots) or (
            sends is not None and len(self._sets.by_key[key]) > 1
        ):
            work = work or Work(self.config.max_work_per_segment)
            self._rebuild(chosen, events, work)
            self.work_spent = work.spent
        return events

    def remember(self, completed: CompletedSend) -> None:
        """Record a send as completed, so that its late segments are duplicates: one that another Reassembler completed,
        or one of this Reassembler with ids recomputed since. Call in the order of completion."""
        key, k = (completed.scope, completed.entire_message_hash), completed.data_count
        slots = {
            position if position < k else position - k + PARITY: sds_id
            for position, sds_id in enumerate(completed.sds_ids)
            if sds_id is not None
        }
        known = self._sets.find_completed(key, completed.send)
        if known is not None:
            known.slots, known.origin, known.parity_count = slots, completed.origin, None
            return
        memory = CompletedSet(key, completed.send, k, None, completed.origin, completed.completed_at, slots)
        self._sets.remember(memory)
        self._sets.limit_finished()
        self._sets.order_sends({})
        self._due = min(self._due, completed.completed_at + self.config.completed_memory_ms)

    def revive(self, scope: Scope, entire_message_hash: bytes) -> None:
        """Forget that sends of a payload were given up: what arrives of them again opens a set."""
        for send in [*self._sets.by_key.get((scope, entire_message_hash), ())]:
            if isinstance(send, CompletedSet) and send.lost:
                self._sets.forget(send)

    def has_room_for(self, incomplete: IncompleteSet) -> bool:
        """Whether a set that was evicted fits the bounds as it was, with what it lacks in equal segments."""
        config, owner = self.config, self._sets.owner(incomplete.scope)
        held = max(1, len(incomplete.held))
        size = incomplete.buffered_bytes * (held + (incomplete.lacking or 1)) // held
        return (
            len(owner.open) < config.max_open_sets_per_sender
            and len(self._sets.all_open) < config.max_open_sets
            and owner.buffered_bytes + size <= config.max_buffered_bytes_per_sender
            and self._sets.buffered_bytes + size <= config.max_buffered_bytes
        )

    def list_completed_times(self) -> list[int]:
        """When each of the remembered sends was completed (ms), oldest first."""
        return [each.completed_at for each in self._sets.completed]

    def forget_completed(self, count: int) -> None:
        """Forget the ``count`` oldest completed sends: what arrives of one again then opens another set."""
        for completed in [*islice(self._sets.completed, count)]:
            self._sets.forget(completed)

    def forget_lost(self) -> None:
        """Forget the sends that were given up: what still arrives of one then opens another set."""
        for lost in [*self._sets.lost]:
            self._sets.forget(lost)

    def expire(self, now: int) -> list[SegmentationEvent]:
        """Give up every incomplete set whose lifetime ended, oldest first, report overdue ones, forget completed ones
        whose time is up, and continue due searches within the work of one segment."""
        self._now = max(self._now, now)
        events = self._give_up()
        work = Work(self.config.max_work_per_segment)
        for held in self._sets.searches_due(self._now):
            if held.search_due is not None and work.left > 0:
                held.credit -= 1
                if Rebuilder(self._sets, self.config, self._now, events, work).search(held):
                    self._expect_forgetting()
        self.work_spent = work.spent
        return events

    def wake(self, now: int) -> None:
        """After a sleep, give no set up before its last question can be answered: nobody listened meanwhile, and what
        is missing may be in the backlog."""
        self.spared_until = now + self.config.set_timeout_ms

    def _end_of(self, held: OpenSet) -> int:
        """When (ms) a set is given up."""
        return max(held.first_seen + self.config.max_set_lifetime_ms, self.spared_until)

    def _give_up(self) -> list[SegmentationEvent]:
        """Do what is due by the time: end lifetimes, report overdue sets, forget completed ones."""
        events: list[SegmentationEvent] = []
        while (longest := self._sets.longest_open()) is not None:
            if self._end_of(longest) > self._now:
                break
            events.append(SetExpired(self._lose(longest), self._now))
        while (oldest := self._sets.least_recent_fresh()) is not None:
            if oldest.last_seen + self.config.set_timeout_ms > self._now:
                break
            self._report_overdue(oldest, events)
        for overdue in self._sets.asks_due(self._now):
            self._report_overdue(overdue, events)
        while (first := self._sets.first_completed()) is not None:
            if first.completed_at + self.config.completed_memory_ms > self._now:
                break
            self._sets.forget(first)
        self._due = min(self._list_expiries(), default=_NEVER)
        return events

    def _list_expiries(self) -> Iterator[int]:
        if (oldest := self._sets.least_recent_fresh()) is not None:
            yield oldest.last_seen + self.config.set_timeout_ms
        if (ask_due := self._sets.next_ask()) is not None:
            yield ask_due
        if (longest := self._sets.longest_open()) is not None:
            yield self._end_of(longest)
        if (first := self._sets.first_completed()) is not None:
            yield first.completed_at + self.config.completed_memory_ms

    def _report_overdue(self, held: OpenSet, events: list[SegmentationEvent]) -> None:
        """Report that a set is overdue."""
        config = self.config
        held.asks += 1
        ends = self._end_of(held)
        last = ends - config.set_timeout_ms
        # The waits double, so that whoever opens sets to cause queries causes few; the last question leaves time for
        # its answer (docs/segmentation.md, *How long a set is kept*).
        due = self._now + (config.set_timeout_ms << min(held.asks, 32))
        held.ask_due = min(due, last) if self._now < last else ends
        self._sets.mark_overdue(held)
        if self._store is not None:
            park(held, self._store)
        events.append(SetOverdue(held.incomplete(), held.asks, self._now))

    def _load_sends(self, key: SetKey) -> list[OpenSet | CompletedSet] | None:
        """The sends of a payload, with the payloads of their segments."""
        sends = self._sets.by_key.get(key)
        for send in sends or ():
            if isinstance(send, OpenSet):
                self._unpark(send)
        return sends

    def _unpark(self, held: OpenSet) -> None:
        if held.parked and self._store is not None:
            unpark(held, self._store)

    def list_parked(self) -> set[int]:
        """The numbers of the segments whose payloads are in the store."""
        return {shard[3] for held in self._sets.all_open if held.parked for shard in held.slots.values()}

    def _touch(self, held: OpenSet) -> None:
        """Record that a segment of the set, or a copy of one, arrived."""
        held.last_seen = self._now
        self._sets.touch(held)
        if held.asks:
            pause = self.config.set_timeout_ms
            held.ask_due = max(held.ask_due, min(self._now + pause, self._end_of(held) - pause))

    def is_lost(self, segment: Segment, *, scope: Scope = (), sds_id: str = "", lamport: int | None = None) -> bool:
        """Whether a segment belongs to a send that was given up, so that it cannot complete anything."""
        key: SetKey = (scope, segment.entire_message_hash)
        if not any(isinstance(send, CompletedSet) and send.lost for send in self._sets.by_key.get(key, ())):
            return False
        sends = self._load_sends(key) or []
        send = self._send_of(sends, segment, scope, sds_id, lamport)
        return isinstance(send, CompletedSet) and send.lost

    def exceeds_limit(self, segment: Segment) -> bool:
        """Whether the message of a segment must be over ``max_message_bytes``."""
        return self._find_refusal(segment, None) is Refusal.OVER_MESSAGE_LIMIT

    def lose(
        self, segment: Segment, now: int, *, scope: Scope = (), sds_id: str = "", lamport: int | None = None
    ) -> IncompleteSet | None:
        """Give up the send of a segment that cannot be used. Returns what was held of it, ``None`` if the send is
        finished already."""
        self._now = max(self._now, now)
        key: SetKey = (scope, segment.entire_message_hash)
        send = self._send_of(self._load_sends(key) or [], segment, scope, sds_id, lamport)
        if isinstance(send, CompletedSet):
            return None
        if send is not None:
            return self._lose(send)
        opened = self._open(key, self.config.codec, segment)
        opened.slots[slot_of(segment)] = (sds_id, lamport, segment.payload, self._next_number)
        self._next_number += 1
        lost = self._lose(opened)
        return replace(lost, held=(), missing_data=tuple(range(segment.data_count or 0)), lacking=segment.data_count)

    def _send_of(
        self,
        sends: list[OpenSet | CompletedSet],
        segment: Segment,
        scope: Scope,
        sds_id: str,
        lamport: int | None,
    ) -> OpenSet | CompletedSet | None:
        """The send that holds a segment or to which it belongs."""
        if not sends:
            return None
        work = Work(self.config.max_work_per_segment)
        codec = "klauspost" if _is_status_go(segment) else self.config.codec
        new = Arrival(segment, slot_of(segment), codec, sds_id, get_sender(scope), lamport)
        return copy_of(sends, new, work) or place_segment(sends, new, work)

    def _lose(self, held: OpenSet) -> IncompleteSet:
        """Give up a set, and remember that: later segments of its send complete nothing."""
        incomplete = held.incomplete()
        self._unpark(held)
        memory = record_of_lost(held, self._now, Work(self.config.max_work_per_segment))
        self._sets.complete(held, memory)
        # Bounded by number, not by time: a segment may be repaired, or come from a store, at any time.
        self._sets.limit_finished()
        return incomplete

    def next_due(self) -> int | None:
        """When (ms) ``expire`` next has something to do, or ``None`` if nothing is held or remembered."""
        search_due = self._sets.next_search()
        return min((*self._list_expiries(), *(() if search_due is None else (search_due,))), default=None)

    def may_be_due(self, now: int) -> bool:
        """Whether :meth:`next_due` can be at ``now`` (ms) or earlier; a cheap check before it is computed."""
        return now >= self._due or self._sets.next_search() is not None

    @property
    def open_sets(self) -> int:
        """The number of incomplete sets."""
        return len(self._sets.all_open)

    @property
    def open_since(self) -> int:
        """When (ms) the oldest incomplete set began; far in the future if there is none."""
        oldest = self._sets.longest_open()
        return _NEVER if oldest is None else oldest.first_seen

    @property
    def buffered_bytes(self) -> int:
        """The payload bytes held in incomplete sets."""
        return self._sets.buffered_bytes

    def to_bytes(self) -> bytes:
        """Encode a deterministic, versioned protobuf snapshot, proportional in size to the data held in memory;
        payloads in the store are not part of it."""
        return write_snapshot(self._sets, self._now, self._next_number, self.spared_until)

    @classmethod
    def from_bytes(
        cls, data: bytes, config: SegmentationConfig | None = None, store: SegmentStore | None = None
    ) -> Reassembler:
        """Restore a snapshot; raises :class:`LocalError` for anything else. Sets beyond the configured bounds are
        evicted at the next segment that needs the room."""
        restored = cls(config, store)
        restored._sets, restored._now, restored._next_number, restored.spared_until = read_snapshot(
            data, restored.config.max_completed_sets
        )
        restored._due = min(restored._list_expiries(), default=_NEVER)
        return restored

    def _repeat(
        self, send: OpenSet | CompletedSet, slot: int, sds_id: str, lamport: int | None, payload: bytes, work: Work
    ) -> list[SegmentationEvent]:
        """Handle a segment whose slot is occupied under the same SDS id: a duplicate, or different bytes that claim to
        be the same message."""
        if isinstance(send, CompletedSet):
            return [_make_duplicate(send, slot, sds_id)]
        rivals = [shard for other, shard in send.conflicts if other == slot]
        if send.slots[slot][2] == payload or any(shard[2] == payload for shard in rivals):
            self._touch(send)  # its sender is still sending it
            if send.unfinished and send.credit < MAX_CREDIT:
                send.credit += 1
                self._sets.schedule(send, self._now)
            return [_make_duplicate(send, slot, sds_id)]
        scope, whole = send.key
        is_parity, index = slot >= PARITY, slot % PARITY
        # An id that can be recomputed from the bytes decides; else both are kept until the hash does.
        work.spend(verification_cost(send.slots[slot][2]) + verification_cost(payload))
        if id_verifies(send, slot, send.slots[slot]):
            return [SegmentRefused(scope, whole, is_parity, index, sds_id, Refusal.FALSE_ID)]
        rival: Shard = (sds_id, lamport, payload, self._next_number)
        genuine = id_verifies(send, slot, rival)
        if (len(send.conflicts) >= MAX_CONFLICTS and not genuine) or self._exceeds_quota_by_itself(len(payload), send):
            return [SegmentRefused(scope, whole, is_parity, index, sds_id, Refusal.OVER_QUOTA)]
        events: list[SegmentationEvent] = []
        self._make_room(scope, None, len(payload), send, events)
        self._next_number += 1
        self._sets.grow(send, len(payload))
        if genuine:
            self._sets.grow(send, -sum(len(shard[2]) for shard in (send.slots[slot], *rivals)))
            send.conflicts = [(other, shard) for other, shard in send.conflicts if other != slot]
            send.slots[slot] = rival
            events.append(PoisonedSegmentExcluded(scope, whole, is_parity, index, sds_id))
        else:
            send.conflicts.append((slot, rival))
            events.append(SegmentConflict(scope, whole, is_parity, index, sds_id))
        send.credit += 1
        if send.mismatch or send.unfinished:
            self._rebuild(send, events, work)
        return events

    def _find_refusal(self, segment: Segment, chosen: OpenSet | None) -> Refusal | None:
        """Return the refusal of a segment that is impossible within the limits."""
        # Already the first segment of a message that must be too large, before anything is held or acknowledged: k − 1
        # full segments are the least that it can have.
        config, size = self.config, len(segment.payload)
        k = segment.data_count or (chosen.data_count if chosen is not None else None) or 1
        full = segment.is_parity or segment.index < k - 1
        if (k - 1) * size >= config.max_message_bytes if full else size > config.max_message_bytes:
            return Refusal.OVER_MESSAGE_LIMIT
        if segment.dialect is Dialect.LIP243_LENGTH and (segment.original_length or 0) > config.max_message_bytes:
            return Refusal.OVER_MESSAGE_LIMIT
        return Refusal.OVER_QUOTA if self._exceeds_quota_by_itself(size, chosen) else None

    def _make_room(
        self,
        scope: Scope,
        sends: list[OpenSet | CompletedSet] | None,
        size: int,
        chosen: OpenSet | None,
        events: list[SegmentationEvent],
    ) -> None:
        """Enforce the bounds without evicting ``chosen``: for a sender's bound, evict its least recently updated set;
        for a total bound, a set of the sender that holds most. ``sends`` are those of the segment's hash."""
        sets, config = self._sets, self.config
        owner = sets.owner(scope) if chosen is None else chosen.owner
        if chosen is None:
            if sends is not None and len(sends) >= MAX_OPEN_SENDS:
                open_sends = [send for send in sends if isinstance(send, OpenSet)]
                if len(open_sends) >= MAX_OPEN_SENDS:
                    fewest = min(open_sends, key=lambda held: (len(held.slots), held.last_seen, held.send))
                    self._evict(fewest, EvictionReason.OPEN_SENDS, events)
            if len(owner.open) >= config.max_open_sets_per_sender:
                self._evict(sets.least_recent_of(owner, chosen), EvictionReason.OPEN_SETS_PER_SENDER, events)
            if len(sets.all_open) >= config.max_open_sets:
                self._evict(sets.of_greediest_in_sets(), EvictionReason.OPEN_SETS, events)
        while owner.buffered_bytes + size > config.max_buffered_bytes_per_sender:
            self._evict(sets.least_recent_of(owner, chosen), EvictionReason.BUFFERED_BYTES_PER_SENDER, events)
        while sets.buffered_bytes + size > config.max_buffered_bytes:
            self._evict(sets.of_greediest_in_bytes(chosen), EvictionReason.BUFFERED_BYTES, events)

    def evict(self, events: list[SegmentationEvent]) -> None:
        """Evict the least recently updated set of the sender that holds most bytes, if an owner of several Reassemblers
        needs the room. There must be one."""
        self._evict(self._sets.of_greediest_in_bytes(None), EvictionReason.BUFFERED_BYTES, events)

    def _evict(self, victim: OpenSet, reason: EvictionReason, events: list[SegmentationEvent]) -> None:
        """Evict a set. There is always one: a segment that alone would exceed a bound was refused before."""
        events.append(SetEvicted(self._lose(victim), reason, self._now))

    def _exceeds_quota_by_itself(self, size: int, chosen: OpenSet | None) -> bool:
        """Whether the set alone would exceed a byte bound, so that no eviction can make room."""
        own = size + (0 if chosen is None else chosen.buffered_bytes)
        return own > min(self.config.max_buffered_bytes, self.config.max_buffered_bytes_per_sender)

    def _open(self, key: SetKey, codec: str, segment: Segment) -> OpenSet:
        """Open a set with the counts and sizes that a segment contains."""
        opened = OpenSet(
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
        self._sets.open(opened)
        return opened

    def _has_room(self, held: OpenSet) -> bool:
        """Whether one more set of the same sender fits the bounds."""
        config = self.config
        return (
            len(held.owner.open) < config.max_open_sets_per_sender and len(self._sets.all_open) < config.max_open_sets
        )

    def _rebuild(self, held: OpenSet, events: list[SegmentationEvent], work: Work) -> None:
        if Rebuilder(self._sets, self.config, self._now, events, work).try_to_rebuild(held):
            self._expect_forgetting()

    def _expect_forgetting(self) -> None:
        """A send was completed, and is remembered for a while."""
        self._due = min(self._due, self._now + self.config.completed_memory_ms)

    def _distribute_early_parity(self, chosen: OpenSet, early: list[OpenSet], work: Work) -> None:
        """Distribute parity that arrived ``early``, before the data count: to ``chosen``, or, where the id binds it, to
        a send of its own."""
        # v0.1 parity states no data count, without which its first timestamp, and so its send, is unknown.
        k = chosen.data_count
        first = chosen.first(k)
        for held in early:
            if not (held.fits_but_for_counts(chosen) and held.agrees_on_parity(chosen)):
                continue
            for slot, shard in [*held.slots.items()]:
                if slot < PARITY or first is None or (stated_first := first_of(slot, shard[1], k)) is None:
                    continue
                if held is not chosen and stated_first == first and slot not in chosen.slots:
                    self._sets.move(slot, held, chosen)
                elif held is chosen and stated_first != first and shard_binds(held, slot, shard, k, work):
                    siblings = self._sets.list_siblings(held)
                    others = [send for send in siblings if slot not in send.slots and send.first(k) == stated_first]
                    if not others and len(siblings) + 1 < MAX_OPEN_SENDS and self._has_room(held):
                        others = [self._open(held.key, held.codec, segment_of(held, slot, shard))]
                    if others:
                        self._sets.move(slot, held, others[0])


def _is_status_go(segment: Segment) -> bool:
    return segment.original_length is not None and segment.dialect is Dialect.V01


def _make_duplicate(send: OpenSet | CompletedSet, slot: int, sds_id: str) -> SegmentDuplicate:
    return SegmentDuplicate(*send.key, slot >= PARITY, slot % PARITY, sds_id, late=isinstance(send, CompletedSet))
