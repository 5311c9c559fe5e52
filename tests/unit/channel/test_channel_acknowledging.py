"""Acknowledgements in time: a quiet recipient answers before its sender sends anything again."""

from __future__ import annotations

import pytest

from reliable_channel.channel import MessageDelivered, SegmentSent
from reliable_channel.core.segmentation import SegmentationConfig
from tests.unit.channel.channel_world import World, quick

SEGMENTED = SegmentationConfig(segment_size_bytes=64)


@pytest.mark.parametrize("listeners", [1, 5])
def test_every_segment_goes_out_once_and_is_delivered_within_two_seconds(listeners: int) -> None:
    world = World()
    alice = world.join("alice", quick(segmentation=SEGMENTED))
    for number in range(listeners):
        world.join(f"listener-{number}", quick(segmentation=SEGMENTED))
    alice.channel.send(bytes(range(200)))
    world.run(2_000)
    assert len(alice.of(MessageDelivered)) == 1
    world.run(60_000)
    assert len(alice.of(SegmentSent)) == 4


def test_a_listener_that_closes_at_once_leaves_its_sender_without_doubt() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    alice.channel.send(b"last words")
    world.turn()
    assert bob.payloads == [b"last words"]
    bob.channel.close()
    del world.recorders["bob"]
    world.turn()
    assert len(alice.of(MessageDelivered)) == 1


def test_a_channel_that_owes_nothing_says_nothing_when_it_closes() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    alice.channel.send(b"hello")
    world.run(3_000)
    before = len(world.on_wire)
    bob.channel.close()
    assert len(world.on_wire) == before
