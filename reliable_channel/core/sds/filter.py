"""Maintains a participant's bloom filter of all ids it has seen, and rebuilds it at capacity (LIP-109, *Bloom filter*).

Ids are hashed only before the filter is sent, so a participant that mostly listens hashes many at once. An observer has
no filter.
"""

from __future__ import annotations

from reliable_channel.core.wire.bloom import FilterFormat

FLUSH_AT = 64
"""Maximum number of ids not yet hashed, because a single input pays for hashing them."""


class OwnFilter:
    """The filter's words in wire order, the number of its ids, and the ids not yet hashed."""

    def __init__(self, filter_format: FilterFormat) -> None:
        self._format = filter_format
        self._words = bytearray(filter_format.byte_count)
        self.count = 0
        """Ids inserted since the last roll-over, including those not yet hashed."""
        self._pending: list[str] = []

    def insert(self, message_id: str) -> None:
        """Insert an id."""
        self._pending.append(message_id)
        self.count += 1
        if len(self._pending) >= FLUSH_AT:
            self._flush()

    def roll_over(self, recent_ids: list[str]) -> None:
        """Rebuild the filter from the ids of the recent log."""
        self._words = bytearray(self._format.byte_count)
        self._pending = list(recent_ids)
        self.count = len(recent_ids)

    def encode(self) -> bytes:
        """The bytes of the ``bloom_filter`` field."""
        return self._format.encode(self.words())

    def words(self) -> bytes:
        """The words in wire order, with all ids hashed."""
        self._flush()
        return bytes(self._words)

    def restore(self, words: bytes, count: int) -> None:
        """Restore the filter from a snapshot. Raises ``ValueError`` for words of another size."""
        if len(words) != len(self._words):
            raise ValueError("its filter has another size than the configuration's")
        self._words = bytearray(words)
        self.count = count

    def _flush(self) -> None:
        if self._pending:
            self._format.insert(self._words, self._pending)
            self._pending.clear()
