"""Publishes the progress of the running queries: rows of ``pipeline_metrics`` and a Prometheus endpoint.

Labels are names of this program's queries and metrics, never strings from the network, so strangers cannot create
series. A fault here is logged and never stops a query (docs/operations.md).
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, make_asgi_app
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.history import read_unread
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import BY_NAME, PIPELINE_METRICS
from reliable_channel.pipeline import counters
from reliable_channel.pipeline.runner.measures import measures
from reliable_channel.pipeline.runner.progress_listener import ProgressListener
from reliable_channel.runtime.failures import explain_known_error
from reliable_channel.transport.http.guard import AccessGuard, AccessRules
from reliable_channel.transport.http.server import serve_in_thread

_log = logging.getLogger(__name__)
_LAST_EVENTS_S = 15.0  # how long the end of a session waits for them
_HISTORY_LIMIT = 1_000  # commits that are looked at, one small file each
_WRITE_EVERY_S = 5.0
"""How long rows wait for others. With a commit for each micro-batch, three in a round of a second, the table would gain
a quarter of a million files in a day."""
_TOTALS = ("input_rows", "quarantined_rows", "failed_rows")


class PrometheusMetrics:
    """The Prometheus metrics: the newest value of every metric per query, running totals, and whether the query
    runs."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def gauge(name: str, what: str, *labels: str) -> Gauge:
            return Gauge(name, what, labels, registry=self.registry)

        lately = "of the last 24 hours of the recorded clock"
        self._values = gauge(
            "reliable_channel_query", "Value of the last micro-batch; the name ends in its unit", "query", "metric"
        )
        self._totals = Counter(
            "reliable_channel_query_rows",
            "Rows since this process started: read, quarantined, set aside",
            ["query", "metric"],
            registry=self.registry,
        )
        self._batch = gauge(
            "reliable_channel_query_last_batch_timestamp_seconds",
            "When the last micro-batch was reported, Unix s",
            "query",
        )
        self._running = gauge("reliable_channel_query_running", "1 while the query runs", "query")
        self._verdicts = gauge("reliable_channel_messages", f"Messages {lately} by verdict", "verdict")
        self._causes = gauge("reliable_channel_missing_messages", f"Missing messages {lately} by cause", "cause")
        stages = "network, waiting for causal order, acknowledgement"
        self._latency = gauge("reliable_channel_latency_seconds", f"Messages {lately}: {stages}", "stage", "quantile")
        self._newest = gauge(
            "reliable_channel_last_record_timestamp_seconds", "When ingest last wrote its clock, Unix s"
        )
        self._next_round = gauge(
            "reliable_channel_next_round_timestamp_seconds",
            "When the next round of verdicts and alerts must have ended, Unix s",
        )
        self._alerts = gauge("reliable_channel_open_alerts", "Alerts that are raised, by rule", "alert", "severity")
        self._judged = gauge("reliable_channel_last_verdict_timestamp_seconds", "When verdicts were last given, Unix s")

    def running(self, query: str, runs: bool) -> None:
        """Note that the query started or ended."""
        self._running.labels(query).set(float(runs))

    def progress(self, query: str, values: dict[str, float]) -> None:
        """Note the values of one finished micro-batch."""
        for metric, value in values.items():
            self._values.labels(query, metric).set(value)
        for metric in _TOTALS:
            self._totals.labels(query, metric).inc(values.get(metric, 0.0))
        self._batch.labels(query).set(time.time())

    def next_round(self, due: float) -> None:
        """Note when the next round of verdicts and alerts must have ended, Unix s."""
        self._next_round.set(due)

    def record_alerts(self, raised: Mapping[tuple[str, str], int]) -> None:
        """Note how many alerts are raised, by the name of their rule and its severity."""
        self._alerts.clear()
        for (alert, severity), number in raised.items():
            self._alerts.labels(alert, severity).set(number)

    def record_verdicts(
        self,
        verdicts: Mapping[str, int],
        causes: Mapping[str, int],
        latency_ms: Mapping[str, Mapping[float, float]],
        newest: dt.datetime | None,
    ) -> None:
        """Note new verdicts: messages by verdict and cause, quantiles of latency by stage (ms), and when the newest
        record was read."""
        for verdict, messages in verdicts.items():
            self._verdicts.labels(verdict).set(messages)
        self._causes.clear()
        for cause, messages in causes.items():
            self._causes.labels(cause).set(messages)
        self._latency.clear()
        for stage, quantiles in latency_ms.items():
            for quantile, ms in quantiles.items():
                self._latency.labels(stage, str(quantile)).set(ms / 1000)
        if newest is not None:
            self._newest.set(newest.timestamp())
        self._judged.set(time.time())


class MetricsListener(ProgressListener):
    """Writes the progress of every query of this session: for Prometheus at once, to the table every
    :data:`_WRITE_EVERY_S`, with Spark's next event after that (the latest is that of an idle query, every ten seconds),
    and when a query ends. Spark calls it for one event at a time."""

    def __init__(self, paths: PathSettings, prometheus: PrometheusMetrics) -> None:
        self._paths, self._prometheus = paths, prometheus
        self._names: dict[str, str] = {}
        self._rows: list[dict[str, Any]] = []
        self._written_s = float("-inf")
        self._changed = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        with self._changed:
            self._names[str(event.runId)] = event.name or "query"
        self._prometheus.running(event.name or "query", True)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802 - Spark's name
        with _log_failure():
            self.record(json.loads(event.progress.json))
            self._write(_WRITE_EVERY_S)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802 - Spark's name
        with _log_failure():
            self._write(_WRITE_EVERY_S)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802 - Spark's name
        with _log_failure():
            self._write()
        with self._changed:
            name = self._names.pop(str(event.runId), None)
            self._changed.notify_all()
        if name is not None:
            self._prometheus.running(name, False)

    def record(self, progress: dict[str, Any]) -> dict[str, float]:
        """Note one micro-batch's progress for the table and for Prometheus; returns its measures."""
        query_id, batch_id = str(progress.get("id")), int(progress.get("batchId", -1))
        values = measures(progress, counters.take(query_id, batch_id), self._count_unread)
        query = str(progress.get("name") or "query")
        self._prometheus.progress(query, values)
        now = dt.datetime.now(dt.UTC)
        common = {"query": query, "query_id": query_id, "run_id": str(progress.get("runId")), "batch_id": batch_id}
        self._rows += [{**common, "metric": m, "value": v, "recorded_at": now} for m, v in values.items()]
        return values

    def _write(self, every_s: float = 0.0) -> None:
        """Append the rows to the table, unless that was done less than ``every_s`` ago. Rows that cannot be written are
        lost."""
        if self._rows and time.monotonic() - self._written_s >= every_s:
            rows, self._rows = self._rows, []
            append_rows(self._paths, PIPELINE_METRICS, as_arrow(rows, PIPELINE_METRICS))
            self._written_s = time.monotonic()

    def drain(self) -> None:
        """Wait for the last event of every started query; events arrive a little after the query's end."""
        with self._changed:
            self._changed.wait_for(lambda: not self._names, _LAST_EVENTS_S)

    def _count_unread(self, table: str, next_version: int) -> int | None:
        """The number of unread appending commits of a table, counted up to :data:`_HISTORY_LIMIT`."""
        if table not in BY_NAME:
            return None
        return len(read_unread(open_table(self._paths, BY_NAME[table]), next_version, _HISTORY_LIMIT))


@contextmanager
def _log_failure() -> Iterator[None]:
    """Log what fails inside the block, whatever it is: it must not stop the query."""
    try:
        yield
    except Exception as error:
        fault = explain_known_error("Writing the metrics of a micro-batch", str(error))
        _log.warning(
            "%s", fault.cause if fault else "The metrics of a micro-batch were not written.", exc_info=not fault
        )


@contextmanager
def record_metrics(
    spark: SparkSession, settings: Settings, *, serve: bool, port_offset: int = 0
) -> Iterator[PrometheusMetrics]:
    """Record the progress of every query that runs inside the block; with ``serve``, also for Prometheus.

    The endpoint is ``http://<metrics.host>:<metrics.port + port_offset>/metrics``; ``metrics.port`` 0 disables it. A
    port in use is only logged, because metrics must not keep the pipeline from running."""
    create_tables(settings.paths, [PIPELINE_METRICS])
    prometheus = PrometheusMetrics()
    listener = MetricsListener(settings.paths, prometheus)
    with ExitStack() as opened:
        if serve and settings.metrics.port:
            opened.enter_context(serve_prometheus(settings, prometheus, port_offset))
        spark.streams.addListener(listener)
        try:
            yield prometheus
        finally:
            listener.drain()
            spark.streams.removeListener(listener)


@contextmanager
def serve_prometheus(settings: Settings, prometheus: PrometheusMetrics, port_offset: int) -> Iterator[str | None]:
    """Serve Prometheus on a thread within this block; yields the address, or None if it cannot be opened."""
    app = AccessGuard(make_asgi_app(prometheus.registry), AccessRules())
    with ExitStack() as opened:
        try:
            served = serve_in_thread(app, settings.metrics.host, settings.metrics.port + port_offset)
            address = opened.enter_context(served)
        except EnvironmentFault as fault:
            _log.warning("no metrics for Prometheus: %s Set metrics.port.", fault.cause)
            address = None
        yield address
