"""The clock of nim-sds counts messages: whoever joins a channel that is ahead of time takes part in it."""

from __future__ import annotations

import pytest

from reliable_channel.core.sds import (
    Delivered,
    DependencyBeforeObservation,
    MessageRefused,
    MissingDependency,
    SdsChannel,
    SdsEvent,
    SdsParameters,
)
from reliable_channel.core.sds.state import FOLLOWED_AFTER, MAX_JUMP
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily
from tests.support.nim_sds import NimSds
from tests.support.sds_inside import log_positions

T0 = 1_800_000_000_000
T0_S = T0 // 1_000
NIM = SdsParameters().in_family(WireFamily.NIM)
FAR = 100_000


def opened(name: str | None, now: int = T0) -> SdsChannel:
    channel = SdsChannel("talk", name, NIM)
    channel.tick(now)
    return channel


def message(sds_id: str, lamport: int, *history: str, sender_id: str = "nim") -> SdsMessage:
    named = tuple(HistoryEntry(one) for one in history)
    return SdsMessage(sender_id, sds_id, "talk", lamport, named, None, (), b"text " + sds_id.encode())


def test_a_sync_that_acknowledges_content_dated_ahead_is_refused_by_nobody() -> None:
    """Who is an hour ahead is acknowledged by name, at a lower timestamp; a sync waits for nothing, so it closes no
    cycle."""
    alice, bob = opened("alice"), opened("bob")
    first, before, ahead = message("m0", T0_S), message("m1", T0_S + 3_599), message("m2", T0_S + 3_600, "m1")
    for each in (first, before, ahead):
        bob.receive(each, T0 + 1_000)
    for each in (first, ahead):
        alice.receive(each, T0 + 1_000)
    (sync,) = bob.tick(T0 + 5_000).outgoing
    assert [entry.message_id for entry in sync.message.causal_history] == ["m0", "m1", "m2"]
    assert (sync.message.lamport_timestamp or 0) < T0_S + 60
    assert not refused(alice.receive(sync.message, T0 + 6_000).events)


def refused(events: tuple[SdsEvent, ...]) -> bool:
    return any(isinstance(event, MessageRefused) for event in events)


class Talk:
    """Two nim-sds peers that answer each other, so that their clock counts two for a message."""

    def __init__(self) -> None:
        self.peers = NimSds("talk", "nim0"), NimSds("talk", "nim1")
        self.now, self.sent = T0, 0

    def next(self, gap_ms: int = 1_000) -> SdsMessage:
        self.now += gap_ms
        self.sent += 1
        speaks, hears = self.peers[:: -1 if self.sent % 2 else 1]
        said = speaks.wrap(b"%d" % self.sent, f"m{self.sent}", self.now)
        hears.unwrap(said, self.now)
        return said


@pytest.fixture(params=[20, 310, 910, 90_000], ids="ahead {}s".format)
def busy(request: pytest.FixtureRequest) -> Talk:
    """A channel whose clock is so many seconds ahead of time."""
    talk = Talk()
    for peer in talk.peers:
        peer.lamport = T0_S + request.param
    for _ in range(30):
        talk.next()
    assert talk.peers[0].lamport - talk.now // 1_000 >= request.param
    return talk


@pytest.mark.parametrize("name", ["bob", None], ids=["participant", "observer"])
def test_a_newcomer_takes_part_in_a_channel_that_is_ahead_of_time(busy: Talk, name: str | None) -> None:
    newcomer = opened(name, busy.now)
    for _ in range(20):
        said = busy.next()
        events = newcomer.receive(said, busy.now).events
        assert [event.message_id for event in events if isinstance(event, Delivered)] == [said.message_id]
        assert not [event for event in events if isinstance(event, MessageRefused | MissingDependency)]
    if name is not None:
        reply = newcomer.send(b"hello", busy.now).outgoing[0].message
        assert reply.lamport_timestamp == (said.lamport_timestamp or 0) + 1


@pytest.mark.parametrize("name", ["bob", None], ids=["participant", "observer"])
def test_what_a_newcomer_misses_later_is_missing(busy: Talk, name: str | None) -> None:
    newcomer = opened(name, busy.now)
    first, lost, third = (busy.next() for _ in range(3))
    old = newcomer.receive(first, busy.now).events
    assert all(isinstance(event, Delivered | DependencyBeforeObservation) for event in old)
    events = newcomer.receive(third, busy.now).events
    assert [event.message_id for event in events if isinstance(event, MissingDependency)] == [lost.message_id]


@pytest.mark.parametrize("name", ["bob", None], ids=["participant", "observer"])
def test_who_follows_a_channel_from_the_start_meets_no_ceiling(name: str | None) -> None:
    talk, listener = Talk(), opened(name)
    listener.receive(talk.next(), talk.now)
    for ahead in range(0, 200_000, 400):  # a message of every two hundred arrives
        talk.peers[0].lamport = talk.peers[1].lamport = T0_S + ahead
        assert not refused(listener.receive(talk.next(), talk.now).events)


def test_a_stranger_does_not_push_the_clock_of_a_channel_away() -> None:
    """Each of its messages is dated at another level, so the clock follows none; nor do own messages name them."""
    bob = opened("bob")
    bob.receive(message("m1", T0_S + 1), T0)
    for number in range(40):
        evil = message(f"evil{number}", T0_S + FAR + number * FAR, sender_id="mallory")
        events = bob.receive(evil, T0 + number).events
        assert [event.message_id for event in events if isinstance(event, Delivered)] == [evil.message_id]
        assert not refused(bob.receive(message(f"n{number}", T0_S + 2 + number), T0 + number).events)
    assert bob.clock == T0_S + 41
    named = [entry.message_id for entry in bob.send(b"hello", T0 + 1_000).outgoing[0].message.causal_history]
    assert named == [f"n{number}" for number in range(30, 40)]


def test_no_number_of_messages_beyond_any_channel_moves_a_clock() -> None:
    """A sender that counts ms, for instance."""
    bob = opened("bob")
    for number in range(40):
        assert refused(bob.receive(message(f"ms{number}", T0 + number), T0).events)
        assert refused(bob.receive(message(f"jump{number}", T0_S + MAX_JUMP + 1 + number), T0).events)
    assert bob.clock == T0_S


def test_peers_that_follow_a_stranger_are_followed() -> None:
    """nim-sds peers follow any timestamp."""
    bob = opened("bob")
    bob.receive(message("m1", T0_S + 1), T0)
    for number in range(6):
        said = message(f"p{number}", T0_S + FAR + 2 * number, sender_id=f"nim{number % 2}")
        events = bob.receive(said, T0 + 1_000).events
        assert [event.message_id for event in events if isinstance(event, Delivered)] == [said.message_id]
        assert (bob.clock == said.lamport_timestamp) is (number + 1 >= FOLLOWED_AFTER)


def test_the_levels_that_were_seen_outlast_a_restart() -> None:
    bob = opened("bob")
    bob.receive(message("m1", T0_S + 1), T0)
    for number in range(FOLLOWED_AFTER):
        bob = SdsChannel.from_bytes(bob.to_bytes(), NIM)
        bob.receive(message(f"p{number}", T0_S + FAR + number), T0)
    assert bob.clock == T0_S + FAR + FOLLOWED_AFTER - 1


@pytest.mark.parametrize("name", ["bob", None], ids=["participant", "observer"])
def test_a_first_message_that_is_far_ahead_hides_no_loss(name: str | None) -> None:
    """A stranger is first; then what honest messages name must not count as from before the observation."""
    newcomer = opened(name)
    newcomer.receive(message("evil", T0_S + FAR, sender_id="mallory"), T0)
    newcomer.receive(message("m1", T0_S + 900, "m0"), T0 + 1_000)
    events = newcomer.receive(message("m3", T0_S + 904, "m1", "m2"), T0 + 2_000).events
    assert [event.message_id for event in events if isinstance(event, MissingDependency)] == ["m2"]


def test_a_participant_whose_first_message_was_a_strangers_is_heard() -> None:
    bob, carol = opened("bob"), opened("carol")
    carol.receive(message("m1", T0_S + 1), T0)
    bob.receive(message("evil", T0_S + FAR, sender_id="mallory"), T0)
    sent = bob.send(b"hello", T0 + 1_000).outgoing[0].message
    events = carol.receive(sent, T0 + 1_000).events
    assert [event.message_id for event in events if isinstance(event, Delivered)] == [sent.message_id]


def test_a_pipelines_own_participant_may_be_ahead_too() -> None:
    bob = opened("bob")
    own = message("own", T0_S + 90_000, sender_id="bob")
    bob.observe_sent(own, T0 + 1_000)
    assert [sds_id for _, sds_id in log_positions(bob)] == ["own"]
