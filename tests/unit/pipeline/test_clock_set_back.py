"""A machine's clock that is set back, or that was ahead for a while: event time never goes back."""

from __future__ import annotations

import time

import pytest

from reliable_channel.config import PathSettings, load
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import CLOCK, SDS_MESSAGES
from reliable_channel.pipeline.clock import IngestClock, Progress, read_progress
from reliable_channel.pipeline.ingest.ticks import WALL_CLOCK_GRACE_US, SteadyClock, advance

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
