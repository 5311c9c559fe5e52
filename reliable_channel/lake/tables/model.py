"""The types of a table and of a column, and the Spark DDL of both."""

from __future__ import annotations

from dataclasses import dataclass

DAY_MS = 24 * 3600 * 1000

INDEXED_COLUMNS = 14
"""Of so many columns a table's log keeps least and largest values. They stop before the long binary and array columns:
those cost time and skip nothing."""

HISTORY_TYPE = "ARRAY<STRUCT<sds_id: STRING, retrieval_hint: BINARY, sender_id: STRING>>"
"""The type of a causal history and of a repair request: SDS ``HistoryEntry`` (LIP-109)."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column: name, Spark SQL type, what it means, the unit where there is one, and a value as an example.

    ``example`` is text in the form of the reference (docs): binary as ``0x`` hex, times as ISO 8601 in UTC, arrays and
    structs as JSON; a test holds that it fits type and unit."""

    name: str
    type: str
    meaning: str
    nullable: bool = True
    unit: str = ""
    example: str = ""

    @property
    def comment(self) -> str:
        """The column's comment in Delta's own schema: the meaning, with the unit."""
        return f"{self.meaning} ({self.unit})" if self.unit else self.meaning


@dataclass(frozen=True, slots=True)
class Table:
    """One Delta table. ``key`` are the columns that are unique; ``retention_ms`` is ``None`` where rows are kept.

    ``clock_rows``: the column in which ``tick`` marks a row of the recorded clock. Such rows are for the jobs alone;
    every other reader opens the table without them. ``former_name``: what versions before called the table."""

    name: str
    comment: str
    writer: str
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    z_order_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    retention_ms: int | None = None
    retention_column: str = "event_time"
    clock_rows: str = ""
    former_name: str = ""

    def ddl(self) -> str:
        """The columns as a Spark DDL string, for ``StructType.fromDDL`` and the schemas of UDFs."""
        return ", ".join(f"`{c.name}` {c.type}" for c in self.columns)

    def names(self) -> tuple[str, ...]:
        """The column names, in order."""
        return tuple(c.name for c in self.columns)

    def types(self, *names: str) -> dict[str, str]:
        """Some columns, in this order → their Spark SQL types."""
        found = {c.name: c.type for c in self.columns}
        return {name: found[name] for name in names}
