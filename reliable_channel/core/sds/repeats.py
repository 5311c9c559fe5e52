"""Remembers the further sends of an id that is already known.

Where an id is the hash of a content, as with js-waku, equal texts have one id. They are one SDS message: one place in
the log, one set of acknowledgements. An application wants each of them, so sender and Lamport timestamp tell the sends
apart. The log keeps the latest send of an id; the others are remembered here, so that a copy is not delivered again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator

Send = tuple[int, str, str]
"""Lamport timestamp, SDS id, sender."""


class Repeats:
    """Sends by Lamport timestamp; at most ``max_sends``, the oldest forgotten first."""

    def __init__(self, max_sends: int, sends: Iterable[Send] = (), horizon: int = -1) -> None:
        self._max = max_sends
        self._order = sorted(sends)
        self.sends = set(self._order)
        """Read it; it is changed here only."""
        self.horizon = horizon
        """The highest Lamport timestamp (ms) that was forgotten: what is not above it may have been delivered."""

    def __contains__(self, send: object) -> bool:
        return send in self.sends

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[Send]:
        return iter(self._order)

    def add(self, send: Send, now: int) -> None:
        """Remember a send. The horizon is never later than ``now``: messages that are dated ahead must not cause the
        refusal of everything that is sent until then."""
        if send in self.sends:
            return
        self.sends.add(send)
        insort(self._order, send)
        if len(self._order) > self._max:
            forgotten = self._order.pop(0)
            self.sends.discard(forgotten)
            self.horizon = max(self.horizon, min(forgotten[0], now))
