"""Writes the Parquet files of Delta tables from Arrow, with Delta's statistics; :mod:`.commit` commits them.

Spark's tasks use it, because their rows are already in Python and need not return to the writer in the JVM. A file that
is never committed, because its task failed or ran twice, is not part of the table; VACUUM deletes it.
"""

from __future__ import annotations

import datetime as dt
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.schema import file_schema
from reliable_channel.lake.tables import EPOCH, INDEXED_COLUMNS, Column, Table

ROW_GROUP_BYTES = 16 * 1024 * 1024
"""Rows are buffered up to about this many bytes in memory, and then written as one row group."""

_SAMPLE_BYTES = 64 * 1024  # a block of snappy, which finds repetitions inside one block only
_WORTH_COMPRESSING = 0.875
"""A binary column is written uncompressed if its sample stays above this share of its size. Ciphertext and Bloom
filters in use do not shrink, and trying is most of the cost of writing them (docs/measurements-history.md)."""

_TEXT_CHARACTERS = 32
"""Characters of a text in the statistics, as in Delta's own writer."""

_AFTER_ALL_TEXT = "\U0010ffff"
_LONGEST_BOUND = 1_100
"""Characters of the longest bound of a text that is kept: an id of nothing but the last character has one of 1 024."""

_WITH_BOUNDS = frozenset(("INT", "BIGINT", "STRING", "TIMESTAMP"))


class WrittenFile(NamedTuple):
    """One file that a task has written. ``path`` is inside the table; ``stats`` is Delta's statistics as JSON."""

    table: str
    path: str
    bytes: int
    written_ms: int
    stats: str


class TaskFiles:
    """Writes the files of one task: one for every table that gets rows. A context manager; after a failure no file
    remains."""

    def __init__(self, paths: PathSettings) -> None:
        self._paths = paths
        self._open: dict[str, _TableFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, fault: object, *_: object) -> None:
        if fault is not None:
            for file in self._open.values():
                file.discard()

    def add(self, table: Table, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows with the columns of ``table``, in any order; other columns are dropped."""
        if rows.num_rows:
            if table.name not in self._open:
                self._open[table.name] = _TableFile(self._paths, table)
            self._open[table.name].add(rows)

    def finish(self) -> list[WrittenFile]:
        """Close the files; returns what the driver needs to commit them."""
        return [file.finish() for file in self._open.values()]


class _TableFile:
    def __init__(self, paths: PathSettings, table: Table) -> None:
        self._table = table
        self._schema = file_schema(table)
        self._filesystem, root = filesystem(paths.table(table.name))
        self._name = f"part-{uuid.uuid4()}.parquet"
        self._path = f"{root}/{self._name}"
        self._bounds = Bounds(table)
        self._kept: list[pa.Table] = []
        self._kept_bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        table = table.select(self._schema.names).cast(self._schema)
        self._bounds.add(table)
        self._kept.append(table)
        self._kept_bytes += table.nbytes
        if self._kept_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        """Write the buffered rows; the first ones decide which columns of the file are compressed."""
        rows = pa.concat_tables(self._kept)
        if self._writer is None:
            self._writer = self._open_writer(rows)
        self._writer.write_table(rows)
        self._kept, self._kept_bytes = [], 0

    def _open_writer(self, first: pa.Table) -> pq.ParquetWriter:
        columns = self._table.columns
        as_they_are = {c.name for c in columns if c.type == "BINARY" and not compressible(first[c.name])}
        try:
            return pq.ParquetWriter(
                self._path,
                self._schema,
                filesystem=self._filesystem,
                compression={name: "none" if name in as_they_are else "snappy" for name in _list_leaves(self._schema)},
                store_schema=False,
                # Only texts repeat. A dictionary of hashes or payloads takes a fifth of the time to write them, and
                # makes the file larger; their bounds exclude nothing, here as in Delta's log.
                use_dictionary=[c.name for c in columns if c.type == "STRING"],
                write_statistics=[c.name for c in columns_with_statistics(self._table)],
            )
        except FileNotFoundError:
            raise EnvironmentFault(f"The table {self._table.name} was deleted.", "Restore it from a copy.") from None

    def finish(self) -> WrittenFile:
        if self._kept:
            self._write()
        if self._writer is not None:
            self._writer.close()
        size = self._filesystem.get_file_info(self._path).size
        return WrittenFile(self._table.name, self._name, size, time.time_ns() // 1_000_000, self._bounds.json())

    def discard(self) -> None:
        self._kept = []
        # The file is not part of the table, and the original fault is the one to report. It may be there without a
        # writer: on a full disk not even the first bytes can be written.
        with suppress(OSError):
            if self._writer is not None:
                self._writer.close()
        with suppress(OSError):
            self._filesystem.delete_file(self._path)


def compressible(column: pa.ChunkedArray) -> bool:
    """Whether snappy shrinks a binary column, tested on a sample of consecutive values from its middle."""
    rows = max(1, len(column) * _SAMPLE_BYTES // max(1, column.nbytes))
    sample = b"".join(value for value in column.slice(len(column) // 2, rows).to_pylist() if value)
    return not sample or len(pa.compress(sample, "snappy", asbytes=True)) <= _WORTH_COMPRESSING * len(sample)


def _list_leaves(schema: pa.Schema) -> Iterator[str]:
    """The column names for options of a Parquet file: columns inside lists and structs are named by their paths."""

    def inside(path: str, type_: pa.DataType) -> Iterator[str]:
        if pa.types.is_list(type_):
            yield from inside(f"{path}.list.element", type_.value_type)
        elif pa.types.is_struct(type_):
            for field in type_:
                yield from inside(f"{path}.{field.name}", field.type)
        else:
            yield path

    for field in schema:
        yield from inside(field.name, field.type)


class Bounds:
    """Computes Delta's statistics of one file: the number of rows, and the minimum, maximum and null count of the
    indexed columns."""

    def __init__(self, table: Table) -> None:
        self._columns = columns_with_statistics(table)
        self._rows = 0
        self._nulls = dict.fromkeys((c.name for c in self._columns), 0)
        self._least: dict[str, Any] = {}
        self._largest: dict[str, Any] = {}

    def add(self, rows: pa.Table) -> None:
        """Add rows with the columns of the table."""
        self._rows += rows.num_rows
        for column in self._columns:
            values = rows[column.name]
            self._nulls[column.name] += values.null_count
            if values.null_count == rows.num_rows:
                continue
            if column.type == "TIMESTAMP":
                values = values.cast(pa.int64())
            ends = pc.min_max(values)
            least, largest = ends["min"].as_py(), ends["max"].as_py()
            self._least[column.name] = min(least, self._least.get(column.name, least))
            self._largest[column.name] = max(largest, self._largest.get(column.name, largest))

    def json(self) -> str:
        """The statistics as JSON for Delta's log. Bounds of texts and times are rounded outwards.

        A file with a value that has no bound (a time outside the calendar) has only its number of rows: delta-rs
        compares a filter with a bound that is missing as with NULL, and then skips the file."""
        types = {column.name: column.type for column in self._columns}
        least = {name: _round_down(value, types[name]) for name, value in self._least.items()}
        largest = {name: _round_up(value, types[name]) for name, value in self._largest.items()}
        statistics: dict[str, Any] = {"numRecords": self._rows}
        if None not in (*least.values(), *largest.values()):
            statistics |= {"minValues": least, "maxValues": largest, "nullCount": self._nulls}
        # Not escaped: delta-rs reads the pair that stands for U+10FFFF in JSON as another character.
        return json.dumps(statistics, ensure_ascii=False)


def columns_with_statistics(table: Table) -> list[Column]:
    """The columns with statistics: only those of which every writer records both bounds. Spark records none of flags,
    no writer one of NaN, and delta-rs takes a bound that is missing for one that excludes every row."""
    return [column for column in table.columns[:INDEXED_COLUMNS] if column.type in _WITH_BOUNDS]


def _round_down(value: Any, type_: str) -> Any:
    if type_ == "TIMESTAMP":
        return _format_time(value // 1_000)
    return value[:_TEXT_CHARACTERS] if isinstance(value, str) else value


def _round_up(value: Any, type_: str) -> Any:
    if type_ == "TIMESTAMP":
        return _format_time(-(-value // 1_000))
    if isinstance(value, str) and len(value) > _TEXT_CHARACTERS:
        # A run of the last character lies above its own shortened bound.
        bound = max(value[:_TEXT_CHARACTERS] + _AFTER_ALL_TEXT, value)
        return bound if len(bound) <= _LONGEST_BOUND else None
    return value


def _format_time(ms: int) -> str | None:
    try:
        moment = EPOCH + dt.timedelta(milliseconds=ms)
    except OverflowError:  # before year 1 or after 9999: a copied row of a foreign writer
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
