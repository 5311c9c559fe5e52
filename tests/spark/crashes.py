"""Crashes as an input: a query of the pipeline that breaks off at a chosen point, to be started again."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame

from reliable_channel.config import Settings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.runner.queries import Query
from tests.support.waiting import until

AFTER_THE_LAST = "after the last append"


class CrashError(RuntimeError):
    """The process would be gone here."""


@dataclass(frozen=True)
class CrashingSink(BatchSink):
    """Takes ``appends_left`` appends of a micro-batch and breaks off at the next one."""

    appends_left: list[int]

    def add_files(self, table: Table, files: Sequence[WrittenFile]) -> None:
        self._count()
        super().add_files(table, files)

    def append_small(self, rows: pa.Table, table: Table) -> None:
        self._count()
        super().append_small(rows, table)

    def _count(self) -> None:
        if self.appends_left[0] == 0:
            raise CrashError("before an append")
        self.appends_left[0] -= 1


def breaking_off(query: Query, appends: int) -> Query:
    """``query`` that breaks off in its first micro-batch: before the append that follows ``appends`` of them, or, when
    it makes no more, after its last one and before the checkpoint knows of the micro-batch."""

    def writer(settings: Settings) -> Callable[[DataFrame, BatchSink], None]:
        write = query.writer(settings)

        def crash(rows: DataFrame, sink: BatchSink) -> None:
            write(rows, CrashingSink(sink.paths, sink.query_id, sink.batch_id, [appends]))
            raise CrashError(AFTER_THE_LAST)

        return crash

    return replace(query, writer=writer)


@dataclass(frozen=True)
class DyingWorker:
    """A function of ``applyInPandasWithState`` whose Python worker is killed once. With ``checkpoint`` that happens in
    the second task that begins, as soon as the first one has committed its state, so that the state of a micro-batch is
    written by halves; without, in the first call."""

    function: Callable[..., Any]
    notes: Path
    checkpoint: Path | None

    def __call__(self, key: Any, frames: Any, state: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is not None and not self.died() and not self._first(context.taskAttemptId()):
            committed = self.checkpoint
            until(
                lambda: committed is None or any(committed.glob("state/0/*/1.changelog")),
                "the other task did not commit its state",
            )
            (self.notes / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        yield from self.function(key, frames, state)

    def died(self) -> bool:
        """Whether it was killed."""
        return (self.notes / "died").exists()

    def _first(self, task: int) -> bool:
        if self.checkpoint is None:
            return False
        note = self.notes / "first"
        try:
            with note.open("x") as file:
                file.write(str(task))
        except FileExistsError:
            return note.read_text() in ("", str(task))
        return True


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have the tests on their path
