"""Measures how soon a sender learns that its messages were received, over simulated networks on a virtual clock.

One participant sends, others only listen. Each figure is compared with the same network with
``acknowledge_within_ms=0``, in which a listener acknowledges only by the sync messages of the shared interval. Times
are those of the virtual clock, so they do not depend on the machine; the network delays every envelope by 40 to 160 ms.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from bench.registry import SIZES, Result, bench
from reliable_channel.core.sds import (
    DeliveryError,
    Outgoing,
    OutgoingReason,
    SdsChannel,
    SdsParameters,
    SdsStep,
    SendDelivered,
)
from reliable_channel.core.sds.events import Delivered
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message

CHANNEL = "bench"
START_MS = 1_750_000_000_000
DELAY_MS = (40, 160)
BURSTS, SEGMENTS = 40, 3
PAUSE_MS = 60_000
"""The pause between two bursts of :data:`SEGMENTS` segments, long enough that each burst is acknowledged or fails
before the next."""

CLOCK = "nothing: the clock is virtual"
NOW = SdsParameters()
BEFORE = replace(NOW, acknowledge_within_ms=0)
JS_WAKU = replace(
    NOW, acknowledge_within_ms=0, causal_history_size=200, acknowledgement_timeout_ms=30_000, max_retransmissions=10
)
"""The timings of js-waku's reliable channel as a listener."""


@dataclass
class Network:
    """A sender and its listeners; envelopes arrive after a random delay, or not at all."""

    configs: dict[str, SdsParameters]
    loss: float = 0.0
    seed: int = 1
    now: int = START_MS
    sent: Counter[OutgoingReason] = field(default_factory=Counter)
    delivered_ms: dict[str, int] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    received: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._flying: list[tuple[int, int, str, bytes]] = []
        self._number = 0
        self._channels = {name: SdsChannel(CHANNEL, name, config) for name, config in self.configs.items()}
        for name, channel in self._channels.items():
            self._take(name, channel.tick(self.now))

    def send(self, name: str, contents: list[bytes]) -> str:
        """Send one message of several segments; returns its send id."""
        step = self._channels[name].send(contents, self.now)
        self._take(name, step)
        return step.outgoing[0].send_id or ""

    def run(self, ms: int) -> None:
        """Let ``ms`` pass: process arrivals and timers in the order of their times."""
        end = self.now + ms
        while True:
            due = [(at, name) for name, each in self._channels.items() if (at := each.next_due()) is not None]
            first = min(due, default=(end, ""))
            arrives = self._flying[0][0] if self._flying else end
            self.now = max(self.now, min(first[0], arrives, end))
            if min(first[0], arrives) >= end:
                return
            if arrives <= first[0]:
                _, _, name, data = heapq.heappop(self._flying)
                message = decode_sds_message(data, self.configs[name].wire_family)
                assert not isinstance(message, Malformed)
                self._take(name, self._channels[name].receive(message, self.now, data=data))
            else:
                self._take(first[1], self._channels[first[1]].tick(self.now))

    def ignores(self, name: str, sds_id: str) -> bool:
        """Whether a participant neither has a message, delivered or waiting, nor knows that it is missing."""
        channel = self._channels[name]
        return (
            channel.sender_of(sds_id) is None
            and not channel.is_past(sds_id, self.now)
            and sds_id not in channel.missing_ids()
        )

    def _take(self, name: str, step: SdsStep) -> None:
        for outgoing in step.outgoing:
            self._dispatch(name, outgoing)
        for event in step.events:
            match event:
                case SendDelivered():
                    self.delivered_ms.setdefault(event.send_id, event.at)
                case DeliveryError():
                    self.failed.add(event.send_id)
                case Delivered():
                    self.received[event.message_id] += 1

    def _dispatch(self, name: str, outgoing: Outgoing) -> None:
        self.sent[outgoing.reason] += 1
        for other in self._channels:
            if other != name and self._random.random() >= self.loss:
                self._number += 1
                at = self.now + self._random.randint(*DELAY_MS)
                heapq.heappush(self._flying, (at, self._number, other, outgoing.data))


def _bursts() -> int:
    return SIZES.scale_count(BURSTS, 4)


def _play(network: Network) -> dict[str, int]:
    """Play the bursts; returns when (ms) each send began, by its id."""
    began: dict[str, int] = {}
    for burst in range(_bursts()):
        began_at = network.now
        send_id = network.send("alice", [b"segment %d of burst %d" % (index, burst) for index in range(SEGMENTS)])
        began[send_id] = began_at
        network.run(PAUSE_MS)
    network.run(10 * PAUSE_MS)
    return began


def _network(listeners: int, config: SdsParameters, loss: float = 0.0) -> Network:
    return Network({"alice": NOW, **{f"listener-{number}": config for number in range(listeners)}}, loss)


@bench
def quiet_listeners() -> Iterator[Result]:
    """Measure networks without loss, in which nobody else sends."""
    for listeners in (1, 5, 20):
        for name, config, targets in (("", NOW, (1.0, 1.2)), (", interval alone", BEFORE, (None, None))):
            network = _network(listeners, config)
            began = _play(network)
            label = f"{listeners} listener{'s' if listeners > 1 else ''}{name}"
            segments = _bursts() * SEGMENTS
            transmissions = 1 + network.sent[OutgoingReason.RESEND] / segments
            yield Result(f"{label}: transmissions a segment", transmissions, "", targets[0], True, CLOCK)
            late = [(network.delivered_ms[i] - at) / 1000 for i, at in began.items() if i in network.delivered_ms]
            yield Result(f"{label}: median to delivered", statistics.median(late), "s", targets[1], True, CLOCK)
            idle = Network({"alice": NOW, **{f"listener-{n}": config for n in range(listeners)}})
            _play_once(idle)
            syncs = (network.sent[OutgoingReason.SYNC] - idle.sent[OutgoingReason.SYNC]) / (_bursts() - 1)
            yield Result(f"{label}: sync messages a burst beyond those of silence", syncs, "")
            yield Result(f"{label}: send errors", float(len(network.failed)), "", 0.0, True, CLOCK)


def _play_once(network: Network) -> None:
    """Play one burst, then silence for as long as all bursts take: the cost of the channel's interval alone."""
    network.send("alice", [b"segment %d" % index for index in range(SEGMENTS)])
    network.run((_bursts() + 10) * PAUSE_MS)


@bench
def lossy_networks() -> Iterator[Result]:
    """Measure networks that lose every fifth copy; a send error is false if some listener has received all segments."""
    for name, config in (("", NOW), (", interval alone", BEFORE), (", js-waku's timings", JS_WAKU)):
        network = _network(5, config, loss=0.2)
        began = _play(network)
        label = f"5 listeners, 20 % loss{name}"
        false = [send_id for send_id in network.failed if network.received[send_id]]
        target = 0.0 if config is not BEFORE else None
        yield Result(f"{label}: false send errors", float(len(false)), "", target, True, CLOCK)
        late = [(network.delivered_ms[i] - at) / 1000 for i, at in began.items() if i in network.delivered_ms]
        yield Result(f"{label}: delivered", len(late) / _bursts() * 100, "%")
        yield Result(f"{label}: median to delivered", statistics.median(late), "s")
        resends = network.sent[OutgoingReason.RESEND] / (_bursts() * SEGMENTS)
        yield Result(f"{label}: transmissions a segment", 1 + resends, "")


@bench
def lossy_conversations() -> Iterator[Result]:
    """Measure conversations of five participants in which every fifth copy is lost. A participant never learns of a
    message if, at the end, it neither has it nor counts it as missing: no message it received names it."""
    messages = SIZES.scale_count(TALK, 20)
    for name, config in (("", NOW), (", interval alone", BEFORE)):
        ended = [conversation(config, seed, messages=messages) for seed in (1, 2, 3)]
        label = f"5 talk, 20 % loss{name}"
        target = 0.0 if config is NOW else None
        yield Result(f"{label}: never learnt of", float(sum(never for _, never in ended)), "", target, True, CLOCK)
        syncs = sum(network.sent[OutgoingReason.SYNC] for network, _ in ended)
        yield Result(f"{label}: sync messages a message", syncs / (len(ended) * messages), "")


TALK = 250
"""The number of messages of a conversation."""


def conversation(config: SdsParameters, seed: int, loss: float = 0.2, messages: int = TALK) -> tuple[Network, int]:
    """Let five participants send ``messages`` in total, one every 0.2 to 4 s, then wait ten minutes; returns how often
    a participant never learned of another's message."""
    names = [f"participant-{number}" for number in range(5)]
    small = replace(config, filter_format=FilterFormat(capacity=2_000))
    network = Network(dict.fromkeys(names, small), loss, seed)
    choose = random.Random(seed)
    sent = {}
    for number in range(messages):
        sender = choose.choice(names)
        sent[network.send(sender, [b"message %d" % number])] = sender
        network.run(choose.randint(200, 4_000))
    network.run(10 * PAUSE_MS)
    return network, sum(network.ignores(name, sds_id) for sds_id, sender in sent.items() for name in names)
