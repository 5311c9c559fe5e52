"""Writes the results of keyed state, which are rows of several tables in one stream, in one Spark job.

A result is a row of a table (:func:`~reliable_channel.lake.schema.row_type`), or a named tuple for the driver. A row of
the stream carries many results, packed by table and column. As separate rows, their way through the JVM would cost as
much as computing them, and Arrow batches of a few rows cost twenty times as much (docs/decisions.md). Tasks unpack the
results into Arrow and write them (:mod:`reliable_channel.lake.files`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import of_columns, select_columns
from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.pipeline import counters
from reliable_channel.pipeline.delta import task_result, task_results
from reliable_channel.pipeline.guarded import FailedRows
from reliable_channel.pipeline.handover import deserialize, serialize

RESULTS = "results"
"""The ``kind`` of a row whose column ``results`` holds packed results. Any other kind is the name of the table of which
the row is one."""

PACKED = 2_000
"""The maximum number of results in one row."""

GATHERED_BYTES = 4 * 1024 * 1024
"""The approximate number of bytes of packed results that are written together."""

Result = tuple[Any, ...]
"""A row of a table, or a named tuple for the driver, depending on the name of its class."""

T = TypeVar("T", bound=Result)
Item = TypeVar("Item")


@dataclass(frozen=True)
class Results:
    """The files that tasks of a micro-batch have written, and the results for the driver."""

    files: list[WrittenFile]
    for_driver: list[Result]

    def of(self, kind: type[T]) -> list[T]:
        """The results of one class."""
        return [each for each in self.for_driver if isinstance(each, kind)]


class Sorted(NamedTuple):
    """Results by destination: table → its columns; and, unchanged, results that belong to no table."""

    tables: dict[str, list[list[Any]]]
    others: list[Result]

    def extend(self, more: Sorted) -> None:
        """Append the results of ``more``."""
        for name, columns in more.tables.items():
            if name in self.tables:
                for mine, theirs in zip(self.tables[name], columns, strict=True):
                    mine.extend(theirs)
            else:
                self.tables[name] = columns
        self.others.extend(more.others)


def group_by_table(results: Iterable[Result]) -> Sorted:
    """Group results by table; each group keeps the original order."""
    rows: dict[str, list[Result]] = {}
    others: list[Result] = []
    for result in results:
        name = type(result).__name__
        (rows.setdefault(name, []) if name in BY_NAME else others).append(result)
    return Sorted({name: [[*column] for column in zip(*some, strict=True)] for name, some in rows.items()}, others)


def pack(results: Sequence[Result]) -> Iterator[bytes]:
    """Pack results in the given order, for column ``results``."""
    for start in range(0, len(results), PACKED):
        yield serialize(tuple(group_by_table(results[start : start + PACKED])))


def unpack(blob: bytes) -> Sorted:
    """Undo :func:`pack`."""
    return Sorted(*deserialize(blob))


Derive = Callable[[pa.Table, PathSettings], Iterator[tuple[Table, pa.Table]]]
"""Rows of one table → rows of other tables that follow from them."""


def write_results(rows: DataFrame, sink: BatchSink, derived: Mapping[str, Derive] | None = None) -> Results:
    """Compute ``rows`` and write every result to the files of its table; nothing is committed. Counts the rows that
    were set aside.

    ``derived``: table → further rows to write with its rows."""
    # Not a nested function: that would be pickled with all its globals, 28 KB of table definitions for every task.
    of_tasks: list[Results] = task_results(rows, partial(_write, sink.paths, dict(derived or {})))
    results = Results([*chain(*(each.files for each in of_tasks))], [*chain(*(each.for_driver for each in of_tasks))])
    counters.put(sink.query_id, sink.batch_id, failed_rows=sum(each.rows for each in results.of(FailedRows)))
    return results


class ResultFiles(TaskFiles):
    """Writes a task's results to files, and collects the results for the driver."""

    def __init__(self, paths: PathSettings, derived: Mapping[str, Derive] | None = None) -> None:
        super().__init__(paths)
        self._derived = derived or {}
        self._written: list[WrittenFile] = []
        self.for_driver: list[Result] = []

    def add_results(self, results: Sorted) -> None:
        """Write results to their tables. A ``WrittenFile`` among them is a file that an earlier task has written."""
        for name, columns in results.tables.items():
            rows = of_columns(columns, BY_NAME[name])
            self.add(BY_NAME[name], rows)
            if name in self._derived:
                for table, more in self._derived[name](rows, self._paths):
                    self.add(table, more)
        for result in results.others:
            if isinstance(result, WrittenFile):
                self._written.append(result)
            else:
                self.for_driver.append(result)

    def finish(self) -> list[WrittenFile]:
        """Close the files; returns all of them, including those of earlier tasks."""
        return [*self._written, *super().finish()]


def gather(items: Iterable[Item], measure: Callable[[Item], int], size: int) -> Iterator[list[Item]]:
    """``items`` in lists of about ``size`` bytes, or of one item that has more."""
    some: list[Item] = []
    total = 0
    for item in items:
        some.append(item)
        total += measure(item)
        if total >= size:
            yield some
            some, total = [], 0
    if some:
        yield some


def _unpack_all(blobs: pa.BinaryArray) -> Iterator[Sorted]:
    """Unpack results, many rows together: keys often have only a few results each, and writing key by key costs 1.5 ms
    per key, sixty times as much."""
    for some in gather(blobs, lambda blob: len(blob.as_buffer()), GATHERED_BYTES):
        together = Sorted({}, [])
        for blob in some:
            together.extend(unpack(blob.as_py()))
        yield together


def _write(
    paths: PathSettings, derived: Mapping[str, Derive], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with ResultFiles(paths, derived) as files:
        for batch in batches:
            for kind in pc.unique(batch.column("kind")).to_pylist():
                some = batch.filter(pc.equal(batch.column("kind"), kind))
                if kind == RESULTS:
                    for together in _unpack_all(some.column(RESULTS)):
                        files.add_results(together)
                else:
                    columns = dict(zip(some.schema.names, some.columns, strict=True))
                    files.add(BY_NAME[kind], select_columns(columns, some.num_rows, BY_NAME[kind]))
        finished = files.finish()
    if finished or files.for_driver:
        yield task_result(Results(finished, files.for_driver))
