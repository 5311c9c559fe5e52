"""False segments: a hash mismatch discards what was rebuilt, not the set; other subsets are tried, within a bound."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import (
    Dialect,
    HashMismatch,
    MessageCompleted,
    PoisonedSegmentExcluded,
    Reassembler,
    Segment,
    SegmentationConfig,
    SegmentConflict,
    SegmentDuplicate,
    SegmentRefused,
    SetExpired,
    missing_segments,
)
from reliable_channel.core.segmentation.pending import MAX_CONFLICTS
from reliable_channel.core.wire.hashing import keccak256, sds_message_id
from reliable_channel.core.wire.segment import encode_segment
from tests.unit.segmentation.feeding import ALICE, Sent, completed, feed, of_kind, send

CONFIG = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)
PAYLOAD = bytes(range(256)) * 2 + b"the short last segment"  # 9 data and 4 parity segments


def poisoned(sent: Sent, payload: bytes | None = None, sds_id: str | None = None) -> Sent:
    """A false segment in place of ``sent``: other bytes, and its own SDS id unless told."""
    segment = sent.segment
    false = bytes(byte ^ 0xA5 for byte in segment.payload) if payload is None else payload
    return replace(
        sent, content=encode_segment(replace(segment, payload=false)), sds_id=sds_id or f"evil-{sent.sds_id}"
    )


@given(st.data())
def test_one_false_segment_does_not_kill_a_set(data):
    """Whatever it replaces and whenever it comes, one segment more than needed rescues the message."""
    sent = send(PAYLOAD, CONFIG)
    victim = data.draw(st.integers(0, 12))
    others = data.draw(st.lists(st.sampled_from([n for n in range(13) if n != victim]), min_size=9, unique=True))
    first = [poisoned(sent[victim]), *(sent[n] for n in others)]
    reassembler = Reassembler(CONFIG)
    events = feed(reassembler, data.draw(st.permutations(first)))
    (message,) = completed(events)
    assert message.payload == PAYLOAD
    assert all(not held.sds_id.startswith("evil") for held in message.received if held.index in message.rebuilt_indices)


def test_the_false_segment_is_named_right_before_the_completion():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    events = feed(reassembler, [poisoned(sent[3]), *sent[:3], *sent[4:9]])
    (mismatch,) = events
    assert isinstance(mismatch, HashMismatch)
    assert (mismatch.data_count, mismatch.attempts, mismatch.exhausted) == (9, 1, False)
    assert len(mismatch.held) == 9
    excluded, message = feed(reassembler, [sent[10]])
    assert excluded == PoisonedSegmentExcluded(ALICE, mismatch.entire_message_hash, False, 3, "evil-m-1003")
    assert message.payload == PAYLOAD
    assert message.rebuilt_indices == (3,)
    assert "evil-m-1003" not in {held.sds_id for held in message.received}


def test_the_honest_segment_that_a_false_one_displaced_rescues_the_set_and_leaves_no_second_send():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    assert feed(reassembler, [poisoned(sent[0]), sent[0]]) == []
    assert reassembler.open_sets == 2
    events = feed(reassembler, sent[1:9])
    assert [type(event) for event in events][-2:] == [PoisonedSegmentExcluded, type(completed(events)[0])]
    assert completed(events)[0].rebuilt_indices == ()
    assert reassembler.open_sets == 0


def test_the_honest_segment_comes_after_the_mismatch_under_another_id():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    feed(reassembler, [poisoned(sent[0]), *sent[1:9]])
    events = feed(reassembler, [sent[0]])
    assert completed(events)[0].payload == PAYLOAD
    assert reassembler.open_sets == 0


def test_other_bytes_under_the_same_id_are_kept_as_a_conflict_and_decided_by_the_hash():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    false = poisoned(sent[0], sds_id=sent[0].sds_id)
    events = feed(reassembler, [false, sent[0], sent[0], false])
    assert [type(event) for event in events] == [SegmentConflict, SegmentDuplicate, SegmentDuplicate]
    events = feed(reassembler, sent[1:9])
    (message,) = completed(events)
    assert (message.payload, message.rebuilt_indices) == (PAYLOAD, ())
    assert len(of_kind(PoisonedSegmentExcluded, events)) == 1


def test_a_conflict_that_comes_after_the_mismatch_rescues_the_set():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    feed(reassembler, [poisoned(sent[0], sds_id=sent[0].sds_id), *sent[1:9]])
    events = feed(reassembler, [sent[0]])
    assert [type(event).__name__ for event in events] == [
        "SegmentConflict",
        "PoisonedSegmentExcluded",
        "MessageCompleted",
    ]


def test_several_displaced_segments_are_put_back_at_once():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    feed(reassembler, [poisoned(sent[n]) for n in (0, 4, 7)])
    events = feed(reassembler, sent[:9])
    assert completed(events)[0].payload == PAYLOAD
    assert len(of_kind(PoisonedSegmentExcluded, events)) == 3


def test_a_false_honest_pair_does_not_hide_a_false_conflict():
    """The first bytes are honest, the conflict is not: the message completes, the conflict is named only if the hash
    was ever refused."""
    sent = send(PAYLOAD, CONFIG)
    events = feed(Reassembler(CONFIG), [sent[0], poisoned(sent[0], sds_id=sent[0].sds_id), *sent[1:9]])
    assert [type(event).__name__ for event in events] == ["SegmentConflict", "MessageCompleted"]


def test_conflicts_are_bounded():
    sent = send(PAYLOAD, CONFIG)
    rivals = [poisoned(sent[0], bytes([n]) * 64, sent[0].sds_id) for n in range(MAX_CONFLICTS + 1)]
    events = feed(Reassembler(CONFIG), [sent[0], *rivals])
    assert len(of_kind(SegmentConflict, events)) == MAX_CONFLICTS
    assert isinstance(events[-1], SegmentRefused)


@pytest.mark.parametrize("length", [0, 1, 63, 65, 128])
def test_a_false_segment_of_another_length_is_left_out(length):
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    events = feed(reassembler, [poisoned(sent[0], bytes(length)), *sent[1:8], sent[9], sent[11]])
    assert completed(events)[0].payload == PAYLOAD


def test_two_false_segments_need_two_more():
    sent = send(PAYLOAD, CONFIG)
    events = feed(Reassembler(CONFIG), [poisoned(sent[2]), poisoned(sent[9]), *sent[:2], *sent[3:9], *sent[10:]])
    assert completed(events)[0].payload == PAYLOAD
    assert {event.index for event in of_kind(PoisonedSegmentExcluded, events)} == {2, 0}


def test_the_work_on_a_set_is_bounded_and_said_to_be_exhausted():
    config = replace(CONFIG, max_rebuild_attempts=3)
    sent = send(PAYLOAD, config)
    reassembler = Reassembler(config)
    events = feed(reassembler, [poisoned(sent[n]) if n % 2 else sent[n] for n in range(13)])
    mismatches = of_kind(HashMismatch, events)
    assert [event.exhausted for event in mismatches][-1]
    assert mismatches[-1].attempts == 3
    expired = of_kind(SetExpired, reassembler.expire(config.max_set_lifetime_ms))
    assert expired[0].incomplete.mismatch


def test_subsets_without_the_newcomer_are_not_even_generated():
    """With 60 data and 30 parity segments, of which many are false, skipping the tried subsets would take for ever."""
    config = replace(CONFIG, max_rebuild_attempts=40)
    sent = send(bytes(range(256)) * 15, config)
    events = feed(Reassembler(config), [poisoned(each) if place < 31 else each for place, each in enumerate(sent)])
    assert not completed(events)
    assert of_kind(HashMismatch, events)[-1].attempts == 40


def test_a_false_data_count_opens_another_send_and_does_no_harm():
    sent = send(PAYLOAD, CONFIG)
    false = replace(sent[0], content=encode_segment(replace(sent[0].segment, data_count=2)), sds_id="evil")
    reassembler = Reassembler(CONFIG)
    assert completed(feed(reassembler, [sent[9], false, *sent[1:9]]))[0].payload == PAYLOAD


def test_false_parity_counts_and_lengths_open_other_sends():
    sent = send(PAYLOAD, CONFIG)
    many = replace(sent[9], content=encode_segment(replace(sent[9].segment, parity_count=250)), sds_id="evil")
    length = replace(sent[9], content=encode_segment(replace(sent[9].segment, original_length=9)), sds_id="evil2")
    reassembler = Reassembler(CONFIG)
    feed(reassembler, [sent[0], many, length, sent[10]])
    assert reassembler.open_sets == 3
    assert completed(feed(reassembler, sent[1:8]))[0].payload == PAYLOAD


def test_a_late_segment_with_other_counts_does_not_belong_to_the_completed_message():
    sent = send(PAYLOAD, CONFIG)
    reassembler = Reassembler(CONFIG)
    feed(reassembler, [*sent[:8], sent[9]])
    for false in (
        replace(sent[8], content=encode_segment(replace(sent[8].segment, data_count=200)), sds_id="e1"),
        replace(sent[10], content=encode_segment(replace(sent[10].segment, parity_count=9)), sds_id="e2"),
    ):
        assert feed(reassembler, [false]) == []
    assert reassembler.open_sets == 1


def test_parity_that_the_code_does_not_have_is_of_no_use_but_data_completes():
    """More parity than data does not exist in Leopard."""
    sent = send(PAYLOAD, CONFIG)
    forged = [replace(each, content=encode_segment(replace(each.segment, parity_count=20))) for each in sent[9:]]
    reassembler = Reassembler(CONFIG)
    assert feed(reassembler, [*forged, *sent[:8]]) == []
    assert completed(feed(reassembler, sent[8:9]))[0].payload == PAYLOAD


def test_parity_that_a_false_count_took_is_lent_to_the_honest_set():
    sent = send(PAYLOAD, CONFIG)
    false = replace(sent[0], content=encode_segment(replace(sent[0].segment, data_count=2)), sds_id="evil")
    for order in ([false, sent[9], *sent[1:9]], [sent[9], sent[10], false, *sent[2:9]]):
        assert completed(feed(Reassembler(CONFIG), order))[0].payload == PAYLOAD


def test_a_false_parity_count_that_comes_first_takes_no_honest_parity_away():
    """The honest parity opens a send of its own, to which the data segments do not go."""
    sent = [replace(each, sds_id=sds_message_id(ALICE[-1], 1_000, each.content)) for each in send(PAYLOAD, CONFIG)]
    for place in (9, 10):
        segment = replace(sent[place].segment, parity_count=5, payload=bytes(64))
        false = replace(sent[place], content=encode_segment(segment), sds_id="evil")
        (message,) = completed(feed(Reassembler(CONFIG), [false, *sent[:7], sent[9], sent[10]]))
        assert message.payload == PAYLOAD
        assert message.parity_count == 4
        (message,) = completed(feed(Reassembler(CONFIG), [false, sent[10], sent[9], *reversed(sent[2:9])]))
        assert message.payload == PAYLOAD


def test_nothing_is_lent_that_the_code_could_not_use():
    sent = send(PAYLOAD, CONFIG)
    false = replace(sent[0], content=encode_segment(replace(sent[0].segment, data_count=2)), sds_id="evil")
    useless = replace(sent[9], content=encode_segment(replace(sent[9].segment, parity_count=200)))
    assert feed(Reassembler(CONFIG), [false, useless, *sent[1:9]]) == []


def test_layouts_of_one_hash_do_not_mix():
    length = replace(CONFIG, dialect=Dialect.LIP243_LENGTH, segment_size_bytes=192)
    sent, other = send(PAYLOAD, CONFIG), send(PAYLOAD, length)
    for config in (CONFIG, replace(CONFIG, codec="klauspost")):
        reassembler = Reassembler(config)
        feed(reassembler, [sent[0], other[1]])
        assert reassembler.open_sets == 2


def test_a_false_parity_count_of_the_newer_dialect_opens_another_send():
    config = replace(CONFIG, dialect=Dialect.LIP243)
    sent = send(PAYLOAD, config)
    false = replace(sent[1], content=encode_segment(replace(sent[1].segment, parity_count=7)))
    reassembler = Reassembler(config)
    feed(reassembler, [sent[0], false])
    assert reassembler.open_sets == 2


def test_conflicts_count_against_the_byte_bounds():
    config = replace(CONFIG, max_buffered_bytes_per_sender=150)
    sent = send(PAYLOAD, config)
    rivals = [poisoned(sent[0], bytes([n]) * 64, sent[0].sds_id) for n in range(2)]
    events = feed(Reassembler(config), [sent[0], *rivals])
    assert [type(event) for event in events] == [SegmentConflict, SegmentRefused]


segments = st.builds(
    lambda whole, index, k, m, is_parity, payload, length, dialect: Segment(
        whole,
        min(index, (m if is_parity else k) - 1),
        None if is_parity and dialect is Dialect.V01 else max(k, 2),
        m if is_parity or dialect is Dialect.LIP243 else None,
        is_parity,
        payload,
        length if dialect is not Dialect.LIP243 else None,
        dialect,
    ),
    st.sampled_from([keccak256(bytes(n)) for n in (70, 128, 200)]),
    st.integers(0, 5),
    st.integers(1, 5),
    st.integers(1, 6),
    st.booleans(),
    st.sampled_from([bytes(64), bytes(6), bytes(8), b"", bytes(63) + b"x", bytes(128), b"y" * 7]),
    st.none() | st.sampled_from([0, 1, 70, 128, 2**40]),
    st.sampled_from(Dialect),
)


@given(st.lists(st.tuples(segments, st.sampled_from(["", "a", "b", "c"]), st.none() | st.integers(0, 9)), max_size=40))
def test_no_valid_segments_break_the_reassembler(steps):
    """Whatever peers invent: only payloads of the right hash come out, and no bound is passed."""
    config = replace(CONFIG, max_open_sets_per_sender=6, max_buffered_bytes_per_sender=900, max_rebuild_attempts=10)
    reassembler = Reassembler(config)
    for now, (segment, sds_id, lamport) in enumerate(steps):
        for event in reassembler.add(segment, now, scope=ALICE, sds_id=sds_id, lamport=lamport):
            if isinstance(event, MessageCompleted):
                assert keccak256(event.payload) == event.entire_message_hash
                assert all(len(each.content) < 300 for each in missing_segments(event, 2))
        assert reassembler.open_sets <= 6
        assert reassembler.buffered_bytes <= 900
        assert Reassembler.from_bytes(reassembler.to_bytes(), config).to_bytes() == reassembler.to_bytes()


def test_parity_of_a_length_that_the_code_does_not_have_is_a_mismatch():
    sent = send(bytes(range(150)), SegmentationConfig(segment_size_bytes=64))
    odd = [replace(each, content=encode_segment(replace(each.segment, payload=bytes(50)))) for each in sent[:2]]
    parity = Sent(encode_segment(Segment(sent[0].segment.entire_message_hash, 0, None, 1, True, bytes(50))), "p", 9)
    (mismatch,) = feed(Reassembler(CONFIG), [*odd, parity])
    assert isinstance(mismatch, HashMismatch)


def test_siblings_of_another_layout_are_not_asked():
    sent = send(PAYLOAD, CONFIG)
    other = send(PAYLOAD, replace(CONFIG, dialect=Dialect.LIP243_LENGTH, segment_size_bytes=192), name="n")
    reassembler = Reassembler(CONFIG)
    events = feed(reassembler, [poisoned(sent[0]), other[0], *sent[1:9]])
    assert [type(event) for event in events] == [HashMismatch]
    assert completed(feed(reassembler, [sent[9]]))
