"""Missing offsets are lost only where the log starts after them, or in a compacted topic."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import KafkaConnectionError

from reliable_channel.config import load
from reliable_channel.pipeline.ingest import lost_offsets
from reliable_channel.pipeline.ingest.lost_offsets import COMPACTED, POLICY, _find_lost_ranges, ask_broker
from reliable_channel.pipeline.ingest.task import OffsetGap
from reliable_channel.runtime.topics import fetch_topic_configs

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


def test_an_account_that_may_not_read_the_policy_of_a_topic_is_warned_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka then answers with no settings, and not with an error."""
    admin = SimpleNamespace(describe_configs=lambda *_, **__: {"topic": {"t": {}}})
    assert fetch_topic_configs(admin, ["t"], [POLICY]) == {}
    monkeypatch.setattr(lost_offsets, "_fetch_log_starts", lambda *_: ({("t", 0): 4}, {}))
    ask, gap = ask_broker(load("local").kafka), OffsetGap(3, 5, 1, 2)
    assert [ask({("t", 0): [gap]}) for _ in range(2)] == [{("t", 0): [OffsetGap(3, 3, 1, 2)]}] * 2
    assert [record.args for record in caplog.records] == [("t",)]
