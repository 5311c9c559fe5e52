"""A reliable channel on a messaging node: whose requests its segments are, and what remains of them after a stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from reliable_channel.channel import (
    MemoryPersistence,
    MessageReceived,
    ReliableChannel,
    ReliableChannelConfig,
    SendState,
    create_reliable_channel,
)
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.messaging.sender_events import SenderEvent, SenderEventKind
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.health import Health, HealthState
from tests.support.messaging_world import CONTENT, World

SICK = Health(HealthState.UNHEALTHY, "no peers")
WELL = Health(HealthState.HEALTHY, "peers again")


def open_channel(world: World, config: ReliableChannelConfig | None = None) -> ReliableChannel:
    port = world.node.port
    return create_reliable_channel(port, "lobby", CONTENT, "alice", config=config, clock=world.clock, threaded=False)


def test_listeners_of_the_node_are_called_without_the_lock_of_the_channel_that_sends(world: World) -> None:
    """One that waited for a thread which used the channel waited for ever."""
    channel = open_channel(world)
    held: list[bool] = []
    world.node.events.add_event_listener("message:change", lambda _: held.append(channel._cycle.lock._is_owned()))  # type: ignore[attr-defined]
    channel.send(b"hello")
    channel.step()
    world.run()
    assert set(held) == {False}
    channel.send(b"the last")
    channel.step()
    world.node.stop()
    assert [row.event for row in world.feed.rows if isinstance(row, SenderEvent)].count(SenderEventKind.QUEUED) == 2
    channel.close()


def test_a_message_of_a_channel_whose_request_is_cancelled_is_a_failed_send(world: World) -> None:
    """It was neither sent nor failed."""
    world.transport.failing = FailureReason.NO_PEERS
    channel = open_channel(world)
    request_id = channel.send(b"hello")
    channel.step()
    (segment,) = world.node.get_pending_requests()
    world.node.cancel_request(segment)
    channel.step()
    assert channel.send_state(request_id) is SendState.FAILED
    assert world.node.get_pending_requests() == []
    channel.close()


def test_a_channel_whose_node_is_closed_first_keeps_what_it_has_not_sent(world: World, tmp_path: Path) -> None:
    """The message was reported as failed, and no later process sent it."""
    config = ReliableChannelConfig(history_backend="sqlite", database=tmp_path / "alice.db")
    channel = open_channel(world, config)
    request_id = channel.send(b"hello")
    world.node.close()
    channel.step()
    assert channel.send_state(request_id) is SendState.SENDING
    channel.close()
    world.node = world.make_node()
    channel = open_channel(world, config)
    for _ in range(3):
        channel.step()
        world.run(500)
    assert channel.send_state(request_id) is SendState.SENT
    assert len(world.transport.sent) == 1
    channel.close()


def test_restarts_of_a_channel_add_no_requests_while_the_node_is_down(world: World, tmp_path: Path) -> None:
    """Each left its segments pending and sent them once more: ten restarts made 220 requests of 20 messages."""
    world.node.close()
    world.database = tmp_path / "messages.db"
    config = ReliableChannelConfig(history_backend="sqlite", database=tmp_path / "alice.db")
    world.transport.failing = FailureReason.NO_PEERS

    def restart() -> ReliableChannel:
        world.node = world.make_node()
        world.transport._set_health(SICK)
        return open_channel(world, config)

    channel = restart()
    sends = [channel.send(b"%d" % number) for number in range(3)]
    for end in ("channel", "process", "killed"):
        for _ in range(2):
            channel.step()
            world.run(2_000)
        if end == "killed":  # the channel takes nothing back
            world.node.close()
        channel.close()
        if end == "process":
            world.node.close()
        channel = open_channel(world, config) if end == "channel" else restart()
        channel.step()
        assert len(world.node.get_pending_requests()) == len(sends), end
    world.transport.failing = None
    world.transport._set_health(WELL)
    for _ in range(4):
        world.run(500)
        channel.step()
    assert {channel.send_state(send) for send in sends} == {SendState.SENT}
    assert len(world.transport.sent) == len(sends)
    channel.close()


def test_what_is_left_of_a_failed_send_is_repaired_after_a_restart(world: World) -> None:
    """Its other segments counted as queued for ever, and whoever asked for them got no answer for an hour."""
    sds = SdsParameters(filter_format=FilterFormat(capacity=200))
    segments = SegmentationConfig(segment_size_bytes=64)
    kept = MemoryPersistence(keeps_journal=True)
    config = ReliableChannelConfig(sds=sds, segmentation=segments, persistence=kept, query_on_connect=False)
    stranger = world.network.node("bob")
    stranger.start()
    bob = create_reliable_channel(
        stranger, "lobby", CONTENT, "bob", config=replace(config, persistence=None), clock=world.clock, threaded=False
    )
    received: list[bytes] = []
    bob.on(MessageReceived, lambda event: received.append(event.message))
    alice = open_channel(world, config)
    alice.send(b"first")
    world.run()
    alice.step()
    world.run()
    world.transport.failing = FailureReason.NO_PEERS
    alice.send(bytes(range(150)))
    alice.step()
    world.node.cancel_request(world.node.get_pending_requests()[0])
    alice.step()
    alice.close()
    world.transport.failing = None
    alice = open_channel(world, config)
    alice.send(b"last")
    for _ in range(700):
        for channel in (alice, bob):
            channel.step()
        world.run(500)
    assert received == [b"first", bytes(range(150)), b"last"]
    alice.close()
    bob.close()
