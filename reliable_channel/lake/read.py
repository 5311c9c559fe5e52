"""Reads Delta tables without Spark: the files of a table as an Arrow dataset.

The jobs read whole tables (:func:`dataset_of`). Everybody else reads them without the rows of the recorded clock
(:func:`public_dataset`).
"""

from __future__ import annotations

import calendar
from collections.abc import Collection
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as fs
from deltalake import DeltaTable

from reliable_channel.lake.tables import BY_NAME

TIMES = tuple(calendar.timegm((year, 1, 1, 0, 0, 0)) * 1_000_000 for year in (1950, 2200))
"""pandas counts no more than 292 years, Python no year above 9999; what a row says of times before and after these (µs)
counts as these."""
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def dataset_of(table: DeltaTable, dictionaries: Collection[str] = ()) -> ds.Dataset:
    """The files of ``table`` at its version, to be scanned, with ``dictionaries`` for these columns.

    Over Arrow's own file system where the table is on this machine. The default of delta-rs calls Python from Arrow's
    threads; one that does so while the interpreter ends aborts the process ("terminate called without an active
    exception", code -6): 23 of 100 processes that read two small tables as their last act, none of 100 this way."""
    here = url2pathname(urlsplit(table.table_uri).path) if table.table_uri.startswith("file:") else None
    own = fs.SubTreeFileSystem(here, fs.LocalFileSystem()) if here is not None else None
    # Spark writes times as INT96, which Arrow would take as ns: not every year has such.
    options = ds.ParquetReadOptions(dictionary_columns=dictionaries, coerce_int96_timestamp_unit="us")
    return table.to_pyarrow_dataset(filesystem=own, parquet_read_options=options)


def public_dataset(table: DeltaTable, dictionaries: Collection[str] = ()) -> ds.Dataset:
    """The files of ``table`` without the rows of the recorded clock, which are for the jobs alone."""
    whole = dataset_of(table, dictionaries)
    definition = BY_NAME.get(unquote(urlsplit(table.table_uri).path).rstrip("/").rpartition("/")[2])
    if definition is None or not definition.clock_rows:
        return whole
    kind = pc.field(definition.clock_rows)
    return whole.filter(kind.is_null() | (kind != "tick"))


def rows_of(table: DeltaTable, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """All rows of ``table``, or their ``columns``, for tables that fit into memory."""
    rows: list[dict[str, Any]] = dataset_of(table).to_table(columns=columns).to_pylist()
    return rows


def in_our_time(rows: _Rows) -> _Rows:
    """``rows`` with every time cut to :data:`TIMES`, so that one row of a foreign writer ends nobody's reading."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            times = pc.max_element_wise(rows.column(at).cast(pa.int64()), TIMES[0], skip_nulls=False)
            times = pc.min_element_wise(times, TIMES[1], skip_nulls=False)
            rows = rows.set_column(at, field, times.cast(field.type))
    return rows
