"""Reads Delta tables in Spark, as a stream or as a table, and writes them from a ``DataFrame`` or from micro-batches.

Spark computes and reads; its tasks write the files, and delta-rs commits them (:mod:`reliable_channel.lake`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import BinaryType, StructType

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake import tables
from reliable_channel.lake.append import BatchSink, write_log_checkpoint
from reliable_channel.lake.commit import append_files
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.read import exists, open_table
from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.lake.tables.views import FUNCTIONS, VIEWS
from reliable_channel.pipeline.handover import deserialize, serialize

QUERY_ID = "sql.streaming.queryId"
"""The local property with a streaming query's id. The id belongs to the checkpoint: a new checkpoint has a new id."""

BATCH_ID = "streaming.sql.batchId"
"""The local property with the number of a micro-batch. Spark has the words of the two keys in different orders."""

NO_LIMIT = 2**31 - 1
"""The files that a micro-batch may read. Delta's default is 1 000, also within a commit, which has the rows of a Kafka
partition in several files: their order would break (docs/pipeline.md, *Exactly once*)."""

_TASK_RESULT = StructType().add("task_result", BinaryType())
"""The row in which a task reports to the driver. A type in DDL would be parsed by Spark in every micro-batch."""


def read_stream(spark: SparkSession, paths: PathSettings, table: Table) -> DataFrame:
    """Read a table as a stream of its appended rows, by commit from the first. OPTIMIZE and DELETE are skipped."""
    # From version 0: without a start Delta's source begins with a snapshot of the whole table, in which compaction may
    # have merged files of many commits.
    return (
        spark.readStream.format("delta")
        .option("startingVersion", "0")
        .option("maxFilesPerTrigger", str(NO_LIMIT))
        .option("skipChangeCommits", "true")
        .load(paths.table(table.name))
    )


def read_table(spark: SparkSession, paths: PathSettings, table: Table, version: int | None = None) -> DataFrame:
    """Read the newest version of a table, or version ``version``."""
    reader = spark.read.format("delta")
    return (reader if version is None else reader.option("versionAsOf", version)).load(paths.table(table.name))


def create_views(spark: SparkSession, paths: PathSettings) -> None:
    """Create a temporary view of every table (:func:`create_table_views`), and the views of
    :mod:`reliable_channel.lake.tables.views`."""
    create_table_views(spark, paths, tables.TABLES)
    for name, (function, _, returned) in FUNCTIONS.items():
        spark.udf.register(name, function, returned)
    for view in VIEWS.values():
        spark.sql(view.create())


def create_table_views(spark: SparkSession, paths: PathSettings, chosen: Iterable[Table]) -> None:
    """Create temporary views of tables under their names, without the rows of the recorded clock. A table that does not
    exist yet has no rows."""
    for table in chosen:
        rows = read_table(spark, paths, table) if exists(paths, table) else spark.createDataFrame([], table.ddl())
        if table.clock_rows:
            # In SQL ``null <> 'tick'`` is null, and WHERE drops such rows.
            rows = rows.where(f"{table.clock_rows} is null or {table.clock_rows} <> 'tick'")
        rows.createOrReplaceTempView(table.name)


def conform(rows: DataFrame, table: Table) -> DataFrame:
    """``rows`` with exactly the columns of ``table``: missing ones are null, others are dropped."""
    types = StructType.fromDDL(table.ddl())
    present = set(rows.columns)
    assert isinstance(types, StructType)  # noqa: S101  for the type checker
    return rows.select(
        *(F.col(f.name) if f.name in present else F.lit(None).cast(f.dataType).alias(f.name) for f in types.fields)
    )


def append_frame(paths: PathSettings, table: Table, rows: DataFrame) -> None:
    """Append the rows of a ``DataFrame`` with the columns of ``table``: tasks write the files, one commit adds them."""
    to = open_table(paths, table)
    files = write_rows(rows.select(*table.names()), paths, table)
    if files:
        append_files(to, files)
        write_log_checkpoint(paths, table, to.version())


def task_results(rows: DataFrame, task: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]) -> list[Any]:
    """Run ``task`` over ``rows`` in one Spark job, and return the values that tasks reported with
    :func:`task_result`."""
    # Small: the tasks have written their rows to files, and report these, with the few rows that are for the driver.
    return [deserialize(row.task_result) for row in rows.mapInArrow(task, _TASK_RESULT).collect()]


def task_result(value: Any) -> pa.RecordBatch:
    """The report of a task to the driver: one row with the value."""
    return pa.RecordBatch.from_pylist([{"task_result": serialize(value)}])


def write_rows(rows: DataFrame, paths: PathSettings, table: Table) -> list[WrittenFile]:
    """Write ``rows``, which have the columns of ``table``, as files of the table: one Spark job, nothing committed."""
    return [file for files in task_results(rows, partial(_write_task, paths, table.name)) for file in files]


def _write_task(paths: PathSettings, name: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    with TaskFiles(paths) as files:
        for batch in batches:
            files.add(BY_NAME[name], batch)
        files_of_task = files.finish()
    if files_of_task:
        yield task_result(files_of_task)


Turn = Callable[[str, int], AbstractContextManager[Callable[[str], None]]]
"""Query id and micro-batch → a context manager around writing it. Its value is called with the name of each table that
gains rows."""


def each_batch(
    spark: SparkSession,
    paths: PathSettings,
    write: Callable[[DataFrame, BatchSink], None],
    turn: Turn | None = None,
) -> Callable[[DataFrame, int], None]:
    """Wrap ``write`` as a function for ``foreachBatch``.

    ``write`` must always compute the micro-batch, and only once. ``turn``: waits for this query's turn among the
    queries of the session (:mod:`reliable_channel.pipeline.runner.turns`)."""

    def run(batch: DataFrame, batch_id: int) -> None:
        query_id = spark.sparkContext.getLocalProperty(QUERY_ID)
        if query_id is None:
            raise EnvironmentFault(
                "Spark does not provide the id of the running query.", "Use the pinned Spark version."
            )
        with nullcontext(lambda _: None) if turn is None else turn(query_id, batch_id) as announce:
            # Also if every table is already written: a replay whose stateful operators do not run to the end fails with
            # STATE_STORE_COMMIT_VALIDATION_FAILED (docs/decisions.md, *Where the first design was wrong or short*).
            write(batch, BatchSink(paths, query_id, batch_id, announce=announce))

    return run


def running() -> tuple[str, int] | None:
    """The query id and micro-batch of the calling task; ``None`` outside a streaming query."""
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID) if context else None
    batch_id = context.getLocalProperty(BATCH_ID) if context else None
    return None if query_id is None or batch_id is None else (query_id, int(batch_id))
