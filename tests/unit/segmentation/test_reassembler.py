"""Reassembly (Segmentation 0.1, *Receiving*): any order, duplicates, losses, several sends of a payload, late
segments."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import (
    CompletedSend,
    Dialect,
    MessageCompleted,
    Reassembler,
    SegmentationConfig,
    SegmentDuplicate,
    SetExpired,
    SetOverdue,
    find_repaired,
    id_scheme_of,
    missing_segments,
)
from reliable_channel.core.wire.hashing import IdScheme, sds_message_id
from reliable_channel.core.wire.segment import encode_segment
from tests.unit.segmentation.feeding import ALICE, BOB, completed, completed_sets, feed, held_segments, of_kind, send

SMALL = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)
DIALECTS = {
    Dialect.V01: SMALL,
    Dialect.LIP243: replace(SMALL, dialect=Dialect.LIP243),
    Dialect.LIP243_LENGTH: replace(SMALL, dialect=Dialect.LIP243_LENGTH, segment_size_bytes=64 + 128),
}

payloads = st.builds(
    lambda head, tail, zeros: head + tail * (len(head) % 3) + bytes(zeros),
    st.binary(min_size=130, max_size=900),
    st.binary(max_size=20),
    st.integers(0, 200),
)


@given(st.data())
@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_loss_that_parity_can_carry_under_any_order_and_duplication(dialect, data):
    config = DIALECTS[dialect]
    payload = data.draw(payloads, label="payload")
    sent = send(payload, config)
    k = -(-len(payload) // config.chunk_size())
    lost = data.draw(st.sets(st.sampled_from(sent), max_size=len(sent) - k), label="lost")
    arriving = [each for each in sent if each not in lost]
    doubled = arriving + data.draw(st.lists(st.sampled_from(arriving), max_size=5), label="doubled")
    reassembler = Reassembler(config)
    events = feed(reassembler, data.draw(st.permutations(doubled), label="order"))
    (message,) = completed(events)
    assert message.payload == payload
    assert message.data_count == k
    again = {each.content for each in missing_segments(message, config.parity_count(k))}
    received = {(held.is_parity, held.index) for held in message.received}
    assert again == {each.content for each in sent if (each.segment.is_parity, each.segment.index) not in received}
    assert reassembler.open_sets == 0
    assert reassembler.buffered_bytes == 0


@given(payloads, st.data())
def test_one_loss_more_than_parity_can_carry_completes_nothing(payload, data):
    sent = send(payload, SMALL)
    k = -(-len(payload) // 64)
    kept = data.draw(st.lists(st.sampled_from(sent), unique=True, min_size=k - 1, max_size=k - 1))
    reassembler = Reassembler(SMALL)
    assert not completed(feed(reassembler, kept))
    (overdue,) = reassembler.expire(SMALL.set_timeout_ms)
    assert isinstance(overdue, SetOverdue)
    (expired,) = reassembler.expire(SMALL.max_set_lifetime_ms)
    assert isinstance(expired, SetExpired)
    assert expired.incomplete == overdue.incomplete
    held_data = {each.segment.index for each in kept if not each.segment.is_parity}
    if held_data:
        assert expired.incomplete.lacking == 1
        assert set(expired.incomplete.missing_data) == set(range(k)) - held_data
    else:
        assert expired.incomplete.data_count is None
    assert {held.sds_id for held in expired.incomplete.held} == {each.sds_id for each in kept}


@given(st.data())
def test_the_same_payload_sent_twice_is_two_messages(data):
    payload = data.draw(payloads)
    first, second = send(payload, SMALL, 1_000), send(payload, SMALL, 5_000)
    order = data.draw(st.permutations([*first, *second]))
    messages = completed(feed(Reassembler(SMALL), order))
    assert [message.payload for message in messages] == [payload, payload]
    assert sorted(message.send for message in messages) == [0, 1]


@given(st.data())
@pytest.mark.parametrize("consecutive", [True, False])
def test_a_payload_sent_three_times_is_never_more_messages_and_without_loss_no_fewer(consecutive, data):
    payload = data.draw(st.binary(min_size=130, max_size=300))
    sends = [send(payload, SMALL, 1_000 * (n + 1)) for n in range(3)]
    everything = [each if consecutive else replace(each, lamport=each.lamport * 7) for sent in sends for each in sent]
    lost = data.draw(st.sets(st.sampled_from(everything), max_size=3))
    arriving = data.draw(st.permutations([each for each in everything if each not in lost]))
    reassembler = Reassembler(SMALL)
    messages = completed(feed(reassembler, [*arriving, *arriving]))
    assert len(messages) <= 3
    if not lost:
        assert len(messages) == 3
        assert reassembler.open_sets == 0


def test_what_is_left_over_from_mixed_sends_makes_no_third_message():
    """Found by Hypothesis: two interleaved sends were delivered three times."""
    first, second = send(bytes(200), SMALL, 1_000), send(bytes(200), SMALL, 5_000)
    order = [first[1], first[2], second[0], second[3], second[1], second[4], second[2], second[5]]
    order += [first[0], first[3], first[5], first[4]]
    assert len(completed(feed(Reassembler(SMALL), order))) == 2


@given(st.data())
def test_the_same_payload_of_two_senders_is_two_messages(data):
    payload = data.draw(payloads)
    reassembler = Reassembler(SMALL)
    alice = [(ALICE, each) for each in send(payload, SMALL, name="a")]
    bob = [(BOB, each) for each in send(payload, SMALL, name="b")]
    events = []
    for scope, each in data.draw(st.permutations([*alice, *bob])):
        events += feed(reassembler, [each], scope=scope)
    assert sorted(message.scope for message in completed(events)) == [ALICE, BOB]
    assert {message.payload for message in completed(events)} == {payload}


PAYLOAD = bytes(range(256)) + b"the short last segment"


def test_without_parity_the_last_missing_segment_completes():
    config = SegmentationConfig(segment_size_bytes=64)
    sent = send(PAYLOAD, config)
    reassembler = Reassembler(config)
    assert feed(reassembler, sent[:-1]) == []
    (message,) = feed(reassembler, sent[-1:], now=7)
    assert isinstance(message, MessageCompleted)
    assert (message.payload, message.rebuilt_indices) == (PAYLOAD, ())
    assert (message.first_seen, message.completed_at) == (0, 7)
    assert missing_segments(message) == []


def test_completion_names_what_parity_rebuilt():
    sent = send(PAYLOAD, SMALL)
    (message,) = completed(feed(Reassembler(SMALL), [sent[0], sent[2], sent[3], sent[6], sent[5]]))
    assert message.rebuilt_indices == (1, 4)
    assert (message.parity_count, message.shard_length) == (2, 64)
    missing = missing_segments(message)
    assert [(each.is_parity, each.index, each.lamport, each.content) for each in missing] == [
        (False, 1, 1_001, sent[1].content),
        (False, 4, 1_004, sent[4].content),
    ]


def test_lost_parity_is_encoded_again_when_all_data_came():
    sent = send(PAYLOAD, SMALL)
    (message,) = completed(feed(Reassembler(SMALL), sent[:5]))
    assert message.parity_count is None
    assert [each.content for each in missing_segments(message, 2)] == [each.content for each in sent[5:]]
    assert [each.lamport for each in missing_segments(message, 2)] == [1_005, 1_006]


@pytest.mark.parametrize("scheme", IdScheme)
@pytest.mark.parametrize("arriving", [[0, 2, 3, 6, 5], [0, 1, 2, 3, 4], [5, 6, 0, 2, 4], [6, 2, 3, 4, 5]])
def test_what_never_came_is_repaired_under_the_ids_of_its_sender(scheme, arriving):
    sent = send(PAYLOAD, SMALL)
    named = [replace(each, sds_id=scheme.message_id("alice", 1_000, each.content)) for each in sent]
    (message,) = completed(feed(Reassembler(SMALL), [named[each] for each in arriving]))
    assert id_scheme_of(message) is scheme
    repaired = list(find_repaired(message, 2, (scheme,)))
    assert {each.sds_id: each.segment.content for each in repaired} == {
        each.sds_id: each.content for each in named if each.sds_id not in {named[one].sds_id for one in arriving}
    }


def test_ids_made_in_another_way_have_no_scheme_and_repair_nothing():
    (message,) = completed(feed(Reassembler(SMALL), send(PAYLOAD, SMALL)[:5]))
    assert id_scheme_of(message) is None
    assert list(find_repaired(message, 2, ())) == []
    unnumbered = replace(message, first_lamport=None)
    assert {each.scheme for each in find_repaired(unnumbered, 2, IdScheme)} == {
        IdScheme.SHA256,
        IdScheme.KECCAK_CONTENT,
    }


@pytest.mark.parametrize("zeros", [0, 1, 5, 21, 63, 64])
def test_a_payload_that_ends_in_zero_bytes_survives_the_loss_of_its_last_segment(zeros):
    payload = bytes(range(1, 200)) + bytes(zeros)
    sent = send(payload, SMALL)
    k = -(-len(payload) // 64)
    (message,) = completed(feed(Reassembler(SMALL), [*sent[: k - 1], sent[k]]))
    assert message.payload == payload
    assert message.rebuilt_indices == (k - 1,)


def test_a_payload_of_zero_bytes_alone_survives_too():
    payload = bytes(150)
    sent = send(payload, SMALL)
    assert completed(feed(Reassembler(SMALL), [*sent[:2], sent[3]]))[0].payload == payload


def test_parity_alone_waits_for_a_data_segment_that_tells_the_count():
    sent = send(PAYLOAD, SMALL)
    reassembler = Reassembler(SMALL)
    assert feed(reassembler, sent[5:]) == []
    assert completed(feed(reassembler, [sent[4], sent[0], sent[2]]))[0].payload == PAYLOAD


def test_a_late_segment_of_a_completed_message_delivers_nothing_and_opens_nothing():
    sent = send(PAYLOAD, SMALL)
    reassembler = Reassembler(SMALL)
    feed(reassembler, sent[:5])
    for late in (sent[5], sent[0], sent[6], sent[5]):
        (event,) = feed(reassembler, [late])
        assert event == SegmentDuplicate(
            ALICE, late.segment.entire_message_hash, late.segment.is_parity, late.segment.index, late.sds_id, True
        )
    assert reassembler.open_sets == 0


def test_what_was_rebuilt_and_arrives_late_belongs_to_its_send():
    sent, again = send(PAYLOAD, SMALL), send(PAYLOAD, SMALL, lamport=9_000)
    reassembler = Reassembler(SMALL)
    feed(reassembler, [*sent[:4], sent[5]])
    assert of_kind(SegmentDuplicate, feed(reassembler, [sent[4]]))
    assert completed(feed(reassembler, again[:5]))[0].first_lamport == 9_000


def test_a_second_send_keeps_the_slot_that_the_first_one_had_lost():
    """The first send's last segment was rebuilt. Its slot is free, but the timestamp says whose the newcomer is."""
    first, second = send(PAYLOAD, SMALL), send(PAYLOAD, SMALL, lamport=9_000)
    reassembler = Reassembler(SMALL)
    feed(reassembler, [*first[:4], first[5]])
    (message,) = completed(feed(reassembler, [second[4], *second[:4]]))
    assert message.send == 1


def test_senders_without_consecutive_timestamps_are_reassembled_too():
    sent = [replace(each, lamport=each.lamport * 3) for each in send(PAYLOAD, SMALL)]
    reassembler = Reassembler(SMALL)
    assert completed(feed(reassembler, sent[:5]))
    assert of_kind(SegmentDuplicate, feed(reassembler, sent[5:]))
    assert reassembler.open_sets == 0


def test_without_ids_and_timestamps_duplicates_are_idempotent():
    reassembler, segments = Reassembler(SMALL), [each.segment for each in send(PAYLOAD, SMALL)]
    events = [event for segment in [*segments, *segments] for event in reassembler.add(segment, 0)]
    (message,) = completed(events)
    assert message.first_lamport is None
    assert all(each.lamport is None for each in missing_segments(message))
    assert len(of_kind(SegmentDuplicate, events)) == 9


def test_the_first_timestamp_is_computed_from_a_sibling():
    sent = send(PAYLOAD, SMALL)
    (message,) = completed(feed(Reassembler(SMALL), sent[1:6]))
    assert message.first_lamport == 1_000
    (message,) = completed(feed(Reassembler(SMALL), sent[:5]))
    assert message.first_lamport == 1_000


def test_a_send_that_another_reassembler_completed_is_remembered_like_an_own_one():
    sent, again = send(PAYLOAD, SMALL), send(PAYLOAD, SMALL, lamport=9_000)
    ids = tuple(each.sds_id for each in sent[:-1])
    memory = CompletedSend(ALICE, sent[0].segment.entire_message_hash, 4, 5, 1_000, 100, (*ids, None))
    reassembler = Reassembler(SMALL)
    reassembler.remember(memory)
    assert of_kind(SegmentDuplicate, feed(reassembler, [sent[4], sent[-1]], now=200))
    (message,) = completed(feed(reassembler, again[:5], now=200))
    assert (message.first_lamport, message.send) == (9_000, 5)
    assert reassembler.next_due() == 100 + SMALL.completed_memory_ms
    reassembler.remember(replace(memory, send=5, origin=None, completed_at=200, sds_ids=(None,) * 7))
    assert completed_sets(reassembler) == 2, "what is known already is only told anew"


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4), st.integers(0, 700_000)), max_size=30))
def test_whatever_is_due_may_be_due(steps):
    sends = [send(PAYLOAD + bytes([number]), SMALL, name=f"{number}-") for number in range(6)]
    reassembler, now = Reassembler(SMALL), 0
    for number, place, pause in steps:
        now += pause
        feed(reassembler, [sends[number][place]], now)
        for each in (reassembler, Reassembler.from_bytes(reassembler.to_bytes(), SMALL)):
            due = each.next_due()
            assert due is not None
            assert each.may_be_due(due)
        if pause % 2:
            reassembler.expire(now)


def test_nothing_may_be_due_where_nothing_is_held():
    reassembler = Reassembler(SMALL)
    assert not reassembler.may_be_due(1 << 62)
    feed(reassembler, send(PAYLOAD, SMALL)[:1], now=100)
    assert not reassembler.may_be_due(99 + SMALL.set_timeout_ms)


def test_completed_sends_are_forgotten_after_a_while():
    config = replace(SMALL, completed_memory_ms=50)
    reassembler = Reassembler(config)
    feed(reassembler, send(PAYLOAD, config)[:5], now=100)
    assert (reassembler.next_due(), completed_sets(reassembler)) == (150, 1)
    assert reassembler.expire(149) == []
    assert completed_sets(reassembler) == 1
    assert reassembler.expire(150) == []
    assert (reassembler.next_due(), completed_sets(reassembler)) == (None, 0)


def test_a_set_is_overdue_after_its_last_segment_and_a_copy_is_one():
    sent = send(PAYLOAD, SMALL)
    reassembler = Reassembler(SMALL)
    feed(reassembler, [sent[0]], now=0)
    feed(reassembler, [sent[1]], now=100)
    feed(reassembler, [sent[0]], now=200)
    due = reassembler.next_due()
    assert due == 200 + SMALL.set_timeout_ms
    (overdue, *_) = feed(reassembler, [sent[2]], now=due)
    assert isinstance(overdue, SetOverdue)
    assert (overdue.incomplete.first_seen, overdue.incomplete.last_seen, overdue.overdue_at) == (0, 200, due)
    assert overdue.incomplete.missing_data == (2, 3, 4)
    assert not overdue.incomplete.mismatch
    assert reassembler.open_sets == 1
    assert [message.payload for message in completed(feed(reassembler, sent[3:5], now=due))] == [PAYLOAD]


def test_an_overdue_set_is_asked_for_after_doubling_waits_and_once_more_before_it_is_given_up():
    timeout, lifetime = SMALL.set_timeout_ms, SMALL.max_set_lifetime_ms
    reassembler = Reassembler(SMALL)
    feed(reassembler, send(PAYLOAD, SMALL)[:1], now=0)
    asked: list[int] = []
    expired: list[SetExpired] = []
    while not expired:
        due = reassembler.next_due()
        for event in reassembler.expire(due):
            if isinstance(event, SetOverdue):
                asked.append(event.overdue_at)
                assert event.asks == len(asked)
            else:
                expired.append(event)
        reassembler = Reassembler.from_bytes(reassembler.to_bytes(), SMALL)
    waits = [timeout << number for number in range(len(asked) - 1)]
    assert asked[:-1] == [sum(waits[: number + 1]) for number in range(len(waits))]
    assert asked[-1] == lifetime - timeout
    assert [event.expired_at for event in expired] == [lifetime]


def test_a_segment_of_a_send_that_was_given_up_completes_nothing():
    sent = send(PAYLOAD, SMALL)
    reassembler = Reassembler(SMALL)
    feed(reassembler, sent[:3], now=0)
    reassembler.expire(SMALL.max_set_lifetime_ms)
    for number in (0, 3):
        reassembler = Reassembler.from_bytes(reassembler.to_bytes(), SMALL)
        each = sent[number]
        assert reassembler.is_lost(each.segment, scope=ALICE, sds_id=each.sds_id, lamport=each.lamport)
    assert not completed(feed(reassembler, sent[3:], now=SMALL.max_set_lifetime_ms))
    assert reassembler.open_sets == 0
    anew = send(PAYLOAD, SMALL, 90_000, "again")
    assert not reassembler.is_lost(anew[0].segment, scope=ALICE, sds_id=anew[0].sds_id, lamport=anew[0].lamport)
    assert len(completed(feed(reassembler, anew, now=SMALL.max_set_lifetime_ms))) == 1


@pytest.mark.parametrize("held", [[-1], [-2, -1], [0], [1, -1]])
def test_every_other_segment_of_a_send_that_was_given_up_belongs_to_it_at_any_time(held):
    """Found by the property over random conversations: v0.1 parity alone does not tell the data count of its send."""
    config = replace(SMALL, max_set_lifetime_ms=500, completed_memory_ms=10)
    sent = send(PAYLOAD, config)
    ids = [replace(each, sds_id=sds_message_id("alice", 1_000, each.content)) for each in sent]
    reassembler = Reassembler(config)
    feed(reassembler, [ids[number] for number in held], now=0)
    reassembler.expire(500)
    reassembler.expire(10**9)
    reassembler = Reassembler.from_bytes(reassembler.to_bytes(), config)
    for each in ids:
        assert reassembler.is_lost(each.segment, scope=ALICE, sds_id=each.sds_id, lamport=each.lamport)
    anew = [replace(each, sds_id=sds_message_id("alice", 9_000, each.content)) for each in send(PAYLOAD, config, 9_000)]
    assert not any(
        reassembler.is_lost(each.segment, scope=ALICE, sds_id=each.sds_id, lamport=each.lamport)
        for each in anew
        if not each.segment.is_parity  # without data, parity of either send looks the same
    )
    assert len(completed(feed(reassembler, anew, now=10**9))) == 1


def test_strangers_make_nobody_forget_which_message_was_given_up():
    config = replace(SMALL, max_completed_sets=8)
    reassembler = Reassembler(config)
    sent = send(PAYLOAD, config)
    feed(reassembler, sent[:1], now=0)
    for number in range(50):
        feed(reassembler, send(b"%d" % number * 100, config)[:1], now=1, scope=(*ALICE[:3], "mallory"))
    for number in range(50):
        feed(reassembler, send(b"%d" % number * 90, config), now=2, scope=(*ALICE[:3], "trudy"))
    reassembler.expire(config.max_set_lifetime_ms)
    reassembler.expire(config.max_set_lifetime_ms + 1)
    each = sent[1]
    assert reassembler.is_lost(each.segment, scope=ALICE, sds_id=each.sds_id, lamport=each.lamport)


def test_strangers_make_nobody_forget_which_message_is_complete():
    """Its late segment would open a set, and a day later the message would be lost as well."""
    config = replace(SMALL, max_completed_sets=8)
    reassembler = Reassembler(config)
    sent = send(PAYLOAD, config)
    assert completed(feed(reassembler, sent[:-1], now=0))
    for number in range(50):
        feed(reassembler, send(b"%d" % number * 90, config), now=1, scope=(*ALICE[:3], "trudy"))
    (duplicate,) = feed(Reassembler.from_bytes(reassembler.to_bytes(), config), sent[-1:], now=2)
    assert (type(duplicate), duplicate.late) == (SegmentDuplicate, True)


def test_a_sender_who_repeats_a_message_after_a_pause_completes_it_although_the_new_segments_come_last():
    """Found by the soak: a sender that had been away repeated four segments before those that nobody had."""
    sent = send(PAYLOAD, SMALL)
    reassembler = Reassembler(SMALL)
    feed(reassembler, sent[2:5], now=0)
    late = SMALL.set_timeout_ms - 1
    assert not any(isinstance(event, SetOverdue) for event in feed(reassembler, sent[2:5], now=late))
    events = feed(reassembler, sent[:2], now=late + 100_000)
    assert [event.payload for event in events if isinstance(event, MessageCompleted)] == [PAYLOAD]


def test_time_never_runs_backwards_inside():
    sent = send(PAYLOAD, SMALL)
    reassembler = Reassembler(SMALL)
    feed(reassembler, [sent[0]], now=1_000)
    feed(reassembler, [sent[1]], now=5)
    assert reassembler.next_due() == 1_000 + SMALL.set_timeout_ms


def test_only_incomplete_sets_are_held():
    other = send(PAYLOAD + b"!", SMALL, name="n")
    reassembler = Reassembler(SMALL)
    feed(reassembler, [*send(PAYLOAD, SMALL), *other[:2]])
    assert [(scope, sds_id) for scope, _, _, sds_id, _ in held_segments(reassembler)] == [
        (ALICE, "n-1000"),
        (ALICE, "n-1001"),
    ]


def test_dialects_that_share_a_layout_share_a_set():
    """A lip243 data segment that says nothing of parity is, byte for byte, one of v0.1."""
    config = replace(SMALL, dialect=Dialect.LIP243, accepted_dialects=frozenset({Dialect.V01, Dialect.LIP243}))
    sent = send(PAYLOAD, config)
    plain = replace(sent[0], content=encode_segment(replace(sent[0].segment, parity_count=0)))
    assert plain.segment.dialect is Dialect.LIP243_LENGTH or plain.segment.dialect is Dialect.V01
    (message,) = completed(feed(Reassembler(config), [*sent[1:3], plain, sent[5], sent[6]]))
    assert (message.payload, message.dialect) == (PAYLOAD, Dialect.LIP243)


def test_status_go_segments_are_decoded_with_its_own_matrix_and_cut_to_its_length():
    payload = PAYLOAD + bytes(9)
    sent = status_go(payload, 50, 2)
    reassembler = Reassembler()
    (message,) = completed(feed(reassembler, [*sent[1:5], *sent[-2:]]))
    assert (message.payload, message.codec, message.original_length) == (payload, "klauspost", len(payload))
    assert [each.content for each in missing_segments(message)] == [sent[0].content, sent[5].content]


def test_padded_last_segments_are_cut_to_the_stated_length():
    payload = PAYLOAD
    sent = status_go(payload, 50, 2)
    last = sent[5].segment
    padded = replace(sent[5], content=encode_segment(replace(last, payload=last.payload.ljust(50, b"\0"))))
    assert completed(feed(Reassembler(), [*sent[:5], padded]))[0].payload == payload


def test_a_stated_length_that_is_nonsense_falls_back_to_the_search():
    sent = status_go(PAYLOAD, 50, 2, stated=3)
    assert completed(feed(Reassembler(), [*sent[:5], sent[6]]))[0].payload == PAYLOAD


def test_a_single_wrapped_segment_completes_at_once():
    config = DIALECTS[Dialect.LIP243]
    (message,) = feed(Reassembler(config), send(b"small", config))
    assert isinstance(message, MessageCompleted)
    assert (message.payload, message.data_count, message.shard_length) == (b"small", 1, None)
    assert missing_segments(message) == []


def test_a_copy_stands_in_for_a_single_segment():
    config = DIALECTS[Dialect.LIP243_LENGTH]
    sent = send(b"small", config)
    (message,) = completed(feed(Reassembler(config), sent[1:]))
    assert (message.payload, message.rebuilt_indices) == (b"small", (0,))
    assert [each.content for each in missing_segments(message)] == [sent[0].content]


def status_go(payload, chunk, parity_count, stated=None):
    """What status-go writes: v0.1 with the length in field 7, and its own parity."""
    from reliable_channel.core.segmentation.splitting import data_segments, parity_segments
    from reliable_channel.core.wire.hashing import keccak256

    k, length, whole = -(-len(payload) // chunk), stated or len(payload), keccak256(payload)
    data = data_segments(payload, whole, chunk, k, parity_count, Dialect.V01, length)
    parity = parity_segments(data, chunk, parity_count, "klauspost")
    from tests.unit.segmentation.feeding import Sent

    return [Sent(encode_segment(each), f"go-{n}", 50 + n) for n, each in enumerate([*data, *parity])]


def test_a_send_of_a_segment_that_cannot_be_used_is_given_up_until_it_is_revived():
    sent = send(bytes(range(200)), replace(SMALL, enable_reed_solomon=False))
    reassembler = Reassembler(SMALL)
    feed(reassembler, sent[1:2])

    def lose(each):
        return reassembler.lose(each.segment, 1, scope=ALICE, sds_id=each.sds_id, lamport=each.lamport)

    lost = lose(sent[0])
    assert [(held.is_parity, held.index) for held in lost.held] == [(False, 1)]
    assert reassembler.has_room_for(lost)
    assert not completed(feed(reassembler, sent)), "what arrives of a send that was given up completes nothing"
    assert lose(sent[2]) is None, "it is finished"
    reassembler.revive(ALICE, lost.entire_message_hash)
    assert len(completed(feed(reassembler, sent))) == 1
    assert lose(sent[0]) is None, "it is complete"


def test_a_send_can_be_given_up_before_anything_of_it_is_held():
    sent = send(bytes(range(200)), replace(SMALL, enable_reed_solomon=False))
    reassembler = Reassembler(SMALL)
    first = sent[0]
    lost = reassembler.lose(first.segment, 1, scope=ALICE, sds_id=first.sds_id, lamport=first.lamport)
    assert (lost.held, lost.lacking, len(lost.missing_data)) == ((), len(sent), len(sent))
    assert not completed(feed(reassembler, sent))
    assert reassembler.open_sets == 0


def test_of_completed_sends_as_many_as_asked_are_forgotten_oldest_first():
    every = [send(bytes([number]) * 100, SMALL, 1_000 * number) for number in range(1, 5)]
    reassembler = Reassembler(SMALL)
    for at, sent in enumerate(every):
        feed(reassembler, sent, at)
    assert reassembler.list_completed_times() == [0, 1, 2, 3]
    reassembler.forget_completed(2)
    assert reassembler.list_completed_times() == [2, 3]
    assert [bool(completed(feed(reassembler, sent, 4))) for sent in every] == [True, True, False, False]


def test_what_arrives_of_a_send_that_was_given_up_completes_it_once_that_is_forgotten():
    sent = send(bytes(range(200)), replace(SMALL, enable_reed_solomon=False))
    reassembler = Reassembler(SMALL)
    first = sent[0]
    reassembler.lose(first.segment, 1, scope=ALICE, sds_id=first.sds_id, lamport=first.lamport)

    def is_lost(scope):
        last = sent[-1]
        return reassembler.is_lost(last.segment, scope=scope, sds_id=last.sds_id, lamport=last.lamport)

    assert is_lost(ALICE)
    assert not is_lost(BOB)
    reassembler.forget_lost()
    assert not is_lost(ALICE)
    assert len(completed(feed(reassembler, sent, 2))) == 1


def test_a_segment_says_whether_its_message_is_over_the_limit():
    segment = send(bytes(200), replace(SMALL, enable_reed_solomon=False))[0].segment
    assert not Reassembler(replace(SMALL, max_message_bytes=256)).exceeds_limit(segment)
    assert Reassembler(replace(SMALL, max_message_bytes=127)).exceeds_limit(segment)


def test_the_greediest_sender_gives_up_a_set_where_others_need_the_room():
    reassembler = Reassembler(replace(SMALL, enable_reed_solomon=False))
    most, least = send(bytes(range(250)), SMALL), send(bytes(200), SMALL, 5_000)
    feed(reassembler, most[:3], scope=ALICE)
    feed(reassembler, least[:1], scope=BOB)
    events = []
    reassembler.evict(events)
    [evicted] = events
    assert (evicted.incomplete.scope, len(evicted.incomplete.held)) == (ALICE, 3)
    assert {scope for scope, *_ in held_segments(reassembler)} == {BOB}
