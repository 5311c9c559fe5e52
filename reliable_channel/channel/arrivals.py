"""Envelopes between the node's thread and the channel's: bounded, as strangers decide how many there are."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from reliable_channel.transport.base import ReceivedEnvelope

MAX_ENVELOPES = 20_000
MAX_BYTES = 256 * 1024 * 1024
"""What may wait (bytes of payload); what comes beyond is dropped, and stores have it."""


class Arrivals:
    """A queue; ``lost`` counts what it did not take. Thread-safe, never blocks."""

    def __init__(self, max_envelopes: int = MAX_ENVELOPES, max_bytes: int = MAX_BYTES) -> None:
        self._max_envelopes = max_envelopes
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[ReceivedEnvelope] = deque()
        self._bytes = 0
        self.lost = 0

    def offer(self, envelope: ReceivedEnvelope) -> bool:
        """Take one envelope, unless the queue is full."""
        size = len(envelope.message.payload)
        with self._lock:
            if len(self._waiting) >= self._max_envelopes or self._bytes + size > self._max_bytes:
                self.lost += 1
                return False
            self._waiting.append(envelope)
            self._bytes += size
            return True

    def put(self, envelopes: Iterable[ReceivedEnvelope]) -> None:
        """Take them all: for whoever waited until the queue was no longer :attr:`crowded`."""
        with self._lock:
            for envelope in envelopes:
                self._waiting.append(envelope)
                self._bytes += len(envelope.message.payload)

    def take(self) -> ReceivedEnvelope:
        """The oldest. Raises ``IndexError`` when there is none."""
        with self._lock:
            envelope = self._waiting.popleft()
            self._bytes -= len(envelope.message.payload)
            return envelope

    @property
    def crowded(self) -> bool:
        """More than half full."""
        with self._lock:
            return len(self._waiting) * 2 >= self._max_envelopes or self._bytes * 2 >= self._max_bytes

    def __len__(self) -> int:
        return len(self._waiting)
