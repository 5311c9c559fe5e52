"""The one place that reads and writes tables for the jobs, exactly once (design.md *Exactly once*).

A micro-batch that is replayed after a crash finds by table whether its rows are there already: every append carries
``(query id, batch id)`` as Delta's application transaction. delta-rs commits everything, without a Spark job; rows that
are not in the driver are written by tasks (:mod:`.task_files`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from reliable_channel.config import PathSettings
from reliable_channel.errors import EnvironmentFault
from reliable_channel.pipeline.storage.task_files import WrittenFile, written
from reliable_channel.pipeline.storage.transactions import append_files, discard
from reliable_channel.pipeline.tables import Table

QUERY_ID = "sql.streaming.queryId"
"""The local property with a streaming query's id. It belongs to the checkpoint: a new checkpoint has a new id."""

BATCH_ID = "streaming.sql.batchId"

_COMMITS = ThreadPoolExecutor(4, "commit")

CHECKPOINT_EVERY = 20
"""Commits of a table from one checkpoint of its log to the next."""


def read_stream(spark: SparkSession, paths: PathSettings, table: Table) -> DataFrame:
    """A table as a stream of its appended rows, commit by commit from the first. OPTIMIZE and DELETE are skipped.

    Commits are taken whole: a limit on files would cut the record order of a commit (docs/pipeline.md)."""
    return (
        spark.readStream.format("delta")
        .option("startingVersion", "0")
        .option("skipChangeCommits", "true")
        .load(paths.table(table.name))
    )


def read_table(spark: SparkSession, paths: PathSettings, table: Table) -> DataFrame:
    """A table as it is now."""
    return spark.read.format("delta").load(paths.table(table.name))


def open_table(paths: PathSettings, table: Table) -> DeltaTable:
    """A table through delta-rs, without Spark. Raises ``EnvironmentFault`` when it does not exist."""
    try:
        return DeltaTable(paths.table(table.name))
    except TableNotFoundError:
        raise EnvironmentFault(
            f"The table {table.name} does not exist under {paths.data_dir}.", "Run the pipeline first."
        ) from None


def exists(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists."""
    try:
        open_table(paths, table)
    except EnvironmentFault:
        return False
    return True


def holds_rows(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists and has a file with rows."""
    return exists(paths, table) and len(open_table(paths, table).file_uris()) > 0


def conformed(rows: DataFrame, table: Table) -> DataFrame:
    """``rows`` with the columns of ``table``: what they lack is null, what is over is dropped."""
    types = StructType.fromDDL(table.ddl())
    present = set(rows.columns)
    assert isinstance(types, StructType)  # noqa: S101  for the type checker
    return rows.select(
        *(F.col(f.name) if f.name in present else F.lit(None).cast(f.dataType).alias(f.name) for f in types.fields)
    )


@dataclass(frozen=True)
class BatchSink:
    """Appends the rows of one micro-batch to several tables, each exactly once. ``query_id`` is the checkpoint's;
    ``announce`` hears the name of every table that is about to gain rows, of none in a replay."""

    paths: PathSettings
    query_id: str
    batch_id: int
    announce: Callable[[str], None] = field(default=lambda _: None, compare=False, kw_only=True)

    def written(self, table: Table) -> bool:
        """Whether this micro-batch is in the table already: it is then a replay."""
        return _has(open_table(self.paths, table), self.query_id, self.batch_id)

    def append(self, rows: DataFrame, table: Table) -> None:
        """Append through Spark's tasks. In a replay ``rows`` are not computed."""
        if not self.written(table):
            self.add_files(table, written(rows.select(*table.names()), self.paths, table))

    def add_files(self, table: Table, files: Sequence[WrittenFile]) -> None:
        """Commit those of ``files``, which tasks have written, that are of ``table``; in a replay they are deleted.

        The table is opened once, before it is asked whether the micro-batch is there: if another writer of the same
        query commits in between, delta-rs refuses this commit."""
        own = [file for file in files if file.table == table.name]
        if not own:
            return
        to = open_table(self.paths, table)
        if _has(to, self.query_id, self.batch_id):
            discard(self.paths, own)
        else:
            self.announce(table.name)
            append_files(to, own, (self.query_id, self.batch_id))
            _keep_short(self.paths, table, to.version())

    def together(self, *writes: Callable[[], None]) -> None:
        """Writes of this micro-batch that do not lead readers to one another, side by side: most of a commit is
        waiting. When one fails, the others are done first."""
        failed = [future.exception() for future in [_COMMITS.submit(write) for write in writes]]
        for fault in filter(None, failed):
            raise fault

    def append_small(self, rows: pa.Table, table: Table) -> None:
        """Append rows that are in the driver, through delta-rs; skipped in a replay and when there are none."""
        if rows.num_rows == 0 or self.written(table):
            return
        transaction = CommitProperties(app_transactions=[Transaction(self.query_id, self.batch_id)])
        self.announce(table.name)
        append_rows(self.paths, table, rows, transaction)


def _has(table: DeltaTable, query_id: str, batch_id: int) -> bool:
    last = table.transaction_version(query_id)
    return last is not None and last >= batch_id


class Turn(Protocol):
    """The turns of one query among those of a session."""

    def announce(self, table: str) -> None:
        """``table`` is about to gain rows."""

    def taken(self, query_id: str, batch_id: int) -> AbstractContextManager[None]:
        """Around the writing of one micro-batch."""


def append_rows(
    paths: PathSettings, table: Table, rows: pa.Table, commit_properties: CommitProperties | None = None
) -> None:
    """Append rows that are in the driver."""
    to = open_table(paths, table)
    write_deltalake(to, rows, mode="append", commit_properties=commit_properties)
    _keep_short(paths, table, to.version())


def append_frame(paths: PathSettings, table: Table, rows: DataFrame) -> None:
    """Append the rows of a ``DataFrame`` with the columns of ``table``: tasks write them, one commit adds them."""
    to = open_table(paths, table)
    files = written(rows.select(*table.names()), paths, table)
    if files:
        append_files(to, files)
        _keep_short(paths, table, to.version())


def _keep_short(paths: PathSettings, table: Table, version: int) -> None:
    """Write a checkpoint of Delta's log (not of a query) where one is due, so that nobody reads it from its beginning.

    Every table has a round of its own, so that the tables of one micro-batch do not all write theirs at once."""
    if version % CHECKPOINT_EVERY == zlib.crc32(table.name.encode()) % CHECKPOINT_EVERY:
        open_table(paths, table).create_checkpoint()


def each_batch(
    spark: SparkSession,
    paths: PathSettings,
    write: Callable[[DataFrame, BatchSink], None],
    turn: Turn | None = None,
) -> Callable[[DataFrame, int], None]:
    """``write`` as a function for ``foreachBatch``. It must compute the micro-batch once, and always: a replay of which
    every table is written already must still run its stateful operators to the end, or the restart fails
    (``STATE_STORE_COMMIT_VALIDATION_FAILED``). ``turn``: what it keeps to beside other queries
    (:mod:`reliable_channel.pipeline.running.turns`)."""

    def run(batch: DataFrame, batch_id: int) -> None:
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise EnvironmentFault("Spark does not tell the id of the running query.", "Use the pinned Spark version.")
        if turn is None:
            write(batch, BatchSink(paths, query_id, batch_id))
            return
        with turn.taken(query_id, batch_id):
            write(batch, BatchSink(paths, query_id, batch_id, announce=turn.announce))

    return run
