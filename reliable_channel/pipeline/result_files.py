"""Writes the results of keyed state, of many kinds in one stream, to their tables in one Spark job.

A result is a row of a table (:func:`~reliable_channel.lake.schema.row_type`), or a named tuple for the driver. A row of
the stream carries many of them, packed by table and column: as rows of their own they would cost as much on their way
through the JVM as the work that made them, and Arrow of a few rows costs twenty times as much (docs/decisions.md).
Tasks unpack them into Arrow and write it (:mod:`reliable_channel.lake.files`).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import columns_of, of_columns
from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.pipeline import counters
from reliable_channel.pipeline.delta import task_result, task_results
from reliable_channel.pipeline.guarded import FailedRows

RESULTS = "results"
"""The ``kind`` of a row whose column ``results`` holds packed results. Any other kind is the name of a table, and the
row is one of it."""

PACKED = 2_000
"""The most results in one row."""

GATHERED_BYTES = 4 * 1024 * 1024
"""Packed results that are written together: about so many bytes of them."""

Result = tuple[Any, ...]
"""A row of a table, or a named tuple for the driver; the name of its class tells which."""

T = TypeVar("T", bound=Result)


@dataclass(frozen=True)
class Results:
    """What the tasks of a micro-batch have written, and the results that are for the driver, with their classes."""

    files: list[WrittenFile]
    for_driver: list[tuple[str, list[Any]]]

    def of(self, kind: type[T]) -> list[T]:
        """Those of one class. They come as JSON, so lists in them are tuples."""
        return [
            kind(*(tuple(each) if isinstance(each, list) else each for each in values))
            for name, values in self.for_driver
            if name == kind.__name__
        ]


class Sorted(NamedTuple):
    """Some results by where they go: table → its columns; and, as they are, those that no table takes."""

    tables: dict[str, list[list[Any]]]
    others: list[Result]

    def extend(self, more: Sorted) -> None:
        """Add others, behind these."""
        for name, columns in more.tables.items():
            if name in self.tables:
                for mine, theirs in zip(self.tables[name], columns, strict=True):
                    mine.extend(theirs)
            else:
                self.tables[name] = columns
        self.others.extend(more.others)


def sorted_out(results: Iterable[Result]) -> Sorted:
    """Results by table; in the order given, within a table and among the others."""
    rows: dict[str, list[Result]] = {}
    others: list[Result] = []
    for result in results:
        name = type(result).__name__
        (rows.setdefault(name, []) if name in BY_NAME else others).append(result)
    return Sorted({name: [[*column] for column in zip(*some, strict=True)] for name, some in rows.items()}, others)


def packed(results: Sequence[Result]) -> Iterator[bytes]:
    """Results in the order given, for column ``results``."""
    for start in range(0, len(results), PACKED):
        yield pickle.dumps(tuple(sorted_out(results[start : start + PACKED])), pickle.HIGHEST_PROTOCOL)


def unpacked(blob: bytes) -> Sorted:
    """What :func:`packed` gave. Only for what this job's own functions made: it is trusted."""
    return Sorted(*pickle.loads(blob))  # noqa: S301  not from the network


Derive = Callable[[pa.Table, PathSettings], Iterator[tuple[Table, pa.Table]]]
"""Rows of one table → rows of other tables that follow from them."""


def written_results(rows: DataFrame, sink: BatchSink, derived: Mapping[str, Derive] | None = None) -> Results:
    """Compute ``rows`` and write every result to its table; nothing is committed. Counts the rows that were set aside.
    What the driver wants must be such that JSON can hold it. ``derived``: table → what the task that writes its rows
    also writes."""
    found = task_results(rows, _writer(sink.paths, dict(derived or {})))
    results = Results(
        [WrittenFile(*file) for task in found for file in task["files"]],
        [(name, values) for task in found for name, values in task["for_driver"]],
    )
    counters.put(sink.query_id, sink.batch_id, failed_rows=sum(each.rows for each in results.of(FailedRows)))
    return results


class ResultFiles:
    """The files of a task that writes results, and what is not for it to write. A context manager, as
    :class:`~reliable_channel.lake.files.TaskFiles`."""

    def __init__(self, paths: PathSettings, derived: Mapping[str, Derive] | None = None) -> None:
        self._paths, self._derived = paths, derived or {}
        self._files = TaskFiles(paths)
        self._written: list[WrittenFile] = []
        self.for_driver: list[Result] = []

    def __enter__(self) -> ResultFiles:
        return self

    def __exit__(self, *fault: object) -> None:
        self._files.__exit__(*fault)

    def add(self, results: Sorted) -> None:
        """Write results to their tables. A ``WrittenFile`` is one that a task before this one has written."""
        for name, columns in results.tables.items():
            rows = of_columns(columns, BY_NAME[name])
            self._files.add(BY_NAME[name], rows)
            if name in self._derived:
                for table, more in self._derived[name](rows, self._paths):
                    self._files.add(table, more)
        for result in results.others:
            if isinstance(result, WrittenFile):
                self._written.append(result)
            else:
                self.for_driver.append(result)

    def add_rows(self, table: Table, rows: pa.RecordBatch) -> None:
        """Write rows that have columns of their table already."""
        self._files.add(table, columns_of(rows, table))

    def finish(self) -> list[WrittenFile]:
        """Close the files; all there are, those of tasks before included."""
        return [*self._written, *self._files.finish()]


def _gathered(blobs: pa.BinaryArray) -> Iterator[Sorted]:
    """Packed results, many rows of them together: keys often have a few results each, and to write those one key after
    the other costs 1.5 ms a key, sixty times as much."""
    together, size = Sorted({}, []), 0
    for blob in blobs:
        together.extend(unpacked(blob.as_py()))
        size += len(blob.as_buffer())
        if size >= GATHERED_BYTES:
            yield together
            together, size = Sorted({}, []), 0
    yield together


def _writer(
    paths: PathSettings, derived: Mapping[str, Derive]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of the last step's tasks. Not one inside another function: such a one is pickled with all that it
    names, here 28 KB of table definitions for every task."""
    return partial(_write, paths, derived)


def _write(
    paths: PathSettings, derived: Mapping[str, Derive], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with ResultFiles(paths, derived) as files:
        for batch in batches:
            for kind in pc.unique(batch.column("kind")).to_pylist():
                some = batch.filter(pc.equal(batch.column("kind"), kind))
                if kind == RESULTS:
                    for together in _gathered(some.column(RESULTS)):
                        files.add(together)
                else:
                    files.add_rows(BY_NAME[kind], some)
        finished = files.finish()
    if finished or files.for_driver:
        for_driver = [(type(result).__name__, result) for result in files.for_driver]
        yield task_result({"files": finished, "for_driver": for_driver})
