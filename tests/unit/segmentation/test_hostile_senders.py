"""Hostile senders beside honest ones: what strangers send costs no honest message, and what fails is told with the ids
involved."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.segmentation import (
    HashMismatch,
    MessageCompleted,
    PoisonedSegmentExcluded,
    Reassembler,
    Refusal,
    Scope,
    SegmentationConfig,
    SegmentRefused,
    SetEvicted,
)
from reliable_channel.core.segmentation import search as searching
from reliable_channel.core.segmentation.pending import MAX_CONFLICTS
from reliable_channel.core.segmentation.rebuild import attempt
from reliable_channel.core.wire.hashing import IdScheme
from reliable_channel.core.wire.segment import encode_segment
from tests.support.examples import examples
from tests.unit.segmentation.feeding import ALICE, Sent, completed, feed, of_kind, send

CONFIG = SegmentationConfig(segment_size_bytes=64)
TIGHT = replace(CONFIG, max_open_sets=12, max_buffered_bytes=3_000)


def false(sent: Sent, fill: int, sds_id: str | None = None) -> Sent:
    """Other bytes in the place of a segment."""
    segment = replace(sent.segment, payload=bytes([fill]) * len(sent.segment.payload))
    return replace(sent, content=encode_segment(segment), sds_id=sds_id or f"false-{fill}-{sent.lamport}")


def with_true_ids(sent: list[Sent], sender: str = "alice") -> list[Sent]:
    """The same segments under the ids that this project's sender gives them."""
    first = sent[0].lamport
    return [replace(each, sds_id=IdScheme.KECCAK.message_id(sender, first, each.content) or "") for each in sent]


@given(st.data())
def test_two_slots_with_false_segments_before_and_after_do_not_suppress_a_hundred(data):
    """A stranger who knows the hash sends two false segments before the honest ones and two after, in any slots."""
    sent = send(bytes(range(100)) * 64, CONFIG)
    assert len(sent) == 100
    one, other = data.draw(st.lists(st.integers(0, 99), min_size=2, max_size=2, unique=True))
    before, after = [false(sent[one], 1), false(sent[other], 2)], [false(sent[one], 3), false(sent[other], 4)]
    attacked, rest = [sent[one], sent[other]], [each for place, each in enumerate(sent) if place not in (one, other)]
    order = [*before, *data.draw(st.permutations(attacked)), *data.draw(st.permutations(after))]
    for each in reversed(rest):
        order.insert(data.draw(st.integers(0, len(order))) if each is not rest[-1] else len(order), each)
    (message,) = completed(feed(Reassembler(CONFIG), order))
    assert message.payload == bytes(range(100)) * 64


@settings(max_examples=examples(60))
@given(st.data())
def test_up_to_three_contested_slots_of_three_candidates_each_are_sorted_out(data):
    sent = send(bytes(range(10)) * 64, CONFIG)
    slots = data.draw(st.lists(st.integers(0, 9), max_size=3, unique=True))
    forged = [false(sent[slot], fill) for slot in slots for fill in (1, 2)]
    reassembler = Reassembler(CONFIG)
    events = feed(reassembler, data.draw(st.permutations([*sent, *forged])))
    while not completed(events) and (due := reassembler.next_due() or 0) < CONFIG.set_timeout_ms:
        events += reassembler.expire(due)
    assert [message.payload for message in completed(events)] == [bytes(range(10)) * 64]


def test_an_id_that_can_be_recomputed_stands_against_other_bytes_under_it():
    sent = with_true_ids(send(bytes(range(200)), CONFIG))
    events = feed(Reassembler(CONFIG), [sent[0], false(sent[0], 1, sent[0].sds_id), *sent[1:]])
    refused, message = events
    assert isinstance(refused, SegmentRefused)
    assert (refused.reason, refused.sds_id) == (Refusal.FALSE_ID, sent[0].sds_id)
    assert isinstance(message, MessageCompleted)


def test_false_bytes_that_came_first_under_such_an_id_give_way_however_many_they_are():
    sent = with_true_ids(send(bytes(range(200)), CONFIG))
    forged = [false(sent[0], fill, sent[0].sds_id) for fill in range(MAX_CONFLICTS + 1)]
    reassembler = Reassembler(CONFIG)
    feed(reassembler, forged)
    events = feed(reassembler, sent)
    assert len(of_kind(PoisonedSegmentExcluded, events)) == 1
    assert [message.payload for message in completed(events)] == [bytes(range(200))]


def test_candidates_whose_id_can_be_recomputed_are_tried_first(monkeypatch):
    sent = with_true_ids(send(bytes(range(200)), CONFIG))
    forged = [false(sent[slot], fill) for slot in range(4) for fill in range(7)]
    reassembler = Reassembler(CONFIG)
    feed(reassembler, [*forged[::2], *sent[:-1]])
    tried: list[object] = []
    monkeypatch.setattr(searching, "attempt", lambda *given: tried.append(given) or attempt(*given))
    (message,) = completed(feed(reassembler, sent[-1:]))
    assert {held.sds_id for held in message.received} == {each.sds_id for each in sent}
    assert len(tried) < 10, "of hundreds of choices"


def test_a_false_parity_count_hides_no_data_of_the_honest_send_and_is_not_believed():
    config = replace(CONFIG, enable_reed_solomon=True, parity_rate=0.5)
    sent = with_true_ids(send(bytes(range(250)), config))
    many = replace(sent[4], content=encode_segment(replace(sent[4].segment, parity_count=3)), sds_id="false")
    (message,) = completed(feed(Reassembler(config), [false(sent[0], 1), many, sent[0], sent[5], *sent[1:4]]))
    assert (message.payload, message.parity_count) == (bytes(range(250)), 2)
    assert {held.sds_id for held in message.received} == {sent[place].sds_id for place in (0, 1, 2, 5)}


@given(st.permutations([2, 3, 4, 5]), st.integers(0, 3))
def test_false_parity_with_other_counts_does_not_suppress_a_message_that_needs_its_parity(counts, before):
    """False parity in the place of the honest one, with other counts, before and after it; one data segment is lost."""
    config = replace(CONFIG, enable_reed_solomon=True, parity_rate=0.5)
    sent = with_true_ids(send(bytes(range(1, 101)), config))
    assert [each.segment.is_parity for each in sent] == [False, False, True]
    forged = [
        replace(
            sent[2],
            content=encode_segment(replace(sent[2].segment, parity_count=count, payload=bytes([count]) * 64)),
            sds_id=f"false-{count}",
        )
        for count in counts
    ]
    reassembler = Reassembler(config)
    events = feed(reassembler, [*forged[:before], sent[2], *forged[before:3], sent[0]])
    while not completed(events) and (due := reassembler.next_due() or 0) < CONFIG.set_timeout_ms:
        events += reassembler.expire(due)
    assert [message.payload for message in completed(events)] == [bytes(range(1, 101))]


def test_a_mismatch_names_the_segments_that_claim_one_place():
    sent = send(bytes(range(200)), CONFIG)
    events = feed(Reassembler(CONFIG), [false(sent[1], 1), sent[0], sent[1], *(false(each, 9) for each in sent[2:])])
    (mismatch,) = of_kind(HashMismatch, events)
    assert [held.sds_id for held in mismatch.contested] == ["false-1-1001", sent[1].sds_id]
    events = feed(Reassembler(CONFIG), [false(sent[0], 1), *sent[1:]])
    (mismatch,) = of_kind(HashMismatch, events)
    assert mismatch.contested == ()
    assert "false-1-1000" in {held.sds_id for held in mismatch.held}


flood = st.tuples(st.sampled_from(["mallory", "trudy"]), st.integers(0, 40), st.integers(0, 1))


@settings(max_examples=examples(80))
@given(st.lists(flood, min_size=20, max_size=150), st.data())
def test_every_honest_message_completes_beside_senders_who_fill_the_bounds(floods, data):
    """Bounds in all are smaller than what the hostile ones send; who holds most makes room."""
    hostile = {number: send(number.to_bytes(4, "big") * 50, CONFIG, name=f"h{number}") for number in range(41)}
    stream: list[tuple[Scope, Sent]] = [((*ALICE[:3], name), hostile[number][index]) for name, number, index in floods]
    honest = {name: send(name.encode() * 30, CONFIG) for name in ("alice", "bob")}
    for name, sent in honest.items():
        places = sorted(data.draw(st.lists(st.integers(0, len(stream)), min_size=len(sent), max_size=len(sent))))
        for shift, (place, each) in enumerate(zip(places, sent, strict=True)):
            stream.insert(place + shift, ((*ALICE[:3], name), each))
    reassembler, events = Reassembler(TIGHT), []
    for scope, each in stream:
        events += feed(reassembler, [each], scope=scope)
        assert reassembler.open_sets <= TIGHT.max_open_sets
        assert reassembler.buffered_bytes <= TIGHT.max_buffered_bytes
    whole = {message.scope[-1]: message.payload for message in completed(events)}
    assert {name: whole.get(name) for name in honest} == {name: name.encode() * 30 for name in honest}
    assert {event.incomplete.scope[-1] for event in of_kind(SetEvicted, events)} <= {"mallory", "trudy"}
