"""Queries stores for missed envelopes through the node, on a thread of its own because a query waits for the network.

It queries by message hash (the retrieval hint of a missing segment), or by content topic and time (query on connect,
and missing segments without a hint). Answers are envelopes; SDS detects which are new.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.steps import Fetch
from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.waku import message_hash
from reliable_channel.transport.base import Node, ReceivedEnvelope, Source
from reliable_channel.transport.store.model import MAX_HASHES, StorePage, StoreQuery, is_message_hash

_log = logging.getLogger(__name__)

MAX_PAGES = 1_000
"""The maximum number of pages of one time range, because a store may return pages without end."""

WITHOUT_HINT_RANGE_MS = 3_600_000
ATTEMPTS_NEARBY = 2
"""Queries of that range for a missing message; then it may be older, as under a rate limit, and all is asked for."""
RANGE_PAUSE_MS = 10_000
RANGE_PAUSE_SHARE = 0.1
"""The pause after a store query for the segments of overdue sets, as a share of the time it covered."""
CATCH_UP_MARGIN_MS = 60_000
"""A message may have been stored a little before the last one that was received."""


@dataclass(frozen=True, slots=True)
class StoreEnvelopes:
    """Envelopes that a store had."""

    envelopes: tuple[ReceivedEnvelope, ...]


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """No store answered. ``detail`` is bounded."""

    detail: str


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A query for all envelopes on the content topic, both ends (Unix ms) included."""

    start_ms: int
    end_ms: int

    def overlaps(self, other: TimeRange) -> bool:
        """Whether the two have a time in common."""
        return self.start_ms <= other.end_ms and other.start_ms <= self.end_ms


StoreResult = StoreEnvelopes | StoreFailure


class StoreRetrieval:
    """``answered``, set by the channel, gets every page. ``threaded=False``: :meth:`run_pending` does the work,
    for tests."""

    def __init__(
        self,
        node: Node,
        pubsub_topic: str,
        content_topic: str,
        *,
        threaded: bool = True,
    ) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._content_topic = content_topic
        self.answered: Callable[[StoreResult], None] = lambda _: None
        self.threaded = threaded
        self._hashes: dict[bytes, None] = {}
        self._ranges: deque[TimeRange] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self.ended = False

    def ask_hash(self, hint: bytes) -> None:
        """Query for one envelope."""
        with self._changed:
            self._hashes[hint] = None
        self._wake()

    def ask_range(self, wanted: TimeRange) -> None:
        """Query for all envelopes of a time range; waiting queries that overlap are joined."""
        with self._changed:
            for waiting in [each for each in self._ranges if each.overlaps(wanted)]:
                self._ranges.remove(waiting)
                wanted = TimeRange(min(waiting.start_ms, wanted.start_ms), max(waiting.end_ms, wanted.end_ms))
            self._ranges.append(wanted)
        self._wake()

    def run_pending(self) -> None:
        """Run the waiting queries in this thread."""
        while (work := self._next()) is not None:
            self._ask(work)

    def stop(self) -> None:
        """End the thread after its current query; forget waiting queries."""
        with self._changed:
            self.ended = True
            self._hashes.clear()
            self._ranges.clear()
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def start(self) -> None:
        """Allow queries again after ``stop``."""
        with self._changed:
            self.ended = False

    def _wake(self) -> None:
        with self._changed:
            if not self.threaded or self.ended:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reliable-channel-store", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self.ended and not self._hashes and not self._ranges:
                    self._changed.wait()
                if self.ended:
                    return
            self.run_pending()

    def _next(self) -> tuple[bytes, ...] | TimeRange | None:
        with self._changed:
            if self.ended:
                return None
            if self._hashes:
                hints = tuple(self._hashes)[:MAX_HASHES]
                for hint in hints:
                    del self._hashes[hint]
                return hints
            return self._ranges.popleft() if self._ranges else None

    def _ask(self, work: tuple[bytes, ...] | TimeRange) -> None:
        try:
            for page in self._pages(work):
                envelopes = tuple(self._envelopes(page))
                if envelopes:
                    self.answered(StoreEnvelopes(envelopes))
        except ReliableChannelError as error:
            self.answered(StoreFailure(error.cause[:300]))
        except Exception as error:  # of a node we do not know: a dead thread would never ask again
            _log.exception("a store query failed")
            self.answered(StoreFailure(type(error).__name__))

    def _pages(self, work: tuple[bytes, ...] | TimeRange) -> Iterator[StorePage]:
        if isinstance(work, TimeRange):
            query = StoreQuery(
                pubsub_topic=self._pubsub_topic,
                content_topics=(self._content_topic,),
                start_time_ns=work.start_ms * 1_000_000,
                end_time_ns=work.end_ms * 1_000_000,
            )
        else:
            query = StoreQuery(hashes=work)
        for _ in range(MAX_PAGES):
            page = self._node.query_store(query)
            yield page
            if page.cursor is None or self.ended:
                return
            query = query.after(page.cursor)

    def _envelopes(self, page: StorePage) -> Iterator[ReceivedEnvelope]:
        for entry in page.entries:
            if entry.message is None:
                continue
            topic = entry.pubsub_topic or self._pubsub_topic
            digest = entry.message_hash or message_hash(topic, entry.message)
            yield ReceivedEnvelope(entry.message, topic, digest, Source.STORE, 0)


class StoreQueries:
    """Decides what a channel queries, and when. Guarded by the channel's lock."""

    def __init__(self, retrieval: StoreRetrieval, config: ReliableChannelConfig) -> None:
        self._retrieval = retrieval
        self._config = config
        self._last_range_without_hint = 0
        self._wanted_since: int | None = None
        self._pause_until = 0

    def catch_up(self, last_active: int, now: int) -> None:
        """Query what was missed since ``last_active``, if the configuration wants that."""
        if self._config.query_on_connect:
            start = max(last_active - CATCH_UP_MARGIN_MS, now - self._config.query_window_ms)
            self._retrieval.ask_range(TimeRange(start, now))

    def fetch(self, fetch: Fetch, now: int) -> None:
        """Query for one missing segment: by its hint, or the last hour."""
        if fetch.retrieval_hint is not None and is_message_hash(fetch.retrieval_hint):
            self._retrieval.ask_hash(fetch.retrieval_hint)
        elif now - self._last_range_without_hint >= self._config.sds.retrieve_frequency_ms:
            self._last_range_without_hint = now
            self._retrieval.ask_range(TimeRange(now - WITHOUT_HINT_RANGE_MS, now))
        if fetch.retrieval_hint is None and fetch.attempt > ATTEMPTS_NEARBY:
            self.want_range(now - self._config.query_window_ms)

    def want_range(self, start_ms: int) -> None:
        """Note that everything since ``start_ms`` is needed."""
        start = start_ms - CATCH_UP_MARGIN_MS
        self._wanted_since = start if self._wanted_since is None else min(start, self._wanted_since)

    def query_wanted_range(self, now: int) -> None:
        """Query the store for the time that overdue sets need, in one query for all. Anybody can open such sets: the
        pause after a query grows with the time it covered, so that all queries together cost ``1 / RANGE_PAUSE_SHARE``
        times the traffic of the channel at most."""
        if self._wanted_since is None or now < self._pause_until:
            return
        start = max(self._wanted_since, now - self._config.query_window_ms)
        self._wanted_since = None
        self._pause_until = now + max(RANGE_PAUSE_MS, round((now - start) * RANGE_PAUSE_SHARE))
        self._retrieval.ask_range(TimeRange(start, now))

    def next_due(self) -> int | None:
        """When (ms) :meth:`query_wanted_range` must run next."""
        return None if self._wanted_since is None else self._pause_until
