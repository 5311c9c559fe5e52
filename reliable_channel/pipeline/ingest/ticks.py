"""Advances the recorded clock while no records arrive, so that timers of silent channels run (docs/pipeline.md,
*Time*).

Every ingest micro-batch writes ticks. This module adds the others: wall-clock ticks while the topic is idle, and the
closing tick at the end of a back-fill. They are recorded in ``clock`` first, so no later record gets an earlier event
time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.append import open_to_write
from reliable_channel.lake.commit import append_files
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.pipeline.clock import WALL_CLOCK_GRACE_US, IngestClock, find_last_batch, read_progress
from reliable_channel.pipeline.ingest.recreated_topic import find_unread
from reliable_channel.pipeline.ingest.stream import IngestWriter, tick_files
from reliable_channel.runtime.faults import as_fault

_LOG = logging.getLogger(__name__)

MOST_INTERVALS = 6
"""The longest distance between two idle ticks, in intervals of ``pipeline.clock_interval_ms``: each tick costs a
micro-batch in two jobs (docs/measurements-history.md, *At 100 records/s, and without records*)."""

CATCH_UP = 0.1
"""How fast the time of idle ticks follows a wall clock that was set forward: seconds in a second."""


class SteadyClock:
    """The wall clock, but one that was set forward is followed slowly, and one that was set back at once.

    Event time never decreases. With the wall clock as it is, one that was wrong for a moment would let all timers run
    out, and every later record would get that time. With this one, a jump that lasts less than 100 s stays within
    :data:`WALL_CLOCK_GRACE_US`. The time while the machine sleeps is no jump."""

    def __init__(self, wall_ns: Callable[[], int] | None = None, elapsed_ns: Callable[[], int] | None = None) -> None:
        # time.monotonic stands still while Linux sleeps; this clock goes on. macOS has no other than the first.
        boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        self._wall_ns, self._elapsed_ns = wall_ns or time.time_ns, elapsed_ns or partial(time.clock_gettime_ns, boot)
        self._last = self._wall_ns(), self._elapsed_ns()

    def now_us(self) -> int:
        """The time, µs."""
        (now, before), elapsed = self._last, self._elapsed_ns()
        now = min(self._wall_ns(), now + int((elapsed - before) * (1 + CATCH_UP)))
        self._last = now, elapsed
        return now // 1000


def advance(paths: PathSettings, clock: IngestClock, kind: str, at_us: int) -> bool:
    """Advance every partition to ``at_us`` (µs) while ingest is idle; returns whether one advanced. Raises as
    :func:`open_to_write`."""
    last = find_last_batch(paths)
    if last is None:
        return False
    to = open_to_write(paths, SDS_MESSAGES)
    moved = clock.record_tick(*last, kind, at_us)
    if moved:
        append_files(to, tick_files(paths, moved, time.time_ns() // 1000))
    return bool(moved)


def close(settings: Settings, after_ms: int | None) -> bool:
    """Write the closing tick, ``after_ms`` after the last record, or at the wall clock for the partitions that were
    read to their end. Returns whether a partition advanced. Raises as :func:`find_unread`."""
    clock = IngestClock(settings.paths, read_progress(settings.paths))
    if not clock.reached:
        return False
    if after_ms is None:
        clock.waiting = find_unread(settings)  # as after an hour in which the other jobs caught up
        return advance(settings.paths, clock, "idle", time.time_ns() // 1000 - WALL_CLOCK_GRACE_US)
    newest = max(at.event_time_us for at in clock.reached.values())
    return advance(settings.paths, clock, "closing", newest + after_ms * 1000)


class IdleIntervals:
    """Decides when a tick is due: after the first interval without a micro-batch, then after twice as many each time,
    at most :data:`MOST_INTERVALS`."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._since, self._apart = 0, 1

    def is_due(self, last_batch: int) -> bool:
        """Whether a tick is due at the end of this interval; ``last_batch`` is ingest's last micro-batch."""
        if last_batch != self._batch:
            self._batch, self._since, self._apart = last_batch, 0, 1
        self._since += 1
        if self._since < self._apart:
            return False
        self._since, self._apart = 0, min(2 * self._apart, MOST_INTERVALS)
        return True


class IdleTicker(threading.Thread):
    """Writes ticks of ``wall_clock`` while the continuous ingest query of ``writer`` waits for data."""

    def __init__(
        self, settings: Settings, writer: IngestWriter, query: StreamingQuery, wall_clock: SteadyClock
    ) -> None:
        super().__init__(name="idle-ticker", daemon=True)
        self._settings, self._clock, self._lock, self._query = settings, writer.clock, writer.lock, query
        self._wall_clock = wall_clock
        self._stopped = threading.Event()
        self.refused: ConfigurationError | None = None
        """Why ingest must not go on: its topic was recreated, or one of its tables restored."""

    def run(self) -> None:
        """Write ticks as :class:`IdleIntervals` decides, until stopped, or until ingest must not go on. To Spark, a
        topic that has been recreated looks idle until it is as long as the old one was, and if that is soon, it skips
        what comes before."""
        intervals, said = IdleIntervals(), ""
        interval = max(self._settings.pipeline.clock_interval_ms, self._settings.spark.trigger_interval_ms) / 1000
        while not self._stopped.wait(interval):
            now_us = self._wall_clock.now_us()
            try:
                # Spark may not have looked yet, as after a pause of the machine: a tick must not overtake records.
                unread = find_unread(self._settings)
                said = ""
                # Not before the first trigger is done: a replayed micro-batch must find the clock of its first run.
                last = self._query.lastProgress
                if last is None:
                    continue
                self._clock.waiting = unread
                if unread or not self._query.isActive or self._query.status["isDataAvailable"]:
                    continue
                # Not if ingest is just writing a micro-batch, which ends with a tick of its own.
                if intervals.is_due(last.batchId) and self._lock.acquire(blocking=False):
                    try:
                        advance(self._settings.paths, self._clock, "idle", now_us - WALL_CLOCK_GRACE_US)
                    finally:
                        self._lock.release()
            except ConfigurationError as refused:
                self.refused = refused
                return
            except Exception as error:  # whatever failed, the next interval tries again
                if said != (why := str(as_fault(error))):  # an outage lasts many intervals
                    _LOG.warning("The recorded clock stands still: %s", why)
                said = why

    def stop(self) -> None:
        """Stop after a running tick."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=30)
