"""Divides a bounded memory between senders: when it is full, the sender that holds most of it loses its oldest entry.

Nobody can push out what others hold without holding more than they do. Look-ups, additions and removals are O(1);
finding who holds most is O(log n) amortized.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

OVERHEAD = 64
"""Bytes that an entry counts for besides its texts: timestamps, flags and lengths."""


class Shares:
    """Keys, each with an owner and a weight. The weight of an entry is its size in bytes, but at least ``unit``: so one
    bound holds for their number (``max_entries``) and for their bytes (``max_bytes``)."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.unit = max(1, max_bytes // max(1, max_entries))
        self._limit = self.unit * max_entries
        self.surplus = -self._limit
        """How much more is held than there may be; what is at most 0 is none. Read it; it is changed here only."""
        self._keys: dict[str, OrderedDict[str, int]] = {}
        self._held: dict[str, int] = {}
        self._largest: list[tuple[int, str]] = []
        self._stated: dict[str, int] = {}
        """What the heap states of each owner: never less than it holds. Put right where somebody asks."""

    def add(self, key: str, owner: str, size: int) -> None:
        """Count a new key of ``size`` bytes for its owner."""
        weight = size if size > self.unit else self.unit
        keys = self._keys.get(owner)
        if keys is None:
            keys = self._keys[owner] = OrderedDict()
        keys[key] = weight
        self._more(owner, weight)

    def remove(self, key: str, owner: str) -> None:
        """Stop counting a key."""
        keys = self._keys[owner]
        weight = keys.pop(key)
        if not keys:
            del self._keys[owner]
        self._less(owner, weight)

    def resize(self, key: str, owner: str, size: int) -> None:
        """Count a key of ``owner`` for another number of bytes; it stays as old as it is."""
        keys = self._keys[owner]
        weight = max(self.unit, size)
        change = weight - keys[key]
        keys[key] = weight
        if change > 0:
            self._more(owner, change)
        elif change:
            self._less(owner, -change)

    def held_by(self, owner: str) -> int:
        """The weight of what an owner holds."""
        return self._held.get(owner, 0)

    def is_over(self) -> bool:
        """Whether more is held than the memory may hold."""
        return self.surplus > 0

    def oldest_of(self, owner: str) -> str:
        """The key that an owner has held longest."""
        return next(iter(self._keys[owner]))

    def greediest(self) -> str:
        """The owner that holds most; of several, the first by name."""
        largest, stated = self._largest, self._stated
        while True:
            weight, owner = largest[0]
            held = self._held.get(owner, 0)
            if held == -weight:
                return owner
            if held and stated[owner] == -weight:
                heapq.heapreplace(largest, (-held, owner))
                stated[owner] = held
            else:
                heapq.heappop(largest)
                if not held:
                    stated.pop(owner, None)

    def take_surplus(self) -> str | None:
        """Take out the oldest key of the owner that holds most; ``None`` unless more is held than there may be."""
        if self.surplus <= 0:
            return None
        owner = self.greediest()
        keys = self._keys[owner]
        key, weight = keys.popitem(last=False)
        if not keys:
            del self._keys[owner]
        self._less(owner, weight)
        return key

    def _more(self, owner: str, weight: int) -> None:
        self.surplus += weight
        held = self._held[owner] = self._held.get(owner, 0) + weight
        if held > self._stated.get(owner, 0):
            self._stated[owner] = held
            heapq.heappush(self._largest, (-held, owner))
            if len(self._largest) > 64 + 4 * len(self._held):
                self._stated = dict(self._held)
                self._largest = [(-held, owner) for owner, held in self._held.items()]
                heapq.heapify(self._largest)

    def _less(self, owner: str, weight: int) -> None:
        self.surplus -= weight
        held = self._held[owner] - weight
        if held:
            self._held[owner] = held
        else:
            del self._held[owner]


class Remembered:
    """A bounded set of ids, each remembered on account of a sender."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._shares = Shares(max_entries, max_bytes)
        self.owners: dict[str, str] = {}
        """Ids with their owners, oldest first. Read it; it is changed here only."""

    def __contains__(self, message_id: object) -> bool:
        return message_id in self.owners

    def __iter__(self) -> Iterator[str]:
        return iter(self.owners)

    def items(self) -> Iterator[tuple[str, str]]:
        """Ids with their owners, oldest first."""
        return iter(self.owners.items())

    def add(self, message_id: str, owner: str) -> None:
        """Remember an id; when there are too many, the sender with most forgets its oldest."""
        if message_id in self.owners:
            return
        shares = self._shares
        self.owners[message_id] = owner
        shares.add(message_id, owner, size_of(message_id, owner))
        while (oldest := shares.take_surplus()) is not None:
            del self.owners[oldest]

    def discard(self, message_id: str) -> bool:
        """Forget an id; returns whether it was there."""
        owner = self.owners.pop(message_id, None)
        if owner is None:
            return False
        self._shares.remove(message_id, owner)
        return True


def size_of(*texts: str) -> int:
    """Bytes that an entry with these texts takes, as in a snapshot."""
    text = "".join(texts)
    return OVERHEAD + (len(text) if text.isascii() else len(text.encode()))
