"""Progress events of JSON: what Spark says, without what PySpark's own cost."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from pyspark.errors.exceptions import captured
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from reliable_channel.pipeline.runner.progress_listener import ProgressListener

pytestmark = pytest.mark.spark


class Recorder(ProgressListener):
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.ended = threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        self.seen.append(event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        self.seen.append(event.progress)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        self.ended.set()


def test_events_are_those_of_spark_and_no_java_exception_is_translated_for_them(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 3).load().groupBy("value").count()
    translated: list[Any] = []
    translate = captured.convert_exception
    listener = Recorder()
    spark.streams.addListener(listener)
    monkeypatch.setattr(captured, "convert_exception", lambda e: translated.append(e) or translate(e))
    try:
        writing = rows.writeStream.format("noop").outputMode("update").queryName("counted").trigger(availableNow=True)
        query = writing.start()
        assert query.awaitTermination(120) and listener.ended.wait(120)
    finally:
        spark.streams.removeListener(listener)
    monkeypatch.undo()
    started, *events = listener.seen
    assert (started, translated) == ("counted", [])
    assert query.lastProgress is not None
    last = json.loads(query.lastProgress.json)
    assert [json.loads(event.json) for event in events][-1] == last
    assert events[-1].stateOperators[0].numRowsTotal == last["stateOperators"][0]["numRowsTotal"] > 0
    assert events[-1].sources[0].numInputRows == last["sources"][0]["numInputRows"]
