"""The table definitions are consistent, and their documentation is current."""

from __future__ import annotations

import pytest

from reliable_channel.lake.tables import TABLES, Table

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
