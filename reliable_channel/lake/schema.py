"""Converts the definitions of :mod:`reliable_channel.lake.tables` to Arrow schemas, and rows to Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from reliable_channel.lake.tables import HISTORY_TYPE, Table

ARROW_TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<INT>": pa.list_(pa.int32()),
    "ARRAY<STRING>": pa.list_(pa.string()),
    HISTORY_TYPE: pa.list_(
        pa.struct([("sds_id", pa.string()), ("retrieval_hint", pa.binary()), ("sender_id", pa.string())])
    ),
}
"""Spark SQL type → Arrow type, for every type that a table uses."""


def arrow_schema(table: Table) -> pa.Schema:
    """The columns of a table with their types, nullability and comments."""
    return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], c.nullable, {"comment": c.comment}) for c in table.columns])


def as_arrow(rows: Sequence[Mapping[str, Any]], table: Table) -> pa.Table:
    """Rows of Python values (times in µs) with the columns of ``table``; a missing value is null."""
    return of_columns(by_column(rows, table), table)


def by_column(rows: Sequence[Mapping[str, Any]], table: Table) -> list[list[Any]]:
    """The values of rows as :func:`as_arrow` takes them, by the columns of ``table``: a list for each, in order."""
    return [[row.get(name) for row in rows] for name in table.names()]


def of_columns(columns: Sequence[Sequence[Any]], table: Table) -> pa.Table:
    """What :func:`by_column` gave, as a table of Arrow."""
    arrays = [pa.array(values, ARROW_TYPES[c.type]) for values, c in zip(columns, table.columns, strict=True)]
    fields = [pa.field(c.name, a.type, c.nullable) for c, a in zip(table.columns, arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def columns_of(rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:
    """``rows`` with the columns of ``table``: what they lack is null, what is over is dropped."""
    present = set(rows.schema.names)
    arrays = [
        rows.column(c.name) if c.name in present else pa.nulls(rows.num_rows, ARROW_TYPES[c.type])
        for c in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, [*table.names()])
