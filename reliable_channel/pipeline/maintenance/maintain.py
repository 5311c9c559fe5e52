"""Maintains the Delta tables while the streams run: retention, compaction with z-order, vacuum (docs/operations.md).

delta-rs does the work in this process, without Spark. Streams only append and read with ``skipChangeCommits``, so
neither side waits for the other. A step that conflicts with another writer is repeated. Only one maintenance run works
at a time (:mod:`.alone`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext, suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import WriterProperties
from deltalake.exceptions import DeltaError

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.commit import delete_rows
from reliable_channel.lake.follow import LONG_ROWS
from reliable_channel.lake.live import record_outcome
from reliable_channel.lake.read import no_table_fault, no_tables_fault, open_table
from reliable_channel.lake.retry import retry_on_conflict
from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.pipeline.maintenance.alone import hold_lease
from reliable_channel.pipeline.maintenance.maintain_plan import TablePlan, make_plans

_log = logging.getLogger(__name__)

HOUR_MS = 3_600_000

FILE_BYTES = 128 * 1024 * 1024
"""The target size (bytes) of compacted files."""

SMALL_FILE_BYTES = FILE_BYTES // 2
"""A table is compacted only if at least two new files are smaller than this (bytes)."""

ROW_GROUP_BYTES = 4 * 1024 * 1024
"""The approximate size (bytes) of a row group. delta-rs would write one per file, and a task that looks up a few
payloads would decode it as a whole: a file of 38 MB took 148 MB of a worker's memory, and takes 73 MB this way
(docs/measurements-history.md, *Soak*)."""

_COMMITS_READ = 10_000
"""The number of commits that are searched for the last compaction."""

Z_ORDER_BYTES = 4 * 1024 * 1024 * 1024
"""A z-order rewrites the whole table, so larger tables (bytes) are only compacted. Their files still hold rows that
arrived one after another, and so differ by time."""

SPILL_BYTES = 512 * 1024 * 1024
"""The memory limit (bytes) of a z-order. Sorting spills to disk beyond that, but merging does not: tables whose rows
have Bloom filters may need more, and are then only compacted."""


@dataclass(frozen=True, slots=True)
class MaintenanceResult:
    """The actual or (``dry_run``) expected result for a table: rows deleted, files before and after compaction, files
    removed."""

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
    settings: Settings,
    *,
    dry_run: bool = False,
    only: Collection[str] = (),
    now_ms: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[MaintenanceResult]:
    """Maintain the tables (``only`` these, by name), one after another; with ``dry_run`` count and change nothing.

    Raises ``LocalError`` for an unknown table, ``EnvironmentFault`` if none of these tables exists, while another run
    works or, after all other tables, if conflicts persist in one."""
    if unknown := sorted(set(only) - BY_NAME.keys()):
        raise LocalError(f"There is no table {unknown[0]!r}.", "`reliable-channel tables list` names them.")
    done: list[MaintenanceResult] = []
    failed: list[EnvironmentFault] = []
    with nullcontext() if dry_run or only else record_outcome(settings.paths, "maintain"):
        every = make_plans(settings, time.time_ns() // 1_000_000 if now_ms is None else now_ms)
        wanted = [plan for plan in every if not only or plan.table.name in only]
        if not wanted:
            for name in only:
                raise no_table_fault(settings.paths.table(name))
            raise no_tables_fault(settings.paths.data_dir)
        with hold_lease(settings.paths) if not dry_run else nullcontext(lambda: None) as still_alone:
            for number, plan in enumerate(wanted):
                still_alone()
                try:
                    done.append(_maintain_table(settings, plan, dry_run))
                except EnvironmentFault as fault:  # of this table, as where others change it in each attempt
                    failed.append(fault)
                    say(f"{plan.table.name}: {fault}")
                except (OSError, DeltaError):
                    # Nothing more is written. What can be removed goes all the same: on a full disk, that makes room.
                    for left in wanted[number:]:
                        with suppress(OSError, DeltaError):
                            _vacuum(settings.paths, left, dry_run)
                    raise
                else:
                    say(str(done[-1]))
        if failed:
            raise failed[0]
    return done


def _maintain_table(settings: Settings, plan: TablePlan, dry_run: bool) -> MaintenanceResult:
    """Maintain one table. Each step first checks whether it is needed: most tables are small, and most days quiet."""
    paths, name = settings.paths, plan.table.name
    files = len(open_table(paths, plan.table).file_uris())
    after = None
    deleted = _delete_expired(paths, plan, dry_run) if files else 0
    if not dry_run:
        _optimize(paths, plan.table)
        table = open_table(paths, plan.table)
        after = len(table.file_uris())
        table.create_checkpoint()
        if plan.held_by is None:  # a stream that has still to read needs the commits themselves
            table.cleanup_metadata()
    gone = _vacuum(paths, plan, dry_run)
    return MaintenanceResult(name, deleted, files, after, gone, plan.keep_files_ms, plan.held_by)


@retry_on_conflict
def _delete_expired(paths: PathSettings, plan: TablePlan, dry_run: bool) -> int:
    """Delete the rows before ``plan.delete_before``; returns their number. Repeated if a stream appends rows of that
    age in the meantime."""
    if plan.delete_before is None:
        return 0
    column = plan.table.retention_column
    return delete_rows(
        open_table(paths, plan.table), f"{column} < '{plan.delete_before:%Y-%m-%dT%H:%M:%S.%fZ}'", dry_run=dry_run
    )


@retry_on_conflict
def _optimize(paths: PathSettings, table: Table) -> None:
    """Merge small files into large ones. If the table has z-order columns and is small enough to be rewritten, all its
    rows are ordered along a z-curve, so that a query over these columns reads few files. Only files newer than the last
    compaction count as small, because a z-order itself leaves files below its target size."""
    opened = open_table(paths, table)
    files = pa.table(opened.get_add_actions(flatten=True))
    sizes, rows = files["size_bytes"].to_pylist(), filter(None, files["num_records"].to_pylist())
    last = next((int(c["timestamp"]) for c in opened.history(_COMMITS_READ) if c["operation"] == "OPTIMIZE"), 0)
    written = zip(sizes, files["modification_time"].to_pylist(), strict=True)
    if sum(size < SMALL_FILE_BYTES and at > last for size, at in written) < 2:
        return
    row_groups = WriterProperties(
        compression="ZSTD",
        compression_level=4,
        write_batch_size=LONG_ROWS,  # a page has at least as many rows, and is decompressed as a whole
        max_row_group_size=max(1, ROW_GROUP_BYTES * sum(rows) // max(1, sum(sizes))),
    )
    if table.z_order_by and sum(sizes) <= Z_ORDER_BYTES:
        try:
            opened.optimize.z_order(
                table.z_order_by, target_size=FILE_BYTES, max_spill_size=SPILL_BYTES, writer_properties=row_groups
            )
            return
        except DeltaError as error:  # nothing was committed
            if "memory" not in str(error):  # delta-rs has no class for it
                raise
            _log.info("%s is compacted without a z-order, which would need more memory than allowed", table.name)
    opened.optimize.compact(target_size=FILE_BYTES, writer_properties=row_groups)


def _vacuum(paths: PathSettings, plan: TablePlan, dry_run: bool) -> int:
    """Remove the files that no version and no stream needs any more, also those that no commit names; returns how
    many."""
    table = open_table(paths, plan.table)
    if _count_files_on_disk(paths.table(plan.table.name)) <= len(table.file_uris()):
        return 0
    hours = math.ceil(plan.keep_files_ms / HOUR_MS)
    # Not the table's own minimum, seven days: the plan knows what the jobs have still to read.
    return len(table.vacuum(hours, dry_run=dry_run, enforce_retention_duration=False, full=True))


def _count_files_on_disk(location: str) -> int:
    """The number of data files in a table's directory, including those that no version needs."""
    files, root = filesystem(location)
    infos = files.get_file_info(pafs.FileSelector(root, recursive=True))
    return sum(info.path.endswith(".parquet") and "/_delta_log/" not in info.path for info in infos)
