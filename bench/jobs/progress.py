"""Records the progress of the measured queries, as ``reliable-channel run`` does, and keeps it."""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from typing import Any

from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import PIPELINE_METRICS
from reliable_channel.pipeline.runner.metrics import MetricsListener, PrometheusMetrics


class Recorder(MetricsListener):
    """Writes ``pipeline_metrics`` for every query of a session, and keeps the measures of micro-batches with rows."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        create_tables(settings.paths, [PIPELINE_METRICS])
        super().__init__(settings.paths, PrometheusMetrics())
        self.batches: defaultdict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
        """Query → micro-batch → its measures, and when it began (``at``, Unix s)."""
        spark.streams.addListener(self)

    def record(self, progress: dict[str, Any]) -> dict[str, float]:
        """Record one micro-batch, and keep it."""
        values = super().record(progress)
        if values["input_rows"]:
            began = dt.datetime.fromisoformat(progress["timestamp"]).timestamp()
            self.batches[progress["name"] or "query"][progress["batchId"]] = {"at": began, **values}
        return values

    def select_since(self, since: float) -> dict[str, list[dict[str, Any]]]:
        """Return the micro-batches that began after ``since`` (Unix s), in order, by query."""
        return {
            query: [batch for _, batch in sorted(batches.items()) if batch["at"] >= since]
            for query, batches in self.batches.items()
        }
