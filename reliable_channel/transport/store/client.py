"""Queries several store nodes: time-outs, back-off, paging, look-up by hash and by time range (13/WAKU2-STORE).

``query`` and ``pages`` use the first node that answers; ``ask_all`` and ``look_up`` query every node and return the
answers separately, so that disagreeing stores are visible.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_attempt, wait_exponential, wait_random

from reliable_channel.transport.base import StoreUnavailable
from reliable_channel.transport.store.model import MAX_HASHES, StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import RETRIABLE, StoreFault, StoreNodeError

_T = TypeVar("_T")

MAX_PAGES = 10_000
"""The maximum number of pages of one query: a million messages."""


class StoreNode(Protocol):
    """One store node: a :class:`~reliable_channel.transport.store.rest_node.RestStoreNode`, or another way to
    reach one."""

    name: str

    def query(self, query: StoreQuery) -> StorePage:
        """One page. Raises ``StoreNodeError``."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often one node is queried again, and the waits between in seconds (exponential, with jitter)."""

    attempts: int = 4
    first_wait_s: float = 0.5
    longest_wait_s: float = 10.0


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The response of one node to one query. ``error`` is ``None`` when every page was received; otherwise ``entries``
    are those received before the fault. ``refused`` counts entries that did not match the query (see ``StorePage``)."""

    node: str
    entries: tuple[StoreEntry, ...]
    refused: int = 0
    error: StoreNodeError | None = None

    def has(self, message_hash: bytes) -> bool | None:
        """Whether the node had the message; ``None`` when an incomplete answer leaves that open."""
        if any(entry.message_hash == message_hash for entry in self.entries):
            return True
        return None if self.error is not None else False


class StoreClient:
    """Several store nodes, queried with back-off. ``sleep`` is injectable so that tests do not wait. Thread-safe."""

    def __init__(
        self,
        nodes: Sequence[StoreNode],
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._nodes = tuple(nodes)
        self._retry = retry or RetryPolicy()
        self._sleep = sleep

    @property
    def nodes(self) -> tuple[str, ...]:
        """Addresses of the nodes, without credentials."""
        return tuple(node.name for node in self._nodes)

    def query(self, query: StoreQuery) -> StorePage:
        """One page from the first node that returns one. Raises ``StoreUnavailable``, naming every node's fault."""
        return self._first(lambda node: self._page(node, query))

    def pages(self, query: StoreQuery) -> Iterator[StorePage]:
        """Every page, all from one node: the first that returns the first page. Raises ``StoreUnavailable`` before the
        first page, ``StoreNodeError`` after it."""
        if not self._nodes:
            raise _nobody([])
        errors: list[StoreNodeError] = []
        for node in self._nodes:
            walk = self._walk(node, query)
            try:
                first = next(walk)
            except StoreNodeError as error:
                errors.append(error)
                continue
            yield first
            yield from walk
            return
        raise _nobody(errors)

    def walk_each(
        self, query: StoreQuery, only: Collection[str] | None = None
    ) -> Iterator[tuple[str, StorePage | StoreNodeError]]:
        """Every page of every node, one node after the other and a page at a time; a node's fault ends its pages.
        ``only``: the names of the nodes to query, ``None`` for all."""
        for node in (node for node in self._nodes if only is None or node.name in only):
            try:
                for page in self._walk(node, query):
                    yield node.name, page
            except StoreNodeError as error:
                yield node.name, error

    def ask_all(self, query: StoreQuery) -> list[NodeAnswer]:
        """All pages from every node, side by side; nodes in the order of the configuration."""
        if not self._nodes:
            return []
        with ThreadPoolExecutor(max_workers=min(8, len(self._nodes)), thread_name_prefix="store") as pool:
            return list(pool.map(lambda node: self._all(node, [query]), self._nodes))

    def look_up(self, hashes: Sequence[bytes], include_data: bool = True) -> list[NodeAnswer]:
        """Query these hashes from every node, at most 99 per query (docs/spec/waku-rest.md); repeats are queried
        once."""
        wanted = list(dict.fromkeys(hashes))
        queries = [
            StoreQuery(hashes=tuple(wanted[i : i + MAX_HASHES]), include_data=include_data)
            for i in range(0, len(wanted), MAX_HASHES)
        ]
        if not queries or not self._nodes:
            return [NodeAnswer(node.name, ()) for node in self._nodes]
        with ThreadPoolExecutor(max_workers=min(8, len(self._nodes)), thread_name_prefix="store") as pool:
            return list(pool.map(lambda node: self._all(node, queries), self._nodes))

    def close(self) -> None:
        """Close all connections."""
        for node in self._nodes:
            node.close()

    def _all(self, node: StoreNode, queries: Sequence[StoreQuery]) -> NodeAnswer:
        entries: dict[bytes, StoreEntry] = {}
        refused = 0
        try:
            for query in queries:
                for page in self._walk(node, query):
                    refused += page.refused
                    entries.update((entry.message_hash, entry) for entry in page.entries)
        except StoreNodeError as error:
            return NodeAnswer(node.name, tuple(entries.values()), refused, error)
        return NodeAnswer(node.name, tuple(entries.values()), refused)

    def _walk(self, node: StoreNode, query: StoreQuery) -> Iterator[StorePage]:
        cursors: set[bytes] = set()
        for _ in range(MAX_PAGES):
            page = self._page(node, query)
            yield page
            if page.cursor is None:
                return
            if page.cursor in cursors:
                raise StoreNodeError(node.name, StoreFault.PEER_FAILED, "the cursor goes in a circle")
            cursors.add(page.cursor)
            query = query.after(page.cursor)
        raise StoreNodeError(node.name, StoreFault.PEER_FAILED, f"more than {MAX_PAGES} pages")

    def _page(self, node: StoreNode, query: StoreQuery) -> StorePage:
        retrying = Retrying(
            stop=stop_after_attempt(self._retry.attempts),
            wait=wait_exponential(multiplier=self._retry.first_wait_s, max=self._retry.longest_wait_s)
            + wait_random(0, self._retry.first_wait_s),
            retry=retry_if_exception(lambda error: isinstance(error, StoreNodeError) and error.fault in RETRIABLE),
            sleep=self._sleep,
            reraise=True,
        )
        return retrying(node.query, query)

    def _first(self, ask: Callable[[StoreNode], _T]) -> _T:
        errors: list[StoreNodeError] = []
        for node in self._nodes:
            try:
                return ask(node)
            except StoreNodeError as error:
                errors.append(error)
        raise _nobody(errors)


def _nobody(errors: Sequence[StoreNodeError]) -> StoreUnavailable:
    if not errors:
        return StoreUnavailable("No store node is configured.", "Set store.nodes.")
    return StoreUnavailable(f"No store node answered: {'; '.join(error.cause for error in errors)}.")
