"""A pipeline that stopped without an end is reported wherever alerts are shown; tables that are finished are not."""

from __future__ import annotations

import datetime as dt
import json
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from reliable_channel.analysis.alerts.heartbeat import CLOCK_MS, Heartbeat, find_stopped
from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.dashboard.overview import jobs
from reliable_channel.analysis.dashboard.page_cache import PageCache
from reliable_channel.analysis.dashboard.windows import window
from reliable_channel.analysis.figures import outcome
from reliable_channel.analysis.report import capacity
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.cli import main
from reliable_channel.config import PathSettings, load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.live import declare, declare_live, write_metric
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CLOCK, PIPELINE_METRICS, TABLES

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    found = load("local").with_run_dir(tmp_path).paths
    create_tables(found, (PIPELINE_METRICS, CLOCK))
    return found


def write_clock(paths: PathSettings, at: dt.datetime) -> None:
    row: dict[str, Any] = dict.fromkeys(CLOCK.names()) | {
        "query_id": "q",
        "batch_id": 0,
        "kafka_topic": "t",
        "kafka_partition": 0,
        "event_time": START,
        "recorded_at": at,
        "kind": "batch",
    }
    append_rows(paths, CLOCK, as_arrow([row], CLOCK))


def test_what_was_never_declared_live_never_stopped(paths: PathSettings) -> None:
    write_clock(paths, START)
    assert find_stopped(TableSnapshot(paths).table, START + dt.timedelta(days=999)) == []


@given(rounds=st.lists(st.integers(1, 10_000), min_size=1, max_size=4), late_s=st.integers(-10_000, 10_000))
def test_a_run_stopped_when_its_declared_round_is_overdue(
    rounds: list[int], late_s: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = load("local").with_run_dir(tmp_path_factory.mktemp("t")).paths
    create_tables(paths, (PIPELINE_METRICS, CLOCK))
    heartbeat, at = Heartbeat(paths), START
    for seconds in rounds:
        at += SECOND
        heartbeat.record(seconds * 1000, at)
    now = at + (rounds[-1] + late_s) * SECOND
    found = find_stopped(TableSnapshot(paths).table, now)
    assert [part.since for part in found] == ([at] if late_s > 0 else [])
    heartbeat.record(0, at)
    assert find_stopped(TableSnapshot(paths).table, now) == []


def test_a_run_that_reads_nothing_more_stopped_although_its_rounds_go_on(paths: PathSettings) -> None:
    write_clock(paths, START)
    now = START + dt.timedelta(milliseconds=CLOCK_MS) + SECOND
    heartbeat = Heartbeat(paths)
    declare(paths, "ingest", "run", True, now)
    heartbeat.record(60_000, now)
    assert find_stopped(TableSnapshot(paths).table, now) == []  # it only starts
    now += dt.timedelta(milliseconds=CLOCK_MS) + SECOND
    heartbeat.record(60_000, now)
    (part,) = find_stopped(TableSnapshot(paths).table, now)
    assert (part.part, part.since) == ("Reading Kafka", START)


def start_and_die(paths: PathSettings, kind: str, at: dt.datetime) -> None:
    if kind == "run":
        Heartbeat(paths).record(360_000, at)
    declare(paths, "ingest", f"{at}", True, at)


@pytest.mark.parametrize(
    ("kind", "stopped"), [("run", ["The check of verdicts and alerts", "Reading Kafka"]), ("job", ["Reading Kafka"])]
)
def test_what_dies_at_every_start_stopped_however_often_it_is_started(
    paths: PathSettings, kind: str, stopped: list[str]
) -> None:
    """Its newest start is always of this minute."""
    Heartbeat(paths).record(0, START)
    write_clock(paths, START)
    starts = [START + number * 60 * SECOND for number in range(1, 18)]
    for at in starts:
        start_and_die(paths, kind, at)
    found = find_stopped(TableSnapshot(paths).table, starts[-1] + SECOND)
    assert [part.part for part in found] == stopped
    if kind == "run":  # Prometheus gets the same time as the readers of the tables
        assert Heartbeat(paths).start(360_000) == starts[0] + 360 * SECOND


def test_a_job_of_its_own_that_died_stopped_and_one_that_ended_did_not(paths: PathSettings) -> None:
    late = START + dt.timedelta(milliseconds=CLOCK_MS) + SECOND
    declare(paths, "ingest", "one", True, START)
    write_clock(paths, START)
    table = TableSnapshot(paths).table
    assert find_stopped(table, late - SECOND) == []
    (part,) = find_stopped(table, late)
    assert (part.part, part.since) == ("Reading Kafka", START)
    declare(paths, "ingest", "one", False, START + SECOND)
    assert find_stopped(TableSnapshot(paths).table, late) == []


def test_a_job_without_a_micro_batch_while_the_clock_goes_on_stopped(paths: PathSettings) -> None:
    """No alert is raised on its lag, which only its own micro-batches measure."""
    limit = dt.timedelta(milliseconds=CLOCK_MS)
    declare(paths, "ingest", "one", True, START)
    for job in ("reassembly", "ack"):
        write_metric(paths, job, "run", 0, "lag_commits", 0, START)
    write_metric(paths, "reassembly", "run", 1, "lag_commits", 0, START + limit)
    write_clock(paths, START + limit)
    now = START + limit + SECOND
    assert find_stopped(TableSnapshot(paths).table, now) == []
    write_clock(paths, now)
    (part,) = find_stopped(TableSnapshot(paths).table, now)
    assert (part.part, part.since) == ("The job ack", START)
    declare(paths, "ack", "one", True, START + SECOND)  # it has only been started again
    assert find_stopped(TableSnapshot(paths).table, now) == []
    declare(paths, "ingest", "one", False, now)
    assert find_stopped(TableSnapshot(paths).table, now) == []


def test_a_job_is_declared_live_until_it_ends_but_not_ended_by_a_fault(paths: PathSettings) -> None:
    def last() -> float:
        rows = TableSnapshot(paths).select("SELECT value FROM pipeline_metrics ORDER BY recorded_at DESC LIMIT 1")
        return float(rows[0]["value"])

    stop = threading.Event()
    with pytest.raises(OSError, match="died"), declare_live(paths, "ingest", stop):
        assert last() == 1
        raise OSError("died")
    assert last() == 1
    for fault in (None, OSError("the JVM is gone")):
        with suppress(OSError), declare_live(paths, "ingest", stop):
            assert last() == 1 or stop.is_set()
            stop.set()
            if fault is not None:
                raise fault
        assert last() == 0


def test_what_a_clock_wrote_that_was_a_day_ahead_hides_nothing(paths: PathSettings) -> None:
    """It was set back after some seconds; the run died an hour later, or ended."""
    day, hour = dt.timedelta(days=1), dt.timedelta(hours=1)
    heartbeat = Heartbeat(paths)
    declare(paths, "ingest", "run", True, START)
    for at in (START, START + day, START + hour):
        heartbeat.record(60_000, at)
        write_clock(paths, at)
        for job in ("reassembly", "ack"):
            write_metric(paths, job, "run", 0, "lag_commits", 0, at)
    parts = find_stopped(TableSnapshot(paths).table, START + 2 * hour)
    assert [(part.part, part.since) for part in parts] == [
        ("The check of verdicts and alerts", START + hour),
        ("Reading Kafka", START + hour),
    ]
    heartbeat.record(0, START + 2 * hour)
    declare(paths, "ingest", "run", False, START + 2 * hour)
    assert find_stopped(TableSnapshot(paths).table, START + 3 * hour) == []
    tomorrow = dt.datetime.now(dt.UTC) + day
    write_clock(paths, tomorrow)
    write_metric(paths, "ack", "run", 1, "lag_commits", 9, tomorrow)
    create_tables(paths, TABLES)
    lake = TableSnapshot(paths)
    assert outcome(lake).newest == window(lake, "24h").newest == START + day, "what Prometheus and the pages get"
    assert {job["reported_at"] for job in jobs(lake)} == {START + day}


def status_of(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return int(ended.value.code or 0)


def test_every_surface_says_what_stopped_and_since_when(
    paths: PathSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    Heartbeat(paths).record(60_000, START)
    place = ["--tables", paths.data_dir]
    assert status_of("alerts", "check", "--fail", *place) == 3
    assert "stopped: nothing since 2026-01-01 00:00:00 UTC" in capsys.readouterr().out
    assert status_of("alerts", "check", "--json", *place) == 0
    assert json.loads(capsys.readouterr().out)["stopped"][0]["since"] == START.isoformat()
    assert status_of("status", "--no-kafka", *place) == 0
    assert "STOPPED: nothing since 2026-01-01T00:00:00+00:00" in capsys.readouterr().out
    assert status_of("report", *place) == 0
    assert "stopped: nothing since 2026-01-01 00:00:00 UTC" in " ".join(capsys.readouterr().out.split())
    client = TestClient(create_app(paths), base_url="http://localhost")
    for path in ("/", "/alerts"):
        page = client.get(path).text
        assert "<code>reliable-channel run --continuous</code>" in page
        assert "stopped: nothing since 2026-01-01 00:00:00" in page
        assert "Nothing is raised." not in page


def test_what_a_continuous_run_declares_is_no_micro_batch(paths: PathSettings) -> None:
    with declare_live(paths, "ingest", threading.Event()):
        Heartbeat(paths).record(60_000)
    write_metric(paths, "ack", "run", 7, "trigger_execution_ms", 900.0)
    lake = TableSnapshot(paths)
    assert [row["query"] for row in jobs(lake)] == ["ack"]
    assert capacity.summary(TableWindow(lake))[["query", "micro_batches"]].to_numpy().tolist() == [["ack", 1]]


def test_a_page_is_sent_again_when_the_time_of_the_next_round_has_passed(paths: PathSettings) -> None:
    times = iter(range(0, 1000, 10))
    cache = PageCache(paths, monotonic=lambda: float(next(times)))
    before = cache.tag(cache.lake(), "/alerts", ("alerts",))
    assert cache.tag(cache.lake(), "/alerts", ("alerts",)) == before
    Heartbeat(paths).record(60_000, START)
    assert cache.tag(cache.lake(), "/alerts", ("alerts",)) != before


@pytest.mark.parametrize("by", ["a round of a continuous run", "a job of cron"])
def test_the_overview_says_when_verdicts_were_last_given(paths: PathSettings, by: str) -> None:
    create_tables(paths, TABLES)
    client = TestClient(create_app(paths), base_url="http://localhost")
    assert "Verdicts were last given" not in client.get("/").text
    if by == "a job of cron":
        write_metric(paths, "verdict", "one", 0, "failing", 0, START)
        write_metric(paths, "verdict", "two", 0, "failing", 1, START + SECOND)
    else:
        Heartbeat(paths).record(60_000, START)
    page = TestClient(create_app(paths), base_url="http://localhost").get("/").text
    assert f'Verdicts were last given at <time data-judged datetime="{START.isoformat()}">2026-01-01 00:00:00' in page
