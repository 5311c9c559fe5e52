"""Crashes are inputs: whatever point a process dies at, the restart resends, reuses nothing, and tells everything."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.channel import (
    MemoryPersistence,
    MessageDelivered,
    MessageReceived,
    MessageSent,
    Persistence,
    ReliableChannel,
    ReliableChannelConfig,
    SqlitePersistence,
)
from reliable_channel.channel.events import SendEvent
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.transport.memory import LinkFaults
from tests.support.examples import examples
from tests.unit.channel.channel_world import World, quick
from tests.unit.channel.crashes import Crash, Fuse, MortalPersistence, kill, make_mortal

NAMES = ("alice", "bob")


@dataclass(frozen=True)
class Send:
    name: str
    size: int


@dataclass(frozen=True)
class Pass:
    ms: int


@dataclass(frozen=True)
class Die:
    """The process dies at its ``operations``-th operation from here, before or after that took effect."""

    name: str
    operations: int
    after: bool


Action = Send | Pass | Die
actions = st.lists(
    st.one_of(
        st.builds(Send, st.sampled_from(NAMES), st.integers(1, 300)),
        st.builds(Pass, st.sampled_from((0, 200, 6_000, 40_000))),
        st.builds(Die, st.sampled_from(NAMES), st.integers(1, 12), st.booleans()),
    ),
    min_size=2,
    max_size=14,
)


@dataclass
class Lives:
    """Participants that die and come back on what they kept."""

    world: World
    kept: dict[str, Persistence]
    config: ReliableChannelConfig
    fuses: dict[str, Fuse] = field(default_factory=lambda: {name: Fuse() for name in NAMES})
    received: dict[str, list[MessageReceived]] = field(default_factory=lambda: {name: [] for name in NAMES})
    ended: dict[str, list[SendEvent]] = field(default_factory=lambda: {name: [] for name in NAMES})
    sends: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in NAMES})
    accepted: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    attempted: dict[str, list[bytes]] = field(default_factory=lambda: {name: [] for name in NAMES})
    deaths: int = 0

    def born(self, name: str) -> None:
        while True:
            make_mortal(self.world.network.node(name), self.fuses[name])
            persistence = MortalPersistence(self.kept[name], self.fuses[name])
            try:
                recorder = self.world.join(name, replace(self.config, persistence=persistence))
            except Crash:
                self._bury(name)
                continue
            self._listen(name, recorder.channel)
            return

    def _listen(self, name: str, channel: ReliableChannel) -> None:
        """A process may also die in its own callback, before or after what the callback does."""
        fuse, received, ended = self.fuses[name], self.received[name], self.ended[name]
        channel.on(MessageReceived, lambda event: fuse.burn(lambda: received.append(event)))
        channel.on(SendEvent, lambda event: fuse.burn(lambda: ended.append(event)))

    def _bury(self, name: str) -> None:
        self.deaths += 1
        self.world.recorders.pop(name, None)
        kill(self.world.network.node(name))
        self.fuses[name].left = -1

    def send(self, name: str, payload: bytes) -> None:
        self.attempted[name].append(payload)
        try:
            self.sends[name].append(self.world.recorders[name].channel.send(payload))
            self.accepted[name].append(payload)
        except Crash:
            self._bury(name)
            self.born(name)

    def run(self, ms: int, step_ms: int) -> None:
        for _ in range(max(1, ms // step_ms)):
            for name in NAMES:
                try:
                    self.world.recorders[name].channel.step()
                except Crash:
                    self._bury(name)
                    self.born(name)
            self.world.network.run(step_ms)

    def do(self, action: Action, number: int) -> None:
        match action:
            case Send(name, size):
                self.send(name, b"%d:" % number + bytes([65 + number % 26]) * size)
            case Pass(ms):
                self.run(ms, 100 if ms < 1_000 else 1_000)
            case Die(name, operations, after):
                self.fuses[name].left, self.fuses[name].after = operations, after


def check(script: list[Action], lives: Lives) -> None:
    for name in NAMES:
        lives.born(name)
    for number, action in enumerate(script):
        lives.do(action, number)
    for fuse in lives.fuses.values():
        fuse.left = -1
    for _ in range(60):
        lives.run(30_000, 1_000)
        if all(r.channel.status()["unacknowledged_segments"] == 0 for r in lives.world.recorders.values()):
            break
    for name, other in (("alice", "bob"), ("bob", "alice")):
        everything_was_told(lives.received[other], lives.accepted[name], lives.attempted[name])
        repeated = len(lives.received[other]) - len({event.message for event in lives.received[other]})
        assert repeated <= lives.deaths, "a death repeated more than the callback it came in"
        how_sends_ended_was_told(lives.ended[name], lives.sends[name])
    no_id_and_no_clock_value_came_twice(lives.world)


def how_sends_ended_was_told(told: list[SendEvent], sends: list[str]) -> None:
    ended = {event.request_id for event in told if not isinstance(event, MessageSent)}
    assert set(sends) <= ended, "nobody was told how a send ended"
    first = [(event.name, event.request_id) for event in told if not event.redelivered]
    assert len(set(first)) == len(first), "something about a send was told twice, and not as redelivered"
    seen: set[str] = set()
    for event in told:
        if isinstance(event, MessageDelivered) and not event.after_error:
            assert event.request_id in seen, "delivered, and not sent before"
        seen.add(event.request_id)


def everything_was_told(received: list[MessageReceived], accepted: list[bytes], attempted: list[bytes]) -> None:
    numbers: dict[int, bytes] = {}
    for event in received:
        known = event.sequence in numbers
        assert numbers.setdefault(event.sequence, event.message) == event.message, "a number means two messages"
        assert event.redelivered or not known, "told twice, and not as redelivered"
    assert [*numbers] == sorted(numbers), "numbers do not rise"
    assert len(set(numbers.values())) == len(numbers), "a message has two numbers"
    assert set(accepted) <= set(numbers.values()) <= set(attempted), "an accepted message was lost"


def no_id_and_no_clock_value_came_twice(world: World) -> None:
    by_id: dict[str, bytes] = {}
    by_clock: dict[tuple[str, int], str] = {}
    for _, envelope in world.on_wire:
        message = decode_sds_message(envelope.payload)
        assert not isinstance(message, Malformed)
        assert by_id.setdefault(message.message_id, envelope.payload) == envelope.payload, "an id means two messages"
        if message.lamport_timestamp is not None:
            place = (message.sender_id, message.lamport_timestamp)
            assert by_clock.setdefault(place, message.message_id) == message.message_id, "a clock value came twice"


def lossy(seed: int) -> World:
    return World(LinkFaults(loss=0.1, duplication=0.1, min_delay_ms=1, max_delay_ms=300, seed=seed).link())


SMALL = SegmentationConfig(segment_size_bytes=128, enable_reed_solomon=True, parity_rate=0.5)
CONFIG = replace(quick(), segmentation=SMALL)
SNAPSHOTS_OFTEN = replace(CONFIG, max_journal_entries=5)


@given(script=actions, seed=st.integers(0, 1_000), often=st.booleans())
def test_whatever_point_a_process_dies_at_nothing_is_lost_repeated_or_reused(
    script: list[Action], seed: int, often: bool
) -> None:
    kept: dict[str, Persistence] = {name: MemoryPersistence(keeps_journal=True) for name in NAMES}
    check(script, Lives(lossy(seed), kept, SNAPSHOTS_OFTEN if often else CONFIG))


@settings(max_examples=examples(25))
@given(script=actions, seed=st.integers(0, 1_000))
def test_the_same_holds_on_sqlite(script: list[Action], seed: int) -> None:
    with TemporaryDirectory() as directory:
        kept = {name: SqlitePersistence(Path(directory) / f"{name}.db") for name in NAMES}
        check(script, Lives(lossy(seed), dict(kept), SNAPSHOTS_OFTEN))
        for persistence in kept.values():
            persistence.close()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("name", "operations"),
    [*(("alice", number) for number in range(1, 14)), *(("bob", number) for number in range(1, 8))],
)
def test_every_single_operation_of_a_first_exchange_may_be_the_last(name: str, operations: int, after: bool) -> None:
    kept: dict[str, Persistence] = {one: MemoryPersistence(keeps_journal=True) for one in NAMES}
    lives = Lives(lossy(1), kept, SNAPSHOTS_OFTEN)
    check([Die(name, operations, after), Send("alice", 300), Pass(200), Send("bob", 5), Pass(6_000)], lives)
    assert lives.deaths == 1


def test_a_restart_sends_again_what_was_unacknowledged_and_only_that() -> None:
    world = World()
    kept: dict[str, Persistence] = {name: MemoryPersistence(keeps_journal=True) for name in NAMES}
    quiet = replace(quick(sds={"sync_min_interval_ms": 0, "repair": False}), query_on_connect=False)
    lives = Lives(world, kept, quiet)
    for name in NAMES:
        lives.born(name)
    lives.send("alice", b"acknowledged")
    lives.run(500, 100)
    lives.send("bob", b"acknowledges")
    lives.run(500, 100)
    world.blocked.add("bob")
    lives.send("alice", b"unacknowledged")
    lives.run(500, 100)
    sent_before = len(world.on_wire)
    lives._bury("alice")
    lives.born("alice")
    lives.run(500, 100)
    again = [decode_sds_message(message.payload) for _, message in world.on_wire[sent_before:]]
    assert [message.content for message in again if not isinstance(message, Malformed)] == [b"unacknowledged"]
