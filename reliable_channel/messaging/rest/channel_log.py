"""Numbers and keeps the latest events of one channel for long polling, bounded in number and bytes; the oldest are
dropped first."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from reliable_channel.channel.events import ChannelEvent
from reliable_channel.messaging.rest.channel_events import event_out

MAX_EVENTS = 10_000
MAX_BYTES = 32 * 1024 * 1024


class ChannelLog:
    """Events as JSON values under their running number, from 1. Thread-safe."""

    def __init__(self, max_events: int = MAX_EVENTS, max_bytes: int = MAX_BYTES) -> None:
        self._max_events = max_events
        self._max_bytes = max_bytes
        self._events: deque[tuple[int, dict[str, Any], int]] = deque()
        self._bytes = 0
        self._last = 0
        self._lock = threading.Lock()

    def add(self, event: ChannelEvent) -> None:
        """Keep one event."""
        shown = event_out(event)
        size = 500 + len(shown.get("message") or "")
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
