"""Remembers the further sends of an id that is already known.

If an id is the hash of the content, as with js-waku, equal texts have one id. They are one SDS message: one log entry,
one set of acknowledgements. An application needs each of them, so sender and Lamport timestamp distinguish the sends.
The log keeps the latest send of an id; the others are remembered here, so that a copy is not delivered again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

Send = tuple[int, str, str]
"""Lamport timestamp, SDS id, sender."""


class Repeats:
    """Sends by Lamport timestamp; at most ``max_sends``; the oldest are forgotten first."""

    def __init__(self, max_sends: int, sends: Iterable[Send] = (), horizon: int = -1) -> None:
        self._max = max_sends
        self._order = sorted(sends)
        self.sends = set(self._order)
        """Read-only for other modules."""
        self.horizon = horizon
        """The highest forgotten Lamport timestamp (ms): sends up to it may have been delivered."""

    def __contains__(self, send: object) -> bool:
        return send in self.sends

    def __iter__(self) -> Iterator[Send]:
        return iter(self._order)

    def add(self, send: Send, now: int) -> None:
        """Remember a send. The horizon is never later than ``now``: messages dated ahead must not cause everything sent
        until then to be refused."""
        if send in self.sends:
            return
        self.sends.add(send)
        insort(self._order, send)
        if len(self._order) > self._max:
            forgotten = self._order.pop(0)
            self.sends.discard(forgotten)
            self.horizon = max(self.horizon, min(forgotten[0], now))
