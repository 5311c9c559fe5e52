"""Advances the recorded clock while no records come, so that timers of silent channels run (docs/pipeline.md, *Time*).

Every micro-batch of ingest carries a tick. This module adds the others: the wall clock while the topic is idle, and the
closing tick that ends a back-fill. They are recorded in ``clock`` first, so no later record is dated before them.
"""

from __future__ import annotations

import logging
import threading
import time

from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import PathSettings, Settings
from reliable_channel.lake.commit import append_files
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.pipeline.clock import IngestClock, last_batch, recorded
from reliable_channel.pipeline.ingest.stream import IngestWriter, tick_files
from reliable_channel.runtime.faults import as_fault

_LOG = logging.getLogger(__name__)

MOST_INTERVALS = 6
"""Between two idle ticks, in intervals of ``pipeline.clock_interval_ms``."""

WALL_CLOCK_GRACE_US = 10_000_000
"""How far idle ticks stay behind the wall clock: brokers' clocks differ from ours."""


def advance(paths: PathSettings, clock: IngestClock, kind: str, at_us: int | None) -> bool:
    """Advance every partition to ``at_us`` (µs; ``None``: wall clock) while ingest is at rest; whether one moved."""
    last = last_batch(paths)
    if last is None:
        return False
    now_us = time.time_ns() // 1000
    at = now_us - WALL_CLOCK_GRACE_US if at_us is None else at_us
    moved = clock.record_tick(*last, kind, at)
    if moved:
        append_files(open_table(paths, SDS_MESSAGES), tick_files(paths, moved, now_us))
    return bool(moved)


def close(settings: Settings, after_ms: int | None) -> bool:
    """The tick at the end of a run over what is there: ``after_ms`` after the last record, or the wall clock."""
    clock = IngestClock(settings.paths, recorded(settings.paths))
    if not clock.reached:
        return False
    if after_ms is None:
        return advance(settings.paths, clock, "idle", None)
    newest = max(at.event_time_us for at in clock.reached.values())
    return advance(settings.paths, clock, "closing", newest + after_ms * 1000)


class IdleIntervals:
    """Says after which intervals without a micro-batch a tick is due: the first, then after twice as many each time, at
    most :data:`MOST_INTERVALS`. A tick is a micro-batch of reassembly and ack, half a second of CPU time."""

    def __init__(self) -> None:
        self._batch: int | None = None
        self._since, self._apart = 0, 1

    def is_due(self, last_batch: int) -> bool:
        """Whether an interval ends in a tick, after which ``last_batch`` was ingest's last micro-batch."""
        if last_batch != self._batch:
            self._batch, self._since, self._apart = last_batch, 0, 1
        self._since += 1
        if self._since < self._apart:
            return False
        self._since, self._apart = 0, min(2 * self._apart, MOST_INTERVALS)
        return True


class IdleTicker(threading.Thread):
    """Ticks with the wall clock while a continuous ingest query, which ``writer`` writes, waits for data."""

    def __init__(self, settings: Settings, writer: IngestWriter, query: StreamingQuery) -> None:
        super().__init__(name="idle-ticker", daemon=True)
        self._settings, self._clock, self._lock, self._query = settings, writer.clock, writer.lock, query
        self._stopped = threading.Event()

    def run(self) -> None:
        """Until stopped: ticks after intervals without a micro-batch, as :class:`IdleIntervals` says."""
        intervals = IdleIntervals()
        interval = max(self._settings.pipeline.clock_interval_ms, self._settings.spark.trigger_interval_ms) / 1000
        while not self._stopped.wait(interval):
            # Not before the first trigger is done: a micro-batch to be replayed must find the clock it had.
            last = self._query.lastProgress
            if not self._query.isActive or last is None or self._query.status["isDataAvailable"]:
                continue
            if intervals.is_due(last.batchId) and self._lock.acquire(blocking=False):
                try:
                    advance(self._settings.paths, self._clock, "idle", None)
                except Exception as error:  # whatever it is, the next tick tries again
                    _LOG.warning("No idle tick: %s", as_fault(error))
                finally:
                    self._lock.release()

    def stop(self) -> None:
        """End after the tick that runs."""
        self._stopped.set()
        if self.is_alive():
            self.join(timeout=30)
