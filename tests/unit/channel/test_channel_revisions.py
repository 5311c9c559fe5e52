"""The presets of the earlier revisions keep the rules of their documents (docs/channel.md, *Presets*)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliable_channel.channel import (
    MemoryPersistence,
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    MessageSent,
    ReliableChannelConfig,
    ReliableChannelOptions,
    SegmentSent,
)
from reliable_channel.core.sds import Retransmission
from reliable_channel.core.segmentation import SegmentationConfig
from tests.unit.channel.channel_world import SMALL_FILTER, World

EPOCH_MS = 600_000
SEGMENTS = SegmentationConfig(segment_size_bytes=64)
APRIL, MARCH = ReliableChannelConfig.of_april_2026(), ReliableChannelConfig.of_march_2026()
THREE_SEGMENTS = bytes(range(150))


def small(config: ReliableChannelConfig) -> ReliableChannelConfig:
    """The preset with segments and filters that keep the test fast."""
    return replace(config, segmentation=SEGMENTS, sds=replace(config.sds, filter_format=SMALL_FILTER))


def epoch_start(world: World) -> int:
    """Move to the beginning of the next epoch; returns that time (ms)."""
    world.network.run(EPOCH_MS - world.now % EPOCH_MS)
    return world.now


def test_march_admits_all_segments_of_a_message_whose_first_segment_was_admitted() -> None:
    world = World(lambda *_: ())
    start = epoch_start(world)
    alice = world.join("alice", small(replace(MARCH, sds=replace(MARCH.sds, max_retransmissions=0))))
    first, second = alice.channel.send(THREE_SEGMENTS), alice.channel.send(THREE_SEGMENTS[::-1])
    world.run(2 * EPOCH_MS, step_ms=1_000)
    left = [(event.request_id, (event.at - start) // EPOCH_MS) for event in alice.of(SegmentSent)]
    assert left == [(first, 0)] * 3 + [(second, 1)] * 3


def test_march_retransmits_every_five_seconds_under_the_rate_limit_and_then_reports_a_send_error() -> None:
    world = World(lambda *_: ())
    start = epoch_start(world)
    alice = world.join("alice", small(MARCH))
    ids = [alice.channel.send(THREE_SEGMENTS), alice.channel.send(THREE_SEGMENTS[::-1])]
    world.run(2 * EPOCH_MS, step_ms=500)
    for epoch, request_id in enumerate(ids):
        sent = [event.at for event in alice.of(SegmentSent) if event.request_id == request_id]
        assert sorted(round(at - start - epoch * EPOCH_MS, -3) for at in sent) == [
            at for at in range(0, 30_000, 5_000) for _ in range(3)
        ]
    errors = [(e.request_id, round(e.at - start, -3), e.dispatched) for e in alice.of(MessageSendError)]
    assert errors == [(ids[0], 30_000, True), (ids[1], EPOCH_MS + 30_000, True)]
    assert alice.of(MessageDeliveryError) == []


def test_march_delivers_a_message_of_several_segments_within_its_epoch() -> None:
    world = World()
    epoch_start(world)
    alice, bob = world.join("alice", small(MARCH)), world.join("bob", small(MARCH))
    alice.channel.send(THREE_SEGMENTS)
    world.run(10_000)
    assert [event.message for event in bob.of(MessageReceived)] == [THREE_SEGMENTS]
    assert len(alice.of(MessageDelivered)) == 1


@pytest.mark.parametrize("payload", [b"short", THREE_SEGMENTS])
@pytest.mark.parametrize("restart", [False, True])
def test_a_received_message_names_the_send_that_it_belongs_to(payload: bytes, restart: bool) -> None:
    world = World()
    kept = MemoryPersistence(keeps_journal=True)
    config = small(ReliableChannelConfig(query_on_connect=False))
    alice = world.join("alice", config)
    bob = world.join("bob", replace(config, persistence=kept))
    if restart:
        bob.channel.message_events._registrations = ()  # nobody listens yet
        bob.events.clear()
    request_id = alice.channel.send(payload)
    world.run(1_000)
    if restart:
        bob.channel.close()
        bob = world.join("bob", replace(config, persistence=kept))
        world.run(500)
    (received,) = bob.of(MessageReceived)
    assert received.request_id == request_id
    assert {chunk.request_id for chunk in received.chunks} <= {request_id}


@pytest.mark.parametrize(
    ("config", "dispatches", "error_ms"),
    [(APRIL, 6, 30_000), (ReliableChannelOptions().config(), 11, 330_000)],
)
def test_the_waits_of_the_other_revisions_are_fixed(
    config: ReliableChannelConfig, dispatches: int, error_ms: int
) -> None:
    world = World(lambda *_: ())
    alice = world.join("alice", small(config))
    start = world.now
    alice.channel.send(b"anybody?")
    world.run(400_000, step_ms=500)
    assert [round(event.at - start, -3) for event in alice.of(MessageSendError)] == [error_ms]
    assert len(alice.of(SegmentSent)) == dispatches
    assert len(alice.of(MessageSent)) == 1


def test_a_fixed_wait_does_not_grow_with_the_time_that_dispatch_takes() -> None:
    world = World(lambda *_: ())
    alice = world.join("alice", small(APRIL))
    assert APRIL.sds.retransmission == Retransmission.FIXED
    node = world.node("alice")
    dispatch = node._dispatch
    node._dispatch = lambda *args: world.network.schedule(60_000, lambda: dispatch(*args))  # type: ignore[method-assign]
    alice.channel.send(b"hello")
    start = world.now
    world.run(130_000, step_ms=500)
    assert [round(event.at - start, -3) for event in alice.of(SegmentSent)] == [60_000, 125_000]
