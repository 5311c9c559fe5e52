"""How soon a sender learns, without loss, that its message was received: with the defaults, in virtual time."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from random import Random

import pytest

from reliable_channel.channel import MessageDelivered, MessageReceived, ReliableChannelConfig, SendingMessage
from reliable_channel.config import Settings
from reliable_channel.core.wire.waku import WakuMessage
from tests.unit.channel.channel_world import World

POLL_MS = Settings().node.poll_interval_ms
TARGET_MS = 1_200


def polled(draw: Random) -> object:
    """A network whose nodes are polled: an envelope is read up to :data:`POLL_MS` after it came."""

    def deliver(_sender: str, _receiver: str, _message: WakuMessage) -> Sequence[float]:
        return (draw.uniform(5, POLL_MS + 20),)

    return deliver


@pytest.mark.parametrize("listeners", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_a_message_is_acknowledged_in_time_and_sent_once(listeners: int, seed: int) -> None:
    world = World(polled(Random(seed)))  # type: ignore[arg-type]
    config = ReliableChannelConfig(query_on_connect=False)
    alice = world.join("alice", config)
    for number in range(listeners):
        world.join(f"listener {number}", config)
    sent: dict[str, int] = {}
    for number in range(12):
        sent[alice.channel.send(b"message %d" % number)] = world.now
        world.run(4_000, step_ms=20)
    waits = [event.at - sent[event.request_id] for event in alice.of(MessageDelivered)]
    assert len(waits) == len(alice.of(SendingMessage)) == len(sent)
    assert statistics.median(waits) <= TARGET_MS


def test_messages_in_quick_succession_are_delivered_as_they_arrive() -> None:
    world = World()
    config = ReliableChannelConfig(query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    sent = []
    for number in range(5):
        sent.append(world.now)
        alice.channel.send(b"message %d" % number)
        world.run(200, step_ms=20)
    received = [event.at for event in bob.of(MessageReceived)]
    assert [at - began for at, began in zip(received, sent, strict=True)] == [0] * 5
