"""A row on which reassembly fails is set aside and named, and nothing else of its hash changes, in every cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.core.segmentation import Reassembler, Segment, SegmentationEvent, contents_for
from tests.support.cuts import CONFIG, PLACE, START, Reassembly, conversations, reassemble, segment_row
from tests.support.examples import examples

BAD = "fails"
SECRET = "what the payload says"


@pytest.fixture(autouse=True)
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The state machine fails on some segments, when it has changed the state already."""
    real = Reassembler.add

    def add(self: Reassembler, segment: Segment, now: int, *, sds_id: str = "", **rest: Any) -> list[SegmentationEvent]:
        events = real(self, segment, now, sds_id=sds_id, **rest)
        if sds_id.startswith(BAD):
            raise KeyError(SECRET)
        return events

    monkeypatch.setattr(Reassembler, "add", add)


def without_events(query: Reassembly) -> dict[str, list[str]]:
    return {table: rows for table, rows in query.tables().items() if table != "channel_events"}


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=conversations(), cuts=st.lists(st.integers(0, 10_000), max_size=5), data=st.data())
def test_the_other_rows_lead_to_what_they_would_without_the_failing_ones(
    rows: list[dict[str, Any]], cuts: list[int], data: st.DataObject, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread = [{**row, "kafka_offset": 10 * row["kafka_offset"]} for row in rows]
    mixed: list[dict[str, Any]] = []
    for number, row in enumerate(spread):
        mixed.append(row)
        if row["kind"] == "segment" and data.draw(st.sampled_from([False, False, True])):
            mixed.append({**row, "sds_id": f"{BAD}{number}", "kafka_offset": row["kafka_offset"] + 1})
    bad = [row for row in mixed if str(row.get("sds_id")).startswith(BAD)]
    alone, together = reassemble(spread, [], monkeypatch), reassemble(mixed, cuts, monkeypatch)
    assert without_events(together) == without_events(alone)
    events = [row for table, row in together.rows if table == "channel_events" and row["event"] == "row_failed"]
    places = {(row["kafka_offset"], row["sds_id"], row["sender_id"], row["kafka_topic"]) for row in events}
    assert places == {(row["kafka_offset"], row["sds_id"], row["sender_id"], PLACE[0]) for row in bad}
    assert together.failed_rows == len(bad) == len(events)
    assert all(row["detail"].startswith("segment row: KeyError in add, line ") for row in events)
    assert SECRET not in repr(together.rows)


def test_a_timer_that_fails_is_named_with_the_sender_of_the_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    def expire(self: Reassembler, now: int) -> list[SegmentationEvent]:
        raise ZeroDivisionError

    monkeypatch.setattr(Reassembler, "expire", expire)
    content = contents_for(bytes(200), CONFIG)[0]
    place = {"kafka_topic": PLACE[0], "kafka_partition": PLACE[1]}
    segment = {**segment_row("alice", "a", START, content, START, bytes(200)), **place, "kafka_offset": 0}
    tick = {"kind": "tick", "event_us": (START + 10_000_000) * 1000, **place, "kafka_offset": 1}
    query = reassemble([segment, tick], [1], monkeypatch)
    event = next(row for table, row in query.rows if table == "channel_events")
    assert (event["event"], event["sender_id"], event["sds_id"]) == ("row_failed", "alice", None)
    assert event["detail"].startswith("tick row: ZeroDivisionError in expire")
