"""How often the recorded clock follows the wall clock while no record comes."""

from __future__ import annotations

from reliable_channel.pipeline.ingest.ticks import MOST_INTERVALS, IdleIntervals


def ticks(intervals: IdleIntervals, last_batch: int, count: int) -> list[int]:
    return [number for number in range(1, count + 1) if intervals.is_due(last_batch)]


def test_idle_ticks_come_ever_more_seldom_down_to_a_bound() -> None:
    assert ticks(IdleIntervals(), 7, 30) == [1, 3, 7, 13, 19, 25]
    assert MOST_INTERVALS == 6


def test_after_a_micro_batch_they_begin_again() -> None:
    intervals = IdleIntervals()
    ticks(intervals, 7, 20)
    assert ticks(intervals, 8, 4) == [1, 3]
