"""Shares one snapshot of the tables between requests, and caches rendered pages while their tables stay unchanged.

Tables are checked at most once per ``fresh_s``: however many pages are open, the logs are listed once. What a page
shows depends on its address and on the versions of its tables only, so these are its entity tag.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from reliable_channel import __version__
from reliable_channel.analysis.alerts.heartbeat import StoppedPart, find_stopped
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ReliableChannelError

FRESH_S = 1.0
MOST_KEPT, MOST_KEPT_BYTES = 128, 32 * 1024 * 1024
AT_ONCE = 4
"""The maximum number of answers rendered at the same time; others wait. Each may take a query's memory."""


class PageCache:
    """Provides the current :class:`TableSnapshot`. ``monotonic`` is the clock in seconds, for tests."""

    def __init__(
        self, paths: PathSettings, fresh_s: float = FRESH_S, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.paths = paths
        self._fresh_s, self._monotonic = fresh_s, monotonic
        self._lake, self._until = TableSnapshot(paths), -float("inf")
        self._stopped: list[StoppedPart] = []
        self._stopped_in: TableSnapshot | None = None
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._making = threading.BoundedSemaphore(AT_ONCE)

    def lake(self) -> TableSnapshot:
        """A snapshot of the tables, at most ``fresh_s`` old."""
        with self._lock:
            if self._monotonic() >= self._until:
                self._lake, self._until = TableSnapshot(self.paths), self._monotonic() + self._fresh_s
            return self._lake

    def tag(self, lake: TableSnapshot, address: str, tables: Sequence[str]) -> str:
        """The entity tag of the page at ``address``. It changes when a table of the page or this program changes."""
        parts = [__version__, address, *(f"{name}={state}" for name, state in lake.states(tables).items())]
        parts += [str(part) for part in self.find_stopped(lake)]  # changes with the time, not with a table
        return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def find_stopped(self, lake: TableSnapshot) -> list[StoppedPart]:
        """The parts of the pipeline that stopped. Read once for each snapshot; none if the tables cannot be read, as
        the page then says."""
        with self._lock:
            if self._stopped_in is not lake:
                try:
                    self._stopped = find_stopped(lake.table)
                except ReliableChannelError:
                    self._stopped = []
                self._stopped_in = lake
            return self._stopped

    def get_or_render(self, tag: str, make: Callable[[], tuple[bytes, int]]) -> tuple[bytes, int]:
        """The page with this tag and its status, rendered once and kept if that is 200; the least recently requested
        pages are dropped first."""
        with self._lock:
            if tag in self._kept:
                self._kept.move_to_end(tag)
                return self._kept[tag], 200
        # Outside the lock, so that others get what is kept; two that want the same new page may both render it.
        with self._making:
            made, status = make()
        with self._lock:
            if status == 200:
                self._kept[tag] = made
            while len(self._kept) > MOST_KEPT or sum(map(len, self._kept.values())) > MOST_KEPT_BYTES:
                self._kept.popitem(last=False)
        return made, status
