"""The table definitions are consistent, and their documentation is current."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.lake.tables import TABLES, Table
from reliable_channel.lake.tables.docs import markdown

each_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


@each_table
def test_named_columns_exist_once(table: Table) -> None:
    names = table.names()
    assert len(set(names)) == len(names)
    assert {*table.key, *table.z_order_by} <= set(names)
    if table.retention_ms is not None:
        assert table.retention_column in names


@each_table
def test_columns_of_the_z_order_have_statistics(table: Table) -> None:
    """A z-order helps readers through the statistics of files, which stop after the first 14 columns (ddl)."""
    assert all(table.names().index(column) < 14 for column in table.z_order_by)


@each_table
def test_every_column_is_explained(table: Table) -> None:
    assert all(column.comment for column in table.columns)


def test_docs_are_current() -> None:
    file = Path(__file__).parents[3] / "docs" / "tables.md"
    assert file.read_text(encoding="utf-8") == markdown(), "run: reliable-channel tables docs --output docs/tables.md"
