"""How often, and how far, the recorded clock follows the wall clock while no record comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.pipeline.clock import WALL_CLOCK_GRACE_US
from reliable_channel.pipeline.ingest.ticks import CATCH_UP, MOST_INTERVALS, IdleIntervals, SteadyClock


def ticks(intervals: IdleIntervals, last_batch: int, count: int) -> list[int]:
    return [number for number in range(1, count + 1) if intervals.is_due(last_batch)]


def test_idle_ticks_come_ever_more_seldom_down_to_a_bound() -> None:
    assert ticks(IdleIntervals(), 7, 30) == [1, 3, 7, 13, 19, 25]
    assert MOST_INTERVALS == 6


def test_after_a_micro_batch_they_begin_again() -> None:
    intervals = IdleIntervals()
    ticks(intervals, 7, 20)
    assert ticks(intervals, 8, 4) == [1, 3]


SECOND = 1_000_000_000


class Clocks:
    """A wall clock that can be set, and what has passed in truth, ns."""

    def __init__(self) -> None:
        self.truth, self.set_by = 0, 0

    def steady(self) -> SteadyClock:
        return SteadyClock(lambda: self.truth + self.set_by, lambda: self.truth)


@given(st.lists(st.tuples(st.integers(1, 120), st.integers(-(10**9), 10**9)), max_size=30))
def test_a_clock_that_is_set_makes_no_tick_early(steps: list[tuple[int, int]]) -> None:
    clocks = Clocks()
    steady = clocks.steady()
    for seconds, set_by in steps:
        clocks.truth += seconds * SECOND
        clocks.set_by = set_by * SECOND
        now_us = steady.now_us()
        assert now_us <= (clocks.truth + clocks.set_by) // 1000
        assert now_us <= clocks.truth // 1000 + CATCH_UP * clocks.truth // 1000
        clocks.set_by = 0
        assert steady.now_us() <= clocks.truth // 1000


def test_a_jump_of_a_minute_stays_within_the_grace() -> None:
    clocks = Clocks()
    steady = clocks.steady()
    clocks.set_by = 3_600 * SECOND
    clocks.truth += 60 * SECOND
    assert steady.now_us() - clocks.truth // 1000 < WALL_CLOCK_GRACE_US


def test_a_clock_set_forward_for_good_is_reached_and_one_set_back_at_once() -> None:
    clocks = Clocks()
    steady = clocks.steady()
    clocks.set_by = 3_600 * SECOND
    for _ in range(11):
        clocks.truth += 3_600 * SECOND
        now_us = steady.now_us()
    assert now_us == (clocks.truth + clocks.set_by) // 1000
    clocks.set_by = -60 * SECOND
    assert steady.now_us() == (clocks.truth + clocks.set_by) // 1000
