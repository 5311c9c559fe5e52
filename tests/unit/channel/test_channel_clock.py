"""A participant whose clock was ahead for a while and is set back, as a machine's that starts with a wrong time."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor

from reliable_channel.channel import (
    IrretrievableMessage,
    MessageDelivered,
    MessageDeliveryError,
    MissingMessage,
    snapshot,
)
from reliable_channel.channel.persistence import SqlitePersistence
from reliable_channel.channel.retrieval import CHECK_PERIOD_MS
from reliable_channel.core.wire._pb.channel_state_pb2 import ChannelState
from reliable_channel.core.wire._pb.reassembler_state_pb2 import ChunkGateState, ReassemblerState
from reliable_channel.core.wire._pb.sds_state_pb2 import SdsState
from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.clock import Clock, ManualClock, Timestamps
from reliable_channel.transport.memory import DEFAULT_PUBSUB_TOPIC
from reliable_channel.transport.store.model import StorePage, StoreQuery
from tests.unit.channel.channel_world import Recorder, World, quick

MINUTE_MS, DAY_MS = 60_000, 86_400_000


class WrongClock:
    """A clock that is ``ahead_ms`` ahead of the others'."""

    def __init__(self, right: Clock) -> None:
        self._right = right
        self.ahead_ms = 0

    def now_ns(self) -> int:
        return self._right.now_ns() + self.ahead_ms * 1_000_000


def meet(world: World) -> tuple[Recorder, Recorder, WrongClock]:
    """Alice, whose clock is wrong at times, and Bob."""
    clock = WrongClock(world.network.clock)
    return world.join("alice", clock=clock), world.join("bob"), clock


@pytest.mark.parametrize("ahead_ms", [2 * MINUTE_MS, DAY_MS])
def test_after_its_clock_was_set_back_a_participant_retransmits_and_acknowledges(ahead_ms: int) -> None:
    world = World()
    alice, bob, clock = meet(world)
    alice.channel.send(b"before")
    bob.channel.send(b"from bob")
    world.run(10_000)
    clock.ahead_ms = ahead_ms
    world.run(5_000)
    clock.ahead_ms = 0
    world.blocked.add("bob")
    alice.channel.send(b"lost")
    world.run(1_000)
    world.blocked.clear()
    bob.channel.send(b"once more")
    world.run(MINUTE_MS)
    assert b"lost" in bob.payloads, "it was retransmitted"
    assert len(alice.of(MessageDelivered)) == len(bob.of(MessageDelivered)) == 2


@pytest.mark.parametrize("ahead_ms", [2 * MINUTE_MS, DAY_MS])
def test_what_is_sent_after_the_clock_was_set_back_is_accepted(ahead_ms: int) -> None:
    world = World()
    alice, bob, clock = meet(world)
    clock.ahead_ms = ahead_ms
    alice.channel.send(b"while ahead")
    world.run(10_000)
    clock.ahead_ms = 0
    world.run(1_000)
    alice.channel.send(b"after")
    world.run(10_000)
    assert b"after" in bob.payloads
    assert alice.of(MessageDelivered)[-1].request_id
    bob.channel.send(b"heard")
    world.run(10_000)
    assert alice.payloads == [b"heard"]


def test_what_was_sent_while_the_clock_was_ahead_is_of_no_other_device_when_it_comes_back(tmp_path: Path) -> None:
    """An hour later its timestamp is one that others accept, and that this participant's clock has not reached."""
    world = World()
    clock = WrongClock(world.network.clock)
    config = quick(history_backend="sqlite", database=tmp_path / "alice.sqlite")
    alice = world.join("alice", config, clock=clock)
    clock.ahead_ms = 60 * MINUTE_MS
    world.join("bob")
    alice.channel.send(b"while ahead")
    world.run(10_000)
    [(_, envelope), *_] = world.on_wire
    clock.ahead_ms = 0
    world.run(57 * MINUTE_MS, MINUTE_MS)
    alice.channel.close()
    alice = world.join("alice", config, clock=clock)
    world.node("alice").arrive(envelope, DEFAULT_PUBSUB_TOPIC)
    world.run(1_000)
    assert alice.problems() == []


def test_a_channel_that_was_opened_while_the_clock_was_ahead_still_misses_what_is_lost() -> None:
    world = World()
    alice, bob, clock = meet(world)
    alice.channel.close()
    clock.ahead_ms = DAY_MS
    alice = world.join("alice", clock=clock)
    world.run(1_000)
    clock.ahead_ms = 0
    world.run(1_000)
    world.blocked.add("alice")
    bob.channel.send(b"lost at first")
    world.run(500)
    world.blocked.clear()
    bob.channel.send(b"names it")
    world.run(MINUTE_MS)
    assert alice.payloads == [b"lost at first", b"names it"]


def test_the_store_is_asked_and_the_node_is_tried_after_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    clock = WrongClock(world.network.clock)
    alice = world.join("alice", quick(query_on_connect=True), clock=clock)
    clock.ahead_ms = DAY_MS
    world.run(CHECK_PERIOD_MS + 1_000, step_ms=1_000)
    with monkeypatch.context() as full:
        full.setattr(world.node("alice"), "send", refuse)
        alice.channel.send(b"waits")
        world.run(1_000)
    clock.ahead_ms = 0
    asked: list[StoreQuery] = []
    node = world.node("alice")
    monkeypatch.setattr(node, "query_store", lambda query: asked.append(query) or StorePage(()))
    world.run(1_000)
    assert alice.channel.status()["queued_envelopes"] == 0
    world.run(CHECK_PERIOD_MS, step_ms=1_000)
    assert asked


@pytest.mark.parametrize(
    ("ahead_ms", "ahead_at_open_ms"), [(DAY_MS, 0), (0, 2 * DAY_MS)], ids=["set back before", "set back after"]
)
def test_a_store_is_asked_for_what_was_missed_by_a_channel_whose_clock_was_set_back(
    tmp_path: Path, ahead_ms: int, ahead_at_open_ms: int
) -> None:
    """By the wrong clock it was here a moment ago, or was away for longer than it asks for; nobody names the
    message."""
    world = World()
    clock = WrongClock(world.network.clock)
    config = quick(history_backend="sqlite", database=tmp_path / "alice.sqlite")
    alice = world.join("alice", config, clock=clock)
    bob = world.join("bob", quick(sds={"max_retransmissions": 0, "sync_min_interval_ms": 0, "repair": False}))
    clock.ahead_ms = ahead_ms
    alice.channel.send(b"here")
    world.run(1_000)
    alice.channel.close()
    del world.recorders["alice"]
    bob.channel.send(b"missed")
    world.run(5 * MINUTE_MS, step_ms=1_000)
    clock.ahead_ms = ahead_at_open_ms
    alice = world.join("alice", config, clock=clock)
    world.run(1_000)
    clock.ahead_ms = 0
    world.run(CHECK_PERIOD_MS + 2_000 if ahead_at_open_ms else 1_000, step_ms=1_000)
    assert alice.payloads == [b"missed"]


def refuse(*_: object, **__: object) -> None:
    """A node without room."""
    raise SendBufferFull("full")


def test_a_restart_replays_a_clock_that_was_set_back(tmp_path: Path) -> None:
    world = World()
    clock = WrongClock(world.network.clock)
    alice = world.join("alice", quick(persistence=SqlitePersistence(tmp_path / "alice.db")), clock=clock)
    bob = world.join("bob")
    world.blocked.add("bob")
    clock.ahead_ms = DAY_MS
    first = alice.channel.send(b"while ahead")
    world.run(1_000)
    clock.ahead_ms = 0
    world.run(1_000)
    second = alice.channel.send(b"after")
    world.run(1_000)
    shutil.copytree(tmp_path, tmp_path / "crashed")  # with its journal
    alice.channel.close()
    world.blocked.clear()
    kept = SqlitePersistence(tmp_path / "crashed" / "alice.db")
    again = world.join("alice", quick(persistence=kept), clock=clock)
    assert again.channel.send_state(first) is not None
    world.run(MINUTE_MS)
    assert bob.payloads == [b"after"]
    assert [event.request_id for event in again.of(MessageDelivered)] == [second]


def list_numbers(message: Descriptor, known: dict[str, set[str]]) -> set[str]:
    """The names of all numbers in a message and in those that it contains."""
    if message.full_name not in known:
        known[message.full_name] = set()
        for each in message.fields:
            if each.message_type is not None:
                known[message.full_name] |= list_numbers(each.message_type, known)
            elif each.cpp_type in (each.CPPTYPE_INT64, each.CPPTYPE_UINT64, each.CPPTYPE_INT32, each.CPPTYPE_UINT32):
                known[message.full_name].add(each.name)
    return known[message.full_name]


def test_every_time_of_a_snapshot_moves() -> None:
    """By the names that times have in our protobuf files, so that a new one is not forgotten."""
    states = (ChannelState, SdsState, ReassemblerState, ChunkGateState)
    numbers = set().union(*(list_numbers(state.DESCRIPTOR, {}) for state in states))
    times = {name for name in numbers if re.search(r"(^|_)(now|at|due|since|until|seen|active|ms)$", name)}
    assert times - {"observed_since"} == snapshot._TIMES, "observed_since is a Lamport timestamp"


@pytest.mark.parametrize("ahead_ms", [2_000, 10 * 365 * 24 * 3_600_000])
def test_an_envelope_has_the_time_of_a_clock_that_was_set_back(ahead_ms: int) -> None:
    """Stores refuse timestamps that are more than 20 s off."""
    clock = ManualClock()
    timestamps = Timestamps(clock)
    clock.advance(ahead_ms)
    timestamps.next_ns()
    clock.advance(-ahead_ms)
    assert [timestamps.next_ns() - clock.now_ns() for _ in range(3)] == [0, 1, 2]
    clock.advance(-1)
    assert timestamps.next_ns() - clock.now_ns() == 1_000_003, "a little: never twice"


@pytest.mark.parametrize("asleep_ms", [10 * MINUTE_MS, DAY_MS])
@pytest.mark.parametrize("restarts", [False, True])
def test_after_a_sleep_acknowledgements_are_read_before_a_send_is_given_up(
    tmp_path: Path, restarts: bool, asleep_ms: int
) -> None:
    """Bob gets the last of all retransmissions, and Alice sleeps, or is stopped, while he acknowledges it."""
    world = World()
    config = quick(history_backend="sqlite", database=tmp_path / "alice.sqlite")
    alice, bob = world.join("alice", config), world.join("bob")
    world.run(1_000)
    world.blocked.add("bob")
    sent = alice.channel.send(b"hello")
    world.run(200_000, step_ms=1_000)
    copies = [message for sender, message in world.on_wire if sender == "alice" and b"hello" in message.payload]
    del world.recorders["alice"]
    if restarts:
        alice.channel.close()
    world.blocked = {"alice"}
    world.node("bob").arrive(copies[-1], DEFAULT_PUBSUB_TOPIC)
    seen = len(world.on_wire)
    world.run(asleep_ms, step_ms=asleep_ms // 100)
    missed = [message for sender, message in world.on_wire[seen:] if sender == "bob"]
    world.blocked = set()
    if restarts:
        alice = world.join("alice", config)
    world.recorders["alice"] = alice
    world.turn()  # before the node brings what came meanwhile
    for message in missed:
        world.node("alice").arrive(message, DEFAULT_PUBSUB_TOPIC)
    world.run(10 * MINUTE_MS, step_ms=10_000)
    assert len(copies) == 6, "all retransmissions"
    assert bob.payloads == [b"hello"]
    assert [event.request_id for event in alice.of(MessageDelivered)] == [sent]
    assert alice.of(MessageDeliveryError) == []


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize(("awake_ms", "asleep_ms"), [(3 * MINUTE_MS, 58 * MINUTE_MS), (55 * MINUTE_MS, 10 * MINUTE_MS)])
def test_after_a_sleep_what_is_missing_is_asked_for_before_it_is_given_up(
    tmp_path: Path, restarts: bool, awake_ms: int, asleep_ms: int
) -> None:
    world = World(lambda _sender, _receiver, message: () if b"first" in message.payload else (0.0,))
    world.network.store_keeps = lambda _: False
    config = quick(history_backend="sqlite", database=tmp_path / "bob.sqlite")
    alice, bob = world.join("alice"), world.join("bob", config)
    alice.channel.send(b"before")
    world.run(1_000)
    alice.channel.send(b"first")
    world.run(1_000)
    first = next(message for _, message in world.on_wire if b"first" in message.payload)
    alice.channel.send(b"second")
    world.run(awake_ms, step_ms=10_000)
    told = [*bob.events]
    del world.recorders["bob"]
    if restarts:
        bob.channel.close()
    world.run(asleep_ms, step_ms=10_000)
    if restarts:
        bob = world.join("bob", config)
    world.recorders["bob"] = bob
    world.turn()
    world.node("bob").arrive(first, DEFAULT_PUBSUB_TOPIC)
    world.run(MINUTE_MS)
    assert [event for event in told + bob.events if isinstance(event, MissingMessage)]
    assert bob.of(IrretrievableMessage) == []
    assert bob.payloads[-2:] == [b"first", b"second"]


def test_a_participant_that_sleeps_often_gives_up_what_never_existed_all_the_same() -> None:
    world = World(lambda _sender, _receiver, message: () if b"first" in message.payload else (0.0,))
    world.network.store_keeps = lambda _: False
    alice, bob = world.join("alice"), world.join("bob")
    alice.channel.send(b"before")
    world.run(1_000)
    for text in (b"first", b"second"):
        alice.channel.send(text)
        world.run(1_000)
    alice.channel.close()
    del world.recorders["alice"]
    for _ in range(4):
        world.run(20 * MINUTE_MS, step_ms=10_000)
        del world.recorders["bob"]
        world.run(10 * MINUTE_MS, step_ms=10_000)
        world.recorders["bob"] = bob
    assert len(bob.of(IrretrievableMessage)) == 1
    assert bob.payloads[-1] == b"second"


def test_a_sleep_counts_once_also_if_a_retransmission_was_due_in_it() -> None:
    world = World(lambda _sender, _receiver, message: () if b"first" in message.payload else (0.0,))
    world.network.store_keeps = lambda _: False
    alice, bob = world.join("alice"), world.join("bob")
    for text in (b"before", b"first", b"second"):
        alice.channel.send(text)
        world.run(1_000)
    alice.channel.close()
    del world.recorders["alice"]
    bob.channel.send(b"to nobody")
    world.run(1_000)
    del world.recorders["bob"]
    world.run(600 * MINUTE_MS, step_ms=MINUTE_MS)
    world.recorders["bob"] = bob
    world.run(70 * MINUTE_MS, step_ms=10_000)
    assert len(bob.of(IrretrievableMessage)) == 1


def test_a_sleep_before_a_dispatch_does_not_put_off_its_retransmission(monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as a slow dispatch, whose acknowledgement is waited for twice as long, up to forty minutes."""
    world = World()
    world.network.store_keeps = lambda _: False
    alice, bob = world.join("alice"), world.join("bob", quick(sds={"repair": False}))
    world.run(1_000)
    with monkeypatch.context() as full:
        full.setattr(world.node("alice"), "send", refuse)
        alice.channel.send(b"waits")
        world.run(1_000)
        del world.recorders["alice"]
        world.run(600 * MINUTE_MS, step_ms=MINUTE_MS)
    world.recorders["alice"] = alice
    world.blocked.add("bob")
    world.run(2_000)
    assert [b"waits" in message.payload for message in world.node("alice").sent].count(True) == 1
    world.blocked.clear()
    world.run(3 * MINUTE_MS)
    assert bob.payloads == [b"waits"]


def test_a_send_ends_although_its_sender_is_late_again_and_again() -> None:
    """As a channel is whose callback takes three minutes each time."""
    world = World()
    alice = world.join("alice")
    world.run(1_000)
    sent = alice.channel.send(b"nobody is there")
    world.run(DAY_MS, step_ms=181_000)
    assert [event.request_id for event in alice.of(MessageDeliveryError)] == [sent]
