"""The life of an own segment: every state × every input of one table, and the sends made of them (LIP-109)."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import EmptyMessage, LocalError
from reliable_channel.core.sds import (
    Acknowledged,
    DeliveryError,
    Evidence,
    OutgoingReason,
    PossiblyAcknowledged,
    RecipientAcknowledged,
    SdsChannel,
    SegmentAcknowledged,
    SendDelivered,
)
from reliable_channel.core.sds.config import MAX_STRETCHED_WAIT_MS
from reliable_channel.core.sds.outgoing import (
    LIFECYCLE,
    OPEN_STATES,
    OwnSegment,
    OwnSend,
    SegmentInput,
    SegmentState,
)
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import SdsMessage, decode_sds_message
from tests.support.sds_inside import has_id, log_positions
from tests.unit.sds.sds_network import SMALL, T0, filter_of, message, of_type, opened

PAIRS = list(itertools.product(SegmentState, SegmentInput))
WAITS = [5_000, 10_000, 20_000, 40_000, 80_000]
"""Before each retransmission: the wait doubles."""


def segment_in(state: SegmentState) -> OwnSegment:
    segment = OwnSegment("id", 0, b"data", 5_000)
    send = OwnSend("id", 1, [segment])
    segment.state = state
    send.open = int(state in OPEN_STATES)
    return segment


@pytest.mark.parametrize(("state", "event"), PAIRS, ids=lambda value: value.value)
def test_every_pair_moves_as_the_table_says_or_cannot_happen(state: SegmentState, event: SegmentInput) -> None:
    segment = segment_in(state)
    if (state, event) not in LIFECYCLE:
        with pytest.raises(KeyError):
            segment.move(event)
        return
    assert segment.move(event) is state
    assert segment.state is LIFECYCLE[state, event]
    assert (segment.data == b"") is (state in OPEN_STATES and segment.state not in OPEN_STATES)
    assert segment.send.open == int(segment.state in OPEN_STATES)


def test_what_left_the_buffer_comes_back_never_and_an_acknowledgement_is_final() -> None:
    for (state, _), after in LIFECYCLE.items():
        if state not in OPEN_STATES:
            assert after not in OPEN_STATES
        if state is SegmentState.ACKNOWLEDGED:
            assert after is SegmentState.ACKNOWLEDGED


@given(st.lists(st.sampled_from(list(SegmentInput)), max_size=20))
def test_any_sequence_of_possible_inputs_keeps_the_count_of_open_segments(inputs: list[SegmentInput]) -> None:
    segment = segment_in(SegmentState.UNSENT)
    for event in inputs:
        if (segment.state, event) in LIFECYCLE:
            segment.move(event)
        assert segment.send.open == int(segment.state in OPEN_STATES)


def sent_ids(channel: SdsChannel, *contents: bytes, required: int | None = None) -> list[str]:
    return [outgoing.message.message_id for outgoing in channel.send(contents, T0, required=required).outgoing]


def test_the_segments_of_a_send_have_consecutive_lamport_values_and_ids_of_the_first() -> None:
    alice = opened()
    step = alice.send([b"one", b"two", b"three"], T0 + 7)
    lamports = [outgoing.message.lamport_timestamp for outgoing in step.outgoing]
    assert lamports == [T0 + 7, T0 + 8, T0 + 9]
    for outgoing, content in zip(step.outgoing, [b"one", b"two", b"three"], strict=True):
        assert outgoing.message.message_id == sds_message_id("alice", T0 + 7, content)
        assert outgoing.send_id == step.outgoing[0].message.message_id
        assert outgoing.reason is OutgoingReason.CONTENT
        assert decode_sds_message(outgoing.data) == outgoing.message
    histories = [[entry.message_id for entry in outgoing.message.causal_history] for outgoing in step.outgoing]
    ids = [outgoing.message.message_id for outgoing in step.outgoing]
    assert histories == [[], ids[:1], ids[:2]]


def test_the_filter_does_not_hold_the_message_itself() -> None:
    alice = opened()
    first, second = alice.send([b"one", b"two"], T0).outgoing
    for outgoing, held in ((first, False), (second, True)):
        words = SMALL.decode(outgoing.message.bloom_filter or b"")
        assert has_id(SMALL, words, first.message.message_id) is held  # type: ignore[arg-type]
        assert not has_id(SMALL, words, outgoing.message.message_id)  # type: ignore[arg-type]


def test_the_clock_never_goes_back_and_is_never_used_twice() -> None:
    alice = opened()
    first = alice.send(b"one", T0).outgoing[0].message.lamport_timestamp
    second = alice.send(b"one", T0).outgoing[0].message
    assert (first, second.lamport_timestamp) == (T0 + 1, T0 + 2)
    alice.receive(message("b1", lamport=T0 + 5_000), T0 + 1)
    assert alice.send(b"two", T0 + 2).outgoing[0].message.lamport_timestamp == T0 + 5_001


def test_the_same_content_sent_twice_is_two_messages() -> None:
    alice = opened()
    assert len({*sent_ids(alice, b"ok"), *sent_ids(alice, b"ok")}) == 2


@pytest.mark.parametrize("contents", [b"", [], [b"a", b""]])
def test_an_empty_content_is_refused(contents: bytes | list[bytes]) -> None:
    with pytest.raises(EmptyMessage):
        opened().send(contents, T0)


@pytest.mark.parametrize("required", [0, 3])
def test_an_impossible_number_of_required_segments_is_refused(required: int) -> None:
    with pytest.raises(LocalError, match="required"):
        opened().send([b"a", b"b"], T0, required=required)


def test_equal_contents_in_one_send_are_refused() -> None:
    with pytest.raises(LocalError, match="equal"):
        opened().send([b"a", b"a"], T0)


def test_an_observer_sends_nothing() -> None:
    observer = SdsChannel("test-channel", None)
    for call in (lambda: observer.send(b"a", T0), lambda: observer.send_ephemeral(b"a", T0)):
        with pytest.raises(LocalError, match="observer"):
            call()


def test_retransmissions_double_their_wait_are_bit_for_bit_the_first_and_end_in_one_error() -> None:
    alice = opened(sync_min_interval_ms=0)
    first = alice.send(b"hello", T0).outgoing[0]
    at = T0
    for attempt, wait in enumerate(WAITS, 1):
        assert alice.next_due() == at + wait
        assert alice.tick(at + wait - 1).outgoing == ()
        at += wait
        step = alice.tick(at)
        assert [outgoing.data for outgoing in step.outgoing] == [first.data]
        assert step.outgoing[0].reason is OutgoingReason.RESEND
        assert step.outgoing[0].attempt == attempt
    step = alice.tick(at + 160_000)
    assert step.outgoing == ()
    error = of_type(step, DeliveryError)[0]
    assert (error.send_id, error.exhausted, error.required, error.total) == (first.send_id, (0,), 1, 1)
    assert alice.next_due() is None
    assert alice.unacknowledged() == ()


def test_the_wait_is_twice_as_long_as_the_dispatch_took_and_a_snapshot_keeps_it() -> None:
    alice = opened(sync_min_interval_ms=0, wait_for_sent=True)
    first, second = (alice.send(text, T0).outgoing[0].message.message_id for text in (b"first", b"second"))
    alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    alice.record_sent(first, T0 + 600_000)
    assert alice.next_due() == T0 + 1_800_000
    alice.tick(T0 + 1_800_000)
    alice.record_sent(first, T0 + 1_800_001)
    assert alice.next_due() == T0 + 1_810_001, "a dispatch without delay: the usual wait"
    alice.tick(T0 + 1_810_001)
    alice.record_sent(second, T0 + 6_000_000)
    assert alice.next_due() == T0 + 6_000_000 + MAX_STRETCHED_WAIT_MS


def test_the_time_in_which_the_process_did_not_run_does_not_lengthen_the_wait() -> None:
    alice = opened(sync_min_interval_ms=0, wait_for_sent=True)
    sent = alice.send(b"hello", T0).outgoing[0].message.message_id
    alice.reopen(T0 + 600_000)
    alice.record_sent(sent, T0 + 600_001)
    assert alice.next_due() == T0 + 605_001
    alice.tick(T0 + 6_000_000)  # the machine slept
    alice.record_queued(sent, T0 + 6_000_000)
    alice.record_sent(sent, T0 + 6_000_001)
    assert alice.next_due() == T0 + 6_010_001


def test_the_wait_starts_with_sent_when_the_owner_reports_it() -> None:
    alice = opened(sync_min_interval_ms=0, wait_for_sent=True)
    sent = alice.send(b"hello", T0).outgoing[0].message.message_id
    assert alice.next_due() is None
    alice.record_sent(sent, T0 + 1_000, retrieval_hint=b"h" * 32)
    assert alice.next_due() == T0 + 6_000
    assert [each.reason for each in alice.tick(T0 + 6_000).outgoing] == [OutgoingReason.RESEND]
    assert alice.next_due() is None
    alice.record_sent(sent, T0 + 10_000)
    assert alice.next_due() == T0 + 20_000
    alice.record_sent("unknown", T0)
    hints = [entry.retrieval_hint for entry in alice.send(b"next", T0 + 60_000).outgoing[0].message.causal_history]
    assert hints == [b"h" * 32]


def test_a_filter_acknowledges_nothing_that_has_not_left_yet() -> None:
    """A filter errs for one id in a thousand: of 10 000 messages that waited for a rate limit, some were reported as
    delivered, and were not sent any more after a restart."""
    alice = opened(sync_min_interval_ms=0, wait_for_sent=True)
    waiting = alice.send(b"waits for the rate limit", T0).outgoing[0].message.message_id
    for number in range(3):
        step = alice.receive(message(f"b{number}", lamport=T0 + number, bloom_filter=filter_of(waiting)), T0 + 4_000)
        assert not of_type(step, PossiblyAcknowledged) + of_type(step, Acknowledged)
    assert [outgoing.message.message_id for outgoing in alice.unacknowledged()] == [waiting]
    alice.record_sent(waiting, T0 + 5_000)
    steps = [
        alice.receive(message(f"c{number}", lamport=T0 + 10 + number, bloom_filter=filter_of(waiting)), T0 + 6_000)
        for number in range(2)
    ]
    assert [len(of_type(step, Acknowledged)) for step in steps] == [0, 1]


def test_a_possible_acknowledgement_restarts_the_wait() -> None:
    alice = opened(sync_min_interval_ms=0)
    [mine] = sent_ids(alice, b"hello")
    alice.receive(message("b1", bloom_filter=filter_of(mine)), T0 + 4_000)
    assert alice.next_due() == T0 + 9_000


def test_an_acknowledgement_after_a_send_error_still_gives_delivered() -> None:
    alice = opened(max_retransmissions=0)
    [mine] = sent_ids(alice, b"hello")
    assert len(of_type(alice.tick(T0 + 5_000), DeliveryError)) == 1
    step = alice.receive(message("b1", history=(mine,)), T0 + 6_000)
    assert [event.after_error for event in of_type(step, SendDelivered)] == [True]
    assert len(of_type(step, SegmentAcknowledged)) == 1


def test_a_send_error_only_when_fewer_than_required_can_still_be_acknowledged() -> None:
    """Three of four are needed: one may be exhausted, a second ends the send; what is left is given up."""
    alice = opened(max_retransmissions=0, wait_for_sent=True)
    ids = sent_ids(alice, b"a", b"b", b"c", b"d", required=3)
    for position, mine in enumerate(ids):
        alice.record_sent(mine, T0 + position)
    assert of_type(alice.tick(T0 + 5_000), DeliveryError) == []
    step = alice.tick(T0 + 5_001)
    assert [event.exhausted for event in of_type(step, DeliveryError)] == [(0, 1)]
    assert alice.unacknowledged() == ()


def test_any_required_segments_complete_a_message_and_release_the_rest() -> None:
    alice = opened()
    ids = sent_ids(alice, b"a", b"b", b"c", required=2)
    one = alice.receive(message("b1", lamport=T0 + 1, bloom_filter=filter_of(ids[0], ids[2])), T0 + 1)
    assert of_type(one, RecipientAcknowledged) == []
    two = alice.receive(message("b2", lamport=T0 + 2, bloom_filter=filter_of(ids[0], ids[2])), T0 + 2)
    acknowledged = of_type(two, SegmentAcknowledged)
    assert [(event.index, event.acknowledged, event.total) for event in acknowledged] == [(0, (0,), 3), (2, (0, 2), 3)]
    whole = of_type(two, RecipientAcknowledged)
    assert [(event.by, event.required, event.total, event.evidence) for event in whole] == [
        ("bob", 2, 3, Evidence.FILTER)
    ]
    assert len(of_type(two, SendDelivered)) == 1
    assert alice.unacknowledged() == ()
    certain = alice.receive(message("b3", lamport=T0 + 3, history=(ids[1],)), T0 + 3)
    assert [event.acknowledged for event in of_type(certain, SegmentAcknowledged)] == [(0, 1, 2)]


def test_parity_that_has_not_left_leaves_after_a_restart_too_and_once() -> None:
    """It was released when the data was acknowledged. Only the process that ended had it in its queue, and later
    messages name it as the one before them."""
    alice = opened(sync_min_interval_ms=0, wait_for_sent=True)
    data, parity = sent_ids(alice, b"data", b"parity", required=1)
    alice.record_sent(data, T0)
    assert len(of_type(alice.receive(message("b1", history=(data,)), T0 + 1), SendDelivered)) == 1
    assert parity in [entry.message_id for entry in alice.send(b"next", T0 + 2).outgoing[0].message.causal_history]
    restored = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    restored.reopen(T0 + 3)
    assert [outgoing.message.message_id for outgoing in restored.unacknowledged()][:1] == [parity]
    restored.record_sent(parity, T0 + 4)
    assert parity not in [outgoing.message.message_id for outgoing in restored.unacknowledged()]
    assert restored.next_due() is None


def test_each_participant_completes_a_message_for_itself() -> None:
    alice = opened()
    ids = sent_ids(alice, b"a", b"b")
    steps = [
        alice.receive(message(f"{name}1", name, T0 + 5, tuple(ids)), T0 + 5 + number)
        for number, name in enumerate(("bob", "carol"))
    ]
    assert [event.by for step in steps for event in of_type(step, RecipientAcknowledged)] == ["bob", "carol"]
    assert [len(of_type(step, SendDelivered)) for step in steps] == [1, 0]


def test_segments_acknowledged_by_different_participants_are_delivered_but_by_nobody_complete() -> None:
    alice = opened()
    first, second = sent_ids(alice, b"a", b"b")
    alice.receive(message("b1", "bob", T0 + 5, (first,)), T0 + 5)
    step = alice.receive(message("c1", "carol", T0 + 6, bloom_filter=filter_of(second)), T0 + 6)
    step = alice.receive(message("c2", "carol", T0 + 7, bloom_filter=filter_of(second)), T0 + 7)
    assert len(of_type(step, SendDelivered)) == 1
    assert of_type(step, RecipientAcknowledged) == []


def heard_early(name: str = "bob") -> SdsMessage:
    """A message by which a participant is known before anything is sent here."""
    return message(f"{name} was here", name, T0 - 1)


def test_what_is_in_the_causal_past_and_in_the_filter_is_implied() -> None:
    alice = opened()
    alice.receive(heard_early(), T0)
    ids = sent_ids(alice, *(b"%d" % number for number in range(6)))
    answer = message("b1", lamport=T0 + 10, history=(ids[5],), bloom_filter=filter_of(*ids[1:]))
    step = alice.receive(answer, T0 + 10)
    assert {event.message_id: event.evidence for event in of_type(step, Acknowledged)} == {
        **dict.fromkeys(ids[1:5], Evidence.IMPLIED),
        ids[5]: Evidence.CAUSAL_HISTORY,
    }
    assert [outgoing.message.message_id for outgoing in alice.unacknowledged()] == ids[:1]
    later = alice.receive(message("b2", lamport=T0 + 11, bloom_filter=filter_of(ids[0])), T0 + 11)
    assert [(event.message_id, event.evidence) for event in of_type(later, Acknowledged)] == [
        (ids[0], Evidence.IMPLIED)
    ]


@pytest.mark.parametrize("bloom_filter", [None, b"", b"too short", filter_of(*map(str, range(5_000)))])
def test_a_message_without_a_usable_filter_implies_nothing(bloom_filter: bytes | None) -> None:
    alice = opened()
    alice.receive(heard_early(), T0)
    ids = sent_ids(alice, b"first", b"second")
    step = alice.receive(message("b1", lamport=T0 + 10, history=(ids[1],), bloom_filter=bloom_filter), T0 + 10)
    assert [event.message_id for event in of_type(step, Acknowledged)] == [ids[1]]


def test_nothing_is_implied_of_what_was_sent_before_a_participant_was_first_heard() -> None:
    alice = opened()
    ids = sent_ids(alice, b"first", b"second")
    answer = message("b1", lamport=T0 + 10, history=(ids[1],), bloom_filter=filter_of(*ids))
    step = alice.receive(answer, T0 + 10)
    assert [event.message_id for event in of_type(step, Acknowledged)] == [ids[1]]
    assert [event.message_id for event in of_type(step, PossiblyAcknowledged)] == [ids[0]]


def test_stronger_evidence_follows_weaker_evidence_once() -> None:
    alice = opened()
    alice.receive(heard_early(), T0)
    first, second = sent_ids(alice, b"first", b"second")
    both = filter_of(first, second)
    found = []
    for number, history in enumerate([(), (), (second,), (second,), (first,), (first,), ()], start=1):
        answer = message(f"b{number}", lamport=T0 + 10 + number, history=history, bloom_filter=both)
        step = alice.receive(answer, T0 + 10 + number)
        found.append([event.evidence for event in of_type(step, Acknowledged) if event.message_id == first])
    assert found == [[], [Evidence.FILTER], [Evidence.IMPLIED], [], [Evidence.CAUSAL_HISTORY], [], []]


def test_filters_of_two_participants_empty_the_buffer_but_acknowledge_for_neither() -> None:
    alice = opened()
    [mine] = sent_ids(alice, b"a")
    alice.receive(message("b1", "bob", T0 + 1, bloom_filter=filter_of(mine)), T0 + 1)
    step = alice.receive(message("c1", "carol", T0 + 2, bloom_filter=filter_of(mine)), T0 + 2)
    assert [event.evidence for event in of_type(step, SegmentAcknowledged)] == [Evidence.FILTER]
    assert [event.count for event in of_type(step, PossiblyAcknowledged)] == [2]
    assert of_type(step, Acknowledged) == []


def test_a_probable_acknowledgement_becomes_certain_once() -> None:
    alice = opened()
    [mine] = sent_ids(alice, b"a")
    for number in (1, 2):
        alice.receive(message(f"b{number}", lamport=T0 + number, bloom_filter=filter_of(mine)), T0 + number)
    step = alice.receive(message("b3", lamport=T0 + 3, history=(mine,)), T0 + 3)
    assert [event.evidence for event in of_type(step, Acknowledged)] == [Evidence.CAUSAL_HISTORY]
    assert of_type(step, SegmentAcknowledged) == []
    again = alice.receive(message("b4", lamport=T0 + 4, history=(mine,)), T0 + 4)
    assert of_type(again, Acknowledged) == []


def test_finished_sends_are_forgotten_past_the_bound() -> None:
    alice = opened(max_finished_sends=2)
    for number in range(5):
        [mine] = sent_ids(alice, b"%d" % number)
        alice.receive(message(f"b{number}", lamport=T0 + 9 + number, history=(mine,)), T0 + 10)
    assert len(alice._state.outgoing.sends) <= 3
    assert len(alice._state.review.table.tracked) == len(alice._state.outgoing.segments)


def test_an_ephemeral_message_leaves_no_trace() -> None:
    alice = opened()
    before = log_positions(alice), alice.clock
    first, second = (alice.send_ephemeral(b"typing", T0).outgoing[0] for _ in range(2))
    assert (first.message.lamport_timestamp, first.message.causal_history, first.message.bloom_filter) == (
        None,
        (),
        None,
    )
    assert first.reason is OutgoingReason.EPHEMERAL
    assert first.message.message_id != second.message.message_id
    assert (log_positions(alice), alice.clock) == before
    assert alice.unacknowledged() == ()
    with pytest.raises(EmptyMessage):
        alice.send_ephemeral(b"", T0)


def test_what_is_unacknowledged_can_be_dispatched_again_after_a_restart() -> None:
    alice = opened()
    sent = alice.send([b"a", b"b"], T0).outgoing
    restored = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    assert [outgoing.data for outgoing in restored.unacknowledged()] == [outgoing.data for outgoing in sent]
    assert [outgoing.message for outgoing in restored.unacknowledged()] == [outgoing.message for outgoing in sent]
