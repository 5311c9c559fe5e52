"""Remembers which records of Kafka are in the memory of a listener only, so that their offsets are not committed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


class UnstoredOffsets:
    """The offsets that listeners hold, by partition: as many as the listeners' own queues are long. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[int, Counter[int]] = {}

    def limit(self, read: Mapping[int, int]) -> dict[int, int]:
        """The offsets to continue from after a crash, by partition, where ``read`` are those to read next."""
        with self._lock:
            return {partition: min([offset, *self._held.get(partition, ())]) for partition, offset in read.items()}

    def change(self, partition: int, offset: int, by: int) -> None:
        """Count one listener more or fewer that holds an offset."""
        with self._lock:
            held = self._held.setdefault(partition, Counter())
            held[offset] += by
            if not held[offset]:
                del held[offset]


@dataclass(frozen=True, slots=True)
class Hold:
    """One record. A listener that queues its envelope calls ``take`` before it returns, and ``release`` once the
    envelope is stored; the record is read again if the process ends in between."""

    offsets: UnstoredOffsets
    partition: int
    offset: int

    def take(self) -> None:
        self.offsets.change(self.partition, self.offset, 1)

    def release(self) -> None:
        self.offsets.change(self.partition, self.offset, -1)
