"""Lets only one maintenance run work at a time, on disks and object stores.

Two runs that compact the same files would double their rows: delta-rs does not notice that another OPTIMIZE has
replaced the files that its own replaces. So a run holds a lease. The lease is an application transaction of a small
Delta table beside the others; delta-rs refuses it if another run has written one since that table was opened. Its
version is the end of the lease (Unix ms), 0 if nobody holds it. The lease of a killed run lasts until that time, and
so does that of a run which could not write its end to a full disk, except for later runs of the same process.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import PostCommitHookProperties

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.read import open_at

LEASE_MS = 2 * 3_600_000
"""Longer than maintenance of any table takes: the lease is renewed between two tables."""

_TABLE, _APPLICATION = "_maintenance", "maintenance"
_CHECKPOINT_EVERY = 20
"""Commits between two checkpoints of the lease table's log."""
_unreleased: dict[str, int] = {}
"""The leases that runs of this process could not give back, by location: the next run takes them over."""


@contextmanager
def hold_lease(paths: PathSettings) -> Iterator[Callable[[], None]]:
    """Hold the lease of the tables under ``paths`` within the block; yields the function that renews it.

    Raises ``EnvironmentFault`` if another run holds it."""
    location, mine = paths.table(_TABLE), 0

    def hold() -> None:
        nonlocal mine
        now = time.time_ns() // 1_000_000
        if mine - now > LEASE_MS // 2:  # renewed in its second half only, since each renewal is a commit
            return
        table = _open(location)
        held = table.transaction_version(_APPLICATION) or 0
        if held > now and held not in (mine, _unreleased.get(location)):
            raise _make_error(location, held)
        try:
            _commit(table, now + LEASE_MS)
        except CommitFailedError:
            raise _make_error(location, now + LEASE_MS) from None
        mine = now + LEASE_MS

    hold()
    try:
        yield hold
    finally:
        try:
            table = _open(location)
            if table.transaction_version(_APPLICATION) == mine:
                _commit(table, 0)
        except (OSError, DeltaError):
            _unreleased[location] = mine


def _make_error(location: str, until_ms: int) -> EnvironmentFault:
    until = dt.datetime.fromtimestamp(until_ms / 1000, dt.UTC)
    return EnvironmentFault(
        "Another maintenance run is working on these tables.",
        f"Wait until it ends. If it was killed, or the disk was full, its lock expires at {until:%Y-%m-%d %H:%M} UTC; "
        f"if none runs, delete the directory {location} to go on at once.",
    )


def _open(location: str) -> DeltaTable:
    table = open_at(location)
    if table is None:
        try:
            return DeltaTable.create(location, pa.schema([pa.field("nothing", pa.int64())]), mode="ignore")
        except DeltaError:
            table = open_at(location)
            if table is None:  # else another run has just created it
                raise
    return table


def _commit(table: DeltaTable, until_ms: int) -> None:
    table.create_write_transaction(
        [],
        "append",
        table.schema(),
        commit_properties=CommitProperties(app_transactions=[Transaction(_APPLICATION, until_ms)]),
        post_commithook_properties=PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False),
    )
    if (table.version() + 1) % _CHECKPOINT_EVERY == 0:
        fresh = DeltaTable(table.table_uri)
        fresh.create_checkpoint()
        fresh.cleanup_metadata()
