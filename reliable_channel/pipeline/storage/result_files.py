"""Results of keyed state, many kinds in one stream, written to their tables in one Spark job.

A row of a result holds many results, pickled: as rows of their own, or as JSON, they would cost as much on their way
through the JVM as the work that made them (docs/pipeline.md *Measurements*). Tasks turn each kind into rows of its
table and write them (:mod:`.task_files`); what is few and for the driver comes to it as it is.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.storage.arrow_schema import as_arrow, conformed
from reliable_channel.pipeline.storage.task_files import TaskFiles, WrittenFile
from reliable_channel.pipeline.tables import BY_NAME, Table

RESULTS = "results"
"""The ``kind`` of a row whose column ``results`` holds packed results."""

PACKED = 2_000
"""So many results at most stand in one row, unless their payloads are many bytes."""

Fields = dict[str, Any]
"""One result by the names of its table's columns: binary as bytes or in base64, times in µs."""


@dataclass(frozen=True)
class Results:
    """What the tasks of a micro-batch have written, and the results that are for the driver, by kind."""

    files: list[WrittenFile]
    told: dict[str, list[Fields]]

    def of_table(self, table: Table) -> list[WrittenFile]:
        """The files of one table."""
        return [file for file in self.files if file.table == table.name]


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
    for row in rows.mapInArrow(_writer(paths, dict(kinds)), "answer string").collect():
        answer = json.loads(row.answer)
        files += [WrittenFile(*file) for file in answer["files"]]
        for kind, fields in answer["told"]:
            told.setdefault(kind, []).append(fields)
    return Results(files, told)


def _writer(
    paths: PathSettings, kinds: Mapping[str, str | None]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told: list[tuple[str, Fields]] = []
        with TaskFiles(paths) as files:
            for batch in batches:
                for kind in pc.unique(batch.column("kind")).to_pylist():
                    some = batch.filter(pc.equal(batch.column("kind"), kind))
                    if kind != RESULTS:
                        table = BY_NAME[kinds[kind] or kind]
                        files.add(table, conformed(some, table))
                        continue
                    for blob in some.column(RESULTS):
                        _write(unpacked(blob.as_py()), kinds, files, told)
            finished = files.finish()
        if finished or told:
            answer = json.dumps({"files": finished, "told": told})
            yield pa.RecordBatch.from_pylist([{"answer": answer}])

    return write


def _write(
    results: Sequence[tuple[str, Fields]],
    kinds: Mapping[str, str | None],
    files: TaskFiles,
    told: list[tuple[str, Fields]],
) -> None:
    by_table: dict[str, list[Fields]] = {}
    for kind, fields in results:
        name = kinds[kind]
        if name is None:
            told.append((kind, fields))
        else:
            by_table.setdefault(name, []).append(fields)
    for name, rows in by_table.items():
        files.add(BY_NAME[name], as_arrow(rows, BY_NAME[name]))
