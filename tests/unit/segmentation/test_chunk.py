"""The verification of chains (RELIABLE-CHANNEL-API)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.segmentation.chunk import ChunkDiscarded, ChunkGate, ReceivedChunk
from tests.unit.segmentation.feeding import ALICE, send

CONFIG = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)


def received(payload=bytes(300), lamport=100, name="m") -> list[ReceivedChunk]:
    """One send's chunks as a receiver sees them: a causal history of two, the predecessor last."""
    sent = send(payload, CONFIG, lamport, name)
    ids = ["other", *(each.sds_id for each in sent)]
    return [
        ReceivedChunk(each.segment, each.sds_id, (ids[max(n - 1, 0)], ids[n]), ALICE, each.lamport)
        for n, each in enumerate(sent)
    ]


@given(st.permutations(range(7)))
def test_an_honest_chain_passes_in_chain_order_whatever_the_order_of_arrival(order):
    chunks, gate = received(), ChunkGate()
    out = [passed for place in order for passed in gate.add(chunks[place], 0)]
    assert out == chunks


def test_a_chunk_that_names_no_predecessor_is_not_used_and_discarded_at_expiry():
    chunks = received()
    broken = replace(chunks[2], causal_history=("other",))
    gate = ChunkGate(timeout_ms=50)
    assert gate.add(chunks[0], 0) == [chunks[0]]
    assert gate.add(chunks[1], 0) == [chunks[1]]
    assert gate.add(broken, 10) == []
    assert gate.add(broken, 20) == []
    assert gate.add(chunks[3], 20) == []
    assert gate.expire(49) == []
    assert gate.next_due() == 50
    assert gate.expire(65) == [ChunkDiscarded(broken, True)]
    assert gate.expire(70) == [ChunkDiscarded(chunks[3], True)]
    assert gate.next_due() is None


def test_a_predecessor_of_another_message_does_not_count():
    mine, others = received(), received(bytes(301), name="n")
    gate = ChunkGate()
    gate.add(others[0], 0)
    assert gate.add(replace(mine[1], causal_history=(others[0].sds_id,)), 0) == []


def test_the_last_data_segment_leads_to_parity_only_through_its_own_id():
    chunks, gate = received(), ChunkGate()
    for chunk in chunks[:5]:
        gate.add(chunk, 0)
    assert gate.add(replace(chunks[5], causal_history=(chunks[3].sds_id,)), 0) == []
    assert gate.add(chunks[5], 0) == [chunks[5]]


def test_two_sends_of_one_payload_are_two_chains():
    first, second = received(lamport=100), received(lamport=500)
    gate = ChunkGate()
    out = [passed for pair in zip(first, second, strict=True) for chunk in pair for passed in gate.add(chunk, 0)]
    assert len(out) == 14


def test_what_waits_is_bounded_and_the_oldest_goes_first():
    chunks, gate = received(), ChunkGate(max_waiting=2)
    assert gate.add(chunks[1], 0) == []
    assert gate.add(chunks[2], 0) == []
    assert gate.add(chunks[3], 0) == [ChunkDiscarded(chunks[1], False)]


def test_a_stranger_takes_no_room_from_a_chunk_of_an_honest_sender():
    chunks, gate = received(), ChunkGate(max_waiting=3, max_waiting_bytes=3 * 64)
    gate.add(chunks[0], 0)
    assert gate.add(chunks[2], 0) == []
    strangers = [replace(chunk, scope=("mallory",)) for chunk in chunks[1:]]
    passed = [out for chunk in strangers for out in gate.add(chunk, 0)]
    assert passed == [ChunkDiscarded(chunk, False) for chunk in strangers[:-2]]
    assert gate.add(chunks[1], 0) == chunks[1:3]


def test_a_stranger_takes_no_link_from_an_honest_sender():
    chunks, gate = received(), ChunkGate(max_verified=3)
    gate.add(chunks[0], 0)
    for length in range(200, 210):
        gate.add(replace(received(bytes(length), name="n")[0], scope=("mallory",)), 0)
    assert gate.add(chunks[1], 0) == [chunks[1]]


def test_links_are_bounded_and_forgotten():
    chunks, gate = received(), ChunkGate(max_verified=1)
    gate.add(chunks[0], 0)
    gate.add(received(bytes(200), name="n")[0], 0)
    assert gate.add(chunks[1], 0) == []


def test_an_unlinked_twin_keeps_waiting_when_the_honest_chunk_passes():
    chunks, gate = received(), ChunkGate(timeout_ms=50)
    twin = replace(chunks[1], sds_id="twin", causal_history=())
    assert gate.add(twin, 0) == []
    assert gate.add(chunks[1], 0) == []
    assert gate.add(chunks[0], 0) == chunks[:2]
    assert gate.expire(60) == [ChunkDiscarded(twin, True)]


def test_waiting_bytes_are_bounded_and_the_oldest_goes_first():
    chunks = received()
    gate = ChunkGate(max_waiting=128, max_waiting_bytes=2 * len(chunks[1].segment.payload))
    assert gate.add(chunks[1], 0) == []
    assert gate.add(chunks[2], 0) == []
    assert gate.add(chunks[3], 0) == [ChunkDiscarded(chunks[1], False)]
    assert gate.add(chunks[4], 0) == [ChunkDiscarded(chunks[2], False)]


@given(st.permutations(range(7)), st.integers(0, 7), st.integers(0, 80))
def test_a_gate_goes_on_exactly_as_the_one_it_is_restored_from(order, cut, later):
    chunks, gate, restored = received(), ChunkGate(timeout_ms=50), ChunkGate(timeout_ms=50)
    for place in order[:cut]:
        gate.add(chunks[place], place)
    restored.restore(gate.to_bytes())
    assert restored.to_bytes() == gate.to_bytes()
    assert restored.next_due() == gate.next_due()
    assert restored.expire(later) == gate.expire(later)
    for place in order[cut:]:
        assert restored.add(chunks[place], later) == gate.add(chunks[place], later)


@pytest.mark.parametrize("data", [b"\xff", b"", b"\x08\x02"])
def test_bytes_that_are_no_gate_are_refused(data):
    with pytest.raises(LocalError, match="chunk gate"):
        ChunkGate().restore(data)
