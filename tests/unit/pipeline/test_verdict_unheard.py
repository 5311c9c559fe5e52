"""A gap of one bridge counts only where and when no other bridge followed the topic."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import EPOCH, LOST_DEPENDENCIES, SDS_MESSAGES, SIGHTINGS, SOURCE_GAPS, TopicPartition
from reliable_channel.pipeline.verdict.gaps import Gap, Span, join_gaps, read_open_gaps, subtract_received
from reliable_channel.pipeline.verdict.since_gaps import SinceGaps


def span(since: int, until: int) -> Span:
    begin = dt.datetime(2026, 1, 1)
    return Span(begin + dt.timedelta(seconds=since), begin + dt.timedelta(seconds=until))


def find_rest(gaps: list[Gap], received: dict[str, Span], partitions: Collection[TopicPartition] = ()) -> list[Span]:
    return subtract_received(gaps, join_gaps(gaps), received, partitions)


NORTH = Gap(span(20, 50), "north")


def test_a_gap_is_none_where_another_bridge_heard_the_topic_before_and_after_it() -> None:
    assert find_rest([NORTH], {"north": span(0, 90), "south": span(10, 60)}) == []


def test_what_came_before_or_after_the_other_bridge_followed_the_topic_stays_unheard() -> None:
    assert find_rest([NORTH], {"south": span(30, 40)}) == [span(20, 30), span(40, 50)]
    assert find_rest([NORTH], {"south": span(60, 90)}) == [NORTH.span]
    assert find_rest([NORTH], {}) == [NORTH.span]


def test_where_both_were_away_nobody_listened() -> None:
    south = Gap(span(45, 70), "south")
    heard = {"north": span(0, 90), "south": span(0, 90)}
    assert find_rest([NORTH, south], heard) == [span(45, 50), span(45, 50)]
    assert find_rest([NORTH, south], {**heard, "west": span(48, 80)}) == [span(45, 48), span(45, 48)]


BRIDGES = st.sampled_from(["north", "south", "west"])
SPANS = st.tuples(st.integers(0, 20), st.integers(0, 20)).map(sorted).map(lambda times: span(*times))


@given(st.lists(st.builds(Gap, SPANS, st.none() | BRIDGES), max_size=8), st.dictionaries(BRIDGES, SPANS))
def test_what_is_left_of_gaps_is_when_no_bridge_listened(gaps: list[Gap], received: dict[str, Span]) -> None:
    left = find_rest(gaps, received)
    for second in range(20):
        now = span(second, second).since + dt.timedelta(seconds=0.5)

        def is_in(one: Span, now: dt.datetime = now) -> bool:
            return one.since <= now <= one.until

        listening = {
            bridge
            for bridge, followed in received.items()
            if is_in(followed) and not any(gap.vantage == bridge and is_in(gap.span) for gap in gaps)
        }
        silent = any(is_in(gap.span) and (gap.vantage is None or listening <= {gap.vantage}) for gap in gaps)
        assert any(map(is_in, left)) == silent


def test_each_topic_costs_as_much_as_there_are_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the square of it: a bridge that restarts often has a thousand in a month, and strangers make topics."""
    made: list[Span] = []

    def count(since: dt.datetime, until: dt.datetime) -> Span:
        made.append(Span(since, until))
        return made[-1]

    flapping = [Gap(span(2 * number, 2 * number + 1), "north") for number in range(200)]
    monkeypatch.setattr("reliable_channel.pipeline.verdict.gaps.Span", count)
    assert find_rest(flapping, {"north": span(0, 500)}) == [gap.span for gap in flapping]
    assert len(made) < 1_000


def test_no_bridge_hears_what_kafka_has_lost_and_none_stands_in_for_itself() -> None:
    kafka = Gap(span(20, 50), None)
    assert find_rest([kafka], {"north": span(0, 90)}) == [kafka.span]
    assert find_rest([NORTH], {"north": span(0, 90)}) == [NORTH.span]


def test_what_kafka_lost_of_another_partition_hides_nothing() -> None:
    kafka = Gap(span(20, 50), None, ("t", 0))
    assert find_rest([kafka, NORTH], {}, {("t", 1)}) == [NORTH.span]
    assert find_rest([kafka], {}, {("t", 0), ("t", 1)}) == [kafka.span]
    assert find_rest([kafka], {}, {("other", 0)}) == []
    assert find_rest([kafka], {}) == [kafka.span], "a topic of which nothing came may be in any partition"


def test_a_gap_of_a_bridge_that_has_no_name_is_in_no_partition(tmp_path: Path) -> None:
    paths = load("local").with_run_dir(tmp_path).paths
    create_tables(paths, (SOURCE_GAPS,))
    common = {"kafka_topic": "t", "first_offset": 0, "last_offset": 0, "status": "open", "from_time": 1, "to_time": 2}
    rows = [
        {**common, "kafka_partition": -1, "name": "of a bridge", "cause": "bridge_restart"},
        {**common, "kafka_partition": 3, "name": "of Kafka", "cause": "offset_jump"},
    ]
    append_rows(paths, SOURCE_GAPS, as_arrow(rows, SOURCE_GAPS))
    assert {gap.topic_partition for gap in read_open_gaps(paths)} == {None, ("t", 3)}


def test_a_missing_message_without_an_id_is_surrounded_by_nothing(tmp_path: Path) -> None:
    """Another engine may write a row without an id; a message that is surrounded twice is named once."""
    paths = load("local").with_run_dir(tmp_path).paths
    read = (SDS_MESSAGES, SIGHTINGS, LOST_DEPENDENCIES)
    create_tables(paths, read)
    channel = {"pubsub_topic": "p", "content_topic": "c", "channel_id": "talk"}
    record = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 1, "event_time": 0, "ingest_time": 0}
    history = [{"sds_id": "new", "retrieval_hint": None, "sender_id": None}]
    said = {"sds_id": "namer", "sds_kind": "content", "lamport_timestamp": 5, "causal_history": history}
    append_rows(paths, SDS_MESSAGES, as_arrow([{**channel, **record, **said}], SDS_MESSAGES))
    missing = {**channel, "needed_by": "namer", "status": "lost", "event_time": 2**50, "missing_since": 2**50}
    rows = [{**missing, "sds_id": sds_id} for sds_id in ("lost", None)]
    append_rows(paths, LOST_DEPENDENCIES, as_arrow(rows, LOST_DEPENDENCIES))
    since_gaps = SinceGaps({table: open_table(paths, table) for table in read}, [Gap(Span(EPOCH, EPOCH), "north")])
    least = pa.table({**{name: [text] for name, text in channel.items()}, "least": [5]})
    surrounded = since_gaps.find_surrounded(least, pa.table({"new_id": ["new"]}))
    assert surrounded.to_pylist() == [{**channel, "sds_id": "lost"}]
