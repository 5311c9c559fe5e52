"""Reads and appends the table ``alerts``: which alerts are open, and each change exactly once.

Two runs at the same time read the same state and would append the same change twice. So every append carries the number
of the last change as Delta's application transaction: of two that start from the same state one is refused, and starts
again. The same table remembers the last change that was sent to the webhook.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError

from reliable_channel.analysis.alerts.changes import AlertChange, AlertState, Key
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.commit import append_rows_to
from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ALERTS

_CHANGES = "reliable-channel alerts"
_SENT_TO_WEBHOOK = "reliable-channel alerts webhook"

OPEN = """
    SELECT * FROM alerts
    QUALIFY row_number() OVER (PARTITION BY alert, subject ORDER BY sequence DESC) = 1 AND state = 'raised'
"""
"""The alerts that are raised and not cleared: their last change."""


class AlertLog:
    """A snapshot of the table, which is created if it does not exist. Read it again to see what others wrote."""

    def __init__(self, paths: PathSettings) -> None:
        create_table(paths.table(ALERTS.name), ALERTS)
        self._lake = TableSnapshot(paths)
        table = self._lake.table(ALERTS.name)
        if table is None:
            raise EnvironmentFault(f"The table alerts under {paths.data_dir} is gone again.", "Is it being rebuilt?")
        self._table: DeltaTable = table

    def open_alerts(self) -> dict[Key, AlertChange]:
        """The alerts that are raised and not cleared."""
        rows = (_make_change(row) for row in self._lake.select(OPEN))
        return {(change.alert, change.subject): change for change in rows}

    def append(self, changes: Sequence[AlertChange], as_of: dt.datetime | None, now: dt.datetime) -> bool:
        """Append all or none; False when another run appended since this snapshot."""
        if not changes:  # the usual check commits nothing
            return True
        last = self._read_last()
        rows = [
            {**asdict(change), "sequence": last + n, "as_of": as_of, "recorded_at": now}
            for n, change in enumerate(changes, 1)
        ]
        return self._commit(as_arrow(rows, ALERTS), _CHANGES, last + len(rows))

    def read_unsent(self, limit: int) -> list[dict[str, Any]]:
        """The oldest ``limit`` changes that were not sent to the webhook, in order. If none was ever sent, the alerts
        that are open now."""
        sent = self._table.transaction_version(_SENT_TO_WEBHOOK)
        if sent is None:
            return self._lake.select(f"{OPEN} ORDER BY sequence LIMIT $limit", {"limit": limit})
        return self._lake.select(
            "SELECT * FROM alerts WHERE sequence > $sent ORDER BY sequence LIMIT $limit",
            {"sent": sent, "limit": limit},
        )

    def record_sent(self, sequence: int) -> None:
        """Record that the changes up to ``sequence`` were sent. A concurrent run that records the same wins."""
        self._commit(as_arrow([], ALERTS), _SENT_TO_WEBHOOK, sequence)

    def _read_last(self) -> int:
        # Rows go by retention, the number of the last one does not.
        newest = self._lake.select("SELECT max(sequence) AS last FROM alerts")[0]["last"]
        return max(newest or 0, self._table.transaction_version(_CHANGES) or 0)

    def _commit(self, rows: pa.Table, application: str, version: int) -> bool:
        try:
            append_rows_to(self._table, rows, Transaction(application, version))
        except CommitFailedError:
            return False
        return True


def _make_change(row: dict[str, Any]) -> AlertChange:
    values = {field.name: row[field.name] for field in fields(AlertChange)}
    return AlertChange(**values | {"state": AlertState(row["state"])})
