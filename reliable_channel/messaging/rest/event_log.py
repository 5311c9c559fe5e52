"""Numbers and keeps the latest events of one source for long polling, bounded in number and bytes; the oldest are
dropped first."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

MAX_EVENTS = 10_000
MAX_BYTES = 32 * 1024 * 1024


class EventLog:
    """Events as JSON values under their running number, from 1. Thread-safe."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[tuple[int, dict[str, Any], int]] = deque()
        self._bytes = 0
        self._last = 0
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

    def after(self, since: int, take: int | None) -> tuple[list[dict[str, Any]], int]:
        """Events with a number above ``since``, at most ``take``, and how many after ``since`` are no longer here."""
        with self._lock:
            events = [event for number, event, _ in self._events if number > since]
            first = self._events[0][0] if self._events else self._last + 1
        lost = max(0, first - since - 1)
        return (events if take is None else events[:take]), lost


def _text_bytes(value: Any) -> int:
    """The bytes of the texts in a JSON value."""
    if isinstance(value, dict):
        return sum(map(_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_text_bytes, value))
    return len(value) if isinstance(value, str) else 0
