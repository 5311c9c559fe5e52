"""Changes rows of a table, or inserts missing ones, while streams append to it.

Spark computes the new files at a fixed version of the table; one commit through delta-rs replaces the old files. The
commit fails only if another writer has replaced one of these files in the meantime; then everything is repeated.
Appends never conflict. Delta's own UPDATE and MERGE fail on any append between their read and their commit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.append import open_to_write
from reliable_channel.lake.commit import append_files, data_files, discard_on_conflict, replace_files
from reliable_channel.lake.read import open_table
from reliable_channel.lake.retry import retry_on_conflict
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.delta import read_table, write_rows

_FILE = "__file"


@retry_on_conflict
def rewrite(
    spark: SparkSession,
    paths: PathSettings,
    table: Table,
    concerned: Callable[[DataFrame], DataFrame],
    instead: Callable[[DataFrame], DataFrame],
) -> int:
    """Replace the files that contain ``concerned`` rows by ``instead`` of all their rows; returns the number of
    concerned rows.

    Raises ``ConfigurationError`` if the table has undefined columns, which would be lost, and ``EnvironmentFault``
    after repeated conflicts."""
    location = paths.table(table.name)
    to = open_table(paths, table)
    rows = read_table(spark, paths, table, to.version())
    by_file = concerned(rows.withColumn(_FILE, F.col("_metadata.file_path"))).groupBy(_FILE).count().collect()
    if by_file:
        if set(rows.columns) != set(table.names()):
            raise ConfigurationError(
                f"The table {table.name} was made by another version of this program: its columns differ.",
                "Run `reliable-channel rebuild`, which derives the tables again.",
            )
        # By name: Spark gives a whole URI, encoded in its own way, and no two files of a table have the same UUID.
        names = {row[_FILE].rpartition("/")[2] for row in by_file}
        old = [file for file in data_files(to).values() if file.path.rpartition("/")[2] in names]
        # As plain Parquet, without Delta: a table with deletion vectors or renamed columns, which only Delta's reader
        # would apply, is refused (lake/create.py).
        whole = spark.read.schema(rows.schema).parquet(*(f"{location}/{file.path}" for file in old))
        new = write_rows(instead(whole).select(*table.names()), paths, table)
        with discard_on_conflict(paths, new):
            replace_files(to, old, new)
    return sum(row["count"] for row in by_file)


@retry_on_conflict
def insert_missing(
    spark: SparkSession,
    paths: PathSettings,
    table: Table,
    rows: DataFrame,
    by: str,
    key: Sequence[str],
    among: str = "true",
) -> None:
    """Append the ``rows`` whose ``key`` the table lacks, each once even if several processes insert.

    The SQL condition ``among`` selects the rows compared with. ``by``: writers of the same name conflict, and the later
    one compares again. Raises ``EnvironmentFault`` after repeated conflicts."""
    to = open_to_write(paths, table)
    before = to.transaction_version(by)
    there = read_table(spark, paths, table, to.version()).where(among).select(*key)
    new = write_rows(rows.join(there, [*key], "left_anti").select(*table.names()), paths, table)
    if new:
        with discard_on_conflict(paths, new):
            append_files(to, new, (by, 0 if before is None else before + 1))
