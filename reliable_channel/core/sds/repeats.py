"""Remembers the further sends of an id that is already known.

If an id is the hash of the content, as with js-waku, equal texts have one id. They are one SDS message: one log entry,
one set of acknowledgements. An application needs each of them, so sender and Lamport timestamp distinguish the sends.
The log keeps the latest send of an id; the others are remembered here, so that a copy is not delivered again.
"""

from __future__ import annotations

from operator import itemgetter

from reliable_channel.core.sds.horizons import Horizons
from reliable_channel.core.shares import drop_surplus

Send = tuple[int, str, str]
"""Lamport timestamp, SDS id, sender."""

_MAX_HORIZON_BYTES = 512 * 1024


class Repeats:
    """About ``max_sends`` sends. Surplus sends are forgotten in blocks."""

    def __init__(self, max_sends: int) -> None:
        self._max = max_sends
        self.sends: dict[Send, None] = {}
        """Oldest first, by arrival. Only a snapshot may change it from outside."""
        self.horizons = Horizons(_MAX_HORIZON_BYTES)
        """Up to where sends may have been forgotten."""

    def __contains__(self, send: object) -> bool:
        return send in self.sends

    def add(self, send: Send, now: int) -> None:
        """Remember a send at ``now`` (ms)."""
        self.sends[send] = None
        for lamport, message_id, sender_id in drop_surplus(self.sends, itemgetter(2), self._max, self._max // 16):
            self.horizons.advance(sender_id, (lamport, message_id), now)
        self.horizons.limit()

    def may_have_forgotten(self, send: Send) -> bool:
        """Whether a send may have been remembered here and forgotten."""
        lamport, message_id, sender_id = send
        return self.horizons.covers((lamport, message_id), sender_id)
