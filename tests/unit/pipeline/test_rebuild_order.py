"""A rebuild divides the records into commits in their order, whatever the wall clock did while they were ingested."""

from __future__ import annotations

from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.pipeline.maintenance.rebuild import OffsetRange, choose_ends


@st.composite
def partitions(draw: st.DrawFn) -> list[OffsetRange]:
    """Ranges of three partitions at most; the clock may have been set forward and back."""
    ranges = []
    for partition in range(draw(st.integers(1, 3))):
        sizes = draw(st.lists(st.integers(1, 10), max_size=12))
        for end, records in zip(accumulate(sizes), sizes, strict=True):
            ranges.append(OffsetRange(("t", partition), end, draw(st.integers(0, 20)), records))
    return ranges


@given(ranges=partitions(), per_commit=st.integers(1, 40))
def test_commits_have_a_bounded_number_of_records_in_the_order_of_each_partition(
    ranges: list[OffsetRange], per_commit: int
) -> None:
    ends = choose_ends(ranges, per_commit)
    for before, after in pairwise(ends):
        assert all(after[partition] >= end for partition, end in before.items())
    # One offset is one record here.
    reached = [0, *(sum(each.values()) for each in ends), sum(each.records for each in ranges)]
    sizes = [after - before for before, after in pairwise(reached)]
    assert all(per_commit <= size < per_commit + 10 for size in sizes[:-1])
    assert sizes[-1] < per_commit + 10
    assert sizes[-1] > 0 or not ranges


@given(ranges=partitions(), per_commit=st.integers(1, 40))
def test_where_the_clock_went_on_commits_follow_it(ranges: list[OffsetRange], per_commit: int) -> None:
    in_time = sorted(ranges, key=lambda each: (each.topic_partition, each.ingested_us))
    ranges = [each._replace(ingested_us=other.ingested_us) for each, other in zip(ranges, in_time, strict=True)]
    for end in choose_ends(ranges, per_commit):
        inside = [each.ingested_us for each in ranges if each.end <= end.get(each.topic_partition, 0)]
        outside = [each.ingested_us for each in ranges if each.end > end.get(each.topic_partition, 0)]
        assert max(inside) <= min(outside)
