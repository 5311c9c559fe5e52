"""Rows of a table changed, deleted or filled in while streams append to it.

Delta's own DELETE, UPDATE and MERGE are serializable: an append between what they read and their commit makes them fail
(``ConcurrentAppendException``), whatever it appends, and a table that gains rows every few seconds is never at rest for
as long as they take. Here the new files are written first; the transaction that puts them in the place of the old ones
takes a tenth of a second, sees that those are all there still, and leaves alone what was appended meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
)
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from tenacity import (
    RetryCallState,
    retry,
    retry_if_exception_type,
    stop_after_attempt,
    wait_random,
    wait_random_exponential,
)

from reliable_channel.config import PathSettings
from reliable_channel.errors import ConfigurationError, EnvironmentFault
from reliable_channel.pipeline.storage.delta_log import Commit, TableFile, discard
from reliable_channel.pipeline.storage.io import open_table
from reliable_channel.pipeline.storage.task_files import WrittenFile, written
from reliable_channel.pipeline.tables import Table


class Overtaken(Exception):
    """Files that were to be replaced are replaced already: compaction or another rewrite came first."""


_COLLISIONS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    CommitFailedError,
    Overtaken,
)
"""One by one: what Spark raises of Delta's is no ``DeltaConcurrentModificationException``."""


def _given_up(state: RetryCallState) -> None:
    fault = state.outcome.exception() if state.outcome else None
    raise EnvironmentFault(
        f"Others write the table at the same time, in each of {state.attempt_number} attempts.",
        "Try again when no other maintenance or requeue runs; what was done so far stays.",
    ) from fault


again = retry(
    retry=retry_if_exception_type(_COLLISIONS),
    stop=stop_after_attempt(6),
    wait=wait_random_exponential(multiplier=0.5, max=10),
    retry_error_callback=_given_up,
)
"""For what collides with another rewrite, or with compaction, of the same files: it is tried again.

Raises ``EnvironmentFault`` when it collides time after time."""

_FILE = "__file"


def delete(spark: SparkSession, paths: PathSettings, table: Table, gone: Column, *, dry_run: bool = False) -> int:
    """Delete the rows for which ``gone`` is true; how many they are."""

    def left(rows: DataFrame) -> DataFrame:
        return rows.where(~F.coalesce(gone, F.lit(False)))

    return rewrite(spark, paths, table, lambda rows: rows.where(gone), left, dry_run=dry_run)


@again
def rewrite(
    spark: SparkSession,
    paths: PathSettings,
    table: Table,
    concerned: Callable[[DataFrame], DataFrame],
    instead: Callable[[DataFrame], DataFrame],
    *,
    dry_run: bool = False,
) -> int:
    """Replace the files that hold ``concerned`` rows by what ``instead`` makes of all rows in them; how many rows are
    concerned. For tables without partitions.

    Raises ``ConfigurationError`` when the table has other columns than its definition: they would be lost."""
    place = paths.table(table.name)
    version = open_table(paths, table).version()
    rows = _at(spark, place, version)
    found = concerned(rows.withColumn(_FILE, F.col("_metadata.file_path"))).groupBy(_FILE).count().collect()
    if found and not dry_run:
        if set(rows.columns) != set(table.names()):
            raise ConfigurationError(
                f"The table {table.name} was made by another version of this program: its columns are other ones.",
                "Run `reliable-channel rebuild`, which derives the tables again.",
            )
        names = {row[_FILE].rpartition("/")[2] for row in found}
        old = [file for file in _files(place, version) if file.path.rpartition("/")[2] in names]
        whole = spark.read.schema(rows.schema).parquet(*(f"{place}/{file.path}" for file in old))
        new = written(instead(whole).select(*table.names()), paths, table)
        with _discarded_on_failure(paths, new):
            _replace(spark, place, old, new)
    return sum(row["count"] for row in found)


@retry(
    retry=retry_if_exception_type(ConcurrentAppendException),
    stop=stop_after_attempt(20),
    wait=wait_random(max=0.5),
    reraise=True,
)
def _replace(spark: SparkSession, place: str, old: Sequence[TableFile], new: Sequence[WrittenFile]) -> None:
    commit = Commit(spark, place)
    if not set(old) <= set(_files(place, commit.version)):
        raise Overtaken
    commit.replace(old, new)


@again
def fill_in(
    spark: SparkSession,
    paths: PathSettings,
    table: Table,
    rows: DataFrame,
    by: str,
    key: Sequence[str],
    among: str = "true",
) -> None:
    """Append those of ``rows`` whose ``key`` the table does not have (``among`` the rows of which this is true), each
    once however many fill in at a time. ``by``: who does; two of the same name collide, and the later one looks again.
    """
    place = paths.table(table.name)
    before = open_table(paths, table).transaction_version(by)
    commit = Commit(spark, place, (by, 0 if before is None else before + 1))
    there = _at(spark, place, commit.version).where(among).select(*key)
    new = written(rows.join(there, [*key], "left_anti").select(*table.names()), paths, table)
    if new:
        with _discarded_on_failure(paths, new):
            commit.add(new)


def _at(spark: SparkSession, place: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(place)


def _files(place: str, version: int) -> list[TableFile]:
    adds = pa.table(DeltaTable(place, version=version).get_add_actions(flatten=True))
    return [TableFile(*file) for file in zip(adds["path"].to_pylist(), adds["size_bytes"].to_pylist(), strict=True)]


@contextmanager
def _discarded_on_failure(paths: PathSettings, new: Sequence[WrittenFile]) -> Iterator[None]:
    try:
        yield
    except _COLLISIONS:
        discard(paths, new)
        raise
