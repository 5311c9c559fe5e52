"""Provides time to transports through an injectable clock, so that tests need not wait."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time."""

    def now_ns(self) -> int:
        """Unix time in ns."""


class SystemClock:
    """The machine's clock."""

    def now_ns(self) -> int:
        return time.time_ns()


class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now_ns: int = 1_800_000_000_000_000_000) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        return self._now_ns

    def advance(self, ms: float) -> None:
        """Let ``ms`` milliseconds pass."""
        self._now_ns += int(ms * 1_000_000)


def now_ms(clock: Clock) -> int:
    """Unix time in ms."""
    return clock.now_ns() // 1_000_000


def has_passed(ms: int, since: int, now: int) -> bool:
    """Whether ``ms`` have passed ``since`` a time of the same clock; also if the clock was set back before it, because
    nothing would happen until it is as late again."""
    return not 0 <= now - since < ms


def earliest(*times: int | None) -> int | None:
    """The first of these times that are known; ``None`` if none is."""
    return min((at for at in times if at is not None), default=None)


_SET_BACK_NS = 1_000_000_000
"""A clock that is further (ns) behind the last timestamp was set back. One that is nearer was overtaken by timestamps
that were taken faster than it ticks."""


class Timestamps:
    """Strictly increasing envelope timestamps in ns.

    Two envelopes with equal bytes and equal timestamps are one message to gossip and to stores (14/WAKU2-MESSAGE), and
    clocks of some machines tick in µs only. Thread-safe.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last = 0
        self._lock = threading.Lock()

    def next_ns(self) -> int:
        """A timestamp not given before, at or just after now; the clock's own if it was set back further."""
        with self._lock:
            now = self._clock.now_ns()
            self._last = now if self._last - now > _SET_BACK_NS else max(self._last + 1, now)
            return self._last
