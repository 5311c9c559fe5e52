"""Numbers and keeps the latest events of one source for long polling, bounded in number and bytes; the oldest are
dropped first."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

MAX_EVENTS = 10_000
MAX_BYTES = 32 * 1024 * 1024


class EventLog:
    """Events as JSON values under their running number, the first after ``begin``. Where cursors outlive this object,
    ``begin`` is the time (Unix ms): numbers of an earlier process are then below it. Thread-safe."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES, begin: int = 0) -> None:
        self._begin = begin
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[tuple[int, dict[str, Any], int]] = deque()
        self._bytes = 0
        self._last = begin
        self._lock = threading.Lock()

    def add(self, shown: dict[str, Any]) -> None:
        """Keep one event, as JSON."""
        size = 500 + _text_bytes(shown)
        with self._lock:
            self._last += 1
            self._events.append((self._last, {"cursor": self._last, **shown}, size))
            self._bytes += size
            while len(self._events) > self._max_events or (self._bytes > self._max_bytes and len(self._events) > 1):
                self._bytes -= self._events.popleft()[2]

    def after(self, since: int, take: int | None) -> tuple[list[dict[str, Any]], int, int]:
        """Events with a number above ``since``, at most ``take``; how many after ``since`` are no longer here; and the
        cursor that is before the first of these events. A cursor of another log gives all events, and counts one as
        lost: nobody knows how many."""
        with self._lock:
            is_own = self._begin <= since <= self._last
            start = since if is_own else self._begin
            events = [event for number, event, _ in self._events if number > start]
            first = self._events[0][0] if self._events else self._last + 1
        gone = max(0, first - start - 1)
        return (events if take is None else events[:take]), gone + (not is_own and since > 0), start + gone


def _text_bytes(value: Any) -> int:
    """The bytes of the texts in a JSON value."""
    if isinstance(value, dict):
        return sum(map(_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    return len(value) if isinstance(value, str) else 0
