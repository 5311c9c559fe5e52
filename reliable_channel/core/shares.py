"""Divides a bounded memory between senders: when it is full, the sender that holds most of it loses its oldest entry
(docs/sds.md, *Limits*).

Look-ups and removals are O(1); additions, and finding who holds most, are O(log n) amortized.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Generic, TypeVar

OVERHEAD = 64
"""Bytes that an entry counts besides its texts, for timestamps, flags and lengths."""


K = TypeVar("K", bound=Hashable)
Owner = TypeVar("Owner", bound=Hashable)
Item = TypeVar("Item")


@dataclass(slots=True, eq=False, repr=False)
class _Share(Generic[K]):
    """The entries of one owner."""

    keys: OrderedDict[K, tuple[int, int]] = field(default_factory=OrderedDict)
    """Keys with their weights and numbers, oldest first."""
    held: int = 0
    """Their total weight."""
    stated: tuple[int, int] = (0, 0)
    """Its rank in the heap, never behind its true one. Corrected on access."""

    def rank(self) -> tuple[int, int]:
        """Owners lose entries in the order of their ranks: who holds most first, then who has the oldest key."""
        # Not by name: whoever invents names also chooses them.
        return -self.held, next(iter(self.keys.values()))[1]


class Shares(Generic[K]):
    """Keys, each with an owner and a weight. The weight of an entry is its size in bytes, but at least ``unit``: so one
    bound limits both their number (``max_entries``) and their bytes (``max_bytes``)."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self.unit = max(1, max_bytes // max(1, max_entries))
        self.surplus = -self.unit * max_entries
        """The weight above the bound; 0 or less means none. Read-only for other modules."""
        self._of: dict[str, _Share[K]] = {}
        self._largest: list[tuple[tuple[int, int], str]] = []
        self._number = 0
        """Keys are numbered in the order in which they were added."""

    def add(self, key: K, owner: str, size: int) -> None:
        """Count a new key of ``size`` bytes for its owner."""
        share = self._of.get(owner)
        if share is None:
            share = self._of[owner] = _Share()
        weight = size if size > self.unit else self.unit
        self._number += 1
        share.keys[key] = weight, self._number
        self._add_weight(owner, share, weight)

    def remove(self, key: K, owner: str) -> None:
        """Stop counting a key."""
        share = self._of[owner]
        self._subtract_weight(owner, share, share.keys.pop(key)[0])

    def resize(self, key: K, owner: str, size: int) -> None:
        """Change the size (bytes) of a key of ``owner``; its age stays the same."""
        share = self._of[owner]
        weight = max(self.unit, size)
        before, number = share.keys[key]
        share.keys[key] = weight, number
        self._add_weight(owner, share, weight - before)

    def weight_of(self, owner: str) -> int:
        """The total weight of an owner's entries."""
        share = self._of.get(owner)
        return 0 if share is None else share.held

    def keys_of(self, owner: str) -> Collection[K]:
        """The keys of an owner, oldest first."""
        share = self._of.get(owner)
        return () if share is None else share.keys.keys()

    def is_over(self) -> bool:
        """Whether the entries exceed the bound."""
        return self.surplus > 0

    def oldest_of(self, owner: str) -> K:
        """The key that an owner has held longest."""
        return next(iter(self._of[owner].keys))

    def greediest(self) -> str:
        """The owner that holds most; among several, the one with the oldest key."""
        largest = self._largest
        while True:
            stated, owner = largest[0]
            share = self._of.get(owner)
            if share is None or share.stated != stated:
                heapq.heappop(largest)
            elif (rank := share.rank()) == stated:
                return owner
            else:
                share.stated = rank
                heapq.heapreplace(largest, (rank, owner))

    def find_surplus(self) -> K | None:
        """The oldest key of the owner that holds most, which stays; ``None`` unless the bound is exceeded."""
        return self.oldest_of(self.greediest()) if self.is_over() else None

    def take_surplus(self) -> K | None:
        """Remove and return the oldest key of the owner that holds most; ``None`` unless the bound is exceeded."""
        if self.surplus <= 0:
            return None
        owner = self.greediest()
        share = self._of[owner]
        key, (weight, _) = share.keys.popitem(last=False)
        self._subtract_weight(owner, share, weight)
        return key

    def _add_weight(self, owner: str, share: _Share[K], weight: int) -> None:
        self.surplus += weight
        share.held += weight
        if share.held > -share.stated[0]:
            share.stated = share.rank()
            heapq.heappush(self._largest, (share.stated, owner))
            # Outdated ranks are dropped only on top, and a flood of additions would leave them below.
            if len(self._largest) > 64 + 4 * len(self._of):
                for each in self._of.values():
                    each.stated = each.rank()
                self._largest = [(each.stated, name) for name, each in self._of.items()]
                heapq.heapify(self._largest)

    def _subtract_weight(self, owner: str, share: _Share[K], weight: int) -> None:
        self.surplus -= weight
        share.held -= weight
        if not share.keys:
            del self._of[owner]


class Remembered:
    """A bounded set of ids, each charged to a sender."""

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._shares = Shares[str](max_entries, max_bytes)
        self.owners: dict[str, str] = {}
        """Ids with their owners, oldest first. Read-only for other modules."""

    def __contains__(self, message_id: object) -> bool:
        return message_id in self.owners

    def add(self, message_id: str, owner: str) -> None:
        """Remember an id; beyond the bound, the oldest id of the sender with most is forgotten."""
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
    """Bytes of an entry with these texts, about as in a snapshot."""
    text = "".join(texts)
    return OVERHEAD + (len(text) if text.isascii() else len(text.encode()))


def list_surplus(keys: Collection[K], owners: Sequence[Hashable], limit: int) -> list[K]:
    """The keys to drop so that ``limit`` remain: of the older half, the oldest of the owners with most. ``keys``:
    oldest first; ``owners``: that of each. For memories that are cut in bulk, where nobody ends a key.

    The newer half stays, or names that were used once would leave a sender with a name of its own no room for good."""
    older = len(keys) - limit // 2
    surplus = compute_surplus(Counter(owners[:older]), limit - limit // 2)
    gone: list[K] = []
    for key, owner in zip(keys, owners, strict=True):
        if surplus.get(owner, 0) > 0:
            surplus[owner] -= 1
            gone.append(key)
    return gone[: len(keys) - limit]


def drop_surplus(entries: dict[K, Item], get_owner: Callable[[K], Hashable], limit: int, slack: int) -> list[K]:
    """Drop :func:`list_surplus` from a dictionary once it has ``slack`` entries more than ``limit``; returns them. In
    bulk, because finding the first key of a dictionary is slow after its first keys were deleted."""
    if len(entries) <= limit + slack:
        return []
    surplus = list_surplus(entries, [*map(get_owner, entries)], limit)
    for key in surplus:
        del entries[key]
    return surplus


def take_turns(items: Iterable[Item], get_owner: Callable[[Item], Hashable]) -> list[tuple[int, Item]]:
    """The first item of every owner, then the second of every owner, and so on, each with the number of its turn from
    0: whoever has many delays no other's first ones."""
    turns: Counter[Hashable] = Counter()
    placed: list[tuple[int, Item]] = []
    for item in items:
        owner = get_owner(item)
        placed.append((turns[owner], item))
        turns[owner] += 1
    return sorted(placed, key=itemgetter(0))


def compute_surplus(held: Mapping[Owner, int], limit: int) -> dict[Owner, int]:
    """How much each owner must give up so that all together hold at most ``limit``."""
    level = _compute_level(sorted(held.values()), limit)
    return {owner: weight - level for owner, weight in held.items() if weight > level}


def _compute_level(held: list[int], limit: int) -> int:
    """The level to which larger shares must be cut so that the sum is at most ``limit``. ``held`` is ascending."""
    for index, weight in enumerate(held):
        fair = limit // (len(held) - index)
        if weight > fair:
            return fair
        limit -= weight
    return limit
