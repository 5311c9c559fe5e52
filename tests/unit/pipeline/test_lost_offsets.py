"""Missing offsets are lost only where the log starts after them, or in a compacted topic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaConnectionError

from reliable_channel.config import load
from reliable_channel.pipeline.ingest import lost_offsets
from reliable_channel.pipeline.ingest.lost_offsets import COMPACTED, _find_lost_ranges, ask_broker
from reliable_channel.pipeline.ingest.task import OffsetGap

gaps = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 5)), max_size=5).map(
    lambda found: [OffsetGap(first, first + more, 1, 2) for first, more in found]
)


@given(gaps, st.integers(0, 50), st.booleans())
def test_each_offset_has_the_reason_that_the_broker_gives(
    missing: list[OffsetGap], start: int, is_compacted: bool
) -> None:
    lost = [*_find_lost_ranges(missing, start, is_compacted)]
    causes = {(offset, each.cause) for each in lost for offset in range(each.first, each.last + 1)}
    offsets = {offset for gap in missing for offset in range(gap.first, gap.last + 1)}
    expected = {(offset, "offset_jump") for offset in offsets if offset < start}
    expected |= {(offset, COMPACTED) for offset in offsets if offset >= start and is_compacted}
    assert causes == expected


def test_without_an_answer_every_missing_offset_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise KafkaConnectionError

    monkeypatch.setattr(lost_offsets, "_fetch_log_starts", fail)
    gap = OffsetGap(3, 4, 1, 2)
    assert ask_broker(load("local").kafka)({("t", 0): [gap]}) == {("t", 0): [gap]}
