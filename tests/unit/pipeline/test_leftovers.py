"""Where a message must stand of which only late segments came: in a few ranges of Lamport timestamps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.pipeline.reassembly.leftovers import MAX_RANGES, SPREAD_MS, merged

HOUR_MS = 3_600_000
ranges = st.lists(
    st.tuples(st.integers(0, 10**12), st.integers(0, 10**7)).map(lambda r: (r[0], r[0] + r[1])), max_size=80
)


def test_what_was_sent_at_about_the_same_time_is_one_range() -> None:
    day = 24 * HOUR_MS
    assert merged([(day, day + 3), (day + HOUR_MS, day + HOUR_MS), (5 * day, 5 * day)]) == [
        (day - SPREAD_MS, day + HOUR_MS + SPREAD_MS),
        (5 * day - SPREAD_MS, 5 * day + SPREAD_MS),
    ]


@given(ranges)
def test_every_range_is_inside_one_of_a_few(given_ranges: list[tuple[int, int]]) -> None:
    found = merged(given_ranges)
    assert len(found) <= MAX_RANGES
    assert all(any(a <= low - SPREAD_MS and high + SPREAD_MS <= b for a, b in found) for low, high in given_ranges)
