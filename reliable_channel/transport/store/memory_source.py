"""Provides an envelope source in memory, for simulations and tests."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.source import Position


class MemorySource:
    """Envelopes in (timestamp, hash) order; the same hash is kept once. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._order: list[Position] = []
        self._envelopes: dict[bytes, tuple[str, WakuMessage]] = {}

    def add(self, pubsub_topic: str, message: WakuMessage) -> bytes:
        """Store an envelope; returns its message hash."""
        envelope_hash = message_hash(pubsub_topic, message)
        with self._lock:
            if envelope_hash not in self._envelopes:
                self._envelopes[envelope_hash] = (pubsub_topic, message)
                insort(self._order, Position(message.timestamp or 0, envelope_hash))
        return envelope_hash

    def fault(self) -> None:
        return None

    def read_without_waiting(self) -> AbstractContextManager[MemorySource]:
        return nullcontext(self)

    def position(self, message_hash: bytes) -> Position | None:
        with self._lock:
            entry = self._envelopes.get(message_hash)
        return None if entry is None else Position(entry[1].timestamp or 0, message_hash)

    def select(self, query: StoreQuery, after: Position | None, limit: int) -> list[Position]:
        with self._lock:
            positions: list[Position] = []
            for index in self._walk(query, after):
                if self._matches(query, index):
                    positions.append(index)
                    if len(positions) == limit:
                        break
            return positions

    def load(self, message_hashes: Sequence[bytes]) -> dict[bytes, tuple[str, WakuMessage]]:
        with self._lock:
            return {h: self._envelopes[h] for h in message_hashes if h in self._envelopes}

    def _walk(self, query: StoreQuery, after: Position | None) -> Iterable[Position]:
        low, high = 0, len(self._order)
        if query.start_time_ns is not None:
            low = bisect_left(self._order, Position(query.start_time_ns, b""))
        if query.end_time_ns is not None:
            high = bisect_left(self._order, Position(query.end_time_ns + 1, b""))
        if after is not None and query.forward:
            low = max(low, bisect_right(self._order, after))
        elif after is not None:
            high = min(high, bisect_left(self._order, after))
        indexes = range(low, high) if query.forward else range(high - 1, low - 1, -1)
        return (self._order[i] for i in indexes)

    def _matches(self, query: StoreQuery, index: Position) -> bool:
        pubsub_topic, message = self._envelopes[index.message_hash]
        fits = query.admits(pubsub_topic, message.content_topic)
        return fits and (not query.hashes or index.message_hash in query.hashes)
