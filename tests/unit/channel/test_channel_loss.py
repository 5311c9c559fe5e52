"""What happens when envelopes are lost: retransmission, repair by parity, stores and others, and giving up (§5)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reliable_channel.channel import (
    ChannelProblem,
    IrretrievableMessage,
    MessageDelivered,
    MessageDeliveryError,
    MessagePossiblyAcknowledged,
    MessageReceived,
    MessageSendError,
    MessageSent,
    MissingMessage,
    ReliableChannelConfig,
    SegmentSent,
    SendingMessage,
    SendState,
    inbox,
)
from reliable_channel.channel.retrieval import StoreQueries, TimeRange
from reliable_channel.channel.steps import Fetch
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.memory import LinkFaults
from reliable_channel.transport.store.model import StorePage
from tests.support.examples import examples
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World, drop, quick

SMALL_SEGMENTS = SegmentationConfig(segment_size_bytes=64)
WITH_PARITY = SegmentationConfig(
    segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5, max_set_lifetime_ms=10**12
)


def alone(**sds: object) -> ReliableChannelConfig:
    """No store to ask and nobody to repair: only what the sender and parity do."""
    return quick(sds={"repair": False, "sync_min_interval_ms": 0, **sds}, query_on_connect=False)


def test_a_lost_message_is_sent_again_as_the_same_sds_bytes_in_a_new_envelope() -> None:
    world = World(drop(1))
    alice, bob = world.join("alice", alone()), world.join("bob", alone())
    alice.channel.send(b"hello")
    world.run(6_000)
    first, second = (message for _, message in world.on_wire)
    assert first.payload == second.payload
    assert first.timestamp != second.timestamp
    assert bob.payloads == [b"hello"]
    assert [event.attempt for event in alice.of(SendingMessage)] == [0, 1]


def test_waits_double_and_after_the_last_one_comes_one_delivery_error() -> None:
    world = World(lambda *_: ())
    alice = world.join("alice", alone())
    started = world.now
    request_id = alice.channel.send(b"anybody?")
    world.run(320_000)
    assert [round(e.at - started, -3) for e in alice.of(SendingMessage)] == [0, 5_000, 15_000, 35_000, 75_000, 155_000]
    (error,) = alice.of(MessageDeliveryError)
    assert error.request_id == request_id
    assert "exhausted" in error.error
    assert round(error.at - started, -3) == 315_000
    assert alice.channel.send_state(request_id) is SendState.UNACKNOWLEDGED
    assert alice.of(MessageSendError) == []


def test_with_the_single_event_of_the_earlier_revisions_what_is_not_acknowledged_is_a_send_error() -> None:
    world = World(lambda *_: ())
    alice = world.join("alice", replace(alone(max_retransmissions=1), delivery_error_event=False))
    request_id = alice.channel.send(b"anybody?")
    world.run(16_000)
    (error,) = alice.of(MessageSendError)
    assert (error.request_id, error.dispatched) == (request_id, True)
    assert alice.of(MessageDeliveryError) == []
    assert alice.channel.send_state(request_id) is SendState.UNACKNOWLEDGED


def test_a_send_of_which_one_segment_was_never_dispatched_is_a_send_error() -> None:
    world = World(lambda *_: ())
    config = replace(alone(max_retransmissions=1), segmentation=SMALL_SEGMENTS)
    alice = world.join("alice", config)
    node = world.node("alice")
    dispatch, calls = node._dispatch, []
    # The node never reports on the second segment.
    node._dispatch = lambda *args: calls.append(args) if len(calls) == 1 else (calls.append(args), dispatch(*args))  # type: ignore[method-assign]
    request_id = alice.channel.send(bytes(100))
    world.run(16_000)
    (error,) = alice.of(MessageSendError)
    assert (error.request_id, error.dispatched) == (request_id, False)
    assert alice.of(MessageDeliveryError) == alice.of(MessageSent) == []
    assert alice.channel.send_state(request_id) is SendState.FAILED


def test_sds_time_starts_when_the_node_says_sent_not_when_the_application_sends() -> None:
    world = World(lambda *_: ())
    alice = world.join("alice", alone())
    slow = world.node("alice")
    dispatch = slow._dispatch
    slow._dispatch = lambda *args: world.network.schedule(60_000, lambda: dispatch(*args))  # type: ignore[method-assign]
    alice.channel.send(b"hello")
    world.run(179_000)
    assert len(alice.of(SendingMessage)) == 1, "twice as long as the dispatch took"
    world.run(2_000)
    assert len(alice.of(SendingMessage)) == 2


def test_an_acknowledgement_after_the_delivery_error_still_gives_delivered() -> None:
    world = World(lambda *_: ())
    config = alone(max_retransmissions=1)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"hello")
    world.run(16_000)
    assert len(alice.of(MessageDeliveryError)) == 1
    world.link = lambda *_: (0.0,)
    world.network.publish("alice", replace(world.on_wire[0][1], timestamp=1), "/waku/2/rs/0/0")
    world.run(500)
    bob.channel.send(b"here I am")
    world.run(500)
    assert [event.after_error for event in alice.of(MessageDelivered)] == [True]


def test_filters_of_two_different_messages_acknowledge_what_histories_no_longer_name() -> None:
    world = World()
    config = alone(causal_history_size=0)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"hello")
    world.run(500)
    bob.channel.send(b"one")
    world.run(500)
    assert [event.count for event in alice.of(MessagePossiblyAcknowledged)] == [1]
    assert alice.of(MessageDelivered) == []
    bob.channel.send(b"two")
    world.run(500)
    assert len(alice.of(MessageDelivered)) == 1


def test_parity_repairs_a_lost_segment_without_store_retransmission_or_help() -> None:
    world = World(drop(1))
    config = replace(alone(acknowledgement_timeout_ms=10**9), segmentation=WITH_PARITY)
    alice, bob = world.join("alice", config), world.join("bob", config)
    payload = bytes(range(250))
    alice.channel.send(payload)
    world.run(1_000)
    assert bob.payloads == [payload]
    assert len(alice.of(SendingMessage)) == 6
    alice.channel.send(b"next")
    world.run(1_000)
    assert bob.payloads == [payload, b"next"]
    assert bob.channel.status()["missing_segments"] == 0


@pytest.mark.parametrize("segments", [1, 2])
def test_a_message_rebuilt_from_parity_alone_waits_for_the_message_before_it(segments: int) -> None:
    """The rebuilt segments, which have no history, made it complete: it came before what its parity waited for."""
    parity = SegmentationConfig(
        segment_size_bytes=192, enable_reed_solomon=True, parity_rate=1.0, dialect=Dialect.LIP243_LENGTH
    )
    payloads = [b"hello", b"before", bytes(range(64)) * segments]
    arrives = iter([True, True, False, False, *[False] * segments])
    world = World(lambda *_: (0.0,) if next(arrives, True) else ())
    config = replace(alone(causal_history_size=10), segmentation=parity)
    alice, bob = world.join("alice", config), world.join("bob", config)
    for payload in payloads:
        alice.channel.send(payload)
    world.run(1_000)
    assert bob.payloads == payloads[:1]
    world.run(10_000)
    assert bob.payloads == payloads


def test_what_follows_a_message_waits_for_it_though_its_last_segments_are_rebuilt_first() -> None:
    """Rebuilt segments have no history: they were delivered in the order in which they had been named."""
    parity = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=1.0)
    # Three data and three parity segments, of which the second and the last two are lost, and a message that overtakes.
    fates = iter([(9.0,), (), (9.0,), (9.0,), (), (), (0.0,)])
    world = World(lambda *_: next(fates, ()))
    config = replace(alone(), segmentation=parity)
    alice, bob = world.join("alice", config), world.join("bob", config)
    payloads = [bytes(range(192)), b"after"]
    for payload in payloads:
        alice.channel.send(payload)
    world.run(1_000)
    assert bob.payloads == payloads


def test_with_parity_a_message_is_delivered_when_any_k_segments_are_acknowledged() -> None:
    world = World()
    config = replace(alone(acknowledgement_timeout_ms=10**9), segmentation=WITH_PARITY)
    alice, bob = world.join("alice", config), world.join("bob", config)
    bob.channel.send(b"I am here")
    world.run(1_000)
    world.link = drop(2)
    request_id = alice.channel.send(bytes(range(250)))
    world.run(1_000)
    bob.channel.send(b"thanks")
    world.run(1_000)
    assert [event.request_id for event in alice.of(MessageDelivered)] == [request_id]


def test_nobody_waits_for_parity_that_failed_to_leave_after_its_message_was_delivered() -> None:
    """Who has the message computes the parity that the next one names, although nobody ever had it."""
    world = World()
    limit = RateLimitConfig(enabled=True, epoch_size_ms=60_000, messages_per_epoch=2)
    config = replace(alone(), segmentation=WITH_PARITY, rate_limit=limit)
    alice, bob = world.join("alice", config), world.join("bob", quick(segmentation=WITH_PARITY))
    alice.channel.send(bytes(range(100)))
    world.run(50_000, step_ms=1_000)
    assert (len(alice.of(MessageDelivered)), world.node("alice")._limit.waiting) == (1, 1), "parity waits"
    world.node("alice").failing = FailureReason.REFUSED
    world.run(30_000, step_ms=1_000)
    assert alice.problems() == ["dispatch_failed"]
    world.node("alice").failing = None
    alice.channel.send(b"next")
    world.run(60_000, step_ms=1_000)
    assert bob.payloads == [bytes(range(100)), b"next"]
    assert len(bob.of(MissingMessage)) == 1


def test_a_missing_message_is_fetched_from_the_store_by_its_retrieval_hint() -> None:
    world = World(drop(1))
    config = quick(sds={"repair": False, "acknowledgement_timeout_ms": 10**9}, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    world.join("carol", config).channel.close()
    alice.channel.send(b"lost on the way")
    world.run(500)
    alice.channel.send(b"refers to it")
    world.run(500)
    assert bob.payloads == []
    assert len(bob.of(MissingMessage)) == 1
    world.run(15_000)
    assert bob.payloads == [b"lost on the way", b"refers to it"]


@pytest.mark.parametrize("hint", [b"junk", b"0x" + b"ab" * 32, b"x" * 33])
def test_a_hint_that_is_no_hash_spoils_no_other_look_up(hint: bytes) -> None:
    """A stranger names a message that never was with a hint of his own, before Bob misses Alice's."""
    world = World(drop(1))
    config = quick(sds={"repair": False, "acknowledgement_timeout_ms": 10**9}, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"lost on the way")
    world.run(500)
    named = (HistoryEntry("never was", hint),)
    strangers = SdsMessage("mallory", "strangers", CHANNEL, world.now, named, content=b"x")
    world.node("bob").arrive(WakuMessage(encode_sds_message(strangers), TOPIC, timestamp=1), "/waku/2/rs/0/0")
    alice.channel.send(b"refers to it")
    world.run(20_000)
    assert bob.payloads[:2] == [b"lost on the way", b"refers to it"]
    assert "store_failed" not in bob.problems()


def test_what_is_kept_to_repair_segments_is_bounded_in_bytes_whatever_came_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of many small messages one went for each large one that came: 16 MiB grew to 101."""
    monkeypatch.setattr(inbox, "MAX_RECENT_BYTES", 2_000)
    world = World()
    config = quick(segmentation=SMALL_SEGMENTS)
    alice, bob = world.join("alice", config), world.join("bob", config)
    for number, size in enumerate([200] * 9 + [900] * 4):
        alice.channel.send(bytes([number]) * size)
        world.run(1_000)
    assert len(bob.payloads) == 13
    kept = [len(message.payload) for message in bob.channel._cycle.machine.inbox._recent.values()]
    assert kept == [900, 900]


def test_a_message_without_retrieval_hint_is_found_in_the_store_by_time() -> None:
    world = World(drop(1))
    config = quick(sds={"repair": False, "acknowledgement_timeout_ms": 10**9}, query_on_connect=False)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"lost on the way")
    alice.channel.send(b"refers to it before the node said sent")
    world.run(20_000)
    assert bob.payloads == [b"lost on the way", b"refers to it before the node said sent"]


def test_ids_without_hints_cost_a_few_times_the_traffic_of_the_channel_at_most() -> None:
    """A stranger named a new one every ten seconds, and the last hour was read each time: 360 times the traffic."""
    asked: list[TimeRange] = []
    queries = StoreQueries(SimpleNamespace(ask_range=asked.append), quick())  # type: ignore[arg-type]
    begin, hour = 1_800_000_000_000, 3_600_000
    for now in range(begin, begin + hour, 10_000):
        queries.fetch(Fetch(None, 1), now)
    assert sum(each.end_ms - each.start_ms for each in asked) <= 20 * hour
    assert asked[0].start_ms <= begin - hour
    assert all(later.start_ms < earlier.end_ms for earlier, later in pairwise(asked)), "nothing is left out"
    whole = [each.end_ms for each in asked if each.end_ms - each.start_ms >= hour]
    assert all(later - earlier <= 600_000 for earlier, later in pairwise(whole)), "a store may get what is old late"


@pytest.mark.parametrize("hint", [None, b"hint of another kind"])
def test_a_message_of_which_no_hash_is_known_is_looked_for_in_the_whole_window_the_third_time(
    hint: bytes | None,
) -> None:
    """With a hint that is no hash, such as status-go's, it was looked for in the last hour only."""
    asked: list[TimeRange] = []
    config = quick()
    queries = StoreQueries(SimpleNamespace(ask_range=asked.append), config)  # type: ignore[arg-type]
    now = 1_800_000_000_000
    queries.fetch(Fetch(hint, 3), now)
    queries.run_due(now)
    assert asked[-1].start_ms <= now - config.query_window_ms


def test_what_no_store_has_in_time_is_irretrievable_and_what_waited_is_delivered_with_that_stated() -> None:
    world = World(drop(1))
    world.network.store_keeps = lambda message: False
    config = alone(timeout_for_lost_messages_ms=60_000, acknowledgement_timeout_ms=10**9)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"gone for ever")
    world.run(500)
    alice.channel.send(b"refers to it")
    world.run(55_000)
    assert bob.payloads == []
    world.run(15_000)
    (lost,) = bob.of(IrretrievableMessage)
    (event,) = bob.of(MessageReceived)
    assert event.message == b"refers to it"
    assert event.lost_dependencies == (lost.sds_id,)


def test_by_default_nothing_is_ever_given_up() -> None:
    world = World(drop(1))
    world.network.store_keeps = lambda message: False
    config = alone(acknowledgement_timeout_ms=10**9)
    alice, bob = world.join("alice", config), world.join("bob", config)
    alice.channel.send(b"gone")
    world.run(500)
    alice.channel.send(b"refers to it")
    world.run(3_600_000, step_ms=10_000)
    assert bob.of(IrretrievableMessage) == []
    assert bob.payloads == []


def test_another_participant_repairs_what_the_sender_cannot_send_any_more() -> None:
    world = World()
    world.network.store_keeps = lambda message: False
    config = quick(sds={"acknowledgement_timeout_ms": 10**9}, query_on_connect=False)
    alice, bob, carol = (world.join(name, config) for name in ("alice", "bob", "carol"))
    world.blocked.add("bob")
    alice.channel.send(b"bob misses this")
    world.run(500)
    alice.channel.close()
    del world.recorders["alice"]
    world.blocked.clear()
    carol.channel.send(b"refers to it")
    world.run(500)
    assert bob.payloads == []
    world.run(400_000, step_ms=1_000)
    assert bob.payloads == [b"bob misses this", b"refers to it"]


def test_a_channel_asks_a_store_for_what_it_missed_when_it_starts() -> None:
    world = World()
    alice = world.join("alice")
    for number in range(250):
        alice.channel.send(b"message %d" % number)
    world.run(1_000)
    bob = world.join("bob")
    world.run(2_000)
    assert bob.payloads == [b"message %d" % number for number in range(250)]


def test_a_channel_asks_again_when_its_node_is_healthy_again() -> None:
    world = World()
    config = quick(sds={"acknowledgement_timeout_ms": 10**9, "sync_min_interval_ms": 0})
    alice, bob = world.join("alice", config), world.join("bob", config)
    world.run(1_000)
    world.blocked.add("bob")
    world.node("bob").report(Health(HealthState.UNHEALTHY))
    alice.channel.send(b"while you were away")
    world.run(120_000)
    world.blocked.clear()
    assert bob.payloads == []
    world.node("bob").report(Health(HealthState.HEALTHY))
    world.run(1_000)
    assert bob.payloads == [b"while you were away"]


def test_without_query_on_connect_the_store_is_not_asked() -> None:
    world = World()
    alice = world.join("alice")
    alice.channel.send(b"old news")
    world.run(1_000)
    bob = world.join("bob", quick(query_on_connect=False))
    world.run(1_000)
    assert bob.payloads == []


def test_a_store_that_cannot_be_reached_is_a_problem_told_not_a_crash() -> None:
    world = World()
    world.node("alice").store = None
    alice = world.join("alice")
    world.run(500)
    assert "store_failed" in alice.problems()
    assert alice.channel.send(b"goes on")


@pytest.mark.parametrize(
    ("reason", "node_retries", "requests", "errors"),
    [
        (FailureReason.REFUSED, False, 1, 1),
        (FailureReason.NO_PEERS, True, 1, 1),
        (FailureReason.NO_PEERS, False, 6, 1),
        (FailureReason.UNREACHABLE, False, 6, 1),
    ],
)
def test_a_dispatch_fault_has_one_retry_layer_the_nodes_or_that_of_sds(
    reason: FailureReason, node_retries: bool, requests: int, errors: int
) -> None:
    world = World()
    node = world.node("alice")
    node.failing = reason
    node.retries_sends = node_retries  # type: ignore[attr-defined]
    alice = world.join("alice", alone())
    alice.channel.send(b"hello")
    world.run(700_000, step_ms=1_000)
    assert len(alice.of(SendingMessage)) == requests
    assert len(alice.of(MessageSendError)) == errors


def test_hostile_bytes_on_the_topic_are_problems_told_and_the_channel_goes_on() -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    for number, junk in enumerate((b"", b"\xff" * 40, b"\x0a\x01x", b"hello there")):
        world.network.publish(
            "mallory", WakuMessage(junk, alice.channel.content_topic, timestamp=number), "/waku/2/rs/0/0"
        )
    alice.channel.send(b"still here")
    world.run(1_000)
    assert bob.payloads == [b"still here"]
    assert bob.problems().count("malformed") == 4


@settings(max_examples=examples(40))
@example(seed=588, loss=0.0625, duplication=0.125, sizes=[193, 65], parity=False, participants=3)
@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.4),
    duplication=st.floats(0, 0.5),
    sizes=st.lists(st.integers(1, 1_000), min_size=1, max_size=6),
    parity=st.booleans(),
    participants=st.integers(2, 3),
)
def test_over_any_lossy_network_everything_arrives_once_and_is_acknowledged(
    seed: int, loss: float, duplication: float, sizes: list[int], parity: bool, participants: int
) -> None:
    faults = LinkFaults(loss=loss, duplication=duplication, min_delay_ms=5, max_delay_ms=900, seed=seed)
    world = World(faults.link())
    config = replace(quick(), segmentation=WITH_PARITY if parity else SMALL_SEGMENTS)
    names = ("alice", "bob", "carol")[:participants]
    for name in names:
        world.join(name, config)
    sent: dict[str, list[bytes]] = {name: [] for name in names}
    for number, size in enumerate(sizes):
        name = names[number % participants]
        payload = bytes([number]) * size
        sent[name].append(payload)
        world.recorders[name].channel.send(payload)
        world.run(300)
    for _ in range(50):
        world.run(30_000, step_ms=1_000)
        if all(len(world.recorders[name].of(MessageDelivered)) == len(sent[name]) for name in names):
            break
    for name, recorder in world.recorders.items():
        others = [payload for other in names if other != name for payload in sent[other]]
        assert len(recorder.of(MessageDelivered)) == len(sent[name])
        assert len(set(recorder.payloads)) == len(recorder.payloads)
        assert set(recorder.payloads) <= set(others)
    # One participant's acknowledgement is enough: with a history of two, a third that nobody tells of a message in a
    # channel that then falls silent cannot know that it lacks it.
    for name, payloads in sent.items():
        heard = {payload for other in names if other != name for payload in world.recorders[other].payloads}
        assert set(payloads) <= heard


def test_request_ids_are_remembered_until_a_send_is_sent_or_has_failed_and_no_longer() -> None:
    world = World()
    alice = world.join("alice", alone())
    request_id = alice.channel.send(b"hello")
    alice.channel.step()
    world.network.pump()
    alice.channel.step()
    assert alice.of(MessageSent)[0].request_ids == ((f"{request_id}:1", alice.of(SegmentSent)[0].node_request_id),)
    world.run(700_000, step_ms=1_000)
    world.node("alice").failing = FailureReason.REFUSED
    failing = alice.channel.send(b"refused")
    world.run(1_000)
    assert [event.request_id for event in alice.of(MessageDeliveryError)] == [request_id]
    assert [event.request_id for event in alice.of(MessageSendError)] == [failing]
    assert len(alice.of(SegmentSent)) == 6
    assert [alice.channel.request_ids(one) for one in (request_id, failing)] == [{}, {}]


def test_a_store_that_raises_anything_is_a_problem_told_and_is_asked_again() -> None:
    world = World()
    node = world.node("alice")

    class Broken:
        asked = 0

        def query(self, _: object) -> StorePage:
            Broken.asked += 1
            raise KeyError("of somebody else's making")

    node.store = Broken()  # type: ignore[assignment]
    alice = world.join("alice")
    world.run(100)
    node.report(Health(HealthState.UNHEALTHY))
    node.report(Health(HealthState.HEALTHY))
    world.run(100)
    assert Broken.asked == 2
    problems = [event for event in alice.of(ChannelProblem) if event.kind == "store_failed"]
    assert [problem.detail for problem in problems] == ["KeyError"], "once"


def test_without_a_store_every_look_up_fails_and_one_problem_is_told() -> None:
    world = World(lambda _sender, _receiver, message: () if b"lost" in message.payload else (0.0,))
    world.node("bob").store = None
    alice, bob = world.join("alice"), world.join("bob")
    world.run(1_000)
    for text in (b"lost", b"names it", b"lost as well", b"names that one"):
        alice.channel.send(text)
        world.run(1_000)
    world.run(600_000, step_ms=10_000)
    assert len(bob.of(MissingMessage)) == 2
    assert bob.problems() == ["store_failed"]
