"""Indexes the open sets of a Reassembler by key, sender and age, and enforces its bounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from reliable_channel.core.segmentation.events import Scope, get_sender
from reliable_channel.core.segmentation.pending import CompletedSet, OpenSet, Owner, SetKey
from reliable_channel.core.shares import Shares

MAX_COMPLETED_PER_KEY = 64
"""Maximum number of remembered completed sends of one hash by one sender, because a look-up scans them."""

SEARCH_PAUSE_MS = 1_000
"""The time (ms) after a segment until a search that exceeded the segment's work continues."""


class HeldSets:
    """Open sets, least recently updated first, and completed ones, oldest first. What a segment needs is O(1), except a
    scan of one key's sends; overdue sets, searches and, at a bound, all senders are gone through one by one."""

    def __init__(self, max_finished: int) -> None:
        """``max_finished``: how many completed sets are remembered, and how many lost ones."""
        self.by_key: dict[SetKey, list[OpenSet | CompletedSet]] = {}
        self.buffered_bytes = 0
        self.all_open: OrderedDict[OpenSet, None] = OrderedDict()
        """Least recently updated first."""
        self._by_age: dict[OpenSet, None] = {}
        self._fresh: OrderedDict[OpenSet, None] = OrderedDict()
        """The open sets that are not overdue, least recently updated first."""
        self._overdue: dict[OpenSet, None] = {}
        self._owners: dict[Scope, Owner] = {}
        self.completed: dict[CompletedSet, None] = {}
        self.lost: dict[CompletedSet, None] = {}
        """Both oldest first."""
        # Not Shares[…](…), which takes four times as long: the pipeline makes one of these for each hash.
        self._shares: dict[bool, Shares[CompletedSet]] = {
            is_lost: Shares(max_finished, max_finished) for is_lost in (False, True)
        }
        """How many of the completed sets, and of the lost ones, senders have."""
        # Kept while any send of the key is, since the send with the highest number may be forgotten first.
        self._next_send: dict[SetKey, int] = {}
        self._searches: dict[OpenSet, None] = {}

    def owner(self, scope: Scope) -> Owner:
        """The :class:`Owner` of a sender's open sets; an empty one if it has none."""
        return self._owners.get(scope) or Owner()

    def next_send(self, key: SetKey) -> int:
        """The number of the next send under ``key``; counts while one of its sends is remembered."""
        return self._next_send.get(key, 0)

    def list_siblings(self, held: OpenSet) -> list[OpenSet]:
        """The other open sends of the same payload by the same sender."""
        return [send for send in self.by_key[held.key] if isinstance(send, OpenSet) and send is not held]

    def least_recent_fresh(self) -> OpenSet | None:
        """The least recently updated open set that is not overdue."""
        return next(iter(self._fresh), None)

    def asks_due(self, now: int) -> list[OpenSet]:
        """The overdue sets whose missing segments are to be asked for again at ``now`` (ms), in order."""
        return sorted([held for held in self._overdue if held.ask_due <= now], key=_get_first_number)

    def next_ask(self) -> int | None:
        """When (ms) the missing segments of an overdue set are asked for next."""
        return min((held.ask_due for held in self._overdue), default=None)

    def mark_overdue(self, held: OpenSet) -> None:
        """Move a set to the overdue ones."""
        self._fresh.pop(held, None)
        self._overdue[held] = None

    def longest_open(self) -> OpenSet | None:
        """The oldest open set."""
        return next(iter(self._by_age), None)

    def least_recent_of(self, owner: Owner, but: OpenSet | None) -> OpenSet:
        """A sender's least recently updated open set other than ``but``; there must be one."""
        return next(held for held in owner.open if held is not but)

    def of_greediest_in_sets(self) -> OpenSet:
        """The least recently updated set of the sender with the most open sets; there must be one. If every sender has
        a single set, it is one of those with the fewest segments."""
        if len(self._owners) == len(self.all_open):
            # A flood of names. A set that waits for its last segment would be the least recently updated of all.
            return min(self.all_open, key=lambda held: len(held.slots))
        return self._find_of_greediest(lambda owner: len(owner.open), None)

    def of_greediest_in_bytes(self, but: OpenSet | None) -> OpenSet:
        """The least recently updated set, other than ``but``, of the sender with the most bytes; there must be one."""
        return self._find_of_greediest(lambda owner: owner.buffered_bytes, but)

    def _find_of_greediest(self, holds: Callable[[Owner], int], but: OpenSet | None) -> OpenSet:
        """The least recently updated set of the greediest sender; of several, of the one heard least recently."""
        # A sender that has no other set than ``but`` has none to lose.
        most = max(holds(owner) for owner in self._owners.values() if but is None or owner.open.keys() != {but})
        return next(held for held in self.all_open if held is not but and holds(held.owner) == most)

    def schedule(self, held: OpenSet, now: int) -> None:
        """Schedule an unfinished search to continue ``SEARCH_PAUSE_MS`` after ``now``, if it has credit from a
        segment."""
        if held.unfinished and held.credit > 0:
            if held.search_due is None or held.search_due <= now:
                held.search_due = now + SEARCH_PAUSE_MS
            self._searches[held] = None
        elif held.search_due is not None:
            held.search_due = None
            del self._searches[held]

    def searches_due(self, now: int) -> list[OpenSet]:
        """The open sets whose search continues at ``now`` (ms), in order."""
        due = [held for held in self._searches if held.search_due is not None and held.search_due <= now]
        return sorted(due, key=lambda held: (held.search_due, _get_first_number(held)))

    def next_search(self) -> int | None:
        """When (ms) the first search continues."""
        return min((held.search_due for held in self._searches if held.search_due is not None), default=None)

    def first_completed(self) -> CompletedSet | None:
        """The oldest completed set."""
        return next(iter(self.completed), None)

    def open(self, held: OpenSet) -> None:
        """Add an open set."""
        held.owner = self._owners.setdefault(held.key[0], held.owner)
        self.all_open[held] = held.owner.open[held] = self._by_age[held] = None
        (self._overdue if held.asks else self._fresh)[held] = None
        self._sends(held.key, held.send).append(held)
        if held.search_due is not None:
            self._searches[held] = None

    def touch(self, held: OpenSet) -> None:
        """Make a set the most recently updated one."""
        self.all_open.move_to_end(held)
        held.owner.open.move_to_end(held)
        if held in self._fresh:
            self._fresh.move_to_end(held)

    def grow(self, held: OpenSet, size: int) -> None:
        """Count ``size`` more payload bytes."""
        held.buffered_bytes += size
        held.owner.buffered_bytes += size
        self.buffered_bytes += size

    def move(self, slot: int, source: OpenSet, target: OpenSet) -> None:
        """Move a parity segment from one open set of a sender to another; an emptied set is removed."""
        target.parity_count = source.parity_count
        target.slots[slot] = source.slots[slot]
        self.grow(target, len(source.slots[slot][2]))
        self.discard(slot, source)

    def discard(self, slot: int, held: OpenSet) -> None:
        """Remove a segment from an open set; an emptied set is removed."""
        self.grow(held, -len(held.slots.pop(slot)[2]))
        if not held.slots:
            self.close(held)

    def close(self, held: OpenSet) -> None:
        """Remove an open set."""
        self._release(held)
        self._drop(held)

    def complete(self, held: OpenSet, completed: CompletedSet) -> None:
        """Replace an open set by its completed record, at the same position among the key's sends."""
        self._release(held)
        sends = self.by_key[held.key]
        sends[sends.index(held)] = completed
        self._finish(completed)

    def remember(self, completed: CompletedSet) -> None:
        """Add a completed or lost set from storage."""
        self._sends(completed.key, completed.send).append(completed)
        self._finish(completed)

    def _finish(self, finished: CompletedSet) -> None:
        (self.lost if finished.lost else self.completed)[finished] = None
        self._shares[finished.lost].add(finished, get_sender(finished.key[0]), 1)
        self._limit_completed(finished.key, lost=finished.lost)

    def find_completed(self, key: SetKey, send: int) -> CompletedSet | None:
        """The record of one completed send."""
        sends = self.by_key.get(key, [])
        return next((each for each in sends if isinstance(each, CompletedSet) and each.send == send), None)

    def forget(self, completed: CompletedSet) -> None:
        """Remove the record of a completed or lost set."""
        del (self.lost if completed.lost else self.completed)[completed]
        self._shares[completed.lost].remove(completed, get_sender(completed.key[0]))
        self._drop(completed)

    def limit_finished(self) -> None:
        """Forget completed and lost sets above the bounds: the oldest of the sender that has most, so that nobody makes
        this forget those of others."""
        for shares in self._shares.values():
            while (oldest := shares.find_surplus()) is not None:
                self.forget(oldest)

    def order_sends(self, next_send: dict[SetKey, int]) -> None:
        """Finish loading: sort each key's sends in the order they began, and restore the counters that cannot be
        derived."""
        for sends in self.by_key.values():
            sends.sort(key=lambda send: send.send)
        self._by_age = dict.fromkeys(sorted(self._by_age, key=lambda held: (held.first_seen, _get_first_number(held))))
        self._next_send.update(next_send)

    def _sends(self, key: SetKey, send: int) -> list[OpenSet | CompletedSet]:
        if send >= self._next_send.get(key, 0):
            self._next_send[key] = send + 1
        return self.by_key.setdefault(key, [])

    def _limit_completed(self, key: SetKey, *, lost: bool) -> None:
        remembered = [send for send in self.by_key[key] if isinstance(send, CompletedSet) and send.lost is lost]
        if len(remembered) > MAX_COMPLETED_PER_KEY:
            self.forget(min(remembered, key=lambda send: send.completed_at))

    def _release(self, held: OpenSet) -> None:
        owner = held.owner
        if held.search_due is not None:
            held.search_due = None
            del self._searches[held]
        del self.all_open[held], owner.open[held], self._by_age[held]
        self._fresh.pop(held, None)
        self._overdue.pop(held, None)
        self.buffered_bytes -= held.buffered_bytes
        owner.buffered_bytes -= held.buffered_bytes
        if not owner.open:
            del self._owners[held.key[0]]

    def _drop(self, send: OpenSet | CompletedSet) -> None:
        sends = self.by_key[send.key]
        sends.remove(send)
        if not sends:
            del self.by_key[send.key], self._next_send[send.key]


def _get_first_number(held: OpenSet) -> int:
    """The number of the set's first segment, which no other open set has: the order in which sets were opened."""
    return next(iter(held.slots.values()))[3]
