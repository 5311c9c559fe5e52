"""Remembers incomplete messages whose payloads had to make room, and when to ask a store for all of them again.

Their segments were acknowledged, so nobody repeats them unasked. Until a set is asked for, further segments of it are
not acknowledged; it is asked for once, when there is room, and is given up if that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from reliable_channel.core.segmentation import IncompleteSet, Scope, SegmentationConfig

MAX_EVICTED = 256
"""Beyond that the oldest set of the sender that has most is given up."""


class Stage(IntEnum):
    """What has become of an evicted set."""

    WAITING = 0
    """It is asked for when there is room."""
    REQUESTED = 1
    """A store was asked for it, and no segment has come again yet."""
    REOPENED = 2
    """It is an incomplete set again."""
    LOST = 3
    """Given up; remembered, because segments of it must not be acknowledged."""


@dataclass(slots=True)
class EvictedSet:
    """``incomplete`` as it was when it was evicted because of the bound ``reason``; ``since_ms`` (Unix ms): when its
    first segment was sent or seen; ``due`` (ms): when it is asked for, or given up once it was asked for."""

    incomplete: IncompleteSet
    reason: str
    since_ms: int
    due: int
    stage: Stage = Stage.WAITING

    @property
    def key(self) -> tuple[Scope, bytes]:
        """Sender and hash."""
        return self.incomplete.scope, self.incomplete.entire_message_hash


class EvictedSets:
    """The evicted sets of one channel. Times are ms."""

    def __init__(self, config: SegmentationConfig) -> None:
        self._config = config
        self._sets: dict[tuple[Scope, bytes], EvictedSet] = {}

    def __len__(self) -> int:
        return len(self._sets)

    def __iter__(self) -> Iterator[EvictedSet]:
        return iter(self._sets.values())

    def get(self, scope: Scope, entire_message_hash: bytes) -> EvictedSet | None:
        """The evicted set of a message, ``None`` if it has none."""
        return self._sets.get((scope, entire_message_hash))

    def restore(self, evicted: EvictedSet) -> None:
        """Add a set from a snapshot."""
        self._sets[evicted.key] = evicted

    def add(self, evicted: EvictedSet, now: int) -> list[EvictedSet]:
        """Remember an evicted set. Returns the sets to give up: this one, if it was asked for before or too little of
        its lifetime is left, or another one that it replaces."""
        evicted.due = now + self._config.set_timeout_ms
        if evicted.key in self._sets or evicted.due + self._config.set_timeout_ms > self._find_end(evicted):
            self._sets.pop(evicted.key, None)
            return [evicted]
        self._sets[evicted.key] = evicted
        if len(self._sets) <= MAX_EVICTED:
            return []
        held = Counter(scope for scope, _ in self._sets)
        most = max(held.values())
        oldest = next(each for each in self if held[each.incomplete.scope] == most)
        del self._sets[oldest.key]
        return [oldest] if oldest.stage in (Stage.WAITING, Stage.REQUESTED) else []

    def forget(self, scope: Scope, entire_message_hash: bytes) -> None:
        """Forget a set that is complete, or was given up as an incomplete one."""
        self._sets.pop((scope, entire_message_hash), None)

    def take_due(
        self, now: int, has_room: Callable[[IncompleteSet], bool]
    ) -> tuple[list[EvictedSet], list[EvictedSet]]:
        """Return the set to ask for now, at most one, so that those that return do not evict each other; and the sets
        whose time is up, which are given up."""
        asks: list[EvictedSet] = []
        lost: list[EvictedSet] = []
        pause = self._config.set_timeout_ms
        for each in [each for each in self if each.due <= now and each.stage <= Stage.REQUESTED]:
            if now >= self._find_end(each):
                if each.stage is Stage.WAITING:
                    del self._sets[each.key]  # the Reassembler remembers it as lost
                else:
                    each.stage = Stage.LOST
                lost.append(each)
            elif each.stage is Stage.WAITING and not asks and has_room(each.incomplete):
                each.stage, each.due = Stage.REQUESTED, self._find_end(each)
                asks.append(each)
            else:
                each.due = min(now + pause, self._find_end(each))
        return asks, lost

    def next_due(self) -> int | None:
        """When :meth:`take_due` next has something to do, ``None``: never."""
        return min((each.due for each in self if each.stage <= Stage.REQUESTED), default=None)

    def _find_end(self, evicted: EvictedSet) -> int:
        return evicted.incomplete.first_seen + self._config.max_set_lifetime_ms
