"""Converts the definitions of :mod:`reliable_channel.lake.tables` to Arrow schemas, and rows to Arrow tables."""

from __future__ import annotations

import functools
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

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
    """The columns of a table with their types, nullability and comments, to create it.

    Rows to append must have no comments (:func:`file_schema`): delta-rs refuses comments that differ from those of the
    table, which an earlier version may have created."""
    return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], c.nullable, {"comment": c.comment}) for c in table.columns])


@functools.cache
def file_schema(table: Table) -> pa.Schema:
    """The columns of a table with their types and nullability, as in its Parquet files."""
    return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], c.nullable) for c in table.columns])


Row: TypeAlias = Any
"""A row of a table, an instance of its :func:`row_type`."""


@functools.cache
def row_type(table: Table) -> Any:
    """The class of a table's rows, a named tuple with the name and the columns of the table; an omitted column is
    ``None``. Times are µs. Raises ``TypeError`` for an unknown column."""
    return namedtuple(table.name, table.names(), defaults=[None] * len(table.columns))


def as_arrow(rows: Sequence[Mapping[str, Any]], table: Table) -> pa.Table:
    """Convert rows of Python values (times in µs) to Arrow with the columns of ``table``; missing values are null."""
    return of_columns([[row.get(name) for row in rows] for name in table.names()], table)


def of_columns(columns: Sequence[Sequence[Any]], table: Table) -> pa.Table:
    """Convert one list of values per column of ``table``, in order, to an Arrow table."""
    schema = file_schema(table)
    return pa.Table.from_arrays([pa.array(*each) for each in zip(columns, schema.types, strict=True)], schema=schema)


def select_columns(columns: Mapping[str, pa.Array], count: int, table: Table) -> pa.RecordBatch:
    """``count`` rows with exactly the columns of ``table``, of its types: missing ones are null, others are dropped."""
    arrays = [
        columns[c.name].cast(ARROW_TYPES[c.type]) if c.name in columns else pa.nulls(count, ARROW_TYPES[c.type])
        for c in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, [*table.names()])
