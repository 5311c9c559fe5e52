"""Commits files that tasks wrote (:mod:`.files`) to Delta tables, through the public transaction of delta-rs.

The commit is made against the version at which the ``DeltaTable`` was opened. delta-rs raises ``CommitFailedError`` if
another writer has since committed the same application transaction; :func:`replace_files` also raises it if another
writer removed one of the files to be replaced. Appends by other writers never conflict, and appends are repeated if
another writer deleted rows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, PostCommitHookProperties, RemoveAction

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.checksum import write_checksum
from reliable_channel.lake.read import select

if TYPE_CHECKING:
    from reliable_channel.lake.files import WrittenFile

REPLACED_FILES = "replacedFiles"
"""The field of a commit's information with the number of files that it removed from the table. delta-rs records every
such commit as an append (operation ``WRITE``), so readers of the history need this field to distinguish the two."""


ATTEMPTS = 20
"""The number of times that a commit is tried if other writers commit first."""


class TableFile(NamedTuple):
    """A data file that belongs to a table: its path inside the table's directory, its size in bytes, and its rows."""

    path: str
    bytes: int
    rows: int = 0


def data_files(table: DeltaTable) -> dict[str, TableFile]:
    """The data files of a table at the version at which it was opened, by their paths on disk: in the log, and so in
    :class:`TableFile`, paths are URL-encoded."""
    adds = pa.table(table.get_add_actions(flatten=True))
    columns = [adds[name].to_pylist() for name in ("path", "size_bytes", "num_records")]
    return {unquote(path): TableFile(path, size, rows or 0) for path, size, rows in zip(*columns, strict=True)}


def append_files(table: DeltaTable, files: Sequence[WrittenFile], batch: tuple[str, int] | None = None) -> None:
    """Add ``files`` to the table in one commit.

    ``batch``: an application id and a version, such as a query id and a micro-batch. The commit records them. Raises
    ``CommitFailedError`` if another writer has recorded the same application id since the table was opened, and
    ``EnvironmentFault`` if one of ``files`` is not on the disk: executors have written it to disks of their own, or
    somebody's VACUUM has removed it. Its rows would be lost."""
    if table.table_uri.startswith("file:"):
        there, root = filesystem(table.table_uri)
        for info in there.get_file_info([f"{root}/{file.path}" for file in files]):
            if info.type != pafs.FileType.File:
                raise EnvironmentFault(
                    f"{info.path}, which a task wrote, is not on this machine's disk.",
                    "Put paths.data_dir where all machines see it, and vacuum only with jobs/maintain.py.",
                )
    _append(table, lambda: _commit(table, [], files, batch), batch[0] if batch else None)
    write_checksum(table, files)


def append_rows_to(table: DeltaTable, rows: pa.Table, transaction: Transaction | None = None) -> None:
    """Append rows that are in the driver. Raises ``CommitFailedError`` like :func:`append_files`."""
    properties = None if transaction is None else CommitProperties(app_transactions=[transaction])
    whole = _add_unknown_columns(rows, table)
    _append(
        table,
        lambda: write_deltalake(table, whole, mode="append", commit_properties=properties),
        None if transaction is None else transaction.app_id,
    )


def _append(table: DeltaTable, commit: Callable[[], None], application: str | None) -> None:
    """Run ``commit``, which appends to ``table``, again if another writer has deleted or rewritten rows since the table
    was opened: delta-rs refuses it then, although an append reads nothing.

    Raises ``CommitFailedError`` if another writer has recorded the same ``application`` id since."""
    recorded = application and table.transaction_version(application)
    _repeat(table, commit, lambda: not application or table.transaction_version(application) == recorded)


def _repeat(
    table: DeltaTable, commit: Callable[[], None], may_repeat: Callable[[], bool], attempts: int = ATTEMPTS
) -> None:
    """Run ``commit`` until no other writer commits first, each time on the newest version of ``table``, while it
    ``may_repeat``. Otherwise, or after ``attempts``, raises ``CommitFailedError``."""
    for left in reversed(range(attempts)):
        try:
            commit()
        except CommitFailedError:
            table.update_incremental()
            if not left or not may_repeat():
                raise
        else:
            return


def replace_files(
    table: DeltaTable,
    removed: Sequence[TableFile],
    files: Sequence[WrittenFile],
    metadata: Mapping[str, str] | None = None,
    attempts: int = ATTEMPTS,
) -> None:
    """Remove ``removed`` from the table and add ``files`` in one commit, with ``metadata`` in the commit's information.

    Streams that read with ``skipChangeCommits`` skip it. Raises ``CommitFailedError`` if another writer removed one of
    the files since the table was opened, or commits first in all ``attempts`` (a commit takes about 20 ms).
    """
    paths = {file.path for file in removed}
    # delta-rs retries without detecting a conflict with a compaction: both commits would be in the log, and the rows of
    # the removed files twice in the table. So the retries are made here, while the files are still in the table.
    _repeat(
        table,
        lambda: _commit(table, removed, files, None, metadata, retries=0),
        lambda: paths.issubset(pa.table(table.get_add_actions())["path"].to_pylist()),
        attempts,
    )


def replace_rows(table: DeltaTable, predicate: str, rows: pa.Table, transaction: Transaction | None = None) -> None:
    """Delete the rows for which ``predicate`` (SQL) holds, and append ``rows``, for which it must hold, in one commit.

    ``predicate`` contains no text of others: delta-rs parses it again from its log, and reads a backslash before a
    quote differently there. Raises ``CommitFailedError`` if another writer changed such rows since the table was
    opened."""
    # Not with delete, merge or update of delta-rs: they mark the texts in their files as views, and then Arrow cannot
    # compare those of more than 64 bytes with a filter (docs/questions.md, *With your own reader*).
    write_deltalake(
        table,
        _add_unknown_columns(rows, table),
        mode="overwrite",
        predicate=predicate,
        writer_properties=WriterProperties(compression="ZSTD"),
        commit_properties=None if transaction is None else CommitProperties(app_transactions=[transaction]),
    )


def _add_unknown_columns(rows: pa.Table, table: DeltaTable) -> pa.Table:
    """``rows`` with nulls in the columns that only the table has, because somebody added them: delta-rs wants all."""
    for field in pa.schema(table.schema().to_arrow()):
        if field.name not in rows.column_names:
            rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
    return rows


def delete_rows(table: DeltaTable, predicate: str, *, dry_run: bool = False) -> int:
    """Delete the rows for which ``predicate`` holds, as :func:`replace_rows` does; returns their number. With
    ``dry_run`` only count them."""
    count = int(select(f"SELECT count(*) AS rows FROM t WHERE {predicate}", t=table)[0]["rows"])  # noqa: S608 - no text of others
    if count and not dry_run:
        schema = pa.schema(table.schema().to_arrow())
        replace_rows(table, predicate, schema.empty_table())
    return count


def discard(paths: PathSettings, files: Sequence[WrittenFile]) -> None:
    """Delete files that will not be committed."""
    for file in files:
        there, root = filesystem(paths.table(file.table))
        there.delete_file(f"{root}/{file.path}")


@contextmanager
def discard_on_conflict(paths: PathSettings, files: Sequence[WrittenFile]) -> Iterator[None]:
    """Delete ``files``, which are committed within the block, if another writer makes that impossible."""
    try:
        yield
    except CommitFailedError:
        discard(paths, files)
        raise


def _commit(
    table: DeltaTable,
    removed: Sequence[TableFile],
    files: Sequence[WrittenFile],
    batch: tuple[str, int] | None,
    metadata: Mapping[str, str] | None = None,
    retries: int | None = None,
) -> None:
    now_ms = time.time_ns() // 1_000_000
    rows = sum(int(json.loads(file.stats)["numRecords"]) for file in files)
    # Under the names of Spark's writer, and as texts like there: lag and status count rows by them (lake/history.py).
    about = {"operationMetrics": {"numFiles": str(len(files)), "numOutputRows": str(rows)}, **(metadata or {})}
    table.create_write_transaction(
        [
            *(RemoveAction(file.path, True, now_ms, file.bytes, {}) for file in removed),
            *(AddAction(file.path, file.bytes, {}, file.written_ms, True, file.stats) for file in files),
        ],
        "append",
        table.schema(),
        commit_properties=CommitProperties(
            custom_metadata={**about, REPLACED_FILES: len(removed)} if removed else about,
            app_transactions=None if batch is None else [Transaction(*batch)],
            max_commit_retries=retries,
        ),
        # Logs are checkpointed by lake/append.py and cleaned by maintenance, which knows the slowest reader.
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )
