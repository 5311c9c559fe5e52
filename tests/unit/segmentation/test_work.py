"""No segment is expensive, whatever came before: work is counted, bounded for each call, and goes on later where it
did not reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.segmentation import (
    HashMismatch,
    MessageCompleted,
    Reassembler,
    Segment,
    SegmentationConfig,
    SetEvicted,
    get_codec,
)
from reliable_channel.core.segmentation import rebuild as rebuilding
from reliable_channel.core.segmentation.held import SEARCH_PAUSE_MS
from reliable_channel.core.segmentation.pending import MAX_OPEN_SENDS
from reliable_channel.core.segmentation.work import HASH
from reliable_channel.core.wire.hashing import IdScheme, keccak256
from reliable_channel.core.wire.segment import encode_segment
from tests.support.examples import examples
from tests.unit.segmentation.feeding import ALICE, Sent, completed, feed, of_kind, send

CONFIG = SegmentationConfig()
WITH_PARITY = SegmentationConfig(enable_reed_solomon=True, parity_rate=0.5)
MOST = CONFIG.max_work_per_segment + 7 * CONFIG.max_message_bytes
"""The budget, and one attempt at most above it: a message is hashed, and decoded where that is affordable."""


class Counted:
    """A Reassembler that is never asked for more than it may do in one call."""

    def __init__(self, config: SegmentationConfig = CONFIG) -> None:
        self.reassembler = Reassembler(config)
        self.most = 0

    def add(self, segment: Segment, number: int, now: int = 0) -> list[object]:
        events = self.reassembler.add(segment, now, scope=ALICE, sds_id=f"id-{number}", lamport=number)
        self.most = max(self.most, self.reassembler.work_spent)
        assert self.reassembler.work_spent <= MOST
        return list(events)

    def wait(self, until: int) -> list[object]:
        """Run every timer up to ``until`` (ms) but that of expiry."""
        events: list[object] = []
        while (due := self.reassembler.next_due()) is not None and due <= until:
            events += self.reassembler.expire(due)
            assert self.reassembler.work_spent <= MOST
        return events


def data(whole: bytes, index: int, count: int, payload: bytes) -> Segment:
    return Segment(whole, index, count, None, False, payload)


def parity(whole: bytes, index: int, count: int, payload: bytes) -> Segment:
    return Segment(whole, index, None, count, True, payload)


def test_a_last_segment_of_zeros_is_searched_in_a_bounded_number_of_lengths():
    """Two segments of 100 KiB made a search of 102 400 digests, 0.4 s."""
    counted, whole = Counted(), keccak256(b"never")
    counted.add(data(whole, 0, 2, bytes(102_400)), 1)
    counted.add(parity(whole, 0, 1, bytes(102_400)), 2)
    assert 1_000 * HASH < counted.most <= CONFIG.max_work_per_segment + 4 * 204_800
    assert counted.wait(10 * SEARCH_PAUSE_MS) == []
    assert counted.reassembler.next_due() == CONFIG.set_timeout_ms, "two segments pay for two goes, not for all lengths"


@pytest.mark.parametrize("zeros", [0, 1, 700, 1_500, 2_048, 30_000, 51_200, 102_400])
def test_honest_payloads_that_end_in_zeros_lose_their_last_segment_and_are_found(zeros):
    """Few zeros and multiples of 64, which files and buffers have, are found at once, other lengths a little later."""
    config = replace(WITH_PARITY, parity_rate=0.25, max_message_bytes=10**7)
    payload = bytes(range(1, 256)) * 2_000 + b"x" * (90 if zeros < 2_048 else 144) + bytes(zeros)
    sent = send(payload, config)
    k = -(-len(payload) // config.chunk_size())
    counted = Counted(config)
    events = [event for each in (*sent[: k - 1], sent[k]) for event in counted.add(each.segment, each.lamport)]
    events += counted.wait(60_000)
    assert [event.payload == payload for event in events if isinstance(event, MessageCompleted)] == [True]


def test_the_search_goes_on_where_it_stopped_and_a_snapshot_does_not_disturb_it():
    config = replace(WITH_PARITY, max_work_per_segment=HASH)  # 512 lengths a go
    payload = bytes(range(1, 201)) * 2 + bytes(3_001)  # no multiple of 8, and more zeros than a go
    config = replace(config, segment_size_bytes=4_096 // 4, parity_rate=1.0)
    payload = b"x" * 1_024 * 5 + b"y" + bytes(777)
    sent = send(payload, config)
    assert len(sent) == 12
    straight = Reassembler(config)
    assert not completed(feed(straight, [*sent[:5], sent[6]]))
    found, now = [], 0
    while not found:
        now = straight.next_due() or 0
        assert now < config.set_timeout_ms
        restored = Reassembler.from_bytes(straight.to_bytes(), config)
        found = completed(straight.expire(now))
        assert completed(restored.expire(now)) == found
        assert restored.to_bytes() == straight.to_bytes()
    assert found[0].payload == payload


@pytest.mark.parametrize(("codec", "length"), [("leopard", None), ("klauspost", 200 * 64)])
def test_many_tiny_segments_of_which_many_are_lost_and_some_false(codec, length):
    """200 data and 50 parity segments took 20 to 110 ms for each of 64 attempts."""
    counted, whole = Counted(), keccak256(b"never")
    for index in range(150):
        counted.add(replace(data(whole, index, 200, bytes([index]) * 64), original_length=length), index)
    for index in range(50):
        counted.add(replace(parity(whole, index, 50, bytes([index]) * 64), original_length=length), 200 + index)
    for index in range(150, 200):
        counted.add(replace(data(whole, index, 200, b"z" * 64), original_length=length), index)
    assert 0 < counted.most <= CONFIG.max_work_per_segment + 100 * HASH


def test_the_open_sends_of_one_hash_are_few():
    """250 open sends under one hash made every further segment cost 0.6 s."""
    counted, whole = Counted(), keccak256(b"never")
    for number in range(150):
        counted.add(data(whole, number // 50, 3, bytes([number]) * 9), number)
        assert counted.reassembler.open_sets <= MAX_OPEN_SENDS


def test_every_id_that_is_recomputed_for_a_choice_counts(monkeypatch):
    """16 open sends of 9 bytes a segment made one more cost 34 ms, nearly all of it for ids."""
    counted, whole, digests = Counted(), keccak256(b"never"), []
    real = IdScheme.message_id
    monkeypatch.setattr(IdScheme, "message_id", lambda *given: digests.append(given) or real(*given))
    for number in range(150):
        digests.clear()
        counted.add(data(whole, number // 50, 3, bytes([number]) * 9), number * 7)
        assert len(digests) * HASH <= counted.reassembler.work_spent, number


def test_of_many_open_sends_the_one_with_the_fewest_segments_goes():
    sent = send(bytes(300), SegmentationConfig(segment_size_bytes=64))
    reassembler = Reassembler(SegmentationConfig(segment_size_bytes=64))
    feed(reassembler, sent[:2])
    events = feed(reassembler, [replace(sent[0], sds_id=f"false-{n}", lamport=9) for n in range(MAX_OPEN_SENDS)])
    evicted = of_kind(SetEvicted, events)
    assert [[held.sds_id for held in event.incomplete.held] for event in evicted] == [["false-0"]]
    assert completed(feed(reassembler, sent[2:]))


def test_attempts_at_a_large_message_are_few_in_one_call_and_go_on_later():
    """Eleven segments of 100 KiB, two of them contested: a choice costs 1 MiB of hashing."""
    payload = bytes(range(256)) * 4_096
    sent = send(payload, CONFIG)
    counted = Counted()

    def false(index: int, name: int) -> Sent:
        segment = replace(sent[index].segment, payload=bytes([name]) * 102_400)
        return replace(sent[index], content=encode_segment(segment), sds_id=f"false-{name}")

    order = [false(0, 1), false(1, 2), false(0, 3), *sent, false(1, 4), false(0, 5), false(1, 6)]
    events: list[object] = []
    for number, each in enumerate(order):
        events += counted.reassembler.add(
            each.segment, 0, scope=ALICE, sds_id=each.sds_id, lamport=1_000 + each.segment.index
        )
        assert counted.reassembler.work_spent <= CONFIG.max_work_per_segment + CONFIG.max_message_bytes, number
    events += counted.wait(60_000)
    assert [event.payload for event in events if isinstance(event, MessageCompleted)] == [payload]


def test_parity_that_would_take_too_long_to_use_waits_for_data():
    codec = get_codec("klauspost")
    assert codec.decoding_work(128, 128, 128, 8_192) > 6 * CONFIG.max_message_bytes
    whole, counted = keccak256(b"never"), Counted()
    for index in range(128):
        segment = parity(whole, index, 128, bytes(8_000))
        counted.add(replace(segment, original_length=1_000_000), index)
    counted.add(replace(data(whole, 0, 128, bytes(8_000)), original_length=1_000_000), 500)
    assert counted.most == 0


segments = st.builds(
    lambda index, k, m, is_parity, fill, length: (
        parity(WHOLE, index % m, m, bytes([fill]) * length)
        if is_parity
        else data(WHOLE, index % k, k, bytes([fill]) * length)
    ),
    st.integers(0, 7),
    st.sampled_from([3, 3, 3, 4]),
    st.sampled_from([2, 2, 3]),
    st.booleans(),
    st.sampled_from([0, 0, 1, 2]),
    st.sampled_from([64, 64, 64, 10]),
)
WHOLE = keccak256(b"never")


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(segments, st.integers(0, 30), st.integers(0, 900)), max_size=80))
def test_work_and_searches_are_bounded_whatever_comes(steps):
    """Every call does at most one attempt more than its budget; goes are at most as many as segments."""
    config = replace(CONFIG, segment_size_bytes=64, max_work_per_segment=4_000, max_rebuild_attempts=20)
    reassembler, now, goes = Reassembler(config), 0, 0
    dearest = 4_000 + 600 * HASH
    for segment, sds_id, pause in steps:
        while (due := reassembler.next_due()) is not None and due <= now + pause:
            events = reassembler.expire(due)
            goes += reassembler.work_spent > 0
            assert reassembler.work_spent <= dearest
            assert not completed(events)
        now += pause
        reassembler.add(segment, now, scope=ALICE, sds_id=f"id-{sds_id}", lamport=sds_id)
        assert reassembler.work_spent <= dearest
    assert goes <= len(steps)


def test_a_mismatch_is_told_once_and_once_more_when_nothing_further_is_tried():
    config = SegmentationConfig(segment_size_bytes=64, max_rebuild_attempts=4)
    sent = send(b"ab" * 100, config)
    reassembler = Reassembler(config)
    rivals = [
        replace(
            sent[n % 3], content=encode_segment(replace(sent[n % 3].segment, payload=bytes([n]) * 64)), sds_id=f"{n}"
        )
        for n in range(9)
    ]
    events = feed(reassembler, [*rivals[:3], *sent[3:], *rivals[3:]])
    assert [event.exhausted for event in of_kind(HashMismatch, events)] == [False, True]


def test_lengths_cover_every_length_once_or_more():
    for base, shortest, longest in ((0, 1, 64), (64, 70, 128), (102_400, 102_401, 204_800), (10, 11, 5_011)):
        tried = {length for lengths in rebuilding._list_lengths(base, shortest, longest) for length in lengths}
        assert tried == set(range(shortest, longest + 1))
