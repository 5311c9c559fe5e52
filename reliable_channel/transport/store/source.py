"""Defines an envelope source for the store server, and cuts pages from it: order (timestamp, message hash), each page
oldest first. No HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.waku import WakuMessage
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
