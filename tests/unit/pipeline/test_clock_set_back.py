"""Event time never goes back, whatever the machine's clock does, and goes on in partitions without records."""

from __future__ import annotations

import datetime as dt
import time
from pathlib import Path
from typing import cast

import pytest
import time_machine
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings, load
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import CLOCK, SDS_MESSAGES
from reliable_channel.pipeline.clock import WALL_CLOCK_GRACE_US, IngestClock, Progress, read_progress
from reliable_channel.pipeline.ingest import stream
from reliable_channel.pipeline.ingest import ticks as ticks_module
from reliable_channel.pipeline.ingest.stream import IngestWriter
from reliable_channel.pipeline.ingest.task import IngestResult, PartitionSummary
from reliable_channel.pipeline.ingest.ticks import SteadyClock, advance, close
from reliable_channel.pipeline.runner.queries import INGEST

NOW_US = 1_800_000_000_000_000
HOUR_US = 3_600_000_000
PLACE = ("waku.envelopes", 0)


@pytest.fixture
def paths(tmp_path: object) -> PathSettings:
    found = load("local", paths={"run_dir": str(tmp_path)}).paths
    create_tables(found, (CLOCK, SDS_MESSAGES))
    return found


def ticks(paths: PathSettings) -> int:
    return len(rows_of(open_table(paths, SDS_MESSAGES)))


def tick(paths: PathSettings, clock: IngestClock) -> bool:
    """A new driver's first idle tick."""
    return advance(paths, clock, "idle", SteadyClock().now_us() - WALL_CLOCK_GRACE_US)


def test_a_clock_set_back_gives_no_tick_and_moves_nothing_back(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = IngestClock(paths)
    clock.record(BatchSink(paths, "query", 0), {PLACE: Progress(NOW_US - HOUR_US, 5)})
    monkeypatch.setattr(time, "time_ns", lambda: NOW_US * 1000)
    assert tick(paths, clock)
    reached = {PLACE: Progress(NOW_US - WALL_CLOCK_GRACE_US, 5)}
    assert read_progress(paths) == reached
    monkeypatch.setattr(time, "time_ns", lambda: (NOW_US - HOUR_US) * 1000)
    assert not tick(paths, clock)
    assert (read_progress(paths), ticks(paths)) == (reached, 1)
    # A driver that starts while the clock is still behind begins where time had come.
    again = IngestClock(paths)
    again.load("query", 1)
    assert again.reached == reached
    assert not tick(paths, again)
    monkeypatch.setattr(time, "time_ns", lambda: (NOW_US + HOUR_US) * 1000)
    assert tick(paths, again)
    assert read_progress(paths) == {PLACE: Progress(NOW_US + HOUR_US - WALL_CLOCK_GRACE_US, 5)}


def test_a_tick_after_a_clock_was_ahead_belongs_to_the_last_micro_batch(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replay of that micro-batch begins before the tick, as its first run did."""
    clock = IngestClock(paths)
    for batch, ahead in enumerate((dt.timedelta(), dt.timedelta(days=1), dt.timedelta())):
        with time_machine.travel(dt.datetime.now(dt.UTC) + ahead):
            clock.record(BatchSink(paths, "query", batch), {PLACE: Progress(NOW_US + batch, 5 + batch)})
    monkeypatch.setattr(time, "time_ns", lambda: (NOW_US + HOUR_US) * 1000)
    assert tick(paths, clock)
    replay = IngestClock(paths)
    replay.load("query", 2)
    assert replay.reached == {PLACE: Progress(NOW_US + 1, 6)}


QUIET, OTHER = ("waku.envelopes", 1), ("waku.envelopes", 2)


@pytest.mark.parametrize(
    ("quiet_us", "others_us", "expected_us"),
    [
        (NOW_US - HOUR_US, NOW_US - HOUR_US // 2, NOW_US - HOUR_US // 2),
        (NOW_US - HOUR_US, NOW_US + HOUR_US, NOW_US - WALL_CLOCK_GRACE_US),  # their producer's clock is ahead
        (NOW_US - HOUR_US, NOW_US - HOUR_US + 4_999_999, None),
        (NOW_US, NOW_US - HOUR_US, None),
    ],
)
def test_a_partition_without_records_follows_those_with_records(
    paths: PathSettings, quiet_us: int, others_us: int, expected_us: int | None
) -> None:
    clock = IngestClock(paths, {PLACE: Progress(0, 3), OTHER: Progress(0, 5), QUIET: Progress(quiet_us, 7)})
    reached = {PLACE: Progress(others_us, 4), OTHER: Progress(others_us - 1, 6)}
    expected = {} if expected_us is None else {QUIET: Progress(expected_us, 7)}
    assert clock.find_quiet(reached, NOW_US, 5_000_000) == expected


def test_no_time_passes_in_a_partition_whose_records_kafka_withholds(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a transaction that is open, and all after them. They counted as late, and what they have as missing."""
    settings = load("local", paths={"data_dir": paths.data_dir, "checkpoint_dir": paths.checkpoint_dir})
    before = {PLACE: Progress(NOW_US - HOUR_US, 5), QUIET: Progress(NOW_US - HOUR_US, 7)}
    clock = IngestClock(paths, dict(before), frozenset({QUIET}))
    assert clock.find_quiet({PLACE: Progress(NOW_US, 6)}, NOW_US, 5_000_000) == {}
    clock.record(BatchSink(paths, "query", 0), before)
    monkeypatch.setattr(time, "time_ns", lambda: NOW_US * 1000)
    monkeypatch.setattr(ticks_module, "find_unread", lambda _: frozenset({QUIET}))
    assert close(settings, None)
    assert read_progress(paths) == before | {PLACE: Progress(NOW_US - WALL_CLOCK_GRACE_US, 5)}


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_first_micro_batch_asks_for_what_kafka_withholds_unless_it_is_a_replay(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    """`run --once` has often no other. What a replay adds may be in a table already, without this partition or with
    it."""
    settings = load("local", paths={"data_dir": paths.data_dir, "checkpoint_dir": paths.checkpoint_dir})
    create_tables(paths, INGEST.tables)
    before = {PLACE: Progress(NOW_US - HOUR_US, 5), QUIET: Progress(NOW_US - HOUR_US, 7)}
    IngestClock(paths).record(BatchSink(paths, "query", 0), before)
    offsets = Path(paths.checkpoint("ingest")) / "offsets"
    offsets.mkdir(parents=True)
    for batch in range(1 + interrupted):
        (offsets / str(batch)).write_text("v1\n{}\n{}")
    (offsets.parent / "commits").mkdir()
    (offsets.parent / "commits" / "0").write_text("v1\n{}")
    part = PartitionSummary(5, 5, NOW_US, NOW_US, NOW_US + WALL_CLOCK_GRACE_US)
    monkeypatch.setattr(stream, "admit", lambda *_: IngestResult({PLACE: part}, [], []))
    writer = IngestWriter(settings, lambda gaps: gaps, lambda: frozenset({QUIET}))
    writer(cast(DataFrame, None), BatchSink(paths, "query", 1))
    quiet_us = NOW_US if interrupted else NOW_US - HOUR_US
    assert read_progress(paths) == {PLACE: Progress(NOW_US, 6), QUIET: Progress(quiet_us, 7)}
