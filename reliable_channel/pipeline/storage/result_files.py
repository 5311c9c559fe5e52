"""Results of keyed state, many kinds in one stream, written to their tables in one Spark job.

A row of a result has a ``kind`` and its fields as JSON text (column ``result``; binary in base64, times in µs). Tasks
turn each kind into rows of its table and write them (:mod:`.task_files`); what is few and for the driver comes to it as
it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.storage.arrow_schema import as_arrow
from reliable_channel.pipeline.storage.task_files import TaskFiles, WrittenFile
from reliable_channel.pipeline.tables import BY_NAME, Table


@dataclass(frozen=True)
class Kind:
    """Where results of a kind go: the name of their ``table``, or to the driver. Fields of the table that ``kept``
    names stand in columns of the result (name in the table → name there) instead of the JSON; with ``result`` of
    false all of them do."""

    table: str | None
    kept: Mapping[str, str] = field(default_factory=dict)
    result: bool = True


@dataclass(frozen=True)
class Results:
    """What the tasks of a micro-batch have written, and the results that are for the driver, by kind."""

    files: list[WrittenFile]
    told: dict[str, list[dict[str, Any]]]

    def of_table(self, table: Table) -> list[WrittenFile]:
        """The files of one table."""
        return [file for file in self.files if file.table == table.name]


def written_results(rows: DataFrame, paths: PathSettings, kinds: Mapping[str, Kind]) -> Results:
    """Compute ``rows`` and write every kind to its table; nothing is committed. Results for the driver come with the
    fields of their JSON and their Kafka partition."""
    files: list[WrittenFile] = []
    told: dict[str, list[dict[str, Any]]] = {}
    for row in rows.mapInArrow(_writer(paths, dict(kinds)), "answer string").collect():
        answer = json.loads(row.answer)
        files += [WrittenFile(*file) for file in answer["files"]]
        for kind, fields in answer["told"]:
            told.setdefault(kind, []).append(fields)
    return Results(files, told)


def _writer(
    paths: PathSettings, kinds: Mapping[str, Kind]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        told: list[tuple[str, dict[str, Any]]] = []
        with TaskFiles(paths) as files:
            for batch in batches:
                for name in pc.unique(batch.column("kind")).to_pylist():
                    kind = kinds[name]
                    some = batch.filter(pc.equal(batch.column("kind"), name))
                    if kind.table is None:
                        told += [(name, fields) for fields in _fields(some)]
                    else:
                        files.add(BY_NAME[kind.table], rows_of_kind(some, kind, BY_NAME[kind.table]))
            finished = files.finish()
        if finished or told:
            answer = json.dumps({"files": finished, "told": told})
            yield pa.RecordBatch.from_pylist([{"answer": answer}])

    return write


def rows_of_kind(results: pa.RecordBatch, kind: Kind, table: Table) -> pa.Table:
    """Results of one kind as rows of its table; what they do not say is null."""
    kept = {name: results.column(place) for name, place in kind.kept.items()}
    texts: Sequence[str] = results.column("result").to_pylist() if kind.result else ()
    fields = [json.loads(text) for text in texts] if kind.result else [{}] * results.num_rows
    return as_arrow(fields, table, kept)


def _fields(results: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    columns = [results.column(name).to_pylist() for name in ("kafka_topic", "kafka_partition", "result")]
    for topic, partition, text in zip(*columns, strict=True):
        yield {"kafka_topic": topic, "kafka_partition": partition, **json.loads(text)}
