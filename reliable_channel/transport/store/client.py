"""Queries several store nodes: time-outs, back-off, paging, look-up by hash and by time range (13/WAKU2-STORE).

``query`` uses the first node that answers, and others for hashes that it lacks; ``walk_each`` and ``look_up`` query
every node and return the answers separately, so that disagreeing stores are visible.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from reliable_channel.transport.backoff import make_retrying
from reliable_channel.transport.base import StoreUnavailable
from reliable_channel.transport.store.model import MAX_HASHES, StoreEntry, StorePage, StoreQuery, split
from reliable_channel.transport.store.rest_node import RETRIABLE, StoreFault, StoreNodeError

MAX_PAGES = 10_000
"""The maximum number of pages of one query: a million messages."""


MAX_EMPTY_PAGES = 100
"""The maximum number of pages in a row without a message that fits the query: an honest node has none, or skips what
was not asked for."""

PAGES_AHEAD = 4
"""Pages that wait for the caller, of all nodes together: a page may have 32 MiB."""

DEADLINE_S = 600.0
"""How long one node may take for all pages of a query."""


class StoreNode(Protocol):
    """One store node: a :class:`~reliable_channel.transport.store.rest_node.RestStoreNode`, or another way to
    reach one."""

    name: str

    def query(self, query: StoreQuery) -> StorePage:
        """One page. Raises ``StoreNodeError``."""

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


_Arrival: TypeAlias = "tuple[StoreNode, StorePage | StoreNodeError | None]"


class _NodeWalk(threading.Thread):
    """Puts a node's pages into ``arrived``, then its fault, or ``None`` at the end. A daemon: it may hang."""

    def __init__(self, node: StoreNode, pages: Iterator[StorePage], arrived: queue.Queue[_Arrival]) -> None:
        super().__init__(name=f"store {node.name}", daemon=True)
        self._node, self._pages, self._arrived = node, pages, arrived
        self._stopped = threading.Event()

    def run(self) -> None:
        try:
            for page in self._pages:
                if not self._put(page):
                    return
            self._put(None)
        except StoreNodeError as error:
            self._put(error)
        except Exception as error:  # of a caller's own node: without this the thread would end silently
            self._put(StoreNodeError(self._node.name, StoreFault.PEER_FAILED, type(error).__name__))

    def stop(self) -> None:
        """End after the page that is being read; nobody takes it."""
        self._stopped.set()

    def _put(self, page: StorePage | StoreNodeError | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._arrived.put((self._node, page), timeout=0.5)
            except queue.Full:
                continue
            return True
        return False


class StoreClient:
    """Several store nodes, queried with back-off, each for at most ``deadline_s``. ``sleep`` and ``monotonic`` are
    injectable so that tests do not wait. Thread-safe."""

    def __init__(
        self,
        nodes: Sequence[StoreNode],
        retry: RetryPolicy | None = None,
        sleep: Callable[[float], None] = time.sleep,
        deadline_s: float = DEADLINE_S,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._nodes = tuple(nodes)
        self._retry = retry or RetryPolicy()
        self._sleep = sleep
        self._deadline_s = deadline_s
        self._monotonic = monotonic
        self._resume_at: dict[StoreNode, float] = {}
        """Node → until when it asked to be left alone."""
        self._late: dict[StoreNode, tuple[_NodeWalk, float]] = {}
        """Node that has not ended in time → its walk, and until when it is left alone."""
        self._last_until: dict[StoreNode, float] = {}
        """Node that did not answer a query → until when the others are asked before it."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Addresses of the nodes, without credentials."""
        return tuple(node.name for node in self._nodes)

    def includes(self, address: str) -> bool:
        """Whether the node at this address is asked for what it stores itself, not only as the way to a store peer."""
        return any(node.name == address and getattr(node, "peer_address", None) is None for node in self._nodes)

    def without(self, names: Collection[str]) -> StoreClient:
        """A client of the nodes with other names, which leaves alone the same ones as this client."""
        others = copy(self)
        others._nodes = tuple(node for node in self._nodes if node.name not in names)
        return others

    def query(self, query: StoreQuery) -> StorePage:
        """One page from the first node that returns one, and the hashes that it lacks from the next ones. A node that
        failed is asked after the others for ``deadline_s``, or every page would wait for it, and for none of these.
        Raises ``StoreUnavailable``, naming every node's fault."""
        errors: list[StoreNodeError] = []
        answer: StorePage | None = None
        now = self._monotonic()
        for node in sorted(self._nodes, key=lambda node: self._last_until.get(node, now) > now):
            if answer is not None and self._last_until.get(node, now) > now:
                break
            try:
                page = self._query_page(node, query)
            except StoreNodeError as error:
                errors.append(error)
                if self._may_retry(error):  # and was, in vain
                    self._last_until[node] = self._monotonic() + self._deadline_s
                continue
            answer = page if answer is None else replace(answer, entries=answer.entries + page.entries)
            held = {entry.message_hash for entry in page.entries}
            lacking = tuple(each for each in query.hashes if each not in held)
            if not lacking or page.cursor is not None or query.cursor is not None:
                break
            query = replace(query, hashes=lacking)
        if answer is not None:
            return answer
        if not errors:
            raise StoreUnavailable("No store node is configured.", "Set store.nodes.")
        raise StoreUnavailable(f"No store node answered: {'; '.join(error.cause for error in errors)}.")

    def walk_each(
        self, query: StoreQuery, only: Collection[str] | None = None
    ) -> Iterator[tuple[str, StorePage | StoreNodeError]]:
        """Every page of every node, side by side and as they come; a node's fault ends its pages. ``only``: the names
        of the nodes to query, ``None`` for all."""
        nodes = [node for node in self._nodes if only is None or node.name in only]
        return ((node.name, page) for node, page in self._walk_nodes(nodes, [query]))

    def look_up(
        self,
        hashes: Sequence[bytes],
        include_data: bool = True,
        on_page: Callable[[StorePage], object] | None = None,
    ) -> list[NodeAnswer]:
        """Query these hashes from every node, at most 99 per query (docs/spec/waku-rest.md); repeats are queried
        once. ``on_page`` is called with every page as it comes; the answers are then without data, which would be a
        gigabyte of large messages. The answers are in the order of the configuration."""
        wanted = list(dict.fromkeys(hashes))
        queries = [StoreQuery(hashes=lot, include_data=include_data) for lot in split(wanted, MAX_HASHES)]
        entries: dict[StoreNode, dict[bytes, StoreEntry]] = {node: {} for node in self._nodes}
        refused = dict.fromkeys(self._nodes, 0)
        errors: dict[StoreNode, StoreNodeError] = {}
        for node, page in self._walk_nodes(self._nodes, queries):
            if isinstance(page, StoreNodeError):
                errors[node] = page
                continue
            refused[node] += page.refused
            if on_page is None:
                entries[node].update((entry.message_hash, entry) for entry in page.entries)
            else:
                on_page(page)
                entries[node].update((each.message_hash, replace(each, message=None)) for each in page.entries)
        return [
            NodeAnswer(node.name, tuple(entries[node].values()), refused[node], errors.get(node))
            for node in self._nodes
        ]

    def close(self) -> None:
        """Close all connections."""
        for node in self._nodes:
            node.close()

    def _walk_nodes(
        self, nodes: Sequence[StoreNode], queries: Sequence[StoreQuery]
    ) -> Iterator[tuple[StoreNode, StorePage | StoreNodeError]]:
        """Every page of every node as they come. A node that has not ended after ``deadline_s`` is left alone with a
        fault, for as long again and until its last answer has ended: its next queries would take as long."""
        walks: dict[StoreNode, _NodeWalk] = {}
        arrived: queue.Queue[_Arrival] = queue.Queue(PAGES_AHEAD)
        end = self._monotonic() + self._deadline_s
        for node in nodes if queries else ():
            if (late := self._late.get(node)) and (late[0].is_alive() or self._monotonic() < late[1]):
                yield node, _make_late_error(node, f"took longer than {self._deadline_s:g} s for an earlier query")
                continue
            walks[node] = _NodeWalk(node, self._pages_of(node, queries), arrived)
            walks[node].start()
        try:
            while walks:
                try:
                    node, page = arrived.get(timeout=max(0.0, end - self._monotonic()))
                except queue.Empty:
                    until = self._monotonic() + self._deadline_s
                    self._late |= {node: (walk, until) for node, walk in walks.items()}
                    yield from (
                        (node, _make_late_error(node, f"took longer than {self._deadline_s:g} s")) for node in walks
                    )
                    return
                if page is None or isinstance(page, StoreNodeError):
                    del walks[node]
                if page is not None:
                    yield node, page
        finally:
            for walk in walks.values():
                walk.stop()

    def _pages_of(self, node: StoreNode, queries: Sequence[StoreQuery]) -> Iterator[StorePage]:
        for query in queries:
            yield from self._walk(node, query)

    def _walk(self, node: StoreNode, query: StoreQuery) -> Iterator[StorePage]:
        cursors: set[bytes] = set()
        empty = 0
        for _ in range(MAX_PAGES):
            page = self._query_page(node, query)
            yield page
            empty = 0 if page.entries else empty + 1
            if empty > MAX_EMPTY_PAGES:
                raise StoreNodeError(node.name, StoreFault.PEER_FAILED, f"{empty} pages in a row without a message")
            if page.cursor is None:
                return
            if page.cursor in cursors:
                raise StoreNodeError(node.name, StoreFault.PEER_FAILED, "the cursor goes in a circle")
            cursors.add(page.cursor)
            query = query.after(page.cursor)
        raise StoreNodeError(node.name, StoreFault.PEER_FAILED, f"more than {MAX_PAGES} pages")

    def _query_page(self, node: StoreNode, query: StoreQuery) -> StorePage:
        """One page, with retries."""
        policy = self._retry
        attempt = make_retrying(
            policy.attempts,
            policy.first_wait_s,
            policy.longest_wait_s,
            retry_if=self._may_retry,
            sleep=self._sleep,
        )
        return attempt(self._ask, node, query)

    def _may_retry(self, error: BaseException) -> bool:
        """Whether a query is repeated after a fault: not if the node asks for a longer pause than the policy's longest
        wait."""
        if not isinstance(error, StoreNodeError) or error.fault not in RETRIABLE:
            return False
        return error.retry_after_s <= self._retry.longest_wait_s

    def _ask(self, node: StoreNode, query: StoreQuery) -> StorePage:
        """One page, unless the node asked to be left alone until later."""
        if (left_s := self._resume_at.get(node, 0.0) - self._monotonic()) > 0:
            raise StoreNodeError(node.name, StoreFault.BUSY, f"asks to be left alone for {left_s:.0f} s", left_s)
        try:
            return node.query(query)
        except StoreNodeError as error:
            if error.retry_after_s:
                self._resume_at[node] = self._monotonic() + error.retry_after_s
            raise


def _make_late_error(node: StoreNode, why: str) -> StoreNodeError:
    return StoreNodeError(node.name, StoreFault.UNREACHABLE, why)
