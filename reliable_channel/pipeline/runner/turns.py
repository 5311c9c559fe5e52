"""Lets the queries of one session take turns: after a micro-batch, the queries that read its output run.

Without turns the queries share the cores, so every micro-batch takes as long as all of them together. With turns a
record passes the whole chain in one round. A loop that starts the queries one after another would be simpler, and took
more than twice as long (docs/decisions.md, *Turns, or rounds one after the other*).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from reliable_channel.pipeline import counters

PATIENCE_S = 20.0
"""A query that has rows to read but does not begin within this time (s) loses its turn, so that the others continue."""

LINGER_S = 5.0
"""A query that may still get rows in this round waits up to this time (s) for them. If it left ``foreachBatch``, Spark
would look for them once a second (``_POLLING_DELAY`` in :mod:`.queries`), and every hop would wait for that."""

_LOOK_AGAIN_S = 1.0
"""How often (s) a waiting query looks at these times again, which end without a notification."""


class Turns:
    """Decides which query may continue. ``reads``: query → the table whose new rows it reads (``None``: none), in the
    order of the data flow."""

    def __init__(
        self, reads: Mapping[str, str | None], patience_s: float = PATIENCE_S, linger_s: float = LINGER_S
    ) -> None:
        self._order = tuple(reads)
        self._readers = {table: query for query, table in reads.items() if table is not None}
        self._patience_s, self._linger_s = patience_s, linger_s
        self._changed = threading.Condition()
        self._running: set[str] = set()
        self._due: set[str] = set()
        self._holder: tuple[str, float] | None = None
        self._over = False

    @contextmanager
    def take_turn(self, query: str, query_id: str, batch_id: int) -> Iterator[Callable[[str], None]]:
        """A context manager around the writing of one micro-batch of ``query``; its value is :meth:`announce`. The
        metric ``turn_wait_ms`` has the time it waits at the end."""
        self.begin(query)
        try:
            yield self.announce
        except BaseException:
            self.fail(query)
            raise
        # At the end of foreachBatch, because Spark fixes what a micro-batch reads before it calls that
        # (docs/pipeline.md, *In turns*).
        counters.put(query_id, batch_id, turn_wait_ms=self.wait(query))

    def begin(self, query: str) -> None:
        """Note that a micro-batch of ``query`` is being written."""
        with self._changed:
            self._holder = None
            self._running.add(query)
            self._due.discard(query)

    def announce(self, table: str) -> None:
        """Note that ``table`` is about to gain rows. Call it before the commit, so that a query which reads the rows at
        once is not due again."""
        with self._changed:
            if table in self._readers:
                self._due.add(self._readers[table])

    def fail(self, query: str) -> None:
        """Note that the micro-batch failed; the query does not wait."""
        with self._changed:
            self._running.discard(query)
            self._changed.notify_all()

    def wait(self, query: str) -> int:
        """Note that the micro-batch is written, and wait for the next turn of ``query``; returns the wait in ms."""
        began = time.monotonic()
        with self._changed:
            self._running.discard(query)
            self._changed.notify_all()
            while not self._may_go(query, began):
                self._changed.wait(_LOOK_AGAIN_S)
        return int((time.monotonic() - began) * 1000)

    def end(self) -> None:
        """End all waits, because the queries are about to be stopped."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _may_go(self, query: str, since: float) -> bool:
        """Whether a query that waits since ``since`` may leave ``foreachBatch``. While none is running, that is the one
        whose turn it is; if none is due, the first query, or one that has waited long enough for rows."""
        if self._over or self._running:
            return self._over
        while self._due:
            # The last query of the chain first: rows in progress are finished before new ones are read.
            holder, now = max(self._due, key=self._order.index), time.monotonic()
            # Its patience begins when it gets the turn, not when its rows came: others may have run until now.
            if self._holder is None or self._holder[0] != holder:
                self._holder = holder, now
            if query == holder or now - self._holder[1] < self._patience_s:
                return query == holder
            self._due.discard(holder)
        first = query == self._order[0]
        return first or time.monotonic() - since >= self._linger_s
