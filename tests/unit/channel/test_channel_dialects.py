"""A participant of a content topic sends whatever it accepts, in the dialect that is configured for the topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliable_channel.config import load
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.runtime.participant import topic_config
from tests.unit.channel.channel_world import TOPIC, World


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.parametrize("family", ["spec", "nim"])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_what_is_accepted_is_sent_and_received_in_every_dialect(dialect: Dialect, family: str, parity: bool) -> None:
    topic = {"content_topic": TOPIC, "family": family, "dialects": [dialect.value]}
    settings = load("local", channels={"content_topics": [topic]}, segmentation={"enable_reed_solomon": parity})
    config = replace(topic_config(settings, TOPIC), process_task_min_elapse_ms=0)
    assert config.segmentation.dialect is dialect
    world = World()
    alice, bob = world.join("alice", config), world.join("bob", config)
    payloads = [bytes([size % 251]) * size for size in (1, 64, 102_399, 102_400, 102_401, 350_000)]
    for payload in payloads:
        alice.channel.send(payload)
    world.run(3_000)
    assert bob.payloads == payloads
    assert (alice.problems(), bob.problems()) == ([], [])
    world.close()
