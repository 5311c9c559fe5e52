"""Which events are reported to the application, and when: messages wait for a listener, in this process or a later
one."""

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
    ReliableChannel,
    create_reliable_channel,
    reports,
)
from reliable_channel.channel.reports import MAX_UNDELIVERED, MAX_UNDELIVERED_BYTES, UndeliveredEvents
from reliable_channel.channel.snapshot import encode_events, restore_events
from reliable_channel.channel.steps import Report
from reliable_channel.core.wire.hashing import keccak256
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World, quick


def received(sequence: int = 0, message: bytes = b"hello", **changes: object) -> MessageReceived:
    event = MessageReceived(
        channel_id=CHANNEL,
        at=1,
        message=message,
        message_id=keccak256(message).hex(),
        sender_id="alice",
        content_topic=TOPIC,
        sequence=sequence,
    )
    return replace(event, **changes)  # type: ignore[arg-type]


def bob_without_listeners(world: World, kept: MemoryPersistence) -> ReliableChannel:
    return create_reliable_channel(
        world.node("bob"),
        CHANNEL,
        TOPIC,
        "bob",
        config=quick(persistence=kept),
        clock=world.network.clock,
        threaded=False,
    )


def hear(world: World, *payloads: bytes) -> tuple[ReliableChannel, MemoryPersistence]:
    """Bob's channel after it took these messages while nobody listened."""
    kept = MemoryPersistence(keeps_journal=True)
    alice, bob = world.join("alice"), bob_without_listeners(world, kept)
    for payload in payloads:
        alice.channel.send(payload)
    for _ in range(5):
        world.run(100)
        bob.step()
    return bob, kept


def test_messages_wait_for_the_first_who_listens_and_come_in_order() -> None:
    bob, _ = hear(world := World(), b"one", b"two")
    reported: list[tuple[int, bytes, bool]] = []
    bob.on_message_received(lambda event: reported.append((event.sequence, event.message, event.redelivered)))
    world.recorders["alice"].channel.send(b"three")
    for _ in range(5):
        world.run(100)
        bob.step()
    assert reported == [(1, b"one", False), (2, b"two", False), (3, b"three", False)]


@pytest.mark.parametrize("clean", [True, False])
def test_what_nobody_heard_waits_for_the_next_process_also_after_a_crash(clean: bool) -> None:
    bob, kept = hear(world := World(), b"one", b"two")
    if clean:
        bob.close()
        assert [kept.load(key).journal for key in kept.channels()] == [()]
    world.network._nodes.pop("bob").stop()
    again = bob_without_listeners(world, kept)
    again.step()
    reported: list[tuple[int, bytes, bool]] = []
    again.on_message_received(lambda event: reported.append((event.sequence, event.message, event.redelivered)))
    again.step()
    assert reported == [(1, b"one", True), (2, b"two", True)]
    again.close()
    assert [kept.load(key).sequence for key in kept.channels()] == [2]


def test_what_was_noted_is_not_told_again_after_a_crash() -> None:
    bob, kept = hear(world := World(), b"one", b"two")
    reported: list[bytes] = []
    bob.on_message_received(lambda event: reported.append(event.message))
    bob.step()
    world.network._nodes.pop("bob").stop()
    again = bob_without_listeners(world, kept)
    again.on_message_received(lambda event: reported.append(event.message))
    again.step()
    assert reported == [b"one", b"two"]


def test_a_callback_that_closes_the_channel_leaves_the_rest_for_the_next_start() -> None:
    bob, kept = hear(world := World(), b"one", b"two", b"three")
    reported: list[bytes] = []

    def leave(event: MessageReceived) -> None:
        reported.append(event.message)
        bob.close()

    bob.on_message_received(leave)
    bob.step()
    assert reported == [b"one"]
    again = bob_without_listeners(world, kept)
    again.on_message_received(lambda event: reported.append(event.message))
    again.step()
    assert reported == [b"one", b"two", b"three"]


def test_without_a_journal_a_callback_that_closes_the_channel_is_told_the_rest() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob", quick(process_task_min_elapse_ms=1_000))
    reported: list[bytes] = []

    def leave(event: MessageReceived) -> None:
        reported.append(event.message)
        bob.channel.close()

    bob.channel.on_message_received(leave)
    alice.channel.send(b"one")
    alice.channel.send(b"two")
    world.run(2_000)
    assert reported == [b"one", b"two"]


def test_how_a_send_ended_is_reported_again_when_the_process_died_before_it_was_recorded() -> None:
    world = World()
    kept = MemoryPersistence(keeps_journal=True)
    recorded, kept.mark_reported = kept.mark_reported, lambda *_: None  # type: ignore[method-assign]
    alice, bob = world.join("alice", quick(persistence=kept)), world.join("bob")
    request_id = alice.channel.send(b"hello")
    world.run(500)
    bob.channel.send(b"I heard you")
    world.run(1_000)
    assert [event.request_id for event in alice.of(MessageDelivered)] == [request_id]
    world.network._nodes.pop("alice").stop()
    kept.mark_reported = recorded  # type: ignore[method-assign]
    alice = world.join("alice", quick(persistence=kept))
    world.run(500)
    ends = [*alice.of(MessageSent), *alice.of(MessageDelivered)]
    assert [(event.request_id, event.redelivered) for event in ends] == [(request_id, True)] * 2
    alice.channel.close()
    world.join("alice", quick(persistence=kept))
    world.run(500)
    assert world.recorders["alice"].of(MessageDelivered) == []


def test_what_waits_to_be_heard_is_bounded_in_number_and_bytes() -> None:
    waiting = UndeliveredEvents()
    gone = [one for number in range(MAX_UNDELIVERED + 2) for one in waiting.add(Report(received(number), str(number)))]
    assert [report.message_key for report in gone] == ["0", "1"]
    large = Report(received(0, bytes(MAX_UNDELIVERED_BYTES // MAX_UNDELIVERED * MAX_UNDELIVERED)), "large")
    assert len(waiting.add(large)) == MAX_UNDELIVERED
    assert [*waiting] == [large]
    assert waiting.take(lambda event: False) is None
    assert waiting.take(lambda event: True) is large
    assert waiting.add(large) == []


def test_a_stranger_takes_no_room_from_a_message_that_nobody_heard_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what the application has had keeps its number, where it dies before that is recorded."""
    monkeypatch.setattr(reports, "MAX_UNDELIVERED", 3)
    bob, kept = hear(world := World(), b"honest")
    mallory = world.join("mallory")
    for number in range(6):
        mallory.channel.send(b"%d" % number)
    for _ in range(5):
        world.run(100)
        bob.step()
    reported: list[tuple[int, bytes]] = []
    recorded, kept.mark_reported = kept.mark_reported, lambda *_: None  # type: ignore[method-assign]
    bob.on_message_received(lambda event: reported.append((event.sequence, event.message)))
    bob.step()
    assert reported == [(1, b"honest"), (2, b"4"), (3, b"5")]
    kept.mark_reported = recorded  # type: ignore[method-assign]
    world.network._nodes.pop("bob").stop()
    again = bob_without_listeners(world, kept)
    again.on_message_received(lambda event: reported.append((event.sequence, event.message)))
    again.step()
    assert reported[3:] == reported[:3]


SEND = {"channel_id": CHANNEL, "at": 5, "request_id": "r", "message_id": "m"}


@pytest.mark.parametrize(
    "event",
    [
        received(late=True, lost_dependencies=("a", "b"), sds_id="s", lamport_timestamp=0),
        received(sds_id="s"),
        MessageSent(**SEND, request_ids=()),
        MessageDelivered(**SEND, after_error=True),
        MessageSendError(**SEND, error="why"),
        MessageSendError(**SEND, error="why", dispatched=True),
        MessageDeliveryError(**SEND, error="why"),
    ],
)
def test_an_unreported_event_comes_out_of_a_snapshot_as_it_went_in(event: MessageReceived) -> None:
    reports = [Report(event, "key" if isinstance(event, MessageReceived) else "")]
    assert [*restore_events(encode_events(reports), CHANNEL, TOPIC)] == reports


def test_a_report_without_a_key_is_in_no_snapshot() -> None:
    assert [*encode_events([Report(received(ephemeral=True))])] == []
