"""A whole channel among lossy participants, driven by Hypothesis (LIP-109)."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.examples import examples
from tests.unit.sds.sds_network import Network, assert_causal, small_config

NAMES = ("alice", "bob", "carol")
some_name = st.sampled_from(NAMES)
some_copy = st.integers(0, 10_000)


class LossyChannel(RuleBasedStateMachine):
    """Participants send; copies are delivered, lost, repeated and reordered; participants crash and come back."""

    config = small_config()

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(NAMES, self.config)
        self.number = 0

    @rule(name=some_name, segments=st.integers(1, 4))
    def send(self, name: str, segments: int) -> None:
        self.number += 1
        self.network.send(name, *(b"%d/%d" % (self.number, index) for index in range(segments)))

    @precondition(lambda self: self.network.in_flight)
    @rule(index=some_copy)
    def deliver(self, index: int) -> None:
        self.network.deliver(index % len(self.network.in_flight))

    @precondition(lambda self: self.network.in_flight)
    @rule(index=some_copy)
    def drop(self, index: int) -> None:
        self.network.drop(index % len(self.network.in_flight))

    @precondition(lambda self: self.network.in_flight)
    @rule(index=some_copy)
    def duplicate(self, index: int) -> None:
        self.network.duplicate(index % len(self.network.in_flight))

    @rule(seed=st.integers(0, 1_000))
    def reorder(self, seed: int) -> None:
        self.network.reorder(seed)

    @rule()
    def drop_everything(self) -> None:
        self.network.drop_all()

    @rule(ms=st.integers(1, 90_000))
    def advance(self, ms: int) -> None:
        self.network.advance(ms)

    @rule(name=some_name)
    def restart(self, name: str) -> None:
        self.network.restart(name)

    @invariant()
    def nothing_twice_and_nothing_early(self) -> None:
        for name in self.network.names:
            assert_causal(self.network, name)


class RepairedChannel(LossyChannel):
    """Once the network stops losing, all end with the same log in the same order."""

    def teardown(self) -> None:
        self.network.run(200_000)
        self.nothing_twice_and_nothing_early()
        self.network.repair_from_store(self.number)
        self.nothing_twice_and_nothing_early()
        assert self.network.settled(), "losses are not repaired"
        positions = {
            (outgoing.message.lamport_timestamp, outgoing.message.message_id)
            for outgoing in self.network.sent
            if outgoing.message.content
        }
        assert self.network.logs()[0] == tuple(sorted(positions))  # type: ignore[type-var]


class JoinedChannel(LossyChannel):
    """A newcomer gets what was sent before it began in any order, and waits for none of it."""

    newcomer = "dave"

    @precondition(lambda self: self.number > 2 and self.newcomer not in self.network.names)
    @rule(seed=st.integers(0, 1_000))
    def join(self, seed: int) -> None:
        self.network.join(self.newcomer)
        self.network.reorder(seed)

    @precondition(lambda self: self.newcomer in self.network.names)
    @rule(count=st.integers(1, 10))
    def deliver_to_newcomer(self, count: int) -> None:
        for _ in range(count):
            waiting = (place for place, (name, _) in enumerate(self.network.in_flight) if name == self.newcomer)
            if (place := next(waiting, None)) is not None:
                self.network.deliver(place)


class GivingUpChannel(LossyChannel):
    """With a time-out for lost messages: what is delivered without its dependency says so."""

    config = small_config(timeout_for_lost_messages_ms=60_000)

    def teardown(self) -> None:
        self.network.run(600_000)
        self.nothing_twice_and_nothing_early()
        for channel in self.network.channels.values():
            assert channel.missing_ids() == ()


TestRepairedChannel = RepairedChannel.TestCase
TestRepairedChannel.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
TestJoinedChannel = JoinedChannel.TestCase
TestJoinedChannel.settings = settings(max_examples=examples(100), stateful_step_count=60, deadline=None)
TestGivingUpChannel = GivingUpChannel.TestCase
TestGivingUpChannel.settings = settings(max_examples=examples(80), stateful_step_count=60, deadline=None)
