"""Appends the rows of micro-batches to Delta tables, each exactly once.

Every append carries ``(query id, batch id)`` as Delta's application transaction. It shows a replay after a crash which
tables already have the rows. delta-rs commits without a Spark job; Spark's own writer is exactly-once with ``txnAppId``
and ``txnVersion``, and then runs three jobs for every append (docs/decisions.md, *The shape*).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
from deltalake import DeltaTable, Transaction

from reliable_channel.config import PathSettings
from reliable_channel.lake.checksum import remove_checksums
from reliable_channel.lake.commit import append_files, append_rows_to, discard
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.read import open_table
from reliable_channel.lake.restored import refuse_restored
from reliable_channel.lake.tables import Table

_COMMITS = ThreadPoolExecutor(4, "commit")

CHECKPOINT_EVERY = 20
"""The number of commits between two checkpoints of a table's log."""


@dataclass(frozen=True)
class BatchSink:
    """Appends the rows of one micro-batch to several tables, each exactly once. ``query_id`` belongs to the checkpoint.
    ``announce`` is called with the name of every table that is about to gain rows; a replay calls it for none."""

    paths: PathSettings
    query_id: str
    batch_id: int
    announce: Callable[[str], None] = field(default=lambda _: None, compare=False, kw_only=True)
    _opened: dict[str, Future[DeltaTable]] = field(default_factory=dict, init=False, compare=False, repr=False)

    def open_ahead(self, *tables: Table) -> None:
        """Open tables that the micro-batch will probably append to, while it is being computed: the driver is idle
        then, and opening takes longer than committing."""
        self._opened.update({table.name: _COMMITS.submit(open_to_write, self.paths, table) for table in tables})

    def _open_to_append(self, table: Table) -> DeltaTable | None:
        """The table, which is announced; ``None`` if it has the rows of this micro-batch already."""
        # Opened once, before the check: if another driver of the query commits in between, delta-rs refuses the commit.
        ahead = self._opened.pop(table.name, None)
        to = open_to_write(self.paths, table) if ahead is None else ahead.result()
        last = to.transaction_version(self.query_id)
        if last is not None and last >= self.batch_id:
            return None
        self.announce(table.name)
        return to

    def add_files(self, table: Table, files: Sequence[WrittenFile]) -> None:
        """Commit those of ``files`` that tasks wrote for ``table``; in a replay, delete them."""
        own = [file for file in files if file.table == table.name]
        if not own:
            return
        to = self._open_to_append(table)
        if to is None:
            discard(self.paths, own)
        else:
            append_files(to, own, (self.query_id, self.batch_id))
            write_log_checkpoint(self.paths, table, to.version())

    def together(self, *writes: Callable[[], None]) -> None:
        """Run writes of this micro-batch in parallel, since a commit mostly waits. Only for tables whose rows do not
        refer to one another. When a write fails, the others finish before its exception is raised."""
        failed = [future.exception() for future in [_COMMITS.submit(write) for write in writes]]
        for fault in filter(None, failed):
            raise fault

    def append_small(self, rows: pa.Table, table: Table) -> None:
        """Append rows that are in the driver, exactly once like :meth:`add_files`; in a replay they are skipped."""
        if rows.num_rows and (to := self._open_to_append(table)) is not None:
            append_rows(self.paths, table, rows, Transaction(self.query_id, self.batch_id), to)


def open_to_write(paths: PathSettings, table: Table) -> DeltaTable:
    """Open a table. Raises as :func:`open_table` and :func:`refuse_restored`."""
    to = open_table(paths, table)
    refuse_restored(paths, table, to)
    return to


def append_rows(
    paths: PathSettings,
    table: Table,
    rows: pa.Table,
    transaction: Transaction | None = None,
    opened: DeltaTable | None = None,
) -> None:
    """Append rows that are in the driver, to the table as it was ``opened``, if it was. Raises as
    :func:`open_to_write`."""
    to = open_to_write(paths, table) if opened is None else opened
    append_rows_to(to, rows, transaction)
    write_log_checkpoint(paths, table, to.version())


def write_log_checkpoint(paths: PathSettings, table: Table, version: int) -> None:
    """Write a checkpoint of Delta's log (not of a query) if one is due: readers need not replay the whole log then."""
    # At different versions: when all tables wrote theirs in one micro-batch, everything waited
    # (docs/measurements-history.md, *What made the difference*).
    if version % CHECKPOINT_EVERY == zlib.crc32(table.name.encode()) % CHECKPOINT_EVERY:
        open_table(paths, table).create_checkpoint()
        remove_checksums(paths, table, before=version)
