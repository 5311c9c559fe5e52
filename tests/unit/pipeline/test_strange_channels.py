"""What strangers do under other channel ids and on other content topics changes no row of a channel.

Channel ids, SDS ids and payloads are free to repeat: a channel is its id on one content topic of one pubsub topic.
"""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, decode_sds_message, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message, encode_waku_message
from reliable_channel.pipeline.ack import stream
from reliable_channel.pipeline.ack.channel_state import Channels, LiveChannels, Rules
from reliable_channel.simulation.world import World, simulate
from tests.support.ack_rows import content_row
from tests.support.adapters import Adapters
from tests.support.integrity import HOUR_MS, attack_scenario
from tests.unit.pipeline.buckets import FakeBucket, text_of

TOPIC, ELSEWHERE = "/reliable-channel/1/chat/proto", "/reliable-channel/1/files/proto"
APART = 100
"""Kafka offsets between two honest records."""

Change = Callable[[WakuMessage, SdsMessage, int], tuple[WakuMessage, SdsMessage]]


def another_topic(envelope: WakuMessage, message: SdsMessage, copy: int) -> tuple[WakuMessage, SdsMessage]:
    """The same channel id, SDS ids and contents on another content topic."""
    return replace(envelope, content_topic=ELSEWHERE), message


def another_channel(envelope: WakuMessage, message: SdsMessage, copy: int) -> tuple[WakuMessage, SdsMessage]:
    """The same SDS ids and contents in other channels of the same content topic."""
    return envelope, replace(message, channel_id=f"talk {copy}")


def another_sender_elsewhere(envelope: WakuMessage, message: SdsMessage, copy: int) -> tuple[WakuMessage, SdsMessage]:
    """The same SDS ids and hashes in other channels, under another name, and naming what never was."""
    history = (*message.causal_history, HistoryEntry(f"never {copy}", b"h" * 32))
    changed = replace(message, channel_id=f"talk {copy}", sender_id="mallory", causal_history=history)
    return replace(envelope, timestamp=copy), changed


def rows(world: World, change: Change | None = None, copies: int = 1, before: bool = False) -> list[object]:
    """All rows of the honest channel, where ``copies`` of each of its records came as well, before or after it."""
    adapters = Adapters()
    for number, record in enumerate(world.records, start=1):
        if record.value is None:
            continue
        given = {number * APART: record.value}
        for copy in range(1, copies + 1):
            strange = None if change is None else changed(record.value, change, copy)
            if strange is not None:
                given[number * APART + (-copy if before else copy)] = strange
        for offset, value in sorted(given.items()):
            adapters.record(offset, value, dict(record.headers), record.at_ms)
    adapters.close(world.scenario.end_ms + HOUR_MS)
    tables = [(table, json.loads(fields)) for table, fields in adapters.outputs]
    tables += [("reassembled_messages", row._asdict()) for row in adapters.rebuilt]
    tables += [("incomplete_messages", each.fields) for each in adapters.given_up]
    found: list[object] = [row for row in tables if (row[1]["content_topic"], row[1]["channel_id"]) == (TOPIC, "talk")]
    assert change is None or len(tables) > len(found)
    return found


def changed(value: bytes, change: Change, copy: int) -> bytes | None:
    envelope = decode_waku_message(value)
    if isinstance(envelope, Malformed):
        return None
    message = decode_sds_message(envelope.payload)
    if isinstance(message, Malformed):
        return None
    envelope, message = change(envelope, message, copy)
    return encode_waku_message(replace(envelope, payload=encode_sds_message(message)))


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("change", [another_topic, another_channel, another_sender_elsewhere])
@settings(max_examples=4, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.2]), copies=st.sampled_from([1, 5]))
def test_copies_of_all_messages_elsewhere_change_no_row_of_the_channel(
    change: Change, before: bool, seed: int, loss: float, copies: int
) -> None:
    scenario = attack_scenario(seed, loss=loss, messages=8)
    world = simulate(replace(scenario, channels=(replace(scenario.channels[0], hostile=None),)))
    assert rows(world, change, copies, before) == rows(world)


# ---- many channel ids ----------------------------------------------------------------------------------------------


def test_the_channels_that_a_worker_keeps_take_three_times_their_limit_at_most() -> None:
    """One sender uses a new channel id for every message: a channel that counted for 2 400 bytes took 17 000."""
    limit, live, rules = 2**20, LiveChannels(2**20), Rules(None, SdsParameters(), 86_400_000)
    bucket = FakeBucket()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1_000):
            key = ("p", TOPIC, f"{number}", "spec")
            channels = Channels(bucket, 0, lambda _: rules, "query", live)
            row = text_of(content_row(b"hi", sender_id="mallory", sds_id=f"{number:064}"))
            list(stream.process_channel(channels, key, [(row, None)], {}))
            channels.close()
        stored = sum(map(len, bucket.entries.values()))
        gc.collect()  # what is kept counts, not what the collector has not come to
        assert tracemalloc.get_traced_memory()[0] - before - 2 * stored < 3 * limit
    finally:
        tracemalloc.stop()
    assert stored < 1_000 * 1_000
