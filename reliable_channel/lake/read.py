"""Reads Delta tables without Spark: opens them through delta-rs, and gives their files as an Arrow dataset.

The jobs read whole tables (:func:`dataset_of`). Everybody else reads them without the rows of the recorded clock
(:func:`public_dataset`). :func:`select` answers SQL in the engine of delta-rs, without Arrow's datasets, which load
pandas: that takes as long as all of ``status``. Who comes back to a growing table uses :mod:`.follow`.
"""

from __future__ import annotations

import calendar
import datetime as dt
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.tables import BY_NAME, Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds

TIMES = tuple(calendar.timegm((year, 1, 1, 0, 0, 0)) * 1_000_000 for year in (1950, 2200))
"""pandas counts no more than 292 years, Python no year above 9999; what a row says of times before and after these (µs)
counts as these."""
_LONGEST = 300
"""Characters of an error of delta-rs that are shown."""
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_A_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def opened(paths: PathSettings, name: str) -> DeltaTable:
    """A table through delta-rs, without Spark. Raises ``TableNotFoundError`` when it does not exist, and
    ``EnvironmentFault`` when its log is damaged."""
    try:
        return DeltaTable(paths.table(name))
    except TableNotFoundError:
        raise
    except DeltaError as error:
        raise EnvironmentFault(
            f"The Delta table {name} cannot be read: {str(error).splitlines()[0][:_LONGEST].rstrip('.')}.",
            "See whether its _delta_log is whole; `reliable-channel rebuild` derives the tables again.",
        ) from error


def open_table(paths: PathSettings, table: Table) -> DeltaTable:
    """A table as :func:`opened` does, and ``EnvironmentFault`` when it does not exist."""
    try:
        return opened(paths, table.name)
    except TableNotFoundError:
        raise EnvironmentFault(
            f"The table {table.name} does not exist under {paths.data_dir}.", "Run the pipeline first."
        ) from None


def exists(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists."""
    try:
        opened(paths, table.name)
    except TableNotFoundError:
        return False
    return True


def found_as(paths: PathSettings, table: Table) -> Table | None:
    """The table under the name it has here: its own, or that of an earlier version; ``None`` when it does not exist."""
    names = [table.name, *([table.former_name] if table.former_name else [])]
    return next((named for name in names if exists(paths, named := replace(table, name=name))), None)


def holds_rows(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists and has a file with rows."""
    return exists(paths, table) and len(open_table(paths, table).file_uris()) > 0


def rows_in(table: DeltaTable) -> int:
    """How many rows a table has, by the statistics of its files."""
    return sum(rows or 0 for rows in table.get_add_actions(flatten=True).column("num_records").to_pylist())


def open_tables(paths: PathSettings) -> dict[str, DeltaTable]:
    """The tables that exist, by name, in the order of the data flow."""

    def found(name: str) -> DeltaTable | None:
        try:
            return opened(paths, name)
        except TableNotFoundError:
            return None

    with ThreadPoolExecutor(8) as pool:
        return {name: t for name, t in zip(BY_NAME, pool.map(found, BY_NAME), strict=True) if t is not None}


def dataset_of(table: DeltaTable, dictionaries: Collection[str] = ()) -> ds.Dataset:
    """The files of ``table`` at its version, to be scanned, with ``dictionaries`` for these columns.

    Over Arrow's own file system where the table is on this machine. The default of delta-rs calls Python from Arrow's
    threads; one that does so while the interpreter ends aborts the process ("terminate called without an active
    exception", code -6): 23 of 100 processes that read two small tables as their last act, none of 100 this way."""
    import pyarrow.dataset as ds

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
    """All rows of ``table``, or their ``columns``, for tables that fit into memory, with times :func:`in_our_time`."""
    rows: list[dict[str, Any]] = in_our_time(dataset_of(table).to_table(columns=columns)).to_pylist()
    return rows


def in_our_time(rows: _Rows) -> _Rows:
    """``rows`` with every time cut to :data:`TIMES`, so that one row of a foreign writer ends nobody's reading."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            first, last = (moment * _A_SECOND[field.type.unit] // 1_000_000 for moment in TIMES)
            times = pc.max_element_wise(rows.column(at).cast(pa.int64()), first, skip_nulls=False)
            times = pc.min_element_wise(times, last, skip_nulls=False)
            rows = rows.set_column(at, field, times.cast(field.type))
    return rows


def select(query: str, **tables: DeltaTable) -> list[dict[str, Any]]:
    """The rows of a query over tables by name."""
    engine = QueryBuilder()
    for name, table in tables.items():
        engine = engine.register(name, table)
    found = in_our_time(as_table(engine.execute(query).read_all()))
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
