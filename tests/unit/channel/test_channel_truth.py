"""A property over random conversations: nothing is *delivered* at its sender and absent at a participant that listens
and reaches the store, however senders sleep, whatever is lost, and however slow the rate limit is.

``HYPOTHESIS_PROFILE=thorough`` runs forty times the few examples of ``make test``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from reliable_channel.channel import (
    MemoryPersistence,
    MessageDelivered,
    MessageLost,
    MessageReceived,
    ReliableChannelConfig,
)
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.segmentation.lifetime import compute_lifetime
from reliable_channel.transport.memory import LinkFaults
from tests.unit.channel.channel_world import Recorder, World, quick

MINUTE = 60_000
NAMES = ("alice", "bob", "carol")
SETTLE_MS = 6 * 60 * MINUTE
FEWER = 4
"""An example plays hours, so that there are only so many fewer of them than usual."""


@dataclass(frozen=True)
class Act:
    """What happens at ``at_ms``: ``name`` sends ``size`` bytes, or is away for ``away_ms``, in a new process if
    ``restart``."""

    at_ms: int
    name: str
    size: int = 0
    away_ms: int = 0
    restart: bool = False


@dataclass(frozen=True)
class Conversation:
    """One example. ``limit``: envelopes per epoch of 600 s, 0: no limit; ``seed`` decides which deliveries arrive."""

    acts: tuple[Act, ...]
    parity: bool
    limit: int
    loss: float
    seed: int
    durable: bool


Whole = MessageDelivered | MessageReceived | MessageLost

times = st.integers(0, 20 * MINUTE)
sends = st.builds(Act, times, st.sampled_from(NAMES[:2]), size=st.integers(1, 400))
naps = st.builds(
    Act,
    times,
    st.sampled_from(NAMES),
    away_ms=st.sampled_from((MINUTE, 7 * MINUTE, 30 * MINUTE)),
    restart=st.booleans(),
)
conversations = st.builds(
    Conversation,
    acts=st.tuples(st.lists(sends, min_size=1, max_size=4), st.lists(naps, max_size=3)).map(
        lambda both: tuple(sorted((*both[0], *both[1]), key=lambda act: act.at_ms))
    ),
    parity=st.booleans(),
    limit=st.sampled_from((0, 0, 1, 3, 20)),
    loss=st.sampled_from((0.0, 0.2, 0.5, 0.8)),
    seed=st.integers(0, 999),
    durable=st.booleans(),
)


SLOW = Conversation(
    (Act(0, "bob", 33), Act(317, "alice", 171), Act(2_332, "bob", 46), Act(30_000, "bob", 373)), True, 1, 0.8, 701, True
)
"""Carol learns of a message more than an hour after it was sent, without its hash."""


HELD_BACK = Conversation(
    (
        Act(0, "bob", 345),
        Act(0, "alice", 1),
        Act(0, "bob", 1),
        Act(0, "bob", 1),
        Act(0, "carol", away_ms=60_000),
        Act(1_477, "alice", away_ms=60_000, restart=True),
    ),
    parity=False,
    limit=3,
    loss=0.5,
    seed=540,
    durable=False,
)
"""Bob's second message waits for an epoch while Alice begins anew; what reaches her then was made before."""
UNNAMED = Conversation(
    (Act(0, "alice", 1), Act(918, "alice", away_ms=30 * MINUTE, restart=True), Act(1_576, "bob", 213)),
    parity=False,
    limit=1,
    loss=0.8,
    seed=96,
    durable=False,
)
"""Carol acknowledges Alice's message, Alice forgets it, and Bob loses all of Carol's messages that name it: only the
store can tell him."""


class Play:
    """Plays a conversation, jumping from one due time to the next."""

    def __init__(self, talk: Conversation, names: Sequence[str] = NAMES, store_loses: float = 0.0) -> None:
        self.talk = talk
        self.names = names
        self.lifetime_ms = 90 * MINUTE if not store_loses else 0
        self.world = World(LinkFaults(loss=talk.loss, seed=talk.seed).link())
        self.stores = {name: MemoryPersistence(keeps_journal=True) for name in NAMES}
        self.events: dict[str, list[Recorder]] = defaultdict(list)
        self.back: list[tuple[int, Act]] = []
        self.sent = 0
        chance = Random(talk.seed)
        self.world.network.store_keeps = lambda message: chance.random() >= store_loses
        for name in names:
            self.join(name)

    def config(self, name: str) -> ReliableChannelConfig:
        limit = RateLimitConfig(enabled=self.talk.limit > 0, messages_per_epoch=self.talk.limit or 1)
        segmentation = SegmentationConfig(
            segment_size_bytes=64, enable_reed_solomon=self.talk.parity, parity_rate=0.5, max_message_bytes=400
        )
        config = quick(segmentation=segmentation, rate_limit=limit, sds={"max_retransmissions": 2})
        needed = compute_lifetime(segmentation, config.sds, limit).total_ms
        config = replace(config, segmentation=replace(segmentation, max_set_lifetime_ms=max(needed, self.lifetime_ms)))
        return replace(config, persistence=self.stores[name]) if self.talk.durable else config

    def join(self, name: str) -> None:
        self.events[name].append(self.world.join(name, self.config(name)))

    def run(self, until: int) -> None:
        world = self.world
        while world.now < until:
            world.turn()
            dues = [due for each in world.recorders.values() if (due := each.channel.step()) is not None]
            queued = world.network._queue
            if queued:
                dues.append(-(-queued[0][0] // 1_000_000))
            wait = min([*dues, until]) - world.now
            world.network.run(max(1, min(wait, until - world.now)))
        world.turn()

    def act(self, act: Act) -> None:
        world, name = self.world, act.name
        if act.size and name in world.recorders:
            self.sent += 1
            world.recorders[name].channel.send(bytes([self.sent]) * act.size)
        elif act.away_ms and name in world.recorders:
            world.blocked.add(name)
            recorder = world.recorders.pop(name)
            if act.restart:
                recorder.channel.close()
            self.back.append((world.now + act.away_ms, act))

    def wake(self, act: Act) -> None:
        self.world.blocked.discard(act.name)
        if act.restart:
            self.join(act.name)
        else:
            self.world.recorders[act.name] = self.events[act.name][-1]

    def play(self) -> None:
        start = self.world.now
        todo = [(start + act.at_ms, act) for act in self.talk.acts]
        while todo or self.back:
            following = min(at for at, _ in (*todo, *self.back))
            self.run(following)
            for entry in [each for each in self.back if each[0] <= following]:
                self.back.remove(entry)
                self.wake(entry[1])
            for entry in [each for each in todo if each[0] <= following]:
                todo.remove(entry)
                self.act(entry[1])
        self.run(self.world.now + SETTLE_MS)

    def told(self, name: str, kind: type[Whole]) -> set[str]:
        return {event.message_id for recorder in self.events[name] for event in recorder.of(kind)}


@settings(max_examples=settings.default.max_examples // FEWER)
@example(SLOW)
@example(HELD_BACK)
@example(UNNAMED)
@given(conversations)
def test_what_is_delivered_at_its_sender_is_at_everybody_who_listens(talk: Conversation) -> None:
    play = Play(talk)
    play.play()
    for sender in NAMES:
        for receiver in NAMES:
            if receiver != sender:
                absent = play.told(sender, MessageDelivered) - play.told(receiver, MessageReceived)
                assert not absent, (sender, receiver, play.told(receiver, MessageLost))


@settings(max_examples=settings.default.max_examples // FEWER)
@given(conversations, st.sampled_from((0.5, 1.0)))
def test_what_is_lost_at_its_only_recipient_is_never_delivered_at_its_sender(
    talk: Conversation, store_loses: float
) -> None:
    """The store keeps little or nothing, and messages are given up as early as a configuration may say. What a process
    acknowledged without a durable backend is gone with it."""
    play = Play(replace(talk, durable=True), NAMES[:2], store_loses)
    play.play()
    for sender, receiver in (NAMES[:2], NAMES[1::-1]):
        lost = play.told(receiver, MessageLost) - play.told(receiver, MessageReceived)
        assert not lost & play.told(sender, MessageDelivered)
