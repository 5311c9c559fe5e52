"""The rate limit of a node over its channels (17/WAKU2-RLN-RELAY)."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

from reliable_channel.channel import (
    EphemeralMessageDropped,
    MemoryPersistence,
    MessageDelayed,
    MessageReceived,
    MessageSent,
    RateLimitApproached,
)
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import WireFamily, decode_sds_message
from tests.unit.channel.channel_world import World, quick

EPOCH_MS = 600_000


def limited(messages: int, counts: Literal["envelopes", "messages"] = "messages", **changes: object) -> object:
    limit = RateLimitConfig(enabled=True, messages_per_epoch=messages, counts=counts)
    return quick(rate_limit=limit, **changes)


def at_epoch_start(world: World) -> None:
    world.network.run(EPOCH_MS - world.now % EPOCH_MS)


def test_at_the_limit_messages_wait_for_the_next_epoch_in_order() -> None:
    world = World()
    at_epoch_start(world)
    alice, bob = world.join("alice", limited(2)), world.join("bob")  # type: ignore[arg-type]
    ids = [alice.channel.send(b"message %d" % number) for number in range(5)]
    world.run(30_000, step_ms=1_000)
    assert bob.payloads == [b"message 0", b"message 1"]
    assert [event.request_id for event in alice.of(MessageDelayed)] == ids[2:]
    assert {event.until % EPOCH_MS for event in alice.of(MessageDelayed)} == {0}
    world.run(2 * EPOCH_MS, step_ms=5_000)
    assert bob.payloads == [b"message %d" % number for number in range(5)]


def test_a_channel_that_is_opened_again_sends_within_the_limit(tmp_path: Path) -> None:
    """The node counted in the database that the first channel had closed, and nothing left it any more."""
    world = World()
    at_epoch_start(world)
    bob = world.join("bob")
    config = limited(2, history_backend="sqlite", database=tmp_path / "alice.db")
    for number in range(3):
        alice = world.join("alice", config)  # type: ignore[arg-type]
        alice.channel.send(b"%d" % number)
        world.run(2_000)
        alice.channel.close()
    assert bob.payloads == [b"0", b"1"]


def test_only_the_first_segment_of_a_message_counts() -> None:
    world = World()
    at_epoch_start(world)
    config = limited(2, segmentation=SegmentationConfig(segment_size_bytes=64))
    alice, bob = world.join("alice", config), world.join("bob")  # type: ignore[arg-type]
    alice.channel.send(bytes(640))
    alice.channel.send(bytes(range(200)) * 3)
    world.run(2_000)
    assert len(bob.payloads) == 2
    assert len(alice.of(MessageSent)) == 2


def test_ephemeral_messages_are_dropped_near_the_limit_with_an_event() -> None:
    world = World()
    at_epoch_start(world)
    alice, bob = world.join("alice", limited(10)), world.join("bob")  # type: ignore[arg-type]
    for _ in range(12):
        alice.channel.send_ephemeral(b"typing")
        world.run(200)
    assert len(bob.payloads) == 9
    assert len(alice.of(EphemeralMessageDropped)) == 3
    assert len(alice.of(RateLimitApproached)) == 1
    alice.channel.send(b"reliable ones still have room")
    world.run(200)
    assert bob.payloads[-1] == b"reliable ones still have room"


def test_the_channels_of_a_node_share_one_counter() -> None:
    world = World()
    at_epoch_start(world)
    first = world.join("alice", limited(1), channel_id="one")  # type: ignore[arg-type]
    second = world.join("alice", limited(1), channel_id="two", content_topic="/other/1/x/proto")  # type: ignore[arg-type]
    first.channel.send(b"uses it up")
    second.channel.send(b"waits")
    for _ in range(3):
        first.channel.step()
        second.channel.step()
        world.network.pump()
    assert len(first.of(MessageSent)) == 1
    assert len(second.of(MessageDelayed)) == 1


def test_two_channels_of_a_node_cannot_have_two_limits() -> None:
    world = World()
    world.join("alice", limited(1), channel_id="one")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="rate limit"):
        world.join("alice", limited(2), channel_id="two")  # type: ignore[arg-type]


def test_the_count_survives_a_restart_inside_the_epoch_and_not_beyond() -> None:
    world = World()
    at_epoch_start(world)
    config = limited(1, persistence=MemoryPersistence(keeps_journal=True))
    alice = world.join("alice", config)  # type: ignore[arg-type]
    bob = world.join("bob")
    alice.channel.send(b"first")
    world.run(1_000)
    alice.channel.close()
    alice = world.join("alice", config)  # type: ignore[arg-type]
    alice.channel.send(b"second")
    world.run(10_000, step_ms=1_000)
    assert bob.payloads == [b"first"]
    world.run(EPOCH_MS, step_ms=5_000)
    assert bob.payloads == [b"first", b"second"]


def test_what_waited_for_its_epoch_when_the_channel_closed_is_sent_after_a_restart() -> None:
    world = World()
    at_epoch_start(world)
    config = limited(1, persistence=MemoryPersistence(keeps_journal=True))
    alice = world.join("alice", config)  # type: ignore[arg-type]
    bob = world.join("bob")
    alice.channel.send(b"first")
    alice.channel.send(b"waiting")
    world.run(1_000)
    alice.channel.close()
    world.join("alice", config)  # type: ignore[arg-type]
    world.run(EPOCH_MS + 5_000, step_ms=5_000)
    assert bob.payloads == [b"first", b"waiting"]
    assert [event.sequence for event in bob.of(MessageReceived)] == [1, 2]


def test_a_channel_that_closes_takes_back_what_waits_for_an_epoch() -> None:
    """The node sent it, and sent it again for each time that the channel had been opened."""
    world = World()
    at_epoch_start(world)
    config = limited(1, persistence=MemoryPersistence(keeps_journal=True))
    alice = world.join("alice", config)  # type: ignore[arg-type]
    alice.channel.send(b"first")
    alice.channel.send(b"waiting")
    for _ in range(3):
        world.run(1_000)
        alice.channel.close()
        alice = world.join("alice", config)  # type: ignore[arg-type]
    alice.channel.close()
    assert world.node("alice")._limit.waiting == 0


def test_by_the_specified_rule_retransmissions_do_not_count() -> None:
    world = World(lambda *_: ())
    at_epoch_start(world)
    alice = world.join("alice", limited(1, sds={"sync_min_interval_ms": 0}))  # type: ignore[arg-type]
    alice.channel.send(b"lost")
    world.run(40_000, step_ms=1_000)
    assert len(world.node("alice").sent) == 4


def test_every_envelope_counts_and_four_messages_take_two_epochs_of_two() -> None:
    world = World()
    at_epoch_start(world)
    alice, bob = world.join("alice", limited(2, "envelopes")), world.join("bob")  # type: ignore[arg-type]
    for number in range(4):
        alice.channel.send(b"message %d" % number)
    world.run(4 * EPOCH_MS, step_ms=2_000)
    assert bob.payloads == [b"message %d" % number for number in range(4)]
    epochs = [(message.timestamp or 0) // 1_000_000 // EPOCH_MS for message in world.node("alice").sent]
    assert Counter(epochs).most_common(1)[0][1] == 2
    assert len(set(epochs[:4])) == 2


def test_content_goes_before_retransmissions_that_have_waited_longer() -> None:
    world = World(lambda *_: ())
    at_epoch_start(world)
    config = limited(1, "envelopes", sds={"sync_min_interval_ms": 0})
    alice = world.join("alice", config)  # type: ignore[arg-type]
    alice.channel.send(b"first")
    world.run(60_000, step_ms=1_000)  # its retransmission waits
    alice.channel.send(b"second")
    world.run(2 * EPOCH_MS, step_ms=2_000)
    ids = [decode_sds_message(message.payload, WireFamily.SPEC).message_id for message in world.node("alice").sent]
    assert ids == [ids[0], ids[1], ids[0]]
    assert ids[1] != ids[0]
