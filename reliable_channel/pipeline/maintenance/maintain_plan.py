"""Decides what maintenance may remove, from tables and checkpoints, without Spark.

*Rows*: those past the table's retention, counted back from the recorded clock, or from the wall clock if that is
earlier: a wall clock that is far ahead for a moment must not empty the tables. *Files*: those that no version needs and
no stream has yet to read. Compaction and deletion replace files while a stream still reads the original ones, commit by
commit. So a file may be removed only when the slowest reader has passed the commit that replaced it.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from deltalake import DeltaTable

from reliable_channel.config import Settings
from reliable_channel.lake.checkpoints import Checkpoint, read_checkpoints
from reliable_channel.lake.create import LOG_KEPT_MS
from reliable_channel.lake.history import read_unread
from reliable_channel.lake.read import open_tables, select
from reliable_channel.lake.tables import BY_NAME, CLOCK, ORDERED_SDS_MESSAGES, SDS_MESSAGES, Table
from reliable_channel.pipeline.clock import read_progress

STREAM_READERS = {SDS_MESSAGES.name: "reassembly", ORDERED_SDS_MESSAGES.name: "ack"}
"""The queries that will read a table as a stream even if they have not started yet. Checkpoints show other readers."""

CLOCK_SKEW_MS = 600_000
"""A writer sets the removal time of a file by its own clock, shortly before its commit."""


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The plan for ``table``: delete rows before ``delete_before`` (``None``: none), keep files replaced in the last
    ``keep_files_ms`` (ms). ``held_by``: the query that needs more than is kept anyway, of the files or of the log."""

    table: Table
    delete_before: dt.datetime | None
    keep_files_ms: int
    held_by: str | None = None


def make_plans(settings: Settings, now_ms: int) -> list[TablePlan]:
    """A plan for every table that exists, in the order of the data flow. ``now_ms``: Unix ms."""
    checkpoints = read_checkpoints(settings.paths)
    running = min(((c.running_since_ms, c.query) for c in checkpoints if c.running_since_ms is not None), default=None)
    made = []
    tables = open_tables(settings.paths)
    recorded = read_progress(settings.paths) if CLOCK.name in tables else {}
    by_ms = min([now_ms, *([max(at.event_time_us for at in recorded.values()) // 1000] if recorded else [])])
    for name, opened in tables.items():
        table = BY_NAME[name]
        needed, reader = find_slowest_reader(name, opened, checkpoints)
        if running is not None and (needed is None or running[0] < needed):
            needed, reader = running  # the files of its micro-batch are not committed yet, and look like replaced ones
        keep = settings.pipeline.vacuum_retention_ms
        longer = 0 if needed is None else max(0, now_ms - needed) + CLOCK_SKEW_MS
        held_by = reader if longer > min(keep, LOG_KEPT_MS) else None
        made.append(TablePlan(table, _delete_before(table, opened, by_ms), max(keep, longer), held_by))
    return made


def find_slowest_reader(
    name: str, table: DeltaTable, checkpoints: Iterable[Checkpoint]
) -> tuple[int | None, str | None]:
    """When the oldest commit that a stream has yet to read was written (Unix ms), and the query of that stream.

    (``None``, ``None``) if every reader has read everything."""
    table_id = str(table.metadata().id)
    positions: dict[str, int] = {STREAM_READERS[name]: 0} if name in STREAM_READERS else {}
    for checkpoint in checkpoints:
        if table_id in checkpoint.offsets.delta:
            positions[checkpoint.query] = checkpoint.offsets.delta[table_id]
    waiting = [(behind[0].time_ms, query) for query, at in positions.items() if (behind := read_unread(table, at))]
    return min(waiting, default=(None, None))


def _delete_before(table: Table, opened: DeltaTable, by_ms: int) -> dt.datetime | None:
    if table.retention_ms is None:
        return None
    cut = dt.datetime.fromtimestamp((by_ms - table.retention_ms) / 1000, dt.UTC)
    if table is not CLOCK:
        return cut
    needed = find_needed_clock(opened)
    return cut if needed is None else min(cut, needed)


def find_needed_clock(clock: DeltaTable) -> dt.datetime | None:
    """``recorded_at`` of the oldest row of ``clock`` that ingest needs, because it must never lose its position.

    The last two micro-batches of every partition stay: the last one may be replayed, and then reads the position before
    it. Without them event time could decrease after a long silence."""
    (needed,) = select(
        """SELECT min(first) AS at FROM (
               SELECT min(recorded_at) AS first, row_number() OVER (
                   PARTITION BY kafka_topic, kafka_partition ORDER BY max(recorded_at) DESC) AS place
               FROM clock GROUP BY kafka_topic, kafka_partition, query_id, batch_id)
           WHERE place <= 2""",
        clock=clock,
    )
    at: dt.datetime | None = needed["at"]
    return at
