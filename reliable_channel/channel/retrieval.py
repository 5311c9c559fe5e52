"""Queries stores for missed envelopes through the node, on a thread of its own because a query waits for the network.

It queries by message hash (the retrieval hint of a missing segment), or by content topic and time (query on connect,
and missing segments without a hint). Answers are envelopes; SDS detects which are new. From time to time it queries the
hashes alone, and fetches the envelopes that did not arrive. The channels of a topic share all this: otherwise each of
them would read what was sent in all.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.steps import Fetch
from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.waku import message_hash
from reliable_channel.transport.base import Node, ReceivedEnvelope, Source
from reliable_channel.transport.clock import earliest
from reliable_channel.transport.store.model import MAX_HASHES, StorePage, StoreQuery, is_message_hash
from reliable_channel.transport.threads import join

_log = logging.getLogger(__name__)

MAX_PAGES = 1_000
"""The maximum number of pages of one time range, because a store may return pages without end."""

WITHOUT_HINT_RANGE_MS = 3_600_000
"""How far back (ms) a store is queried for a missing message of which no hash is known."""
ATTEMPTS_NEARBY = 2
"""Queries of that range for a missing message; then it may be older, as under a rate limit, and all is asked for."""
RANGE_PAUSE_MS = 10_000
RANGE_PAUSE_SHARE = 0.1
"""The pause after a store query for the segments of overdue sets, or for what has no hint, as a share of the time it
covered."""
CATCH_UP_MARGIN_MS = 60_000
"""A message may have been stored a little before the last one that was received."""
CHECK_PERIOD_MS = 600_000
"""The time between two queries for the hashes of what was stored. SDS names a message in the next few only: who loses
it and all of these learns of it from the store alone. (logos-delivery asks every 5 minutes, for all topics at once.)"""
MAX_REMEMBERED_HASHES = 100_000
"""Of envelopes that arrived or were sent: about 15 MB. What is forgotten may be fetched once more."""
MAX_WAITING_HASHES = 10_000
"""While so many wait, no missing segment is queried by its hash: SDS asks for it again."""
STOP_TIMEOUT_S = 10.0
"""How long ``stop`` waits for the current query, which a store may let hang."""


@dataclass(frozen=True, slots=True)
class StoreEnvelopes:
    """Envelopes that a store had."""

    envelopes: tuple[ReceivedEnvelope, ...]


@dataclass(frozen=True, slots=True)
class StoredHashes:
    """The hashes of what a store has, up to ``until_ms`` (Unix ms). ``cursor``: where the answer was cut."""

    hashes: tuple[bytes, ...]
    until_ms: int
    cursor: bytes | None = None


@dataclass(frozen=True, slots=True)
class StoreFailure:
    """No store answered. ``detail`` is bounded; ``is_new``: the query before it did not fail of the same."""

    detail: str
    is_new: bool = True


@dataclass(frozen=True, slots=True)
class LongAbsence:
    """A store is queried from ``start_ms`` on only, ``query_window_ms`` back, although the last envelope came or left
    at ``last_active_ms`` (both Unix ms)."""

    last_active_ms: int
    start_ms: int


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A query for all envelopes on the content topic, both ends (Unix ms) included."""

    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class HashCheck:
    """A query for the hashes of all envelopes on the content topic from ``start_ms`` (Unix ms) to ``now_ms``, after
    ``cursor``. Store v1, which can be queried for no hash, returns the envelopes."""

    start_ms: int
    now_ms: int
    cursor: bytes | None = None


Question = tuple[bytes, ...] | TimeRange | HashCheck
StoreResult = StoreEnvelopes | StoredHashes | StoreFailure | TimeRange
"""A time range: all that a store has of it was returned."""


class StoreRetrieval:
    """The queries of all channels of a content topic. ``answered`` gets every page. ``threaded=False``:
    :meth:`run_pending` does the work, for tests."""

    def __init__(
        self,
        node: Node,
        pubsub_topic: str,
        content_topic: str,
        answered: Callable[[StoreResult], None],
        *,
        threaded: bool = True,
    ) -> None:
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._content_topic = content_topic
        self._answered = answered
        self.threaded = threaded
        self._hashes: dict[bytes, None] = {}
        self._hashes_were_last = False
        self._ranges: deque[TimeRange] = deque()
        self._check: HashCheck | None = None
        self._failure = ""
        """What the last query failed of; empty: it succeeded."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        """While there is something to query: threads of channels that wait for nothing cost what they cost."""
        self._users = 0
        self.ended = False

    def ask_hashes(self, hints: Iterable[bytes]) -> None:
        """Query for these envelopes, as many in one query as a store takes."""
        with self._lock:
            self._hashes.update(dict.fromkeys(hints))
        self._wake()

    def ask_again(self, hint: bytes) -> None:
        """Query for one envelope, now or when it is asked for again: not while :data:`MAX_WAITING_HASHES` wait, because
        anybody can name envelopes faster than a slow store answers."""
        with self._lock:
            is_full = len(self._hashes) >= MAX_WAITING_HASHES
        if not is_full:
            self.ask_hashes([hint])

    def ask_range(self, wanted: TimeRange) -> None:
        """Query for all envelopes of a time range; waiting queries that overlap are joined."""
        with self._lock:
            for waiting in list(self._ranges):
                if waiting.start_ms <= wanted.end_ms and wanted.start_ms <= waiting.end_ms:
                    self._ranges.remove(waiting)
                    wanted = TimeRange(min(waiting.start_ms, wanted.start_ms), max(waiting.end_ms, wanted.end_ms))
            self._ranges.append(wanted)
        self._wake()

    def check_hashes(self, check: HashCheck) -> None:
        """Query for hashes alone, after all other queries."""
        with self._lock:
            self._check = check
        self._wake()

    def run_pending(self) -> None:
        """Run the waiting queries in this thread."""
        while (work := self._next()) is not None:
            self._ask(work)

    def stop(self) -> None:
        """If no other channel queries: end the thread after its current query, for which this waits
        ``STOP_TIMEOUT_S``, and forget waiting queries."""
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
            self.ended = True
            self._hashes.clear()
            self._ranges.clear()
            self._check = None
            thread, self._thread = self._thread, None
        if thread is not None:
            join(thread, STOP_TIMEOUT_S)

    def start(self) -> None:
        """Allow the queries of one more channel."""
        with self._lock:
            self._users += 1
            self.ended = False

    def _wake(self) -> None:
        with self._lock:
            if self.threaded and not self.ended and self._thread is None:
                thread = threading.Thread(target=self._run, name="reliable-channel-store", daemon=True)
                thread.start()  # may fail where a process has many; the next query then tries again
                self._thread = thread

    def _run(self) -> None:
        while True:
            self.run_pending()
            with self._lock:
                if self._thread is not threading.current_thread():
                    return
                if not self._hashes and not self._ranges and self._check is None:
                    self._thread = None
                    return

    def _next(self) -> Question | None:
        with self._lock:
            if self.ended:
                return None
            # In turn: strangers can name envelopes without end, and what was missed while away would never be queried.
            if self._hashes and not (self._ranges and self._hashes_were_last):
                hints = tuple(islice(self._hashes, MAX_HASHES))
                for hint in hints:
                    del self._hashes[hint]
                self._hashes_were_last = True
                return hints
            self._hashes_were_last = False
            if self._ranges:
                return self._ranges.popleft()
            check, self._check = self._check, None
            return check

    def _ask(self, question: Question) -> None:
        try:
            hashes: list[bytes] = []
            cursor: bytes | None = None
            for page in self._read_pages(question):
                cursor = page.cursor
                if envelopes := tuple(self._list_envelopes(page)):
                    self._answered(StoreEnvelopes(envelopes))
                hashes += [entry.message_hash for entry in page.entries if entry.message is None]
            is_cut = cursor is not None and not self.ended
            if isinstance(question, HashCheck) and not self.ended:
                until = question.start_ms + CATCH_UP_MARGIN_MS if is_cut else question.now_ms
                self._answered(StoredHashes(tuple(hashes), until, cursor if is_cut else None))
            if isinstance(question, TimeRange) and cursor is None:
                self._answered(question)
            if is_cut:
                self._fail(f"The store has more than {MAX_PAGES} pages of this time; the rest was not read.")
            else:
                self._failure = ""
        except ReliableChannelError as error:
            self._fail(error.cause[:300])
        except Exception as error:  # of a node we do not know: a dead thread would never ask again
            _log.exception("a store query failed")
            self._fail(type(error).__name__)

    def _fail(self, detail: str) -> None:
        self._answered(StoreFailure(detail, detail != self._failure))
        self._failure = detail

    def _read_pages(self, question: Question) -> Iterator[StorePage]:
        match question:
            case TimeRange(start_ms, end_ms):
                query = self._make_query(start_time_ns=start_ms * 1_000_000, end_time_ns=end_ms * 1_000_000)
            case HashCheck(start_ms, _, cursor):  # without an end: nodes return the data where one is given
                query = self._make_query(start_time_ns=start_ms * 1_000_000, include_data=False).after(cursor)
            case hashes:
                query = StoreQuery(hashes=hashes)
        for _ in range(MAX_PAGES):
            page = self._node.query_store(query)
            yield page
            if page.cursor is None or self.ended:
                return
            query = query.after(page.cursor)

    def _make_query(self, **changes: Any) -> StoreQuery:
        return StoreQuery(pubsub_topic=self._pubsub_topic, content_topics=(self._content_topic,), **changes)

    def _list_envelopes(self, page: StorePage) -> Iterator[ReceivedEnvelope]:
        for entry in page.entries:
            if entry.message is None:
                continue
            topic = entry.pubsub_topic or self._pubsub_topic
            digest = entry.message_hash or message_hash(topic, entry.message)
            yield ReceivedEnvelope(entry.message, topic, digest, Source.STORE)


class StoreCheck:
    """Finds what stores have of a content topic and no channel here received or sent. Thread-safe."""

    def __init__(self, retrieval: StoreRetrieval) -> None:
        self._retrieval = retrieval
        self._lock = threading.Lock()
        self._window_ms = 0
        self._known: dict[bytes, int] = {}  # hash -> when it was noted, Unix ms; oldest first
        self._checked_until = 0
        self._cursor: bytes | None = None
        """Where the last check was cut: the next one goes on there."""
        self.unsure_since: int | None = None
        """Since when (Unix ms) something that a store has may not be here, because its answer is not, or was cut."""
        self._has_failed = False
        """Whether a query has failed since the last check began: perhaps that for what it had found."""
        self.due: int | None = None
        """When (Unix ms) the next check begins; ``None`` if no channel wants any."""

    def begin(self, start: int, now: int, window_ms: int) -> None:
        """Check from now on what was stored since ``start`` and within ``window_ms``."""
        with self._lock:
            if self.due is None:
                self.due, self._checked_until = now + CHECK_PERIOD_MS, start
            elif start < self._checked_until:
                self._checked_until, self._cursor = start, None
            self._window_ms = max(self._window_ms, window_ms)
            self.unsure_since = earliest(self.unsure_since, start)

    def note_hash(self, hint: bytes, now: int) -> None:
        """Note an envelope that arrived or was sent: no check fetches it."""
        with self._lock:
            if self.due is not None:
                self._known.setdefault(hint, now)
                if len(self._known) > MAX_REMEMBERED_HASHES:
                    del self._known[next(iter(self._known))]

    def fetch_unknown(self, stored: StoredHashes) -> None:
        """Fetch the envelopes that a store has and nobody brought."""
        with self._lock:
            unknown = [hint for hint in stored.hashes if hint not in self._known]
            is_sure = stored.cursor is None and not unknown
            self.unsure_since = None if is_sure else earliest(self.unsure_since, self._checked_until)
            self._checked_until, self._cursor = stored.until_ms, stored.cursor
        self._retrieval.ask_hashes(unknown)

    def note_range(self, read: TimeRange) -> None:
        """Note that all that a store has of a time was returned."""
        with self._lock:
            if self.unsure_since is not None and read.start_ms <= self.unsure_since:
                self.unsure_since = None

    def note_failure(self) -> None:
        """Note that a query failed, or that its answer was cut."""
        with self._lock:
            if self.due is not None:
                self._has_failed = True
                self.unsure_since = earliest(self.unsure_since, self._checked_until)

    def follow_clock(self, now: int) -> None:
        """Move all times with a clock that was set back to ``now``."""
        with self._lock:
            if self._checked_until > now:  # of when by the right clock is unknown: check the whole window
                self._checked_until, self._cursor = 0, None
            if self.unsure_since is not None and self.unsure_since > now:
                self.unsure_since = 0
            if self.due is not None:
                self.due = min(self.due, now + CHECK_PERIOD_MS)

    def run_due(self, now: int) -> None:
        """Begin the check if it is due."""
        with self._lock:
            if self.due is None or self.due > now:
                return
            again = self._has_failed and self._cursor is None
            since = earliest(self._checked_until, self.unsure_since if again else None) or 0
            self._has_failed = False
            start = max(since - CATCH_UP_MARGIN_MS, now - self._window_ms)
            while self._known and next(iter(self._known.values())) < start:
                del self._known[next(iter(self._known))]
            self.due = now + CHECK_PERIOD_MS
            check = HashCheck(start, now, self._cursor)
            self._cursor = None  # if the check fails, the next one begins at the start
        self._retrieval.check_hashes(check)


class StoreQueries:
    """Decides what a channel queries, and when. Guarded by the channel's lock."""

    def __init__(self, retrieval: StoreRetrieval, config: ReliableChannelConfig) -> None:
        self._retrieval = retrieval
        self._config = config
        self._last_range_without_hint = self._last_hour = 0
        self._wanted_since: int | None = None
        self._pause_until = 0

    def catch_up(self, check: StoreCheck, last_active: int, now: int) -> LongAbsence | None:
        """Query what was missed since ``last_active``, and check that from then on, if the configuration wants that.
        Returns what is not queried."""
        if not self._config.query_on_connect:
            return None
        start = max(last_active - CATCH_UP_MARGIN_MS, now - self._config.query_window_ms)
        check.begin(start, now, self._config.query_window_ms)
        self._retrieval.ask_range(TimeRange(start, now))
        # At 0 the channel is new, or its clock was set back.
        return LongAbsence(last_active, start) if 0 < last_active < start else None

    def fetch(self, fetch: Fetch, now: int) -> None:
        """Query for one missing segment: by its hint if that is a hash, or the last hour. The same hour is queried
        again after a tenth of it; in between, what is new."""
        hint = fetch.retrieval_hint
        if hint is not None and is_message_hash(hint):
            self._retrieval.ask_again(hint)
            return
        if now - self._last_range_without_hint >= self._config.sds.retrieve_frequency_ms:
            # Anybody can name ids without hints: the whole hour again and again would cost 360 times the traffic.
            start = self._last_range_without_hint - CATCH_UP_MARGIN_MS
            if now - self._last_hour >= WITHOUT_HINT_RANGE_MS * RANGE_PAUSE_SHARE:
                self._last_hour, start = now, now - WITHOUT_HINT_RANGE_MS
            self._last_range_without_hint = now
            self._retrieval.ask_range(TimeRange(start, now))
        if fetch.attempt > ATTEMPTS_NEARBY:
            self.want_range(now - self._config.query_window_ms)

    def want_range(self, start_ms: int) -> None:
        """Note that everything since ``start_ms`` is needed."""
        start = start_ms - CATCH_UP_MARGIN_MS
        self._wanted_since = start if self._wanted_since is None else min(start, self._wanted_since)

    def follow_clock(self, now: int) -> None:
        """Move all times with a clock that was set back to ``now``."""
        self._last_range_without_hint = min(self._last_range_without_hint, now)
        self._last_hour = min(self._last_hour, now)
        self._pause_until = min(self._pause_until, now + RANGE_PAUSE_MS)

    def run_due(self, now: int) -> None:
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
        """When (ms) :meth:`run_due` must run next."""
        return None if self._wanted_since is None else self._pause_until
