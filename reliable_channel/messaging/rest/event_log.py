"""Numbers and keeps the latest events of one source for long polling, bounded in number and bytes; the oldest are
dropped first."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict, deque
from itertools import takewhile
from typing import Any

MAX_EVENTS = 10_000
MAX_BYTES = 32 * 1024 * 1024
"""Bytes of the texts in the events, and 500 for everything else of each."""
MAX_OF_A_PROBLEM = 100
"""Events of one kind of problem that are kept: strangers can cause any number of them."""


class EventLog:
    """Events as JSON values under their running number, the first after ``begin``. Where cursors outlive this object,
    ``begin`` is the time (Unix ms): numbers of an earlier process are then below it. Thread-safe."""

    def __init__(self, max_events: int = MAX_EVENTS, begin: int = 0) -> None:
        self._begin = begin
        self._max_events = max_events
        self._events: OrderedDict[int, tuple[dict[str, Any], int]] = OrderedDict()
        self._bytes = 0
        self._last = begin
        self.ended = False
        """Whether nothing is added any more: streams and polls of it end."""
        self._problems: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=MAX_OF_A_PROBLEM))
        """The last numbers by kind of problem."""
        self._lock = threading.Lock()

    def add(self, shown: dict[str, Any], problem: str | None = None) -> None:
        """Keep one event, as JSON. One of a kind of ``problem`` replaces an older one of this kind if many are kept."""
        size = 500 + _count_text_bytes(shown)
        with self._lock:
            self._last += 1
            if problem is not None:
                numbers = self._problems[problem]
                if len(numbers) == numbers.maxlen and numbers[0] in self._events:
                    self._bytes -= self._events.pop(numbers[0])[1]
                numbers.append(self._last)
            self._events[self._last] = ({"cursor": self._last, **shown}, size)
            self._bytes += size
            while len(self._events) > self._max_events or (self._bytes > MAX_BYTES and len(self._events) > 1):
                self._bytes -= self._events.popitem(last=False)[1][1]

    def read_after(self, since: int, take: int | None) -> tuple[list[dict[str, Any]], int, int]:
        """Events with a number above ``since``, at most ``take``; how many between ``since`` and the last of these are
        no longer here; and the cursor that is before the first of these events. A cursor of another log gives all
        events, and counts one as lost: nobody knows how many."""
        with self._lock:
            is_own = self._begin <= since <= self._last
            start = since if is_own else self._begin
            # From the newest on: each of the calls that wait looks at every event, and most have seen all but that one.
            later = [*takewhile(lambda number: number > start, reversed(self._events))][::-1]
            events = [self._events[number][0] for number in later[:take]]
            end = self._last if len(events) == len(later) else later[len(events)] - 1
        first, last = (events[0]["cursor"] - 1, events[-1]["cursor"]) if events else (end, end)
        gone = last - start - len(events)
        return events, gone + (not is_own and since > 0), first


def _count_text_bytes(value: Any) -> int:
    """The bytes of the texts in a JSON value."""
    if isinstance(value, dict):
        return sum(map(_count_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_count_text_bytes, value))
    return len(value) if isinstance(value, str) else 0
