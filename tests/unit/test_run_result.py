"""``run --once`` ends with one line that says what the tables hold; ``run --continuous`` takes evidence and judges."""

from __future__ import annotations

import datetime as dt
import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from typer.testing import CliRunner

from reliable_channel.analysis.alerts.heartbeat import find_stopped
from reliable_channel.analysis.figures import VERDICTS, outcome
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.cli.app import build
from reliable_channel.cli.commands import run
from reliable_channel.cli.commands.run import summarize_tables
from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.evidence.intake import Collected
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CLOCK, PIPELINE_METRICS, QUARANTINE, SENDER_EVENTS
from reliable_channel.pipeline.runner.metrics import PrometheusMetrics
from reliable_channel.runtime import own_broker, spark
from tests.support.sample_values import at


def test_the_line_counts_what_the_tables_hold(sample_tables: Path) -> None:
    settings = load("local", paths={"data_dir": str(sample_tables)})
    (found,) = TableSnapshot(PathSettings(data_dir=str(sample_tables))).select(
        "SELECT count(*) AS delivered, (SELECT count(*) FROM delivery_status WHERE verdict = 'missing') AS missing"
        " FROM delivered_messages"
    )
    line = summarize_tables(settings)
    assert line.startswith("Done: ")
    assert f"{found['delivered']:,} messages delivered, {found['missing']:,} missing (" in line
    assert "\n" not in line


def test_without_verdicts_it_says_that_nothing_was_judged(tmp_path: Path) -> None:
    settings = load("local", paths={"data_dir": str(tmp_path)})
    assert "0 records, 0 messages delivered, not judged (--verdicts)" in summarize_tables(settings)


def test_a_table_of_another_version_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that only evidence or verdicts write: the chain would run first, or for ever without them."""
    paths = load("local", paths={"run_dir": str(tmp_path)}).paths
    create_tables(paths, (replace(SENDER_EVENTS, columns=SENDER_EVENTS.columns[:-1]), QUARANTINE))
    Path(paths.table(QUARANTINE.name), "_delta_log", f"{0:020d}.json").write_text("")  # damaged: named later
    monkeypatch.setattr(own_broker, "check_kafka", lambda *_, **__: None)
    monkeypatch.setattr(spark, "spark_session", lambda *_: pytest.fail("Spark started"))
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    for how in ("--once", "--continuous"):
        done = CliRunner().invoke(build("run"), ["run", how])
        assert isinstance(done.exception, ConfigurationError)
        assert "The table sender_events was made by another version" in done.exception.cause
        assert "rebuild" in done.exception.remedy


def test_a_run_goes_on_where_nothing_can_be_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a log on a full disk, or on a terminal that was closed. Evidence, refetch and verdicts ended for good at
    their first line, and the chain went on without them."""

    def print_nothing(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def serve(_spark: Any, _settings: Any, say: Callable[[str], None], *, terminal: bool) -> None:
        rounds, recorded = Rounds(2, 0, [0.0]), list[tuple[str, bool]]()
        work = partial(say, "evidence: 1 record")
        run.repeat_until("evidence", work, 2, cast(threading.Event, rounds), say, lambda *row: recorded.append(row))
        rounds_done.append((len(rounds.pauses), recorded, terminal))

    rounds_done = list[tuple[int, list[tuple[str, bool]], bool]]()
    monkeypatch.setattr(own_broker, "check_kafka", lambda *_, **__: None)
    monkeypatch.setattr(spark, "spark_session", lambda *_: nullcontext())
    monkeypatch.setattr(run, "serve", serve)
    monkeypatch.setattr(typer, "echo", print_nothing)
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    done = CliRunner().invoke(build("run"), ["run", "--continuous"])
    assert done.exception is None
    assert rounds_done == [(3, [("evidence", False)], False)]


class Rounds:
    """Stands in for verdicts and the event that ends the run: notes the pauses, and ends after some rounds."""

    def __init__(self, rounds: int, takes_s: float, clock: list[float]) -> None:
        self.left, self.takes_s, self.clock, self.pauses = rounds, takes_s, clock, list[float]()

    def judge(self, *_: Any) -> None:
        self.clock[0] += self.takes_s
        if self.left == 1:
            raise RuntimeError  # without a text, as some libraries do

    def check(self, *_: Any) -> dict[tuple[str, str], int]:
        return {("silent_channel", "warning"): 5 + self.left}

    def wait(self, pause_s: float) -> bool:
        self.pauses.append(pause_s)
        self.left -= 1
        return self.left < 0

    def is_set(self) -> bool:
        return False


class NoSpark:
    """What judging asks of a session besides the verdicts."""

    sparkContext = property(lambda self: self)  # noqa: N815 - Spark's name

    def setJobGroup(self, *_: Any, **__: Any) -> None:  # noqa: N802 - Spark's name
        pass

    def newSession(self) -> NoSpark:  # noqa: N802 - Spark's name
        return self


@pytest.mark.parametrize("takes_s", [1.0, 20.0, 3_600.0])
def test_a_continuous_run_judges_after_one_interval_whatever_the_last_round_took(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch, takes_s: float
) -> None:
    clock, said, due, prometheus = [0.0], list[str](), list[float](), PrometheusMetrics()
    rounds = Rounds(3, takes_s, clock)
    monkeypatch.setattr(run, "run_new_verdicts", rounds.judge)
    monkeypatch.setattr(run, "check_alerts", rounds.check)
    monkeypatch.setattr(run.time, "monotonic", lambda: clock[0])  # type: ignore[attr-defined]
    settings = load("local", paths={"data_dir": str(sample_tables)})
    stop, session, recorded = cast(threading.Event, rounds), cast(Any, NoSpark()), list[tuple[str, bool]]()
    record = lambda *row: recorded.append(row)  # noqa: E731
    run.judge_until(session, settings, stop, said.append, prometheus, due.append, record)
    assert rounds.pauses == [60] * 4
    # Within its pause and twice the time of the last round, and half a minute.
    assert due == [(60 + 2 * takes_s + 30) * 1000] * len(due)
    assert len(due) == 2
    assert [line.partition(". ")[0] for line in said] == [
        "verdict: This should not have happened: RuntimeError: no more is known"
    ]
    found = outcome(TableSnapshot(settings.paths))
    for verdict, messages in found.verdicts.items():
        assert prometheus.registry.get_sample_value("reliable_channel_messages", {"verdict": verdict}) == messages
    for cause, messages in found.causes.items():
        assert prometheus.registry.get_sample_value("reliable_channel_missing_messages", {"cause": cause}) == messages
    raised = {"alert": "silent_channel", "severity": "warning"}
    raised_then = prometheus.registry.get_sample_value("reliable_channel_open_alerts", raised)
    assert raised_then == 5, "those of the last round, although it gave no verdicts"
    assert recorded == [("verdict", False)]
    labels = {"stage": "waiting", "quantile": "0.5"}
    waited = prometheus.registry.get_sample_value("reliable_channel_latency_seconds", labels)
    assert waited == pytest.approx(found.latency_ms["waiting"][0] / 1000)


def test_a_continuous_run_takes_evidence_at_every_interval_whatever_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, said, found = Rounds(4, 0, [0.0]), list[str](), iter([3, EnvironmentFault("No broker."), 0, 2])

    def collect(_: Any) -> Collected:
        taken = next(found)
        if isinstance(taken, EnvironmentFault):
            raise taken
        return Collected(taken)

    monkeypatch.setattr("reliable_channel.evidence.collecting.collect_evidence", collect)
    settings = load("local")
    collect_once = partial(run.run_collection, settings, said.append)
    run.repeat_until("evidence", collect_once, 2, cast(threading.Event, rounds), said.append, lambda *_: None)
    assert rounds.pauses == [2] * 5
    assert said == [f"evidence: {what}" for what in ("3 records of evidence", "No broker.", "2 records of evidence")]


def test_a_continuous_run_asks_the_stores_at_every_interval_whatever_fails() -> None:
    rounds, said = Rounds(3, 0, [0.0]), list[str]()
    faults = iter([EnvironmentFault("No store answers."), OSError(28, "No space left on device", "/tables"), None])

    def ask() -> None:
        if (fault := next(faults)) is not None:
            raise fault
        said.append("asked")

    run.repeat_until("refetch", ask, 10, cast(threading.Event, rounds), said.append, lambda *_: None)
    assert said[0] == "refetch: No store answers."
    assert said[1].startswith("refetch: The disk is full writing /tables.")
    assert said[2:] == ["asked"]


def test_a_job_of_a_run_fails_when_three_rounds_in_a_row_did_and_no_more_after_a_good_one() -> None:
    outcomes = "+--+----++-"
    rounds, recorded, left = Rounds(len(outcomes), 0, [0.0]), list[tuple[int, str, bool]](), iter(outcomes)
    said = list[str]()

    def ask() -> None:
        if next(left) == "-":
            raise EnvironmentFault("No store answers.")

    def record(name: str, is_failing: bool) -> None:
        recorded.append((len(rounds.pauses), name, is_failing))

    run.repeat_until("refetch", ask, 10, cast(threading.Event, rounds), said.append, record)
    assert recorded == [(1, "refetch", False), (7, "refetch", True), (9, "refetch", False)]
    assert said == ["refetch: No store answers."] * 3, "once for all rounds between two good ones"


@pytest.mark.parametrize("by_signal", [True, False], ids=["by a signal", "by itself"])
@pytest.mark.parametrize("interval_ms", [60_000, 0], ids=["rounds", "no rounds"])
def test_a_run_whose_jvm_is_gone_was_to_go_on_unless_a_signal_came_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval_ms: int, by_signal: bool
) -> None:
    """A signal to all its processes ends the JVM, too. Without rounds, reading Kafka was to go on all the same."""

    def run_continuously(*_: Any, **__: Any) -> None:
        if by_signal:
            os.kill(os.getpid(), signal.SIGTERM)
        raise ConnectionRefusedError

    settings = load("local", paths={"run_dir": str(tmp_path)}, pipeline={"verdict_interval_ms": interval_ms})
    create_tables(settings.paths, (PIPELINE_METRICS, CLOCK))
    now = dt.datetime.now(dt.UTC)
    partition = {"query_id": "q", "batch_id": 0, "kafka_topic": "t", "kafka_partition": 0, "kind": "batch"}
    clock = {**partition, "next_offset": 1, "event_time": now, "recorded_at": now}
    append_rows(settings.paths, CLOCK, as_arrow([clock], CLOCK))
    monkeypatch.setattr("reliable_channel.pipeline.runner.run.run_continuously", run_continuously)
    prometheus = PrometheusMetrics()
    recorded = nullcontext(prometheus)
    monkeypatch.setattr("reliable_channel.pipeline.runner.metrics.record_metrics", lambda *_, **__: recorded)
    with pytest.raises(ConnectionRefusedError):
        run.serve(cast(Any, NoSpark()), settings, list[str]().append)
    stopped = [part.part for part in find_stopped(TableSnapshot(settings.paths).table, now + dt.timedelta(days=1))]
    check = ["The check of verdicts and alerts"] if interval_ms else []
    assert stopped == ([] if by_signal else [*check, "Reading Kafka"])
    # Due from the start on: a first round that never ends is overdue for Prometheus, too.
    due = prometheus.registry.get_sample_value("reliable_channel_next_round_timestamp_seconds")
    assert due is not None and (due > time.time()) is bool(interval_ms)


def test_the_outcome_counts_what_the_tables_hold(sample_tables: Path) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    found = outcome(lake, hours=10 * 365 * 24)
    rows = lake.select("SELECT verdict, count(*) AS n FROM delivery_status GROUP BY ALL")
    assert found.verdicts == {row["verdict"]: row["n"] for row in rows}
    assert sum(found.causes.values()) == found.verdicts["missing"]
    assert all(half <= most for half, _, most in found.latency_ms.values())


def test_the_outcome_of_the_last_hours_counts_back_from_time_that_passed(sample_tables: Path) -> None:
    """The closing tick of the tables is an hour after their last record."""
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    since = {"since": at(3_600) - dt.timedelta(hours=1)}
    (judged,) = lake.select(f"SELECT {VERDICTS} FROM delivery_status WHERE first_seen > $since", since)  # noqa: S608 - names of columns
    verdicts = outcome(lake, hours=1).verdicts
    assert verdicts == {name: judged[name] for name in verdicts}
    assert verdicts["delivered"] > 0


def test_without_tables_there_is_no_outcome(tmp_path: Path) -> None:
    found = outcome(TableSnapshot(PathSettings(data_dir=str(tmp_path))))
    assert (sum(found.verdicts.values()), found.causes, found.newest) == (0, {}, None)
