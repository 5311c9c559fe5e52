"""Progress as numbers: names with units, nothing that Spark did not say; a Prometheus page without foreign words."""

from __future__ import annotations

import json
import socket
import urllib.error
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import urlsplit

import pytest
from deltalake.exceptions import DeltaError
from prometheus_client import generate_latest

from reliable_channel.config import load
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.tables import PIPELINE_METRICS
from reliable_channel.pipeline import counters
from reliable_channel.pipeline.runner import metrics
from reliable_channel.pipeline.runner.measures import measures
from reliable_channel.pipeline.runner.metrics import MetricsListener, PrometheusMetrics, serve_prometheus
from reliable_channel.transport.http.server import DEFAULT_LIMITS
from tests.support.progress import PROGRESS


def test_a_micro_batch_in_numbers() -> None:
    asked: list[tuple[str, int]] = []

    def unread(table: str, version: int) -> int:
        asked.append((table, version))
        return 2

    assert measures(PROGRESS, {"quarantined_rows": 9}, unread) == {
        "input_rows": 12.0,
        "quarantined_rows": 9.0,
        "processed_rows_per_second": 3.5,
        "add_batch_ms": 900.0,
        "query_planning_ms": 12.0,
        "trigger_execution_ms": 1000.0,
        "lag_commits": 2.0,
        "state_rows": 8.0,
        "state_updated_rows": 3.0,
        "state_memory_bytes": 1024.0,
        "state_disk_bytes": 64.0,
        "state_commit_ms": 7.0,
    }
    assert set(asked) == {("sds_messages", 6)}


def test_the_wait_for_a_turn_is_no_work() -> None:
    found = measures(PROGRESS, {"turn_wait_ms": 600})
    assert (found["turn_wait_ms"], found["add_batch_ms"], found["trigger_execution_ms"]) == (600.0, 300.0, 400.0)
    assert found["processed_rows_per_second"] == 12 / 0.4


def test_lag_behind_kafka_is_summed_over_partitions() -> None:
    source = {
        "description": "KafkaV2[Subscribe[waku.envelopes]]",
        "endOffset": {"waku.envelopes": {"0": 10, "1": 20}},
        "latestOffset": {"waku.envelopes": {"0": 15, "1": 20}},
    }
    assert measures({"sources": [source]}, {})["lag_offsets"] == 5.0


@pytest.mark.parametrize(
    "progress", [{}, {"sources": [{}]}, {"sources": None}, {"durationMs": None, "sources": [{"endOffset": "{"}]}]
)
def test_what_spark_does_not_say_is_left_out(progress: dict[str, Any]) -> None:
    assert measures(progress, {}) == {"input_rows": 0.0}


def test_counts_are_taken_once_and_bounded() -> None:
    for batch in range(2_000):
        counters.put("q", batch, quarantined_rows=batch)
    assert counters.take("q", 1_999) == {"quarantined_rows": 1_999}
    assert counters.take("q", 1_999) == {}
    assert counters.take("q", 0) == {}, "without a listener the oldest are forgotten"


def test_the_page_has_totals_last_values_and_only_our_own_labels() -> None:
    prometheus = PrometheusMetrics()
    prometheus.running("ingest", True)
    for _ in range(2):
        prometheus.progress("ingest", {"input_rows": 5.0, "quarantined_rows": 1.0})
    page = generate_latest(prometheus.registry).decode()
    assert 'reliable_channel_query{metric="input_rows",query="ingest"} 5.0' in page
    assert 'reliable_channel_query_rows_total{metric="input_rows",query="ingest"} 10.0' in page
    assert 'reliable_channel_query_rows_total{metric="quarantined_rows",query="ingest"} 2.0' in page
    assert 'reliable_channel_query_running{query="ingest"} 1.0' in page


def test_what_is_no_longer_measured_has_no_value() -> None:
    prometheus = PrometheusMetrics()
    value = prometheus.registry.get_sample_value
    waiting, late = {"stage": "waiting", "quantile": "0.5"}, {"cause": "never_sent"}
    prometheus.record_verdicts({}, {"never_sent": 2}, {"waiting": {0.5: 1_500.0}}, None)
    assert value("reliable_channel_latency_seconds", waiting) == 1.5
    assert value("reliable_channel_missing_messages", late) == 2
    prometheus.record_verdicts({}, {}, {"waiting": {}}, None)
    assert value("reliable_channel_latency_seconds", waiting) is None
    assert value("reliable_channel_missing_messages", late) is None


def test_the_endpoint_is_on_loopback_and_a_taken_port_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    settings = load("local")
    assert settings.metrics.host == "127.0.0.1"
    free = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"port": 0})})
    prometheus = PrometheusMetrics()
    prometheus.running("ack", True)
    with serve_prometheus(free, prometheus, 0) as address:
        port = urlsplit(address).port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            assert b'reliable_channel_query_running{query="ack"} 1.0' in answer.read()
        taken = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"port": port})})
        with serve_prometheus(taken, prometheus, 0) as second:
            assert second is None
        assert "Set metrics.port" in caplog.text
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120)


def test_the_endpoint_closes_connections_that_ask_nothing() -> None:
    settings = load("local")
    free = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"port": 0})})
    with serve_prometheus(free, PrometheusMetrics(), 0) as address, ExitStack() as opened:
        port = urlsplit(address).port
        for _ in range(DEFAULT_LIMITS.per_peer + 10):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as answer:
            assert answer.status == 200


@pytest.mark.parametrize(
    ("raised", "said", "whole_story"),
    [
        ("Unable to copy data to file: No space left on device (os error 28)", "the disk is full.", False),
        ("nobody knows", "metrics of a micro-batch were not written", True),
    ],
)
def test_metrics_that_cannot_be_written_never_stop_a_query(
    raised: str, said: str, whole_story: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise DeltaError(raised)

    monkeypatch.setattr(metrics, "append_rows", full)
    listener = MetricsListener(load("local").paths, PrometheusMetrics())
    listener.onQueryProgress(cast(Any, SimpleNamespace(progress=SimpleNamespace(json=json.dumps({"name": "ingest"})))))
    assert said in caplog.text
    assert ("Traceback" in caplog.text) is whole_story


def test_micro_batches_that_end_soon_after_one_another_are_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "_WRITE_EVERY_S", 86_400.0)  # whatever the machine does meanwhile
    paths = load("local").with_run_dir(tmp_path).paths
    create_tables(paths, [PIPELINE_METRICS])
    listener = MetricsListener(paths, PrometheusMetrics())
    listener.onQueryStarted(cast(Any, SimpleNamespace(runId="run", name="ingest")))
    for number in range(4):
        progress = {"name": "ingest", "id": "query", "runId": "run", "batchId": number, "numInputRows": 5}
        listener.onQueryProgress(cast(Any, SimpleNamespace(progress=SimpleNamespace(json=json.dumps(progress)))))
    listener.onQueryTerminated(cast(Any, SimpleNamespace(runId="run")))
    table = open_table(paths, PIPELINE_METRICS)
    rows = dataset_of(table).to_table().to_pylist()
    assert [row["batch_id"] for row in sorted(rows, key=lambda row: row["batch_id"])] == [0, 1, 2, 3]
    assert table.version() == 2, "the first at once, the others together when the query ends"
