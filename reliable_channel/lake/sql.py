"""Runs SQL over Delta tables with the query engine of delta-rs, without Spark.

Unlike Arrow's data sets it has no threads that call Python, which can abort a process that is ending; and it does not
load pandas, whose import takes a third of the time that ``status`` has.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def select(query: str, **tables: DeltaTable) -> list[dict[str, Any]]:
    """The rows of a query over tables by name."""
    engine = QueryBuilder()
    for name, table in tables.items():
        engine = engine.register(name, table)
    found = as_table(engine.execute(query).read_all())
    columns = [_values(found[name]) for name in found.column_names]
    return [dict(zip(found.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def quoted(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"


def as_table(stream: Any) -> pa.Table:
    """What delta-rs gives, as a table. ``pa.table`` would ask pandas first."""
    return pa.RecordBatchReader.from_stream(stream).read_all()


def _values(column: pa.ChunkedArray) -> list[Any]:
    """A column as Python values. Times go by way of numbers: Arrow would import pandas for them as well."""
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if at is None else _EPOCH + dt.timedelta(microseconds=at) for at in micros]
