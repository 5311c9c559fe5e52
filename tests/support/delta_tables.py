"""Reads whole tables for tests that look at their rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from reliable_channel.analysis.report.snapshot import read_dataset
from reliable_channel.lake.read import no_table_fault, open_at


def read_table(data_dir: str | Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """One table as Arrow. Raises :class:`EnvironmentFault` when there is none, or when it cannot be read."""
    table = open_at(f"{data_dir}/{name}")
    if table is None:
        raise no_table_fault(f"{data_dir}/{name}")
    return read_dataset(table).to_table(columns=list(columns) if columns else None)
