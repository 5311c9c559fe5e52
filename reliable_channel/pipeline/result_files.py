"""Writes the results of keyed state, of many kinds in one stream, to their tables in one Spark job.

A row carries many results, packed by table and column: as rows of their own they would cost as much on their way
through the JVM as the work that made them. Tasks unpack them into Arrow and write it
(:mod:`reliable_channel.lake.files`); results that no table takes are returned to the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import by_column, columns_of, of_columns
from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.pipeline.delta import task_result, task_results

RESULTS = "results"
"""The ``kind`` of a row whose column ``results`` holds packed results."""

FILE = "file"
"""The kind of a result that is a file, written and not committed (``WrittenFile``)."""

PACKED = 2_000
"""The most results in one row."""

GATHERED_BYTES = 4 * 1024 * 1024
"""Packed results that are written together: about so many bytes of them."""

Fields = dict[str, Any]
"""One result by the names of its table's columns; times in µs."""


@dataclass(frozen=True)
class Results:
    """What the tasks of a micro-batch have written, and the results that are for the driver, by kind."""

    files: list[WrittenFile]
    driver_results: dict[str, list[Fields]]


Kinds = Mapping[str, str | None]
"""Kind → the table it belongs to, or ``None`` for what the driver wants."""


class Sorted(NamedTuple):
    """Some results by where they go: table → its columns; and, as they are, those that no table takes."""

    tables: dict[str, list[list[Any]]]
    others: list[tuple[str, Fields]]

    def extend(self, more: Sorted) -> None:
        """Add others, behind these."""
        for name, columns in more.tables.items():
            if name in self.tables:
                for mine, theirs in zip(self.tables[name], columns, strict=True):
                    mine.extend(theirs)
            else:
                self.tables[name] = columns
        self.others.extend(more.others)


def sorted_out(results: Sequence[tuple[str, Fields]], kinds: Kinds) -> Sorted:
    """Results with their kinds, by table; in the order given, within a table and among the others."""
    rows: dict[str, list[Fields]] = {}
    others: list[tuple[str, Fields]] = []
    for kind, fields in results:
        name = None if kind == FILE else kinds[kind]
        if name is None:
            others.append((kind, fields))
        else:
            rows.setdefault(name, []).append(fields)
    return Sorted({name: by_column(some, BY_NAME[name]) for name, some in rows.items()}, others)


def packed(results: Sequence[tuple[str, Fields]], kinds: Kinds) -> Iterator[bytes]:
    """Results with their kinds, in the order given, for column ``results``."""
    for start in range(0, len(results), PACKED):
        yield pickle.dumps(tuple(sorted_out(results[start : start + PACKED], kinds)), pickle.HIGHEST_PROTOCOL)


def unpacked(blob: bytes) -> Sorted:
    """What :func:`packed` gave. Only for what this job's own functions made: it is trusted."""
    return Sorted(*pickle.loads(blob))  # noqa: S301  not from the network


Derive = Callable[[pa.Table, PathSettings], Iterator[tuple[Table, pa.Table]]]
"""Rows of one table → rows of other tables that follow from them."""


def written_results(
    rows: DataFrame, paths: PathSettings, kinds: Kinds, derived: Mapping[str, Derive] | None = None
) -> Results:
    """Compute ``rows`` and write every kind to its table; nothing is committed. What the driver wants must be such that
    JSON can hold it. A row of a kind of its own, not ``results``, is a row of that table. ``derived``: table → what
    the task that writes its rows also writes."""
    files: list[WrittenFile] = []
    driver_results: dict[str, list[Fields]] = {}
    for result in task_results(rows, _writer(paths, dict(kinds), dict(derived or {}))):
        files += [WrittenFile(*file) for file in result["files"]]
        for kind, fields in result["driver_results"]:
            driver_results.setdefault(kind, []).append(fields)
    return Results(files, driver_results)


class ResultFiles:
    """The files of a task that writes results, and what is not for it to write. A context manager, as
    :class:`~reliable_channel.lake.files.TaskFiles`."""

    def __init__(self, paths: PathSettings, kinds: Kinds, derived: Mapping[str, Derive] | None = None) -> None:
        self._paths, self._kinds, self._derived = paths, kinds, derived or {}
        self._files = TaskFiles(paths)
        self._written: list[WrittenFile] = []
        self.driver_results: list[tuple[str, Fields]] = []

    def __enter__(self) -> ResultFiles:
        return self

    def __exit__(self, *fault: object) -> None:
        self._files.__exit__(*fault)

    def add(self, results: Sorted) -> None:
        """Write results to their tables. Those of kind ``file`` are files that a task before this one has written."""
        for name, columns in results.tables.items():
            rows = of_columns(columns, BY_NAME[name])
            self._files.add(BY_NAME[name], rows)
            if name in self._derived:
                for table, more in self._derived[name](rows, self._paths):
                    self._files.add(table, more)
        for kind, fields in results.others:
            if kind == FILE:
                self._written.append(WrittenFile(**fields))
            else:
                self.driver_results.append((kind, fields))

    def add_rows(self, kind: str, rows: pa.RecordBatch) -> None:
        """Write rows of a kind that have columns of its table already."""
        table = BY_NAME[self._kinds[kind] or kind]
        self._files.add(table, columns_of(rows, table))

    def finish(self) -> list[WrittenFile]:
        """Close the files; all there are, those of tasks before included."""
        return [*self._written, *self._files.finish()]

    def handed_on(self) -> list[tuple[str, Fields]]:
        """:meth:`finish`, as results for the task that comes after, with what is not for this one to write."""
        return [*self.driver_results, *((FILE, file._asdict()) for file in self.finish())]


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
    paths: PathSettings, kinds: Kinds, derived: Mapping[str, Derive]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ResultFiles(paths, kinds, derived) as files:
            for batch in batches:
                for kind in pc.unique(batch.column("kind")).to_pylist():
                    some = batch.filter(pc.equal(batch.column("kind"), kind))
                    if kind == RESULTS:
                        for together in _gathered(some.column(RESULTS)):
                            files.add(together)
                    else:
                        files.add_rows(kind, some)
            finished = files.finish()
        if finished or files.driver_results:
            yield task_result({"files": finished, "driver_results": files.driver_results})

    return write
