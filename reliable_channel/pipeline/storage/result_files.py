"""Results of keyed state, many kinds in one stream, written to their tables in one Spark job.

A row of a result holds many results, pickled: as rows of their own, or as JSON, they would cost as much on their way
through the JVM as the work that made them (docs/pipeline.md *Measurements*). Tasks turn each kind into rows of its
table and write them (:mod:`.task_files`); what is few and for the driver comes to it as it is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.storage.arrow_schema import as_arrow, columns_of
from reliable_channel.pipeline.storage.task_files import TaskFiles, WrittenFile, answer, answers
from reliable_channel.pipeline.tables import BY_NAME

RESULTS = "results"
"""The ``kind`` of a row whose column ``results`` holds packed results."""

FILE = "file"
"""The kind of a result that is a file, written and not committed (:class:`~.task_files.WrittenFile`)."""

PACKED = 2_000
"""So many results at most stand in one row, unless their payloads are many bytes."""

Fields = dict[str, Any]
"""One result by the names of its table's columns: binary as bytes or in base64, times in µs."""


@dataclass(frozen=True)
class Results:
    """What the tasks of a micro-batch have written, and the results that are for the driver, by kind."""

    files: list[WrittenFile]
    told: dict[str, list[Fields]]


def packed(results: Sequence[tuple[str, Fields]]) -> Iterator[bytes]:
    """Results with their kinds, in the order given, for column ``results``."""
    for start in range(0, len(results), PACKED):
        yield pickle.dumps(results[start : start + PACKED], pickle.HIGHEST_PROTOCOL)


def unpacked(blob: bytes) -> list[tuple[str, Fields]]:
    """What :func:`packed` gave. Only for what this job's own functions made: it is trusted."""
    found: list[tuple[str, Fields]] = pickle.loads(blob)  # noqa: S301  not from the network
    return found


def written_results(rows: DataFrame, paths: PathSettings, kinds: Mapping[str, str | None]) -> Results:
    """Compute ``rows`` and write every kind to the table of that name; nothing is committed. ``kinds``: kind → table,
    or ``None`` for those that the driver wants, which JSON must be able to hold. A row of a kind of its own, not
    ``results``, is a row of that table."""
    files: list[WrittenFile] = []
    told: dict[str, list[Fields]] = {}
    for said in answers(rows, _writer(paths, dict(kinds))):
        files += [WrittenFile(*file) for file in said["files"]]
        for kind, fields in said["told"]:
            told.setdefault(kind, []).append(fields)
    return Results(files, told)


class ResultFiles:
    """The files of a task that writes results, and what is not for it to write. A context manager, as
    :class:`~.task_files.TaskFiles`."""

    def __init__(self, paths: PathSettings, kinds: Mapping[str, str | None]) -> None:
        self._kinds = kinds
        self._files = TaskFiles(paths)
        self._written: list[WrittenFile] = []
        self.told: list[tuple[str, Fields]] = []

    def __enter__(self) -> ResultFiles:
        return self

    def __exit__(self, *fault: object) -> None:
        self._files.__exit__(*fault)

    def add(self, results: Sequence[tuple[str, Fields]]) -> None:
        """Write results to their tables. Those of kind ``file`` are files that a task before this one has written."""
        by_table: dict[str, list[Fields]] = {}
        for kind, fields in results:
            if kind == FILE:
                self._written.append(WrittenFile(**fields))
            elif (name := self._kinds[kind]) is None:
                self.told.append((kind, fields))
            else:
                by_table.setdefault(name, []).append(fields)
        for name, rows in by_table.items():
            self._files.add(BY_NAME[name], as_arrow(rows, BY_NAME[name]))

    def add_rows(self, kind: str, rows: pa.RecordBatch) -> None:
        """Write rows of a kind that have columns of its table already."""
        table = BY_NAME[self._kinds[kind] or kind]
        self._files.add(table, columns_of(rows, table))

    def finish(self) -> list[WrittenFile]:
        """Close the files; all there are, those of tasks before included."""
        return [*self._written, *self._files.finish()]

    def handed_on(self) -> list[tuple[str, Fields]]:
        """:meth:`finish`, as results for the task that comes after, with what is not for this one to write."""
        return [*self.told, *((FILE, file._asdict()) for file in self.finish())]


def _writer(
    paths: PathSettings, kinds: Mapping[str, str | None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with ResultFiles(paths, kinds) as files:
            for batch in batches:
                for kind in pc.unique(batch.column("kind")).to_pylist():
                    some = batch.filter(pc.equal(batch.column("kind"), kind))
                    if kind == RESULTS:
                        for blob in some.column(RESULTS):
                            files.add(unpacked(blob.as_py()))
                    else:
                        files.add_rows(kind, some)
            finished = files.finish()
        if finished or files.told:
            yield answer({"files": finished, "told": files.told})

    return write
