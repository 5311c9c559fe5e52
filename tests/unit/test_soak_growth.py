"""What ``make soak`` calls growth, on samples that are made up, and the plan of its faults."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from reliable_channel.analysis.alerts.changes import AlertChange, AlertState
from reliable_channel.analysis.alerts.log import AlertLog
from reliable_channel.config import Settings, load
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.stream import tick_files
from tests.chaos import FAULTS, plan, wrong_alerts
from tests.soak import Load, failed, growth, keep_logs, measure_peak, windows


def sampled(name: str, value: Callable[[int], float], samples: int = 100) -> list[dict[str, Any]]:
    return [{"s": float(n), "written": n, "read": n, "sizes": {name: value(n)}} for n in range(samples)]


def grown(name: str, value: Callable[[int], float], took_s: float = 3_600) -> bool:
    (found,) = growth(*windows(sampled(name, value)), took_s=took_s)
    return not found["kept"]


@pytest.mark.parametrize(
    ("name", "per_sample"),
    [
        ("MB of memory: JVM", 20),
        ("bytes of checkpoints", 1e6),
        ("files of checkpoints", 50),
        ("files: envelopes", 5),
        ("files of log: envelopes", 5),
        ("bytes of log: envelopes", 1e5),
    ],
)
def test_what_grows_with_every_sample_is_found_and_what_comes_and_goes_is_not(name: str, per_sample: float) -> None:
    assert grown(name, lambda n: per_sample * n)
    assert not grown(name, lambda n: per_sample * (n % 10))
    assert not grown(name, lambda n: per_sample * min(n, 10))


@pytest.mark.parametrize(("left_at_s", "worked_off_s"), [(1_100, 400), (1_600, None)])
def test_a_peak_is_worked_off_when_no_more_waits_than_before_it(left_at_s: int, worked_off_s: float | None) -> None:
    load = Load(rate=100, seconds=1_500, peak=10)
    begin, end = load.peak_s
    assert (begin, end, load.records) == (500, 800, 420_000)

    def waiting(s: int) -> int:
        if s < begin:
            return 200
        return 20_000 if s < left_at_s else 250

    samples = [
        {"s": s, "rate": load.rate_at(s), "written": s * 100 + waiting(s), "read": s * 100}
        for s in range(0, 1_600, 100)
    ]
    result = measure_peak(samples, load)
    assert (result["most_behind"], result["worked_off_s"]) == (20_000, worked_off_s)
    assert (result["usual_per_s"], result["peak_per_s"], result["seconds"]) == (100, 100, 200)
    assert failed({"differences": [], "growth": [], "peak": result}) is (worked_off_s is None)


def test_a_peak_without_samples_is_an_error() -> None:
    samples = [{"s": s, "rate": 100, "written": s, "read": 0} for s in range(0, 1_600, 100)]
    with pytest.raises(ValueError, match="send for longer"):
        measure_peak(samples, Load(rate=100, seconds=1_500, peak=10))


def test_the_first_tenth_does_not_count() -> None:
    early, _ = windows(sampled("files: envelopes", lambda n: n))
    assert [one["s"] for one in (early[0], early[-1])] == [10, 39]


def test_tables_may_grow_and_in_a_short_run_everything_may() -> None:
    assert not grown("rows: envelopes", lambda n: 1e6 * n)
    assert not grown("bytes: envelopes", lambda n: 1e6 * n)
    for name in ("MB of memory: JVM", "files of checkpoints", "files: envelopes", "files of log: envelopes"):
        assert not grown(name, lambda n: 100 * n, took_s=1_000)
        assert grown(name, lambda n: 100 * n, took_s=1_900)


@pytest.mark.parametrize(("kept_s", "names"), [(0, 0), (600, 8)])
def test_a_checkpoint_of_a_log_names_replaced_files_for_as_long_as_they_are_kept(
    kept_s: float, names: int, tmp_path: Path
) -> None:
    settings = load("local").with_run_dir(tmp_path)
    create_tables(settings.paths, (SDS_MESSAGES,))
    keep_logs(settings, kept_s)
    for offset in range(8):
        files = tick_files(settings.paths, {("t", 0): Progress(10**15, offset + 1)}, 10**15)
        BatchSink(settings.paths, "stream", offset).add_files(SDS_MESSAGES, files)
    open_table(settings.paths, SDS_MESSAGES).optimize.compact()
    open_table(settings.paths, SDS_MESSAGES).create_checkpoint()
    log = Path(settings.paths.table(SDS_MESSAGES.name)) / "_delta_log"
    checkpoint = max(log.glob("*.checkpoint.parquet"))
    assert pc.sum(pq.read_table(checkpoint)["remove"].is_valid()).as_py() == names


def test_a_difference_from_the_truth_or_growth_fails() -> None:
    kept, grew = {"kept": True}, {"kept": False}
    assert not failed({"differences": [], "growth": [kept], "peak": None})
    assert failed({"differences": ["one"], "growth": [kept], "peak": None})
    assert failed({"differences": [], "growth": [kept, grew], "peak": None})


def test_a_seed_gives_one_plan_and_every_fault_strikes_before_one_strikes_again() -> None:
    planned = list(plan(random.Random(5), 900, list(FAULTS)))
    assert planned == list(plan(random.Random(5), 900, list(FAULTS)))
    assert {fault for _, fault in planned[: len(FAULTS)]} == set(FAULTS)
    assert all(later - earlier >= 30 for (earlier, _), (later, _) in itertools.pairwise(planned))


def test_alerts_that_are_missing_false_or_raised_twice_are_named(tmp_path: Path) -> None:
    def change(alert: str, subject: str, state: AlertState = AlertState.RAISED) -> AlertChange:
        return AlertChange(alert, alert, subject, state, "warning", 2.0, 1.0, "made up")

    def write_alerts(name: str, *rounds: AlertChange) -> Settings:
        settings = load("local").with_run_dir(tmp_path / name)
        for one in rounds:
            assert AlertLog(settings.paths).append([one], None, dt.datetime.now(dt.UTC))
        return settings

    undisturbed = write_alerts("undisturbed", change("loss_rate", "a"), change("split", "b"))
    same = write_alerts("same", change("lag_commits", "ack"), change("split", "b"), change("loss_rate", "a"))
    assert wrong_alerts(same, undisturbed) == []
    other = write_alerts("other", change("loss_rate", "c"), change("loss_rate", "c"), change("failed_rows", "ack"))
    assert wrong_alerts(other, undisturbed) == [
        "alert loss_rate of a is missing",
        "alert split of b is missing",
        "alert failed_rows of ack is false",
        "alert loss_rate of c is false",
        "alert loss_rate of c was raised twice",
        "alert failed_rows of ack was raised: made up",
    ]
