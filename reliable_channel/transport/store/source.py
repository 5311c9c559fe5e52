"""Defines an envelope source for the store server, and cuts pages from it: order (timestamp, message hash), each page
oldest first; one source is in memory, for simulations and tests. No HTTP."""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, Protocol

from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery


class Position(NamedTuple):
    """The place of an envelope in a store: sender's timestamp in ns (0 when absent), then message hash."""

    timestamp_ns: int
    message_hash: bytes


class EnvelopeReading(Protocol):
    """Queries of stored envelopes. They raise ``EnvironmentFault`` while the envelopes cannot be read."""

    def position(self, message_hash: bytes) -> Position | None:
        """The place of a stored envelope, ``None`` when there is none of that hash."""

    def select(self, query: StoreQuery, after: Position | None, limit: int) -> list[Position]:
        """At most ``limit`` matching places beyond ``after`` in the direction of the query, nearest first."""

    def load(self, message_hashes: Sequence[bytes]) -> dict[bytes, tuple[str, WakuMessage]]:
        """Pubsub topic and envelope of each; envelopes deleted meanwhile are left out."""


class EnvelopeSource(EnvelopeReading, Protocol):
    """Stored envelopes, each message hash once. Called from several threads."""

    def fault(self) -> str | None:
        """Why queries cannot be answered now, as text for clients; None when they can."""

    def read_without_waiting(self) -> AbstractContextManager[EnvelopeReading | None]:
        """The same envelopes for a caller that must not wait: ``load`` returns envelopes in memory, at most some tens
        of KiB, and raises ``BlockingIOError`` otherwise. None while another query holds the index."""


class UnknownCursorError(ReliableChannelError):
    """The cursor is not the hash of a stored envelope."""


def read_page(source: EnvelopeReading, query: StoreQuery, node: str = "") -> StorePage:
    """One page, oldest first, with a cursor exactly when more follows. Raises :class:`UnknownCursorError`."""
    after = None
    if query.cursor is not None:
        after = source.position(query.cursor)
        if after is None:
            raise UnknownCursorError("cursor not found")
    positions = source.select(query, after, query.page_size + 1)  # one more shows whether a page follows
    page = positions[: query.page_size]
    last = page[-1].message_hash if len(positions) > query.page_size else None
    if not query.forward:
        page.reverse()
    data = source.load([entry.message_hash for entry in page]) if query.include_data else {}
    entries = []
    for entry in page:
        pubsub_topic, message = data.get(entry.message_hash, (None, None))
        if message is not None or not query.include_data:
            entries.append(StoreEntry(entry.message_hash, message, pubsub_topic, verified=True))
    return StorePage(tuple(entries), last, node)


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

    def query(self, query: StoreQuery) -> StorePage:
        """One page, as a store node answers."""
        return read_page(self, query, node="memory")

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
