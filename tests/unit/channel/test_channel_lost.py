"""A message reported as delivered is never absent at a participant that listens and reaches the store: incomplete sets
are kept and asked for, and a message that is given up is said to be lost and no longer acknowledged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliable_channel.channel import (
    MemoryPersistence,
    MessageDelivered,
    MessageDeliveryError,
    MessageLost,
    MessageReceived,
    ReliableChannelConfig,
)
from reliable_channel.channel.inbox import Inbox
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.steps import EnvelopeReceived, Opened, Ticked
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds import Delivered
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, decode_sds_message, encode_sds_message
from reliable_channel.core.wire.segment import Dialect, Segment, decode_segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.store.model import StorePage, StoreQuery
from tests.unit.channel.channel_world import CHANNEL, TOPIC, Recorder, World, quick
from tests.unit.channel.crashes import Crash, Fuse, MortalPersistence, kill

MINUTE = 60_000
DAY = 24 * 60 * MINUTE
EPOCH_MS = 600_000
PUBSUB_TOPIC = "/waku/2/rs/0/0"
SEGMENTS = SegmentationConfig(segment_size_bytes=64, max_message_bytes=1_024)
WITH_PARITY = replace(SEGMENTS, enable_reed_solomon=True, parity_rate=0.5)
TWO = bytes(range(100))


def segment_number(message: WakuMessage) -> int | None:
    """The index of the data segment in an envelope; ``None`` for everything else."""
    sds = decode_sds_message(message.payload, WireFamily.SPEC)
    segment = decode_segment((sds.content if isinstance(sds, SdsMessage) else None) or b"")
    return segment.index if isinstance(segment, Segment) and not segment.is_parity else None


def no_second(_sender: str, _receiver: str, message: WakuMessage) -> tuple[float, ...]:
    """A link that loses every second segment."""
    return () if segment_number(message) == 1 else (0.0,)


def sleep(world: World, name: str) -> Recorder:
    """Take a participant's process away without a goodbye; returns what it told until now."""
    world.blocked.add(name)
    return world.recorders.pop(name)


def wake(world: World, recorder: Recorder, name: str) -> None:
    world.blocked.discard(name)
    world.recorders[name] = recorder


def send_one_of_two(
    segmentation: SegmentationConfig, **changed: int
) -> tuple[World, Recorder, Recorder, ReliableChannelConfig]:
    """Bob, whose configuration is ``changed``, holds the first segment of a message; Alice sleeps before the second one
    can reach him, and no store keeps it."""
    world = World(no_second)
    world.network.store_keeps = lambda message: False
    config = quick(segmentation=segmentation)
    kept = replace(config, persistence=MemoryPersistence(keeps_journal=True), **changed)
    alice, bob = world.join("alice", config), world.join("bob", kept)
    alice.channel.send(TWO)
    world.run(1_000)
    sleep(world, "alice")
    return world, alice, bob, kept


def truthful(sender: Recorder, *receivers: Recorder) -> bool:
    """Whether nothing is delivered at the sender and absent at a receiver."""
    told = {event.message_id for event in sender.of(MessageDelivered)}
    return all(told <= {event.message_id for event in each.of(MessageReceived)} for each in receivers)


@pytest.mark.parametrize("segmentation", [SEGMENTS, WITH_PARITY])
def test_a_sender_that_sleeps_for_seven_minutes_completes_its_message(segmentation: SegmentationConfig) -> None:
    world = World()
    world.network.store_keeps = lambda message: False
    config = quick(segmentation=segmentation)
    alice, bob = world.join("alice", config), world.join("bob", config)
    seen: list[int] = []

    def only_first(sender: str, _receiver: str, message: WakuMessage) -> tuple[float, ...]:
        if sender == "alice" and (seen or segment_number(message) != 0):
            return ()
        if sender == "alice":
            seen.append(0)
        return (0.0,)

    world.link = only_first
    alice.channel.send(TWO)
    world.run(1_000)
    sleep(world, "alice")
    world.run(7 * MINUTE, step_ms=1_000)
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(2 * MINUTE, step_ms=1_000)
    assert bob.payloads == [TWO]
    assert len(alice.of(MessageDelivered)) == 1
    assert bob.of(MessageLost) == []


def test_a_trailing_segment_that_nobody_names_is_fetched_from_the_store_by_time() -> None:
    world = World(no_second)
    config = quick(segmentation=SEGMENTS, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(TWO)
    world.run(1_000)
    sleep(world, "alice")
    world.run(4 * MINUTE, step_ms=1_000)
    assert bob.payloads == []
    world.run(2 * MINUTE, step_ms=1_000)
    assert bob.payloads == [TWO]


def test_a_segment_from_before_observation_is_asked_for_at_the_others() -> None:
    """Bob, who keeps nothing over a restart, got only the second segment, and no store has the first."""
    world = World()
    world.network.store_keeps = lambda message: False
    config = quick(segmentation=SEGMENTS)
    alice, carol = world.join("alice", config), world.join("carol", config)
    alice.channel.send(TWO)
    world.run(500)
    sleep(world, "alice")
    second = next(message for _, message in world.on_wire if segment_number(message) == 1)
    bob = world.join("bob", config)
    world.run(500)
    world.node("bob").arrive(replace(second, timestamp=1), PUBSUB_TOPIC)
    world.run(15 * MINUTE, step_ms=1_000)
    assert carol.payloads == [TWO]
    assert bob.payloads == [TWO]


def test_of_a_history_only_the_segment_before_is_asked_for() -> None:
    """What else it names may be older than this participant's observation, and none of its concern."""
    machine = ChannelMachine(CHANNEL, "bob", TOPIC, ReliableChannelConfig(), SEGMENTS)
    machine.apply(Opened(DAY))
    second = contents_for(TWO, SEGMENTS)[1]
    named = (HistoryEntry("long before"), HistoryEntry("the first segment"))
    sds = SdsMessage("alice", "the second segment", CHANNEL, DAY - 1, named, content=second)
    machine.apply(EnvelopeReceived(DAY, encode_sds_message(sds), None))
    assert machine.sds.missing_ids() == ()
    machine.apply(Ticked(DAY + SEGMENTS.set_timeout_ms))
    assert machine.sds.missing_ids() == ("the first segment",)


@pytest.mark.parametrize("segmentation", [SEGMENTS, WITH_PARITY])
def test_messages_of_several_segments_arrive_at_one_envelope_per_epoch(segmentation: SegmentationConfig) -> None:
    world = World()
    limit = RateLimitConfig(enabled=True, messages_per_epoch=1)
    sds = {"max_retransmissions": 1, "acknowledge_within_ms": 100}
    config = quick(segmentation=replace(segmentation, max_message_bytes=256), rate_limit=limit, sds=sds)
    alice = world.join("alice", config)
    bob = world.join("bob", quick(segmentation=segmentation, sds=sds))
    payloads = [bytes(range(150)), bytes(range(50, 200))]
    for payload in payloads:
        alice.channel.send(payload)
    world.run(18 * EPOCH_MS, step_ms=5_000)
    assert bob.payloads == payloads
    assert len(alice.of(MessageDelivered)) == 2


@pytest.mark.parametrize("parity", [False, True])
def test_four_messages_of_700_kb_arrive_at_twenty_envelopes_per_epoch(parity: bool) -> None:
    world = World()
    limit = RateLimitConfig(enabled=True, messages_per_epoch=20)
    segmentation = SegmentationConfig(enable_reed_solomon=parity)
    config = quick(segmentation=segmentation, rate_limit=limit, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", quick(segmentation=segmentation))
    payloads = [bytes([number]) * 700_000 for number in range(4)]
    for payload in payloads:
        alice.channel.send(payload)
    world.run(3 * EPOCH_MS, step_ms=10_000)
    assert bob.payloads == payloads
    assert truthful(alice, bob)


def test_a_receiver_that_restarts_between_the_segments_keeps_the_first_one() -> None:
    world, alice, bob, kept = send_one_of_two(SEGMENTS, max_journal_entries=1)
    world.run(6 * MINUTE, step_ms=1_000)
    bob.channel.close()
    bob = world.join("bob", kept)
    world.run(MINUTE, step_ms=1_000)
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(2 * MINUTE, step_ms=1_000)
    assert bob.payloads == [TWO]
    assert len(alice.of(MessageDelivered)) == 1


# ---- giving up -----------------------------------------------------------------------------------------------------

SHORT = replace(SEGMENTS, set_timeout_ms=10_000, max_set_lifetime_ms=400_000)


def give_up(restart: bool) -> tuple[World, Recorder, Recorder, ReliableChannelConfig]:
    """Bob gave a message up of which he holds the first segment; Alice, who slept, comes back afterwards."""
    world, alice, bob, kept = send_one_of_two(SHORT)
    world.run(SHORT.max_set_lifetime_ms, step_ms=1_000)
    (lost,) = bob.of(MessageLost)
    assert (lost.held, lost.missing, lost.lacking, lost.data_count) == ((0,), (1,), 1, 2)
    assert (lost.held_bytes, lost.reason, lost.sender_id) == (64, "expired", "alice")
    if restart:
        bob.channel.close()
        bob = world.join("bob", kept)
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(1_000)
    return world, alice, bob, kept


@pytest.mark.parametrize("restart", [False, True])
def test_a_set_that_ends_while_its_holder_sleeps_waits_for_the_backlog(restart: bool) -> None:
    """Its lifetime was over in the first moment after the sleep, and the missing segment, which came next, completed
    nothing."""
    world, alice, bob, kept = send_one_of_two(SHORT, max_journal_entries=1)
    sleep(world, "bob")
    world.run(2 * SHORT.max_set_lifetime_ms, step_ms=10_000)
    wake(world, bob, "bob")
    world.run(2_000)
    if restart:
        bob.channel.close()
        bob = world.join("bob", kept)
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(1_000)
    assert (bob.payloads, bob.of(MessageLost)) == ([TWO], [])


def test_a_set_ends_although_its_holder_is_late_again_and_again() -> None:
    world = World(no_second)
    world.network.store_keeps = lambda message: False
    alice, bob = world.join("alice", quick(segmentation=SHORT)), world.join("bob", quick(segmentation=SHORT))
    alice.channel.send(TWO)
    world.run(1_000)
    sleep(world, "alice")
    for _ in range(20):
        sleep(world, "bob")
        world.run(MINUTE, step_ms=10_000)
        wake(world, bob, "bob")
        bob.channel.step()
    assert len(bob.of(MessageLost)) == 1


@pytest.mark.parametrize("restart", [False, True])
def test_what_was_given_up_is_not_acknowledged_any_more_and_its_sender_learns_of_it(restart: bool) -> None:
    world, alice, bob, _ = give_up(restart)
    world.run(6 * MINUTE, step_ms=1_000)
    assert bob.payloads == []
    assert alice.of(MessageDelivered) == []
    assert len(alice.of(MessageDeliveryError)) == 1
    assert len(bob.of(MessageLost)) == (0 if restart else 1), "a restart repeats nothing"


def test_later_messages_that_name_a_segment_of_a_lost_message_do_not_wait() -> None:
    world, alice, bob, _ = give_up(restart=False)
    second = next(m for _, m in reversed(world.on_wire) if segment_number(m) == 1)
    sds = decode_sds_message(second.payload, WireFamily.SPEC)
    assert isinstance(sds, SdsMessage)
    alice.channel.send(b"later")
    world.run(MINUTE, step_ms=1_000)
    assert bob.payloads == [b"later"]
    assert bob.of(MessageReceived)[0].lost_dependencies == (sds.message_id,)
    assert bob.channel.status()["missing_segments"] == 0


def test_the_same_payload_sent_anew_after_it_was_lost_is_delivered() -> None:
    world, alice, bob, _ = give_up(restart=False)
    world.run(6 * MINUTE, step_ms=1_000)
    alice.channel.send(TWO)
    world.run(MINUTE, step_ms=1_000)
    assert bob.payloads == [TWO]


def test_a_loss_that_was_not_reported_is_reported_after_the_restart() -> None:
    world = World(no_second)
    world.network.store_keeps = lambda message: False
    kept = replace(quick(segmentation=SHORT), persistence=MemoryPersistence(keeps_journal=True))
    alice = world.join("alice", quick(segmentation=SHORT))
    bob = world.join("bob", kept)
    alice.channel.send(TWO)
    world.run(1_000)
    sleep(world, "alice")
    bob.channel.close()
    world.recorders.pop("bob")
    bob = world.join("bob", kept, sender_id="bob")
    bob.channel.message_events._registrations = ()  # nobody listens yet
    bob.events.clear()
    world.run(SHORT.max_set_lifetime_ms, step_ms=1_000)
    bob.channel.close()
    bob = world.join("bob", kept)
    world.run(1_000)
    (lost,) = bob.of(MessageLost)
    assert (lost.held, lost.missing, lost.redelivered) == ((0,), (1,), True)
    bob.channel.close()
    bob = world.join("bob", kept)
    world.run(1_000)
    assert bob.of(MessageLost) == []


def test_a_message_over_the_receivers_limit_is_lost_and_not_acknowledged() -> None:
    world = World()
    alice = world.join("alice", quick(segmentation=SEGMENTS))
    bob = world.join("bob", quick(segmentation=replace(SEGMENTS, max_message_bytes=128)))
    alice.channel.send(bytes(range(250)))
    world.run(6 * MINUTE, step_ms=1_000)
    assert [event.reason for event in bob.of(MessageLost)] == ["over_message_limit"]
    assert alice.of(MessageDelivered) == []
    assert len(alice.of(MessageDeliveryError)) == 1


ROOM_FOR_TWO = replace(SHORT, max_buffered_bytes=190)
THREE = [bytes([number]) * 100 for number in (1, 2, 3)]


def evict(store: bool) -> tuple[World, Recorder, Recorder, ReliableChannelConfig]:
    """Bob holds the first segments of three messages, and has room for two of them; Alice sleeps."""
    world = World(no_second)
    if not store:
        world.network.store_keeps = lambda message: False
    kept = replace(quick(segmentation=ROOM_FOR_TWO), persistence=MemoryPersistence(keeps_journal=True))
    alice, bob = world.join("alice", quick(segmentation=SHORT)), world.join("bob", kept)
    for payload in THREE:
        alice.channel.send(payload)
    world.run(5_000)
    sleep(world, "alice")
    assert "set_evicted" in bob.problems()
    assert bob.of(MessageLost) == []
    return world, alice, bob, kept


@pytest.mark.parametrize("restarts_after_ms", [None, 0, 12_000])
def test_a_message_evicted_for_its_bytes_is_asked_for_again_with_what_was_acknowledged(
    restarts_after_ms: int | None,
) -> None:
    world, _, bob, kept = evict(store=True)
    if restarts_after_ms is not None:
        world.run(restarts_after_ms, step_ms=1_000)
        bob.channel.close()
        received = bob.payloads
        bob = world.join("bob", kept)
    else:
        received = []
    world.run(3 * MINUTE, step_ms=1_000)
    assert sorted(received + bob.payloads) == THREE
    assert bob.of(MessageLost) == []


def test_a_message_evicted_for_its_bytes_that_nobody_has_is_lost_and_not_acknowledged() -> None:
    world, alice, bob, _ = evict(store=False)
    world.run(SHORT.max_set_lifetime_ms, step_ms=1_000)
    lost = {event.reason: event for event in bob.of(MessageLost)}["buffered_bytes"]
    assert (lost.held, lost.missing) == ((0,), (1,))
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(6 * MINUTE, step_ms=1_000)
    assert truthful(alice, bob)
    assert lost.message_id not in {event.message_id for event in alice.of(MessageDelivered)}


def test_a_message_that_was_asked_for_again_in_vain_stays_lost_when_its_rest_comes() -> None:
    """The other two complete and make room, no store has the evicted one, and its second segment comes too late."""
    world, alice, bob, _ = evict(store=False)

    def no_second_of_the_first(_sender: str, _receiver: str, message: WakuMessage) -> tuple[float, ...]:
        return () if segment_number(message) == 1 and b"\1" * 36 in message.payload else (0.0,)

    world.link = no_second_of_the_first
    wake(world, alice, "alice")
    world.run(10_000, step_ms=1_000)
    sleep(world, "alice")
    world.run(SHORT.max_set_lifetime_ms, step_ms=1_000)
    assert [event.reason for event in bob.of(MessageLost)] == ["buffered_bytes"]
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(6 * MINUTE, step_ms=1_000)
    assert bob.payloads == THREE[1:]
    assert len(alice.of(MessageDelivered)) == 2


def test_content_in_a_dialect_that_is_not_read_is_not_acknowledged() -> None:
    world = World()
    alice = world.join("alice")
    only = frozenset({Dialect.LIP243})
    bob = world.join("bob", quick(segmentation=SegmentationConfig(accepted_dialects=only)))
    alice.channel.send(b"plain")
    world.run(6 * MINUTE, step_ms=1_000)
    assert bob.payloads == []
    assert "malformed" in bob.problems()
    assert alice.of(MessageDelivered) == []


# ---- configuration -------------------------------------------------------------------------------------------------


def test_a_lifetime_below_what_the_settings_need_is_refused_with_the_sum() -> None:
    world = World()
    limit = RateLimitConfig(enabled=True, messages_per_epoch=1)
    config = quick(rate_limit=limit, segmentation=SegmentationConfig(max_set_lifetime_ms=3_600_000))
    with pytest.raises(ConfigurationError, match=r"= 55\d{6} ms\."):
        world.join("alice", config)


def test_the_defaults_hold_with_one_envelope_per_epoch_and_with_parity() -> None:
    world = World()
    limit = RateLimitConfig(enabled=True, messages_per_epoch=1)
    segmentation = SegmentationConfig(enable_reed_solomon=True)
    config = ReliableChannelConfig(rate_limit=limit, segmentation=segmentation)
    assert world.join("alice", config).channel.status()["started"]


# ---- crashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("operations", range(1, 8))
def test_a_process_that_dies_while_it_gives_up_reports_the_loss_and_acknowledges_nothing_more(
    operations: int, after: bool
) -> None:
    """Bob's process dies at one of the operations around the end of the lifetime: storing inputs, calling the
    application, recording what it reported."""
    world = World(no_second)
    world.network.store_keeps = lambda message: False
    kept, fuse = MemoryPersistence(keeps_journal=True), Fuse()
    config = quick(segmentation=SHORT, sds={"sync_min_interval_ms": 0})
    losses: list[MessageLost] = []

    def born() -> Recorder:
        mortal = replace(config, persistence=MortalPersistence(kept, fuse))
        recorder = world.join("bob", mortal)
        recorder.channel.on(MessageLost, lambda event: fuse.burn(lambda: losses.append(event)))
        return recorder

    alice, bob = world.join("alice", config), born()
    alice.channel.send(TWO)
    world.run(1_000)
    sleep(world, "alice")
    world.run(SHORT.max_set_lifetime_ms - 2_000, step_ms=1_000)
    assert losses == []
    fuse.left, fuse.after = operations, after
    try:
        world.run(10_000, step_ms=1_000)
    except Crash:
        fuse.left = -1
        world.recorders.pop("bob")
        kill(world.network.node("bob"))
        bob = born()
        world.run(10_000, step_ms=1_000)
    fuse.left = -1
    assert len(losses) >= 1
    assert sum(not event.redelivered for event in losses) <= 1
    world.link = lambda *_: (0.0,)
    wake(world, alice, "alice")
    world.run(6 * MINUTE, step_ms=1_000)
    assert bob.payloads == []
    assert alice.of(MessageDelivered) == []
    assert len(losses) <= 2


def test_sets_that_strangers_open_cause_few_store_queries_whatever_times_they_state() -> None:
    """Each of a stranger's segments says that its message began a day ago, and a set of it is asked for."""
    world = World()
    bob = world.join("bob", quick(segmentation=replace(SEGMENTS, set_timeout_ms=10_000), query_on_connect=False))
    covered: list[int] = []
    node = world.node("bob")
    assert node.store is not None
    query = node.store.query

    class Counting:
        def query(self, asked: StoreQuery) -> StorePage:
            covered.append((asked.end_time_ns or 0) - (asked.start_time_ns or 0))
            return query(asked)

    node.store = Counting()
    for number in range(100):
        first = contents_for(bytes([number]) * 100, SEGMENTS)[0]
        sds = SdsMessage("mallory", f"id {number}", CHANNEL, world.now - DAY + number, content=first)
        node.arrive(WakuMessage(encode_sds_message(sds), TOPIC, timestamp=number), PUBSUB_TOPIC)
        world.run(60_000, step_ms=10_000)
    assert bob.channel.status()["missing_segments"] == 0
    assert 1 <= len(covered) <= 2, "a day is asked for once, and again after a tenth of it"


def test_segments_with_long_histories_keep_little_of_them() -> None:
    """A segment of one byte kept its history, 140 KB, until its message was complete or given up, and in snapshots."""
    inbox = Inbox(CHANNEL, TOPIC, SEGMENTS)
    named = tuple(f"{number} {'x' * 1_000}" for number in range(140))
    content = encode_segment(Segment(bytes(32), 0, 2, 0, False, b"x"))
    message = SdsMessage(
        "mallory", "hers", CHANNEL, 1, tuple(HistoryEntry(one, None) for one in named), content=content
    )
    inbox.accept(message, 1)
    inbox.accept_delivery(Delivered(1, "hers", "mallory", 1, 1, 1, content, lost_dependencies=named))
    assert (inbox.notes["hers"].history, inbox.notes["hers"].lost) == (named[-2:], named[-2:])
    short = tuple(f"{number:064}" for number in range(30))
    inbox.accept_delivery(Delivered(1, "hers", "mallory", 1, 1, 1, content, lost_dependencies=short))
    assert inbox.notes["hers"].lost == short
