"""Runs all queries in one local session: until no rows are left (``run_once``), or until stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.ingest import ticks
from reliable_channel.pipeline.ingest.stream import IngestWriter
from reliable_channel.pipeline.runner.queries import CHAIN, Query, check, start
from reliable_channel.pipeline.runner.turns import Turns
from reliable_channel.runtime.failures import PassingFault, explain_failure
from reliable_channel.runtime.interrupts import RaiseIfInterrupted, note_interrupts

_log = logging.getLogger(__name__)

_STOP_PATIENCE_S = 60.0  # for the micro-batches that run
_STARTS = 3
"""The maximum number of consecutive starts of a query that ends with a `PassingFault`."""
_SET_BACK_S = 2.0
"""How far (s) the wall clock must be set back for queries with a trigger interval to be started again: Spark waits for
a trigger by that clock, and would read nothing from Kafka for a day after a step of a day."""


def run_chain(
    spark: SparkSession,
    settings: Settings,
    *,
    queries: Sequence[Query] = CHAIN,
    on_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Run every query over the available rows, in the order of the data flow, without advancing silent channels. Raises
    ``EnvironmentFault`` if a query fails, and before any of them runs ``ConfigurationError`` if one cannot start."""
    for query in queries:
        check(spark, settings, query)
    with note_interrupts() as raise_if_interrupted:
        for query in queries:
            on_progress(query.name)
            run_to_end(spark, settings, query, raise_if_interrupted)


def run_once(
    spark: SparkSession,
    settings: Settings,
    *,
    close_after_ms: int | None = None,
    queries: Sequence[Query] = CHAIN,
    on_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Run every query over the available rows, in the order of the data flow, then advance silent channels with a tick.

    The tick is ``close_after_ms`` (ms) after the last record, to conclude a back-fill or a simulation, or by default at
    the wall clock. The queries after ingest then process its effects. Raises ``EnvironmentFault`` if a query fails."""
    run_chain(spark, settings, queries=queries, on_progress=on_progress)
    close(spark, settings, close_after_ms=close_after_ms, queries=queries, on_progress=on_progress)


def close(
    spark: SparkSession,
    settings: Settings,
    *,
    close_after_ms: int | None = None,
    queries: Sequence[Query] = CHAIN,
    on_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Advance silent channels as :func:`run_once` does, and run the queries after ingest. Raises ``EnvironmentFault``
    if a query fails."""
    on_progress("clock")
    ticks.close(settings, close_after_ms)
    run_chain(spark, settings, queries=queries[1:], on_progress=on_progress)


def run_continuously(
    spark: SparkSession,
    settings: Settings,
    stop: threading.Event,
    *,
    queries: Sequence[Query] = CHAIN,
    on_progress: Callable[[str], None] = lambda _: None,
) -> None:
    """Run every query, in turns, until ``stop`` is set; each then ends after its micro-batch.

    Raises ``EnvironmentFault`` if a query fails, and ``ConfigurationError`` if the topic was deleted and created again
    meanwhile; the others are then stopped. Also ``ConfigurationError`` before any of them runs, if one cannot start."""
    for query in queries:
        check(spark, settings, query)
    running: dict[str, StreamingQuery] = {}
    starts = Counter(query.name for query in queries)
    turns = Turns({query.name: query.reads.name if isinstance(query.reads, Table) else None for query in queries})
    ticker: ticks.IdleTicker | None = None
    wall_clock = ticks.SteadyClock()  # of all starts of ingest: one while the clock is wrong must not take it for right

    def begin(query: Query) -> None:
        nonlocal ticker
        writer = query.writer(settings)
        if ticker is not None and isinstance(writer, IngestWriter):
            ticker.stop()
        running[query.name] = start(spark, settings, query, once=False, turns=turns, writer=writer)
        if isinstance(writer, IngestWriter):
            ticker = ticks.IdleTicker(settings, writer, running[query.name], wall_clock)
            ticker.start()

    ahead_s = _get_wall_clock_lead()
    try:
        for query in queries:
            begin(query)
            on_progress(f"{query.name} runs")
        while not stop.wait(0.5):
            before_s, ahead_s = ahead_s, _get_wall_clock_lead()
            if ahead_s < before_s - _SET_BACK_S:
                _start_again_by_clock(queries, running, begin)
            if ticker is not None and ticker.refused is not None:
                raise ticker.refused
            for query in queries:
                if not running[query.name].isActive:
                    _count_failure(running[query.name], starts)
                    begin(query)
    finally:
        turns.end()  # first, since a query that waits for its turn is inside its micro-batch, and would not stop
        if ticker is not None:
            ticker.stop()
        stop_all(list(running.values()))


def _count_failure(query: StreamingQuery, starts: Counter[str]) -> None:
    """Note that a query has ended and is started again. Raises ``EnvironmentFault`` if it may not be."""
    fault, name = read_passing_fault(query), query.name
    # Only failures in a row count. This one is the first if the query has made progress since.
    starts[name] = 2 if query.lastProgress else starts[name] + 1
    if starts[name] > _STARTS:
        raise fault
    _log.warning("%s It is started again.", fault)


def _get_wall_clock_lead() -> float:
    """How far (s) the wall clock is ahead of one that nobody sets: less than before if it was set back."""
    return time.time() - time.monotonic()


def _start_again_by_clock(
    queries: Sequence[Query], running: Mapping[str, StreamingQuery], begin: Callable[[Query], None]
) -> None:
    """Start the running queries that have a trigger interval again, as the wall clock was set back."""
    for query in queries:
        # Not those that have failed meanwhile: their failure counts.
        if not isinstance(query.reads, Table) and running[query.name].isActive:
            _log.warning("The clock was set back. The query %s is started again.", query.name)
            stop_all([running[query.name]])
            begin(query)


def run_to_end(
    spark: SparkSession,
    settings: Settings,
    query: Query,
    raise_if_interrupted: RaiseIfInterrupted = lambda: None,
) -> None:
    """Run one query over the available rows. Raises ``EnvironmentFault`` if it fails."""
    for _ in range(_STARTS - 1):
        with suppress(PassingFault):
            wait_for(start(spark, settings, query, once=True), raise_if_interrupted)
            return
    wait_for(start(spark, settings, query, once=True), raise_if_interrupted)


def wait_for(query: StreamingQuery, raise_if_interrupted: RaiseIfInterrupted = lambda: None) -> None:
    """Wait until the query ends. Raises ``EnvironmentFault`` with the cause in one sentence if it failed. An interrupt
    from ``raise_if_interrupted`` stops the query."""
    try:
        # A second at a time: a signal is only noted, and looked at between two calls into the JVM.
        while not query.awaitTermination(1):
            raise_if_interrupted()
        raise_if_interrupted()
    except StreamingQueryException as error:
        raise explain_failure(query.name or "query", error) from error
    except (KeyboardInterrupt, SystemExit):
        query.stop()
        raise


def read_passing_fault(query: StreamingQuery) -> PassingFault:
    """Why a query that has ended may be started again. Raises ``EnvironmentFault`` if it may not."""
    try:
        wait_for(query)
    except PassingFault as fault:
        return fault
    raise EnvironmentFault(f"The query {query.name} stopped by itself.", "Read the Spark log.")


def stop_all(queries: Sequence[StreamingQuery]) -> None:
    """Stop queries in the order of the data flow, each between two micro-batches if that comes soon enough. Stopping
    inside a micro-batch is safe too, but the next start must then replay it."""
    deadline = time.monotonic() + _STOP_PATIENCE_S
    for query in queries:
        # Polled, because PySpark has no event for the end of a trigger.
        while query.isActive and is_in_batch(query.status) and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()


def is_in_batch(status: Mapping[str, Any]) -> bool:
    """Whether a query is inside a micro-batch, by its status. Not while it asks for offsets, for minutes if no broker
    answers."""
    return status["isTriggerActive"] and not status["message"].startswith("Getting offsets")
