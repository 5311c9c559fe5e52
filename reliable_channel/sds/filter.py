"""The own filter of a participant: every id seen, rolled over at capacity (protocol.md §4, *Bloom filter*).

Ids are hashed only when the filter is next sent: a participant that mostly listens hashes in passing, and an observer
has no filter at all.
"""

from __future__ import annotations

from reliable_channel.wire.bloom import FilterFormat


class OwnFilter:
    """Words in wire order, how many ids are in them, and the ids not yet hashed."""

    def __init__(self, filter_format: FilterFormat) -> None:
        self._format = filter_format
        self.words = bytearray(filter_format.byte_count)
        self.count = 0
        """Ids inserted since the last roll-over, pending ones included."""
        self.pending: list[str] = []

    def insert(self, message_id: str) -> bool:
        """Insert an id; returns whether the filter is now at capacity and has to roll over."""
        self.pending.append(message_id)
        self.count += 1
        return self.count >= self._format.capacity

    def roll_over(self, recent_ids: list[str]) -> None:
        """Start again from the ids of the recent log."""
        self.words = bytearray(self._format.byte_count)
        self.pending = list(recent_ids)
        self.count = len(recent_ids)

    def encode(self) -> bytes:
        """The bytes of the ``bloom_filter`` field."""
        if self.pending:
            self._format.insert(self.words, self.pending)
            self.pending.clear()
        return self._format.encode(self.words)
