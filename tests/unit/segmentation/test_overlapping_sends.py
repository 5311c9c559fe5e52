"""Sends of one payload that overlap, each with losses: ids that bind the send keep them apart, and what one of them
lacks another may lend (docs/segmentation.md, *Sets and sends*)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reliable_channel.core.segmentation import Dialect, Reassembler, SegmentationConfig, SegmentDuplicate
from reliable_channel.core.wire.hashing import IdScheme, js_message_id
from tests.unit.segmentation.feeding import ALICE, Sent, completed, feed, send

CONFIG = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)
CONFIGS = {
    Dialect.V01: CONFIG,
    Dialect.LIP243: replace(CONFIG, dialect=Dialect.LIP243),
    Dialect.LIP243_LENGTH: replace(CONFIG, dialect=Dialect.LIP243_LENGTH, segment_size_bytes=192),
}
PAYLOAD = bytes(range(250))  # four data and two parity segments


def sends(count: int, config: SegmentationConfig = CONFIG, scheme: IdScheme = IdScheme.KECCAK) -> list[list[Sent]]:
    """The same payload several times, under the ids that senders of that scheme give."""
    every = [send(PAYLOAD, config, 1_000 * (number + 1)) for number in range(count)]
    return [
        [replace(each, sds_id=scheme.message_id("alice", sent[0].lamport, each.content) or "") for each in sent]
        for sent in every
    ]


def expected(arriving: list[tuple[int, int]], data_count: int, parity_says_count: bool) -> list[int]:
    """The sends that are delivered, in order, by the rule alone. ``arriving``: number and place of each segment.

    A send is complete with as many of its own segments as the message has data segments, one of them saying how many
    that are. Else the oldest one that has such a segment is, once all incomplete sends together have enough places."""
    arrived: dict[int, set[int]] = {}
    done: list[int] = []
    for number, place in arriving:
        if number in done or place in arrived.setdefault(number, set()):
            continue
        arrived[number].add(place)
        waiting = [
            each for each in arrived if each not in done and (parity_says_count or min(arrived[each]) < data_count)
        ]
        together = set().union(*(places for each, places in arrived.items() if each not in done))
        if number in waiting and len(arrived[number]) >= data_count:
            done.append(number)
        elif waiting and len(together) >= data_count:
            done.append(waiting[0])
    return done


@given(st.data())
@example(data=None)
@pytest.mark.parametrize("scheme", [IdScheme.KECCAK, IdScheme.KECCAK_JOINED])
@pytest.mark.parametrize("dialect", [Dialect.V01, Dialect.LIP243_LENGTH])
def test_every_send_is_delivered_with_its_own_segments_and_a_payload_that_can_be_put_together_once(
    dialect, scheme, data
):
    """Whatever is lost, repeated and mixed on the way."""
    every = sends(3, CONFIGS[dialect], scheme)
    places = [(number, place) for number, sent in enumerate(every) for place in range(len(sent))]
    if data is None:  # one segment of each comes first, then the rest of the second, then that of the first
        order = [(0, 0), (1, 1), (1, 0), (1, 2), (1, 3), (0, 1), (0, 2), (0, 3)]
    else:
        arriving = data.draw(st.lists(st.sampled_from(places), unique=True))
        order = data.draw(st.permutations([*arriving, *data.draw(st.lists(st.sampled_from(places), max_size=4))]))
    events = feed(Reassembler(CONFIGS[dialect]), [every[number][place] for number, place in order])
    messages = completed(events)
    assert [message.first_lamport // 1_000 - 1 for message in messages] == expected(
        order, 4, dialect is not Dialect.V01
    )
    assert {message.payload for message in messages} <= {PAYLOAD}
    for message in messages:
        own = {each.sds_id for each in every[message.first_lamport // 1_000 - 1]}
        assert {held.sds_id for held in message.received} <= own


def test_a_lender_keeps_what_it_lent():
    first, second = sends(2)
    reassembler = Reassembler(CONFIG)
    (message,) = completed(feed(reassembler, [first[0], first[1], second[2], second[3]]))
    assert (message.first_lamport, message.rebuilt_indices, len(message.received)) == (1_000, (2, 3), 2)
    assert isinstance(feed(reassembler, [first[2]])[0], SegmentDuplicate)
    assert [each.first_lamport for each in completed(feed(reassembler, second[:2]))] == [2_000]
    assert reassembler.open_sets == 0


def test_parity_that_came_before_any_data_goes_to_its_own_send_once_a_data_segment_says_where_it_belongs():
    first, second = sends(2)
    reassembler = Reassembler(CONFIG)
    assert feed(reassembler, [first[4], second[5]]) == []
    events = feed(reassembler, [second[0], second[1], first[0], second[2], first[1], first[2]])
    assert [message.first_lamport for message in completed(events)] == [2_000, 1_000]


def test_a_snapshot_between_any_two_segments_changes_nothing():
    first, second = sends(2)
    order = [first[4], second[5], second[0], first[0], first[1], second[1], first[5], second[2], second[3]]
    whole, reassembler, pieces = feed(Reassembler(CONFIG), order), Reassembler(CONFIG), []
    for each in order:
        reassembler = Reassembler.from_bytes(reassembler.to_bytes(), CONFIG)
        pieces += feed(reassembler, [each])
    assert pieces == whole


@given(st.data())
def test_two_sends_whose_ids_are_hashes_of_their_contents_are_two_messages(data):
    """The second send has the ids of the first: its Lamport timestamps tell it apart. Copies of both come again."""
    first, second = sends(2, scheme=IdScheme.SHA256)
    assert [each.sds_id for each in first] == [each.sds_id for each in second]
    assert first[0].sds_id == js_message_id(first[0].content)
    order = data.draw(st.permutations(first)) + data.draw(st.permutations([*second, *first, *second[2:]]))
    reassembler = Reassembler(CONFIG)
    assert [message.first_lamport for message in completed(feed(reassembler, order))] == [1_000, 2_000]
    assert reassembler.open_sets == 0


def test_a_copy_under_another_timestamp_of_an_id_that_binds_its_own_is_a_duplicate():
    (sent,) = sends(1)
    forged = [replace(each, lamport=each.lamport + 500) for each in sent]
    for order in ([*sent[:3], *forged, sent[3]], [*sent, *forged]):
        assert len(completed(feed(Reassembler(CONFIG), order))) == 1


@pytest.mark.parametrize("dialect", CONFIGS)
def test_ids_bind_the_send_in_every_dialect(dialect):
    config = CONFIGS[dialect]
    first, second = sends(2, config)
    reassembler = Reassembler(config)
    feed(reassembler, [first[0], second[1]], scope=ALICE)
    assert reassembler.open_sets == 2
