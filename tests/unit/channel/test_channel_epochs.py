"""A channel under the default rate limit, one envelope in 600 s: content goes, and control traffic does not pile up."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.channel import ChannelProblem, MessageDelivered
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds import Outgoing, SdsChannel
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import SdsKind, SdsMessage, WireFamily, decode_sds_message
from tests.unit.channel.channel_world import World, quick

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


def test_a_backlog_of_several_epochs_is_announced_with_the_numbers_and_again_when_it_has_doubled() -> None:
    world = World()
    segmentation = SegmentationConfig(segment_size_bytes=64, max_message_bytes=1_000)
    alice = world.join("alice", quick(rate_limit=LIMITED, segmentation=segmentation))
    for length in (600, 60, 600):
        alice.channel.send((bytes(range(200)) * 3)[:length])
        world.run(60_000, step_ms=5_000)
    details = [event.detail for event in alice.of(ChannelProblem) if event.kind == "slow_rate_limit"]
    assert details == [
        "9 envelopes wait and 1 may leave in an epoch: the last waits 9 epochs",
        "22 envelopes wait and 1 may leave in an epoch: the last waits 22 epochs",
    ]


def test_a_backlog_after_one_that_is_gone_is_announced_as_well() -> None:
    world = World()
    segmentation = SegmentationConfig(segment_size_bytes=64, max_message_bytes=1_000)
    alice, _ = world.join("alice", quick(rate_limit=LIMITED, segmentation=segmentation)), world.join("bob")
    for payload in (bytes(600), bytes(601)):
        alice.channel.send(payload)
        world.run(40 * EPOCH_MS, step_ms=60_000)
    assert [event.kind for event in alice.of(ChannelProblem)] == ["slow_rate_limit"] * 2


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


@pytest.mark.parametrize(("limit", "gap_ms"), [(1, EPOCH_MS), (1, 2 * EPOCH_MS)])
def test_what_the_budget_carries_is_sent_once_and_acknowledged(limit: int, gap_ms: int) -> None:
    world = World()
    world.network.run(EPOCH_MS - world.now % EPOCH_MS)
    config = quick(rate_limit=RateLimitConfig(enabled=True, messages_per_epoch=limit))
    alice, bob = world.join("alice", config), world.join("bob", config)
    for number in range(2 * 3_600_000 // gap_ms):
        for speaker in (alice, bob):
            speaker.channel.send(b"%s %d" % (speaker.channel.sender_id.encode(), number))
        world.run(gap_ms, step_ms=5_000)
    decoded = [decode_sds_message(message.payload, WireFamily.SPEC) for _, message in world.on_wire]
    ids = [each.message_id for each in decoded if isinstance(each, SdsMessage) and each.kind is SdsKind.CONTENT]
    assert len(ids) == len(set(ids)), "no segment takes a second place"
    assert len(alice.of(MessageDelivered)) >= len(bob.payloads) - 3
    assert world.node("alice")._limit.waiting <= 3


def test_a_waiting_retransmission_is_withdrawn_once_its_segment_is_acknowledged() -> None:
    world = World(lambda *_: (30_000,))
    world.network.run(EPOCH_MS - world.now % EPOCH_MS)
    alice = world.join("alice", quick(rate_limit=LIMITED, sds={"sync_min_interval_ms": 0}))
    world.join("bob")
    alice.channel.send(b"takes 30 s")
    world.run(20_000, step_ms=1_000)
    assert world.node("alice")._limit.waiting == 1
    world.run(60_000, step_ms=1_000)
    assert len(alice.of(MessageDelivered)) == 1
    assert world.node("alice")._limit.waiting == 0


def test_a_cycle_looks_at_some_of_the_retransmissions_that_wait_and_the_next_at_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart with 6 000 that wait, each cycle looked at all of them: nine tenths of a channel's CPU."""
    world = World()
    config = quick(rate_limit=LIMITED, history_backend="sqlite", database=tmp_path / "alice.sqlite")
    channel = world.join("alice", config).channel
    for number in range(150):
        channel.send(b"%d" % number)
    world.run(1_000)
    channel.close()
    channel = world.join("alice", config).channel
    world.run(1_000)
    looked_at: list[str] = []

    def look(_: SdsChannel, message: Outgoing, now: int) -> bool:
        looked_at.append(message.message.message_id)
        return False

    monkeypatch.setattr(SdsChannel, "is_outdated", look)
    channel.step()
    assert 0 < len(looked_at) <= 100
    channel.step()
    assert len(set(looked_at)) >= 149, "all but the one that may have left"


def test_a_newer_sync_message_takes_the_place_of_the_one_that_waits() -> None:
    world = World()
    world.network.run(EPOCH_MS - world.now % EPOCH_MS)
    alice, bob = world.join("alice"), world.join("bob", quick(rate_limit=LIMITED))
    bob.channel.send(b"takes the place of the first epoch")
    for number in range(20):
        alice.channel.send(b"%d" % number)
        world.run(10_000, step_ms=1_000)
    world.run(EPOCH_MS, step_ms=5_000)
    assert count(world, "bob", SdsKind.SYNC) == 1
    assert len(alice.of(MessageDelivered)) == 20, "one sync message acknowledges all of them"


def test_segments_that_are_held_back_do_not_leave_as_answers_to_repair_requests() -> None:
    world = World()
    world.network.run(EPOCH_MS - world.now % EPOCH_MS)
    limit = RateLimitConfig(enabled=True, counts="messages")  # control traffic leaves at once, and names what waits
    alice, bob = world.join("alice", quick(rate_limit=limit)), world.join("bob")
    for number in range(19):
        alice.channel.send(b"%d" % number)
        world.run(60_000, step_ms=5_000)
    assert len(bob.payloads) == 2, "one in each epoch that has begun"
