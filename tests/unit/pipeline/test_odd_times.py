"""Timestamps of any size and unit, in envelopes and as Lamport timestamps: senders set them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.waku import decode_waku_message, encode_waku_message
from reliable_channel.pipeline.ingest.decode import LAMPORT_MAX_AHEAD_MS
from reliable_channel.simulation.world import World, simulate
from tests.support.adapters import Adapters
from tests.support.decoding import NOW_MS, PUBSUB, decode, decoder, envelope, sds
from tests.support.integrity import HOUR_MS, attack_scenario

NOW_S = NOW_MS // 1_000
ODD_NS = [-(2**63), -1, 0, 1, NOW_S, NOW_MS, NOW_MS * 1_000, NOW_S * 10**9, 2**63 - 1]
OF_THE_ENVELOPE = ("sender_timestamp_ns", "kafka_offset", "retrieval_hint")
"""What follows the envelope that came first, or last."""


@pytest.mark.parametrize("timestamp", ODD_NS)
def test_the_timestamp_of_an_envelope_is_taken_as_it_is(timestamp: int) -> None:
    row = decode(envelope(sds(), timestamp=timestamp))
    assert (row.kind, row.sender_timestamp_ns) == ("sds", timestamp)


@pytest.mark.parametrize("lamport", [0, 1, NOW_S, NOW_MS, NOW_MS + LAMPORT_MAX_AHEAD_MS])
def test_a_lamport_timestamp_that_is_not_ahead_is_taken_as_it_is(lamport: int) -> None:
    row = decode(envelope(sds(lamport=lamport)))
    assert (row.kind, row.lamport_timestamp) == ("sds", lamport)


@pytest.mark.parametrize("lamport", [NOW_MS * 1_000, NOW_S * 10**9, 2**63 - 1, 2**63, 2**64 - 1])
def test_a_lamport_timestamp_in_another_unit_or_of_64_bits_is_refused(lamport: int) -> None:
    row = decode(envelope(sds(lamport=lamport)))
    assert (row.kind, row.reason) == ("quarantined", Reason.LAMPORT_OUT_OF_RANGE.value)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1))
def test_any_times_give_a_row_or_a_reason(timestamp: int, lamport: int, record_us: int) -> None:
    row = decoder().decode(envelope(sds(lamport=lamport), timestamp=timestamp), PUBSUB, b"relay", record_us)
    assert (row.kind == "sds") is (row.reason is None)
    if row.kind == "sds":
        assert (row.sender_timestamp_ns, row.lamport_timestamp) == (timestamp, lamport)
        assert lamport < 2**63, "columns of tables hold 63 bits"


def rows(world: World, before: bool, timestamps: list[int]) -> list[tuple[str, dict[str, Any]]]:
    """All rows, where every honest envelope also came with each of these timestamps, before or after itself."""
    adapters = Adapters()
    for number, record in enumerate(world.records, start=1):
        sent = decode_waku_message(record.value)
        if isinstance(sent, Malformed):
            continue
        copies = [encode_waku_message(replace(sent, timestamp=timestamp)) for timestamp in timestamps]
        own = encode_waku_message(sent)
        for place, value in enumerate([*copies, own] if before else [own, *copies]):
            adapters.record(number * 100 + place, value, dict(record.headers), record.at_ms)
    adapters.close(world.scenario.end_ms + HOUR_MS)
    found = [(table, json.loads(fields)) for table, fields in adapters.outputs]
    return [(table, {k: v for k, v in each.items() if k not in OF_THE_ENVELOPE}) for table, each in found]


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_envelopes_sent_again_with_other_timestamps_change_nothing_but_what_is_theirs(before: bool) -> None:
    """SDS does not bind the envelope: whoever repeats a message in one of its own decides its timestamp."""
    scenario = attack_scenario(5, loss=0.1)
    world = simulate(replace(scenario, channels=(replace(scenario.channels[0], hostile=None),)))
    usual = [NOW_MS * 10**6 + number for number in range(len(ODD_NS))]
    assert rows(world, before, ODD_NS) == rows(world, before, usual)
