"""Defines what a view is, and the functions that both engines need for one SQL text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reliable_channel.core.wire.bloom import false_positive_rate, list_absent
from reliable_channel.lake.tables import CHANNEL_KEY, Column, Table

DUCKDB_MACROS = """\
CREATE TEMP MACRO unix_millis(moment) AS epoch_ms(moment);
CREATE TEMP MACRO timestamp_millis(ms) AS make_timestamptz(1000 * ms);
CREATE TEMP MACRO size(items) AS len(items);
CREATE TEMP MACRO explode(items) AS unnest(items);
CREATE TEMP MACRO struct(a, b) AS row(a, b);
CREATE TEMP MACRO list_ids(history) AS list_transform(history, lambda entry: entry.sds_id);"""
"""Functions of Spark that DuckDB calls by another name: with them one statement serves both. ``list_ids`` is ours."""

EVIDENCE_MACROS = """\
CREATE TEMP MACRO sequence(start, stop, step) AS generate_series(start, stop, step);
CREATE TEMP MACRO slice(items, start, length) AS list_slice(items, start, start + length - 1);
CREATE TEMP MACRO array_repeat(item, times) AS list_transform(range(times), lambda i: item);
CREATE TEMP MACRO array_compact(items) AS list_filter(items, lambda item: item IS NOT NULL);
CREATE TEMP MACRO array_min(items) AS list_min(items);
CREATE TEMP MACRO collect_list(item) AS coalesce(list(item) FILTER (item IS NOT NULL), []);
CREATE TEMP MACRO collect_set(item) AS coalesce(list(DISTINCT item) FILTER (item IS NOT NULL), []);"""
"""More of them, for the queries of verdicts and of causal graphs."""


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
