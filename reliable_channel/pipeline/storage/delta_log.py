"""Commits of files that tasks have written (:mod:`.task_files`) to Delta tables, each micro-batch once.

Through Delta's own transaction in the JVM, which knows clustering, conflicts and checkpoints; delta-rs does not
write clustered tables. A commit carries ``(query id, batch id)`` as Delta's application transaction. Whether one is
there already is asked of delta-rs: Delta itself computes the whole state of the table for the answer, in three Spark
jobs and 0.5 s per table and micro-batch, where the commit takes 0.1 s (docs/pipeline.md *Measurements*).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from pyspark.sql import SparkSession

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.storage.checkpoints import filesystem
from reliable_channel.pipeline.storage.task_files import WrittenFile


class TableFile(NamedTuple):
    """A file of a table, by its path inside it."""

    path: str
    bytes: int


class Commit:
    """A transaction on the table at ``place``, for one micro-batch ``(query id, batch id)`` where it is given. Begin it
    before asking whether the micro-batch is there: another writer of the same query in between makes it fail.
    """

    def __init__(self, spark: SparkSession, place: str, batch: tuple[str, int] | None = None) -> None:
        self._jvm: Any = spark._jvm
        self._batch = batch
        log = self._class("DeltaLog").forTable(spark._jsparkSession, place)
        self._transaction = log.startTransaction()
        if batch is not None:
            self._transaction.readTxn().addOne(batch[0])

    @property
    def version(self) -> int:
        """The version of the table that the transaction began at."""
        return int(self._transaction.readVersion())

    def add(self, files: Sequence[WrittenFile]) -> int:
        """Commit the files, all at once. The version that the table has then."""
        mode = self._jvm.org.apache.spark.sql.SaveMode.Append
        return self._commit(_added(files), self._class("DeltaOperations$Write")(mode, *[self._none()] * 8))

    def replace(self, gone: Sequence[TableFile], files: Sequence[WrittenFile]) -> None:
        """Commit ``files`` in the place of those that are ``gone``, which must be there at :attr:`version`. Streams
        with ``skipChangeCommits`` pass over it. Fails when anybody has appended since the transaction began."""
        now = time.time_ns() // 1_000_000
        removed = [
            {
                "remove": {
                    "path": file.path,
                    "deletionTimestamp": now,
                    "dataChange": True,
                    "extendedFileMetadata": True,
                    "partitionValues": {},
                    "size": file.bytes,
                }
            }
            for file in gone
        ]
        self._commit([*removed, *_added(files)], self._class("DeltaOperations$Update")(self._none()))

    def _commit(self, actions: list[dict[str, Any]], operation: Any) -> int:
        if self._batch is not None:
            query_id, batch_id = self._batch
            now = time.time_ns() // 1_000_000
            actions = [{"txn": {"appId": query_id, "version": batch_id, "lastUpdated": now}}, *actions]
        of_json = self._class("actions.Action").fromJson
        parsed = self._sequence([of_json(json.dumps(action)) for action in actions])
        return int(self._transaction.commit(parsed, operation))

    def _sequence(self, items: Sequence[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for item in items:
            listed.add(item)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()

    def _none(self) -> Any:
        return getattr(self._jvm.scala, "None$").__getattr__("MODULE$")

    def _class(self, name: str) -> Any:
        found = self._jvm.org.apache.spark.sql.delta
        for part in name.split("."):
            found = getattr(found, part)
        return found


def _added(files: Sequence[WrittenFile]) -> list[dict[str, Any]]:
    return [
        {
            "add": {
                "path": file.path,
                "partitionValues": {},
                "size": file.bytes,
                "modificationTime": file.written_ms,
                "dataChange": True,
                "stats": file.stats,
            }
        }
        for file in files
    ]


def discard(paths: PathSettings, files: Sequence[WrittenFile]) -> None:
    """Delete files that will not be committed."""
    for file in files:
        there, root = filesystem(paths.table(file.table))
        there.delete_file(f"{root}/{file.path}")
