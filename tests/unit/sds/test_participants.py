"""Strangers who make up names: they replace each other, never those who talk, and hold bounded memory."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds import Acknowledged, PossiblyAcknowledged, SdsChannel, TrackingEnded
from reliable_channel.core.sds.acks import AckTable, Participants, Tracked
from reliable_channel.core.wire._pb import sds_state_pb2 as pb
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


def test_replacing_a_name_looks_only_at_what_it_has_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages are tracked; a walk over all of them is what a flood of names would have to be paid
    with."""
    forgotten: list[str] = []
    forget = Tracked.forget

    def count(tracked: Tracked, number: int, by: str) -> None:
        forgotten.append(tracked.message_id)
        forget(tracked, number, by)

    monkeypatch.setattr(Tracked, "forget", count)
    channel = opened(None, max_participants=10)
    for number in range(1, 200):
        channel.receive(message(f"a{number}", "alice", T0 + number), T0 + number)
    for restored in (False, True):
        if restored:
            channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
        for number in range(50):
            at = T0 + 1_000 + number + 100 * restored
            channel.receive(message(f"s{at}", f"stranger-{at}", at, (f"a{number + 1}",), content=None), at)
    assert len(forgotten) <= 100


def test_a_replaced_name_costs_the_same_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    participants = Participants(1_000)
    hear(participants, *(f"stranger-{number}" for number in range(1_001)))
    monkeypatch.setattr(Participants, "messages", lambda self, number: looked_at.append(number) or (1, 1))
    hear(participants, *(f"newcomer-{number}" for number in range(1_000)))
    assert len(looked_at) <= 1_000


NAMES = st.sampled_from(["me", "alice", "bob", "carol", "dave", "eve"])
IDS = st.integers(0, 9).map("m{}".format)


@given(
    st.lists(st.tuples(NAMES, IDS, st.lists(IDS, max_size=3), st.sets(IDS) | st.none(), st.booleans()), max_size=40),
    st.sampled_from([None, "me"]),
)
def test_forgetting_what_a_name_acknowledged_equals_looking_at_every_message(
    script: list[tuple[str, str, list[str], set[str] | None, bool]], me: str | None
) -> None:
    def play() -> list[object]:
        channel = opened(me, max_participants=3, max_tracked=6)
        seen: list[object] = []
        for at, (sender, sds_id, history, held, restored) in enumerate(script, start=T0):
            words = None if held is None else filter_of(*held)
            seen += channel.receive(message(sds_id, sender, at, tuple(history), bloom_filter=words), at).events
            if restored:
                channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
        return [*seen, *(str(pb.SdsState.FromString(channel.to_bytes())).splitlines())]

    def look_at_all(table: AckTable, number: int, gone: str, sent: object, own: Collection[str]) -> None:
        for tracked in table:
            tracked.forget(number, gone)
            if number < table._open.shape[0]:
                table._open[number, tracked.row] = tracked.message_id not in own
        table._views.pop(number, None)

    def quietest(participants: Participants, but: str | None) -> int | None:
        numbers = (number for number, name in enumerate(participants) if name != but)
        return min(numbers, key=participants.messages, default=None)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AckTable, "forget", look_at_all)
        patch.setattr(Participants, "quietest", quietest)
        expected = play()
    assert play() == expected
