"""Maintenance of the Delta tables, with the streams running on: retention, OPTIMIZE, VACUUM (docs/operations.md).

Streams read with ``skipChangeCommits`` and append blindly, and what is deleted here leaves alone what they append
meanwhile (:mod:`~reliable_channel.pipeline.storage.rewrite`), so neither side waits for the other; what collides all
the same (two maintenance runs) is tried again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings, Settings
from reliable_channel.errors import LocalError
from reliable_channel.pipeline import open_keys
from reliable_channel.pipeline.operations.maintain_plan import TablePlan, plans
from reliable_channel.pipeline.storage.checkpoints import filesystem, read_checkpoints
from reliable_channel.pipeline.storage.io import open_table
from reliable_channel.pipeline.storage.rewrite import again, delete
from reliable_channel.pipeline.storage.session import set_meanwhile
from reliable_channel.pipeline.tables import BY_NAME, OPEN_KEYS

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done to a table, or would be: rows deleted, files before and after OPTIMIZE, files removed from disk."""

    table: str
    rows_deleted: int
    files_before: int
    files_after: int | None
    files_vacuumed: int
    keep_files_ms: int
    held_by: str | None

    def __str__(self) -> str:
        after = "" if self.files_after is None else f" → {self.files_after}"
        held = f", kept for {self.held_by}, which has still to read" if self.held_by else ""
        kept = f"files replaced in the last {self.keep_files_ms / HOUR_MS:.1f} h stay{held}"
        return (
            f"{self.table}: {self.rows_deleted:,} rows deleted, {self.files_before}{after} files,"
            f" {self.files_vacuumed} removed from disk ({kept})"
        )


def run(
    spark: SparkSession,
    settings: Settings,
    *,
    dry_run: bool = False,
    only: Collection[str] = (),
    now_ms: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Outcome]:
    """Maintain the tables (``only`` these, by name), one after another; with ``dry_run`` count and change nothing.

    Raises ``LocalError`` for a table that there is not."""
    if unknown := sorted(set(only) - BY_NAME.keys()):
        raise LocalError(f"There is no table {unknown[0]!r}.", "`reliable-channel tables list` names them.")
    done = []
    for plan in plans(settings, time.time_ns() // 1_000_000 if now_ms is None else now_ms):
        if not only or plan.table.name in only:
            done.append(_maintained(spark, settings, plan, dry_run))
            say(str(done[-1]))
    return done


def _maintained(spark: SparkSession, settings: Settings, plan: TablePlan, dry_run: bool) -> Outcome:
    """Every step starts Spark only where there is something to do: most tables are small, and most days quiet."""
    paths, name = settings.paths, plan.table.name
    place = paths.table(name)
    files = len(open_table(paths, plan.table).file_uris())
    after = None
    if not files:
        deleted = 0
    elif plan.table is OPEN_KEYS:
        deleted = _forget_keys(paths, dry_run)
    else:
        deleted = _delete_expired(spark, paths, plan, dry_run)
    if not dry_run:
        if len(open_table(paths, plan.table).file_uris()) > 1:
            _optimize(spark, place)
        table = open_table(paths, plan.table)
        after = len(table.file_uris())
        table.create_checkpoint()
        if plan.held_by is None:
            table.cleanup_metadata()
    replaced = _files_on_disk(place) > len(open_table(paths, plan.table).file_uris())
    vacuumed = _vacuum(spark, place, plan.keep_files_ms, dry_run) if replaced else 0
    return Outcome(name, deleted, files, after, vacuumed, plan.keep_files_ms, plan.held_by)


def _delete_expired(spark: SparkSession, paths: PathSettings, plan: TablePlan, dry_run: bool) -> int:
    if plan.delete_before is None or not _may_hold_older(paths, plan):
        return 0
    expired = F.col(plan.table.retention_column) < F.lit(plan.delete_before)
    return delete(spark, paths, plan.table, expired, dry_run=dry_run)


def _may_hold_older(paths: PathSettings, plan: TablePlan) -> bool:
    """Whether a row may be older than its retention, by the statistics of the files; without them: yes."""
    files = pa.table(open_table(paths, plan.table).get_add_actions(flatten=True))
    name = f"min.{plan.table.retention_column}"
    oldest = pc.min(files[name], skip_nulls=False).as_py() if name in files.column_names else None
    if oldest is None:
        return True
    assert plan.delete_before is not None  # noqa: S101  for the type checker
    return bool(oldest < plan.delete_before)


@again
def _forget_keys(paths: PathSettings, dry_run: bool) -> int:
    checkpoints = [c for c in read_checkpoints(paths) if c.query_id]
    # A query that has not committed anything yet may read all it wrote.
    committed = {str(c.query_id): -1 if c.committed is None else c.committed for c in checkpoints}
    return open_keys.forget(paths, committed, dry_run=dry_run)


@again
def _optimize(spark: SparkSession, place: str) -> None:
    """Compaction, and liquid clustering where the table is clustered."""
    DeltaTable.forPath(spark, place).optimize().executeCompaction()


def _vacuum(spark: SparkSession, place: str, keep_files_ms: int, dry_run: bool) -> int:
    """Remove files that no version younger than ``keep_files_ms`` needs; how many."""
    with set_meanwhile(spark, _for_vacuum(spark)):
        hours = math.ceil(keep_files_ms / HOUR_MS)  # Delta rounds to the nearest hour: 20 minutes would be none
        if dry_run:
            return spark.sql(f"VACUUM delta.`{place}` RETAIN {hours} HOURS DRY RUN").count()
        before = _files_on_disk(place)
        DeltaTable.forPath(spark, place).vacuum(float(hours))
        return max(0, before - _files_on_disk(place))


def _files_on_disk(place: str) -> int:
    """How many data files lie in a table's directory, those that no version needs included."""
    files, root = filesystem(place)
    found = files.get_file_info(pafs.FileSelector(root, recursive=True))
    return sum(info.path.endswith(".parquet") and "/_delta_log/" not in info.path for info in found)


def _for_vacuum(spark: SparkSession) -> dict[str, str]:
    """Delta refuses retentions under a week, not knowing who reads; the plan knows. And it lists files in 10 000 tasks
    by default, which takes minutes per table on one machine (measured), for directories that one task lists in no time.
    """
    return {
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(4 * spark.sparkContext.defaultParallelism),
    }
