"""Defines an envelope source for the store server, and cuts pages from it: order (timestamp, message hash), each page
oldest first. No HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery


class Position(NamedTuple):
    """The place of an envelope in a store: sender's timestamp in ns (0 when absent), then message hash."""

    timestamp_ns: int
    message_hash: bytes


@dataclass(frozen=True, slots=True)
class Selection:
    """Which envelopes: all conditions apply together, ``None`` is no condition. Times in ns, both ends included."""

    pubsub_topic: str | None = None
    content_topics: tuple[str, ...] | None = None
    start_time_ns: int | None = None
    end_time_ns: int | None = None
    hashes: tuple[bytes, ...] | None = None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The page that a client requests. ``of_a_peer``: the client named a peer, for whose archive this server
    answers."""

    selection: Selection
    cursor: bytes | None
    page_size: int
    forward: bool
    include_data: bool
    of_a_peer: bool = False


class EnvelopeReading(Protocol):
    """Queries of stored envelopes. They raise ``EnvironmentFault`` while the envelopes cannot be read."""

    def position(self, message_hash: bytes) -> Position | None:
        """The place of a stored envelope, ``None`` when there is none of that hash."""
        ...

    def select(self, selection: Selection, after: Position | None, forward: bool, limit: int) -> list[Position]:
        """At most ``limit`` matching places beyond ``after`` in the direction of the query, nearest first."""
        ...

    def load(self, message_hashes: Sequence[bytes]) -> dict[bytes, tuple[str, WakuMessage]]:
        """Pubsub topic and envelope of each; envelopes deleted meanwhile are left out."""
        ...


class EnvelopeSource(EnvelopeReading, Protocol):
    """Stored envelopes, each message hash once. Called from several threads."""

    def fault(self) -> str | None:
        """Why queries cannot be answered now, as text for clients; None when they can."""
        ...

    def read_without_waiting(self) -> AbstractContextManager[EnvelopeReading | None]:
        """The same envelopes for a caller that must not wait: ``load`` returns envelopes in memory, at most some tens
        of KiB, and raises ``BlockingIOError`` otherwise. None while another query holds the index."""
        ...


class UnknownCursorError(ReliableChannelError):
    """The cursor is not the hash of a stored envelope."""


def read_page(source: EnvelopeReading, request: PageRequest) -> StorePage:
    """One page, oldest first, with a cursor exactly when more follows. Raises :class:`UnknownCursorError`."""
    after = None
    if request.cursor is not None:
        after = source.position(request.cursor)
        if after is None:
            raise UnknownCursorError("cursor not found")
    limit = request.page_size + 1  # one more shows whether a page follows
    positions = source.select(request.selection, after, request.forward, limit)
    page = positions[: request.page_size]
    last = page[-1].message_hash if len(positions) > request.page_size else None
    if not request.forward:
        page.reverse()
    data = source.load([entry.message_hash for entry in page]) if request.include_data else {}
    entries = []
    for entry in page:
        pubsub_topic, message = data.get(entry.message_hash, (None, None))
        if message is not None or not request.include_data:
            entries.append(StoreEntry(entry.message_hash, message, pubsub_topic, verified=True))
    return StorePage(tuple(entries), last)


def answer(source: EnvelopeSource, query: StoreQuery, node: str = "") -> StorePage:
    """The page a client's query gets from a source in this process."""
    selection = Selection(
        pubsub_topic=query.pubsub_topic,
        content_topics=query.content_topics or None,
        start_time_ns=query.start_time_ns,
        end_time_ns=query.end_time_ns,
        hashes=query.hashes or None,
    )
    request = PageRequest(selection, query.cursor, query.page_size, query.forward, query.include_data)
    page = read_page(source, request)
    return StorePage(page.entries, page.cursor, node)
