"""A participant of a content topic sends whatever it accepts, in the dialect that is configured for the topic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliable_channel.config import load
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Dialect, Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.runtime.participant import topic_config
from reliable_channel.transport.memory import DEFAULT_PUBSUB_TOPIC
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World


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


@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_ephemeral_message_has_no_parity(dialect: Dialect) -> None:
    """With Reed–Solomon, lip243-length refused every one: it needed two segments."""
    topic = {"content_topic": TOPIC, "dialects": [dialect.value]}
    settings = load("local", channels={"content_topics": [topic]}, segmentation={"enable_reed_solomon": True})
    config = topic_config(settings, TOPIC)
    world = World()
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send_ephemeral(b"typing")
    world.run(1_000)
    assert bob.payloads == [b"typing"]
    world.close()


TYPING = Segment(keccak256(b"typing"), 0, 1, 0, False, b"typing", 6, Dialect.LIP243_LENGTH)


@pytest.mark.parametrize(
    ("dialects", "content", "payloads", "problems"),
    [
        (list(Dialect), b"bare", [b"bare"], []),
        ([Dialect.LIP243], b"bare", [], ["malformed"]),
        (list(Dialect), encode_segment(TYPING), [b"typing"], []),
        (list(Dialect), encode_segment(replace(TYPING, payload=b"forged")), [], ["hash_mismatch"]),
        (list(Dialect), encode_segment(replace(TYPING, is_parity=True, parity_count=1)), [], ["refused"]),
        (list(Dialect), encode_segment(replace(TYPING, data_count=2)), [], ["refused"]),
    ],
    ids=["bare", "bare and not accepted", "segment", "false hash", "parity", "one of two"],
)
def test_an_ephemeral_message_is_checked_as_every_other(
    dialects: list[Dialect], content: bytes, payloads: list[bytes], problems: list[str]
) -> None:
    topic = {"content_topic": TOPIC, "dialects": [dialect.value for dialect in dialects]}
    world = World()
    bob = world.join("bob", topic_config(load("local", channels={"content_topics": [topic]}), TOPIC))
    message = SdsMessage("alice", "1" * 64, CHANNEL, None, content=content)
    envelope = WakuMessage(encode_sds_message(message), TOPIC, timestamp=world.now * 10**6)
    world.network.publish("stranger", envelope, DEFAULT_PUBSUB_TOPIC)
    world.run(500)
    assert (bob.payloads, bob.problems()) == (payloads, problems)
