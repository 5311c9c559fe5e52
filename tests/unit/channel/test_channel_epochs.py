"""A channel under the default rate limit, one envelope in 600 s: content goes, and control traffic does not pile up."""

from __future__ import annotations

import pytest
from channel_world import World, quick

from reliable_channel.channel import ChannelProblem, MessageDelivered
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import SdsKind, SdsMessage, WireFamily, decode_sds_message

EPOCH_MS = 600_000
LIMITED = RateLimitConfig(enabled=True)


def count(world: World, sender: str, kind: SdsKind) -> int:
    """How many envelopes of this kind a participant put on the wire."""
    decoded = [decode_sds_message(m.payload, WireFamily.SPEC) for name, m in world.on_wire if name == sender]
    return sum(isinstance(each, SdsMessage) and each.kind is kind for each in decoded)


@pytest.mark.parametrize("quiet", [False, True], ids=["both talk", "one listens"])
def test_two_who_talk_for_two_hours_at_one_envelope_per_epoch_hear_each_other(quiet: bool) -> None:
    world = World()
    config = quick(rate_limit=LIMITED)
    alice, bob = world.join("alice", config), world.join("bob", config)
    for number in range(6):
        for speaker in (alice,) if quiet else (alice, bob):
            speaker.channel.send(b"%s %d" % (speaker.channel.sender_id.encode(), number))
            world.run(EPOCH_MS * (2 if quiet else 1), step_ms=5_000)
    assert bob.payloads == [b"alice %d" % number for number in range(6)]
    assert alice.payloads == ([] if quiet else [b"bob %d" % number for number in range(6)])
    assert len(alice.of(MessageDelivered)) >= 5
    for name in ("alice", "bob"):
        assert world.node(name)._limit.waiting <= 6, "no more than a retransmission of each message waits"


def test_a_message_that_takes_epochs_to_leave_is_announced_once_with_the_numbers() -> None:
    world = World()
    segmentation = SegmentationConfig(segment_size_bytes=64, max_message_bytes=1_000)
    alice = world.join("alice", quick(rate_limit=LIMITED, segmentation=segmentation))
    for _ in range(2):
        alice.channel.send(bytes(range(200)) * 3)
        world.run(60_000, step_ms=5_000)
    details = [event.detail for event in alice.of(ChannelProblem) if event.kind == "slow_rate_limit"]
    assert details == ["9 envelopes wait and 1 may leave in an epoch: the last waits 9 epochs"]


def test_while_a_sync_message_waits_no_other_is_made() -> None:
    world = World()
    config = quick(rate_limit=LIMITED)
    alice, bob = world.join("alice", config), world.join("bob", config)
    bob.channel.send(b"takes the place of the first epoch")
    for number in range(20):
        alice.channel.send(b"%d" % number)
    world.run(3 * EPOCH_MS, step_ms=5_000)
    assert world.node("bob")._limit.waiting <= 2
    assert count(world, "bob", SdsKind.SYNC) <= 3


def test_a_sender_that_always_has_content_still_acknowledges_by_sync_messages_and_retransmits() -> None:
    world = World()
    alice = world.join("alice", quick(rate_limit=RateLimitConfig(enabled=True, messages_per_epoch=4)))
    world.join("bob")
    for number in range(40):
        alice.channel.send(b"%d" % number)
    world.run(8 * EPOCH_MS, step_ms=5_000)
    content = count(world, "alice", SdsKind.CONTENT)
    assert content >= 3 * 8, "three places of four"
    assert len(world.on_wire) > content
