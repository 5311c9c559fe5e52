"""Completes open sets of a Reassembler: with their own segments, without false ones among them, or with segments
borrowed from other sends of the same payload."""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.core.segmentation.completion import exclude_poison, make_completed, memory_of
from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.core.segmentation.events import HashMismatch, SegmentationEvent
from reliable_channel.core.segmentation.held import HeldSets
from reliable_channel.core.segmentation.pending import PARITY, OpenSet, Shard, first_of
from reliable_channel.core.segmentation.rebuild import Rebuilt, Unfinished, attempt, obvious, ready
from reliable_channel.core.segmentation.search import key_of, search
from reliable_channel.core.segmentation.siblings import (
    can_complete_by_loans,
    find_contested,
    find_loans,
    find_unproven_parity,
    is_borrowed,
    is_bound,
    rivals_of,
)
from reliable_channel.core.segmentation.work import Work

DECODING_WORK_PER_BYTE = 6
"""Parity is used if decoding takes at most this much work per byte of the largest message: 20 ms for 1 MiB."""


@dataclass(slots=True)
class Rebuilder:
    """What one segment, or one step of a due search, may complete at ``now`` (ms) within its ``work``; results are
    appended to ``events``."""

    sets: HeldSets
    config: SegmentationConfig
    now: int
    events: list[SegmentationEvent]
    work: Work

    def try_to_rebuild(self, held: OpenSet) -> bool:
        """Rebuild ``held`` if it is ready, and siblings with a hash mismatch, which its newest segment may rescue; else
        siblings that may borrow from it. Returns whether a send was completed."""
        siblings = self.sets.list_siblings(held) if len(self.sets.by_key[held.key]) > 1 else []
        most = DECODING_WORK_PER_BYTE * self.config.max_message_bytes
        able = (
            held.mismatch
            or held.unfinished
            or ready(held, most)
            or (siblings and can_complete_by_loans(held, siblings))
        )
        chosen = [held] if able else []
        if siblings:
            chosen += [sibling for sibling in siblings if sibling.mismatch or sibling.unfinished]
        before = self.work.attempts
        completed = any(self.search(candidate) for candidate in chosen)
        if not completed and siblings:
            # By arrival, so that of overlapping sends the one that was seen first is completed first.
            every = sorted((held, *siblings), key=lambda each: min(shard[3] for shard in each.slots.values()))
            completed = any(self._borrow(each, [other for other in every if other is not each]) for each in every)
        if self.work.attempts > before:
            held.credit -= 1
        return completed

    def _borrow(self, held: OpenSet, siblings: list[OpenSet]) -> bool:
        """Complete a send with segments borrowed from other open sends, which keep them: the bytes are the same."""
        own = held.parity_count
        for choice, count in find_loans(held, siblings, DECODING_WORK_PER_BYTE * self.config.max_message_bytes):
            key = key_of(choice)
            if key == held.refused_loan or key in held.tried or not is_bound(held, self.work):
                continue
            held.parity_count = count
            outcome = attempt(held, choice, key, self.work)
            if isinstance(outcome, Rebuilt):
                self._complete(held, outcome)
                return True
            held.parity_count = own
            if isinstance(outcome, Unfinished):
                held.unfinished = True
                self.sets.schedule(held, self.now)
                return False
            if not held.mismatch:
                held.refused_loan = key
            elif held.attempts < self.config.max_rebuild_attempts:
                held.attempts += 1
                held.tried |= {key}
            else:
                return False
        return False

    def search(self, held: OpenSet) -> bool:
        """Search for the message in a set; returns whether it was found."""
        before, most = held.attempts, self.config.max_rebuild_attempts
        outcome: Rebuilt | Unfinished | None = None
        if not before and not held.unfinished and len(held.slots) >= (held.data_count or 0):
            choice = obvious(held)
            outcome = attempt(held, choice, key_of(choice) if max(choice) >= PARITY else 0, self.work)
            held.unfinished = isinstance(outcome, Unfinished)
            if outcome is None:
                held.attempts = 1
                held.tried = frozenset({key_of(choice)})
        if outcome is None:
            outcome = search(held, rivals_of(held, self.sets.list_siblings(held)), self.config, self.work)
        if isinstance(outcome, Rebuilt):
            self._complete(held, outcome)
            return True
        if held.attempts and (not held.mismatch or before < most <= held.attempts):
            exhausted = held.attempts >= most
            contested = find_contested(held, rivals_of(held, self.sets.list_siblings(held)))
            k, segments = held.data_count or 0, held.list_segments()
            self.events.append(HashMismatch(*held.key, k, segments, held.attempts, exhausted, contested))
        held.mismatch = held.mismatch or held.attempts > 0
        self.sets.schedule(held, self.now)
        return False

    def _complete(self, held: OpenSet, rebuilt: Rebuilt) -> None:
        """Report a rebuilt send, and keep the record of its segments: without false ones, and with those in siblings
        whose ids do not prove that they belong there."""
        genuine = dict(held.slots)
        if held.mismatch or held.attempts:
            self.events += exclude_poison(held, rebuilt, genuine)
        lent = {slot: shard for slot, shard in rebuilt.choice.items() if genuine.get(slot) is not shard}
        genuine.update({slot: shard for slot, shard in lent.items() if not is_borrowed(held, slot, shard, self.work)})
        if lent:
            self._take_back(held, genuine)
        for slot in find_unproven_parity(held, rebuilt.choice, genuine, self.work):
            del genuine[slot]
        completed = make_completed(held, rebuilt, genuine, self.now, self.work)
        self.events.append(completed)
        self.sets.complete(held, memory_of(completed, genuine))
        self.sets.limit_finished()

    def _take_back(self, held: OpenSet, genuine: dict[int, Shard]) -> None:
        """Remove the message's own segments from siblings that only a false segment had opened."""
        k = held.data_count
        first = held.first(k)
        for sibling in self.sets.list_siblings(held):
            own = [slot for slot, shard in sibling.slots.items() if genuine.get(slot) is shard]
            if len(own) < len(sibling.slots):
                own = [slot for slot in own if first_of(slot, sibling.slots[slot][1], k) == first]
            for slot in own:
                self.sets.discard(slot, sibling)
