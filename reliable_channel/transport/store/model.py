"""Represents a store query and its page as values (13/WAKU2-STORE; docs/spec/waku-rest.md, *Store v3*)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from reliable_channel.core.errors import LocalError
from reliable_channel.core.wire.waku import WakuMessage

MAX_PAGE_SIZE = 100
"""The maximum number of messages on a page; running nodes reduce larger requests to it."""

DEFAULT_PAGE_SIZE = 20
"""The number of messages on a page when the query does not set it."""

MAX_HASHES = 99
"""The number of hashes in one query: exactly 100, 200 … return unrelated messages from Postgres nodes
(docs/spec/waku-rest.md)."""

TOPICS_PER_QUERY = 10
"""The maximum number of content topics that running stores accept in a query (docs/spec/waku-rest.md *Store v3*)."""

HASH_BYTES = 32

T = TypeVar("T")


def split(values: Sequence[T], size: int) -> Iterator[tuple[T, ...]]:
    """The values in groups of ``size`` at most, in order."""
    for begin in range(0, len(values), size):
        yield tuple(values[begin : begin + size])


def is_message_hash(hint: bytes | None) -> bool:
    """Whether a retrieval hint can be a Waku message hash, the only kind of hint that a store can be queried for. Hints
    are opaque and kept as received: status-go, for example, writes a protobuf of hashes there."""
    return hint is not None and len(hint) == HASH_BYTES


@dataclass(frozen=True, slots=True)
class StoreQuery:
    """A query to a store: all conditions apply together, an empty one is none. Clients send either ``hashes``, or a
    content filter and a time range: the specification forbids them together.

    Times are Unix ns of the *sender's* timestamps, **both ends included**: running nodes include the end, the
    specification excludes it, and the client hides the difference. ``cursor`` is the message hash returned by the last
    page, exclusive. Every page is oldest first; ``forward=False`` begins with the newest page. Raises ``LocalError``
    for wrong lengths.
    """

    pubsub_topic: str | None = None
    content_topics: tuple[str, ...] = ()
    start_time_ns: int | None = None
    end_time_ns: int | None = None
    hashes: tuple[bytes, ...] = ()
    cursor: bytes | None = None
    page_size: int = MAX_PAGE_SIZE
    forward: bool = True
    include_data: bool = True

    def __post_init__(self) -> None:
        if any(len(h) != HASH_BYTES for h in (*self.hashes, *((self.cursor,) if self.cursor else ()))):
            raise LocalError("A message hash in a store query is not 32 bytes.", "Give the Waku message hash.")
        if not 1 <= self.page_size <= MAX_PAGE_SIZE:
            raise LocalError(f"A page size of {self.page_size} is not between 1 and {MAX_PAGE_SIZE}.")

    def admits(self, pubsub_topic: str, content_topic: str) -> bool:
        """Whether its filter admits messages of these topics."""
        topics = self.content_topics
        return self.pubsub_topic in (None, pubsub_topic) and (not topics or content_topic in topics)

    def after(self, cursor: bytes | None) -> StoreQuery:
        """The same query for the next page."""
        return replace(self, cursor=cursor)


@dataclass(frozen=True, slots=True)
class StoreEntry:
    """One stored envelope. ``message`` and ``pubsub_topic`` are ``None`` when the query did not include data, except
    from nodes with Store v1 only.

    ``verified`` means that the hash was recomputed from the message and matched; answers of an old store protocol
    without ``meta`` cannot be verified."""

    message_hash: bytes
    message: WakuMessage | None = None
    pubsub_topic: str | None = None
    verified: bool = False


@dataclass(frozen=True, slots=True)
class StorePage:
    """One page of one node's answer, oldest first. ``cursor`` is ``None`` on the last page.

    ``refused`` counts returned entries that do not match the query: hashes that do not fit their message, hashes never
    asked for, messages outside the filter. They are left out of ``entries``.
    """

    entries: tuple[StoreEntry, ...]
    cursor: bytes | None = None
    node: str = ""
    refused: int = 0


class StoreQuerying(Protocol):
    """Anything that answers queries with pages: a client of several nodes, one node, a source in this process."""

    def query(self, query: StoreQuery) -> StorePage:
        """One page. Raises ``StoreUnavailable`` when no node returns one."""
