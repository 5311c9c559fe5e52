"""Defines the types of a table and of a column, and their Spark DDL."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

DAY_MS = 24 * 3600 * 1000

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
"""What numbers of ms and µs count from."""


def micros(moment: dt.datetime) -> int:
    """Convert a time to Unix µs."""
    return (moment - EPOCH) // dt.timedelta(microseconds=1)


TopicPartition = tuple[str, int]
"""Kafka topic and partition."""

INDEXED_COLUMNS = 14
"""The number of columns with minimum and maximum values in a table's log. They end before the long binary and array
columns, whose statistics cost time and skip no files."""

HISTORY_TYPE = "ARRAY<STRUCT<sds_id: STRING, retrieval_hint: BINARY, sender_id: STRING>>"
"""The type of a causal history and of a repair request: SDS ``HistoryEntry`` (LIP-109)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, Spark SQL type, meaning, unit if it has one, and an example value.

    ``example`` is text in the form used by the reference: binary as ``0x`` hex, times as ISO 8601 in UTC, arrays and
    structs as JSON; a test checks that it fits type and unit."""

    name: str
    type: str
    meaning: str
    nullable: bool = True
    unit: str = ""
    example: str = ""

    @property
    def comment(self) -> str:
        """The column's comment in Delta's schema: the meaning, with the unit."""
        return f"{self.meaning} ({self.unit})" if self.unit else self.meaning

    def describe(self, meaning: str, example: str | None = None) -> Column:
        """The same column as a table has it in which it means, or shows, something else."""
        return replace(self, meaning=meaning, example=self.example if example is None else example)


@dataclass(frozen=True, slots=True)
class Table:
    """One Delta table. ``key``: the columns that are unique together; ``retention_ms``: ``None`` if rows are kept.

    ``clock_rows``: the column in which ``tick`` marks a row of the recorded clock. Only the jobs read such rows; all
    other readers open the table without them."""

    name: str
    comment: str
    writer: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    z_order_by: tuple[str, ...] = ()
    retention_ms: int | None = None
    retention_column: str = "event_time"
    clock_rows: str = ""

    def ddl(self) -> str:
        """The columns as a Spark DDL string, for ``StructType.fromDDL`` and the schemas of UDFs."""
        return ", ".join(f"`{c.name}` {c.type}" for c in self.columns)

    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(c.name for c in self.columns)

    def by_name(self) -> dict[str, Column]:
        """Name → column."""
        return {column.name: column for column in self.columns}
