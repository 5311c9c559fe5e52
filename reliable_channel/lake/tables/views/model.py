"""Defines what a view is, and the functions that both engines need for one SQL text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reliable_channel.core.wire.bloom import false_positive_rate, list_absent
from reliable_channel.lake.tables import CHANNEL_KEY, Column, Table

DUCKDB_MACROS = """\
CREATE TEMP MACRO unix_millis(moment) AS epoch_ms(moment);
CREATE TEMP MACRO size(items) AS len(items);
CREATE TEMP MACRO explode(items) AS unnest(items);
CREATE TEMP MACRO struct(a, b) AS row(a, b);"""
"""Functions of Spark that DuckDB calls by another name: with them one statement serves both."""


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[str, ...], str]] = {
    "absent_ids": (list_absent, ("BINARY", "ARRAY<STRING>"), "ARRAY<STRING>"),
    "false_positive_rate": (false_positive_rate, ("BINARY",), "DOUBLE"),
}
"""Functions of Bloom filters that views call, in neither engine: name → function, types of arguments and result."""


@dataclass(frozen=True, slots=True)
class View:
    """A view: its columns, the tables that it reads, and its query."""

    name: str
    comment: str
    tables: tuple[Table, ...]
    columns: tuple[Column, ...]
    sql: str

    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(column.name for column in self.columns)

    def create(self) -> str:
        """The statement that creates the view for one session."""
        return f"CREATE OR REPLACE TEMP VIEW {self.name} AS\n{self.sql}"


CHANNEL = ", ".join(CHANNEL_KEY)
"""The columns that identify a channel, as SQL."""
