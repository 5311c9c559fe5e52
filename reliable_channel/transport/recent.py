"""Remembers a bounded number of message hashes for de-duplication (docs/spec/waku-rest.md, *What a client must
tolerate*)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

DEFAULT_CAPACITY = 100_000
"""Hashes remembered: about 12 MB."""


class RecentHashes:
    """The last ``capacity`` different hashes. Not thread-safe: one owner."""

    def __init__(self, capacity: int = DEFAULT_CAPACITY, known: Iterable[bytes] = ()) -> None:
        self._capacity = capacity
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        for one in known:
            self.add(one)

    def add(self, message_hash: bytes) -> bool:
        """Remember a hash; returns whether it is new."""
        if message_hash in self._seen:
            self._seen.move_to_end(message_hash)
            return False
        self._seen[message_hash] = None
        if len(self._seen) > self._capacity:
            self._seen.popitem(last=False)
        return True

    def __contains__(self, message_hash: object) -> bool:
        return message_hash in self._seen

    def __len__(self) -> int:
        return len(self._seen)

    def list_newest(self, count: int) -> list[bytes]:
        """Up to ``count`` hashes, oldest first, for a state file."""
        hashes = list(self._seen)
        return hashes[max(0, len(hashes) - count) :]
