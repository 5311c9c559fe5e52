"""Gaps of Kafka, which stores fill by their time."""

from __future__ import annotations

import datetime as dt

import pytest

from reliable_channel.config import Settings
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.evidence.refetch import RefetchResult
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.schema import as_arrow
from reliable_channel.transport.store.model import StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import StoreFault, StoreNodeError
from tests.support.refetching import (
    LOST,
    PUBSUB,
    START_S,
    STORED,
    TOPIC,
    MemoryNode,
    run,
)


def lost_of_kafka(settings: Settings, cause: str = "offset_jump") -> None:
    """A gap of two minutes around the start, and an envelope before it."""
    at = dt.datetime.fromtimestamp(START_S, dt.UTC)
    gap = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "first_offset": 5,
        "last_offset": 9,
        "cause": cause,
        "name": "t/0/5",
        "status": "open",
        "from_time": int((at - dt.timedelta(seconds=60)).timestamp() * 10**6),
        "to_time": int((at + dt.timedelta(seconds=60)).timestamp() * 10**6),
    }
    append_rows(settings.paths, tables.SOURCE_GAPS, as_arrow([gap], tables.SOURCE_GAPS))
    envelope = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 4,
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "message_hash": message_hash(PUBSUB, LOST),
    }
    append_rows(settings.paths, tables.ENVELOPES, as_arrow([envelope], tables.ENVELOPES))


@pytest.mark.parametrize("cause", ["offset_jump", "compaction"])
def test_a_gap_is_filled_by_its_time_range_once(settings: Settings, cause: str) -> None:
    lost_of_kafka(settings, cause)
    outside = WakuMessage(b"an hour later", TOPIC, timestamp=(START_S + 3_600) * 10**9)
    node = MemoryNode("a", STORED, LOST, outside)
    outcome, written = run(settings, node)
    assert [entry.message for entry in written] == [STORED], "inside the gap and not here yet"
    assert outcome == RefetchResult(requests=0, gaps=1, written=1)
    assert run(settings, node)[0] == RefetchResult()


def test_a_gap_for_which_every_store_failed_is_asked_for_again(settings: Settings) -> None:
    lost_of_kafka(settings)
    down = MemoryNode("a", broken=True), MemoryNode("b", broken=True)
    assert run(settings, *down) == (RefetchResult(gaps=1), [])
    outcome, written = run(settings, MemoryNode("a", STORED), MemoryNode("b", broken=True))
    assert [entry.message for entry in written] == [STORED]
    assert outcome == RefetchResult(gaps=1, written=1)
    assert run(settings, *down)[0] == RefetchResult(), "one node has answered"


def test_a_gap_is_asked_for_again_while_no_store_answers_for_one_of_its_pubsub_topics(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shards may have one content topic; it was enough that a store answered for one of them."""
    lost_of_kafka(settings)
    row = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 3, "pubsub_topic": "/waku/2/rs/1/1"}
    envelope = as_arrow([{**row, "content_topic": TOPIC, "message_hash": bytes(32)}], tables.ENVELOPES)
    append_rows(settings.paths, tables.ENVELOPES, envelope)
    node = MemoryNode("a", STORED)
    answer = node.query

    def fail_for_one(query: StoreQuery) -> StorePage:
        if query.pubsub_topic == row["pubsub_topic"]:
            raise StoreNodeError("a", StoreFault.UNREACHABLE, "off")
        return answer(query)

    monkeypatch.setattr(node, "query", fail_for_one)
    assert run(settings, node)[0].gaps == 1
    assert run(settings, node)[0].gaps == 1
    monkeypatch.undo()
    assert run(settings, node)[0].gaps == 1
    assert run(settings, node)[0] == RefetchResult()
