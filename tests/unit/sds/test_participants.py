"""Strangers who make up names: they replace each other, never those who talk, and hold bounded memory."""

from __future__ import annotations

import pytest

from reliable_channel.core.sds import Acknowledged, PossiblyAcknowledged, SdsChannel, TrackingEnded
from reliable_channel.core.sds.acks import Participants
from tests.unit.sds.sds_network import T0, filter_of, message, of_type, opened


def acknowledgements(channel: SdsChannel, by: str, number: int, now: int) -> list[str]:
    """The ids that a new message of ``by``, which names message ``number`` of alice, acknowledges."""
    step = channel.receive(message(f"{by}-{now}", by, now, (f"a{number}",), content=None), now)
    return [event.message_id for event in of_type(step, Acknowledged)]


def flooded(**settings: object) -> SdsChannel:
    """An observer of alice and bob, who talk, before and after a hundred names that are used once."""
    channel = opened(None, max_participants=10, **settings)
    for number in range(1, 4):
        channel.receive(message(f"a{number}", "alice", T0 + number), T0 + number)
        channel.receive(message(f"b{number}", "bob", T0 + 10 + number), T0 + 10 + number)
    for number in range(100):
        channel.receive(message(f"s{number}", f"stranger-{number}", T0 + 20 + number), T0 + 20 + number)
    return channel


@pytest.mark.parametrize("restored", [False, True])
def test_names_that_are_used_once_take_no_slot_from_those_who_talk(restored: bool) -> None:
    channel = flooded()
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    channel.receive(message("a4", "alice", T0 + 200), T0 + 200)
    assert acknowledgements(channel, "bob", 4, T0 + 300) == ["a4"]


def test_a_newcomer_is_followed_however_many_names_came_before() -> None:
    channel = flooded()
    channel.receive(message("a4", "alice", T0 + 200), T0 + 200)
    assert acknowledgements(channel, "carol", 4, T0 + 300) == ["a4"]


def test_a_slot_that_changes_hands_takes_no_acknowledgement_along() -> None:
    """Whoever gets a stranger's number has acknowledged nothing of what the stranger has."""
    channel = opened(None, max_participants=2)
    channel.receive(message("a1", "alice", T0 + 1), T0 + 1)
    channel.receive(message("a2", "alice", T0 + 2), T0 + 2)
    assert acknowledgements(channel, "bob", 1, T0 + 3) == ["a1"]
    assert acknowledgements(channel, "carol", 1, T0 + 4) == ["a1"]


@pytest.mark.parametrize("restored", [False, True])
def test_who_was_replaced_and_comes_back_acknowledges_nothing_of_its_own(restored: bool) -> None:
    """A filter holds its sender's own messages, too."""
    channel = opened(None, max_participants=2)
    words = filter_of("a1")
    channel.receive(message("a1", "alice", T0 + 1), T0 + 1)
    channel.receive(message("z", "zoe", T0 + 2, content=None, bloom_filter=words), T0 + 2)
    for number, name in enumerate(("bob", "carol", "bob", "carol"), start=3):
        channel.receive(message(f"m{number}", name, T0 + number, content=None), T0 + number)
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    for number in range(10, 14):
        again = message(f"a{number}", "alice", T0 + number, content=None, bloom_filter=words)
        step = channel.receive(again, T0 + number)
        assert not of_type(step, Acknowledged) + of_type(step, PossiblyAcknowledged)


def test_a_flood_ends_the_tracking_of_its_own_messages() -> None:
    channel = opened(None, max_tracked=20)
    for number in range(1, 6):
        channel.receive(message(f"a{number}", "alice", T0 + number), T0 + number)
    ended = []
    for number in range(200):
        step = channel.receive(message(f"m{number}", "mallory", T0 + 10 + number), T0 + 10 + number)
        ended += [event.message_id for event in of_type(step, TrackingEnded)]
    assert len(ended) == 185
    assert all(message_id.startswith("m") for message_id in ended)
    assert acknowledgements(channel, "bob", 1, T0 + 300) == ["a1"]


def test_filters_of_a_thousand_names_leave_a_bounded_state() -> None:
    """Every filter holds everything, so each would be remembered with every tracked message."""
    channel = opened(None)
    for number in range(50):
        channel.receive(message(f"a{number}", "alice", T0 + number), T0 + number)
    words = bytearray(channel.config.filter_format.byte_count)
    channel.config.filter_format.insert(words, [f"a{number}" for number in range(50)])
    sizes = []
    for number in range(1_000):
        via = message(f"{number:0>200}", f"{number:0>200}", T0 + 60 + number, content=None, bloom_filter=bytes(words))
        channel.receive(via, T0 + 60 + number)
        if number in (100, 999):
            sizes.append(len(channel.to_bytes()))
    assert sizes[1] < sizes[0] + 1_000 * 300


def hear(participants: Participants, *senders: str) -> set[str]:
    """Messages of ``senders``, in the steps of the review; returns who is known after them."""
    for sender in senders:
        number = participants.number(sender)
        if number is None:
            number = participants.quietest(but="observer")
            assert number is not None
            participants.replace(number, sender)
        participants.record_message(number, T0)
    return {*participants}


def test_a_name_that_is_used_once_is_the_first_to_go() -> None:
    participants = Participants(4)
    hear(participants, "observer", "alice", "bob", "alice", "bob")
    for number in range(20):
        stranger = f"stranger-{number}"
        assert hear(participants, stranger) == {"observer", "alice", "bob", stranger}


def test_of_names_that_sent_as_often_the_longest_silent_goes() -> None:
    assert hear(Participants(3), "carol", "alice", "bob", "mallory") == {"alice", "bob", "mallory"}
