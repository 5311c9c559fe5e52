"""Lets the queries of one session run in turns: after a micro-batch, those run that read what it wrote.

Without turns the queries share the cores, so every micro-batch takes as long as all of them together. In turns a record
passes the whole chain in one round. A query waits at the end of ``foreachBatch``: Spark fixes what the next micro-batch
reads only afterwards, so a lock at its beginning would come too late (docs/measurements.md).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from reliable_channel.pipeline import counters

PATIENCE_S = 20.0
"""A query that has something to read and does not begin for so long loses its turn, so that the others go on."""

LINGER_S = 5.0
"""A query of which the next rows may come in this round still waits so long for them: to look for them five times a
second, as Spark does for a query that has gone on, costs a tenth of a second at every hop."""

_LOOK_AGAIN_S = 1.0


class Turns:
    """Who may go on. ``reads``: query → the table whose new rows it reads (``None``: none), in the order of the data
    flow."""

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
    def taken(self, query: str, query_id: str, batch_id: int) -> Iterator[Callable[[str], None]]:
        """Around the writing of one micro-batch of ``query``; gives :meth:`announce`. How long it waits at the end is
        the metric ``turn_wait_ms``."""
        self.begin(query)
        try:
            yield self.announce
        except BaseException:
            self.fail(query)
            raise
        counters.put(query_id, batch_id, turn_wait_ms=self.wait(query))

    def begin(self, query: str) -> None:
        """A micro-batch of ``query`` is being written."""
        with self._changed:
            self._holder = None
            self._running.add(query)
            self._due.discard(query)

    def announce(self, table: str) -> None:
        """``table`` is about to gain rows. Before it does: who has read them already is not due for them."""
        with self._changed:
            if table in self._readers:
                self._due.add(self._readers[table])

    def fail(self, query: str) -> None:
        """The micro-batch was broken off. It waits for nobody."""
        with self._changed:
            self._running.discard(query)
            self._changed.notify_all()

    def wait(self, query: str) -> int:
        """The micro-batch is written; until ``query`` may begin its next one. How long that was, ms."""
        began = time.monotonic()
        with self._changed:
            self._running.discard(query)
            self._changed.notify_all()
            while not self._may_go(query, began):
                self._changed.wait(_LOOK_AGAIN_S)
        return int((time.monotonic() - began) * 1000)

    def end(self) -> None:
        """Nobody waits any more: the queries are about to be stopped."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _may_go(self, query: str, since: float) -> bool:
        if self._over or self._running:
            return self._over
        while self._due:
            # The last of the chain first: what has come far is done with before more is begun.
            holder, now = max(self._due, key=self._order.index), time.monotonic()
            if self._holder is None or self._holder[0] != holder:
                self._holder = holder, now
            if query == holder or now - self._holder[1] < self._patience_s:
                return query == holder
            self._due.discard(holder)
        first = query == self._order[0]
        return first or time.monotonic() - since >= self._linger_s
