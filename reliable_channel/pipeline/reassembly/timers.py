"""Stores the timers of the keyed sets, and creates a row for each timer that is due.

The job appends changes of its timers to ``timers``, a log with the micro-batch of each change. Ingest's clock rows show
how far event time has advanced; :func:`due_rows` makes a row for every key whose timer is due by then.

A micro-batch reads only changes of earlier micro-batches, so a replay runs the same timers as the first time, even
after a crash that followed the append. Tasks read the log in Python and cache it: a stream-static join would scan it in
Spark in every micro-batch. Every hundredth micro-batch writes all timers again, so that a new worker need not read the
log from its beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.commit import delete_rows
from reliable_channel.lake.follow import DeltaFollower, PerQuery
from reliable_channel.lake.read import open_table, quote
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import TIMERS
from reliable_channel.pipeline.clock import TopicPartition
from reliable_channel.pipeline.delta import running

RESTATED_EVERY = 100
"""A micro-batch whose number is a multiple of this writes all timers again. Changing it requires new checkpoints."""

_READ = ("query_id", "batch_id", "key", "due", "kafka_topic", "kafka_partition")


class TimerChange(NamedTuple):
    """The next timer of ``key`` in one Kafka partition is due at ``due_us`` (event time, µs); ``None``: no timer."""

    key: str
    place: TopicPartition
    due_us: int | None


class Timers:
    """The keys with a timer, and when each timer is due."""

    def __init__(self) -> None:
        self._due: dict[TopicPartition, dict[str, int]] = {}

    def apply(self, change: TimerChange) -> None:
        """Apply one change, in the order of the log."""
        here = self._due.setdefault(change.place, {})
        if change.due_us is None:
            here.pop(change.key, None)
        else:
            here[change.key] = change.due_us

    def is_open(self, key: str) -> bool:
        """Whether the key has a timer in any partition."""
        return any(key in here for here in self._due.values())

    def due(self, place: TopicPartition, until_us: int) -> Iterator[str]:
        """The keys in one partition whose timers are due by ``until_us`` (µs)."""
        return (key for key, at in self._due.get(place, {}).items() if at <= until_us)

    def __iter__(self) -> Iterator[TimerChange]:
        return (TimerChange(key, place, at) for place, here in self._due.items() for key, at in here.items())


class TimerLog:
    """Reads the log of one query, and continues where the last read ended."""

    def __init__(self, paths: PathSettings, query_id: str) -> None:
        self._table = DeltaFollower(paths, TIMERS, "batch_id")
        self._query_id = query_id
        self._keys = Timers()
        self._read = -1

    def before(self, batch_id: int) -> Timers:
        """The timers before a micro-batch. If it is not later than the last one, the log is read again."""
        restated = last_restated(batch_id)
        if restated > self._read or batch_id <= self._read:
            self._keys, self._read = Timers(), restated - 1
        since = self._read + 1
        wanted = (pc.field("query_id") == self._query_id) & (pc.field("batch_id") >= since)
        wanted &= pc.field("batch_id") < batch_id
        files = self._table.files(since)
        new = [self._table.read(file, _READ, wanted) for file in files if (file.least or 0) < batch_id]
        if new:
            for change in _changes(pa.concat_tables(new).sort_by("batch_id")):
                self._keys.apply(change)
        self._read = batch_id - 1
        return self._keys


def last_restated(batch_id: int) -> int:
    """The last micro-batch before ``batch_id`` that wrote all timers again, or the first micro-batch."""
    return max(batch_id - 1, 0) // RESTATED_EVERY * RESTATED_EVERY


def _changes(rows: pa.Table) -> Iterator[TimerChange]:
    columns = [rows[name].to_pylist() for name in ("key", "kafka_topic", "kafka_partition")]
    for key, topic, partition, at in zip(*columns, rows["due"].cast(pa.int64()).to_pylist(), strict=True):
        yield TimerChange(key, (topic, partition), at)


_logs = PerQuery(TimerLog)


def record(sink: BatchSink, changes: list[TimerChange]) -> None:
    """Append the changes of this micro-batch, at most one per touched key; every hundredth micro-batch appends all
    timers.

    Must be called in every micro-batch."""
    if sink.batch_id and last_restated(sink.batch_id + 1) == sink.batch_id:
        stated = Timers()
        for change in [*timers_before(sink.paths, sink.query_id, sink.batch_id), *changes]:
            stated.apply(change)
        changes = [*stated]
    rows = [
        {
            "query_id": sink.query_id,
            "batch_id": sink.batch_id,
            "key": change.key,
            "due": change.due_us,
            "kafka_topic": change.place[0],
            "kafka_partition": change.place[1],
        }
        for change in changes
    ]
    sink.append_small(as_arrow(rows, TIMERS), TIMERS)


def forget(paths: PathSettings, committed: Mapping[str, int], *, dry_run: bool = False) -> int:
    """Delete rows that no micro-batch will read again; returns their number. ``committed``: query id → its last
    committed micro-batch, -1 if there is none. Rows of queries without a checkpoint are deleted too.

    The micro-batch after the committed one may run (again), and reads from the last full restatement before it. By the
    files' statistics, delta-rs sees that concurrent appends are not affected; Delta's own MERGE and DELETE would
    conflict with each of them."""
    bounds = {query_id: last_restated(batch_id + 1) for query_id, batch_id in sorted(committed.items())}
    passed = [f"(query_id = {quote(query_id)} and batch_id < {bound})" for query_id, bound in bounds.items()]
    others = f"query_id not in ({', '.join(map(quote, bounds))})" if bounds else "true"
    gone = " or ".join([*passed, others])
    table = open_table(paths, TIMERS)
    return delete_rows(table, gone, dry_run=dry_run)


def timers_of(paths: PathSettings) -> Timers:
    """The timers before the running micro-batch, for tasks of its query."""
    now = running()
    return Timers() if now is None else timers_before(paths, *now)


def timers_before(paths: PathSettings, query_id: str, batch_id: int) -> Timers:
    """The timers before ``batch_id``. They are cached, so the caller must not change them."""
    return _logs.get(paths, query_id).before(batch_id)


def due_rows(
    paths: PathSettings, columns: Iterable[str], row_of: Callable[[str], dict[str, Any]]
) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """A function for ``mapInPandas`` that takes clock rows and returns one row, with ``columns``, for every key
    whose timer is due by then.

    ``row_of`` returns the key's own columns; Kafka coordinates and event time are those of the clock row."""
    names = [*columns]

    def run(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        ticks = [tick for frame in frames for tick in frame.itertuples(index=False)]
        if not ticks:
            return
        timers = timers_of(paths)
        rows = [
            {**tick._asdict(), **row_of(key)}
            for tick in ticks
            for key in timers.due((tick.kafka_topic, tick.kafka_partition), tick.event_us)
        ]
        if rows:
            frame = pd.DataFrame(rows).reindex(columns=names).astype(object)
            yield frame.where(frame.notna(), None)

    return run
