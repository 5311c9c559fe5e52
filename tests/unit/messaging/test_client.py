"""LIP-168 in Python: ``MessagingClient`` subscribes to topics, sends envelopes, and tells of messages and health."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from reliable_channel import messaging
from reliable_channel.core import errors
from reliable_channel.core.errors import EmptyMessage, LocalError
from reliable_channel.messaging import MessageEnvelope, MessagingClient, MessagingNode
from reliable_channel.messaging.client import (
    ConnectionStatus,
    ConnectionStatusChange,
    ContentTopicHealthChange,
    HealthEvent,
    MessageErrorEvent,
    MessageEvent,
    MessagePropagatedEvent,
    MessageReceivedEvent,
    MessageSentEvent,
    MessageSource,
    ShardTopicHealthChange,
    SubscriptionsError,
    TopicHealth,
    connection_status,
    topic_health,
)
from reliable_channel.messaging.config import Mode
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.health import Health, HealthState
from tests.support.messaging_world import CONTENT, OTHER, PUBSUB, World

UNHEALTHY, MINIMAL, HEALTHY = HealthState


class Heard:
    """A client, and the events that it has emitted."""

    def __init__(self, world: World) -> None:
        self.client = MessagingClient(world.node)
        self.messages: list[Any] = []
        self.health: list[Any] = []
        self.client.message_events.on(object, call=self.messages.append)
        self.client.health_events.on(object, call=self.health.append)

    def of(self, request_id: str) -> list[str]:
        """The names of the events of one request."""
        return [one.name for one in self.messages if getattr(one, "request_id", None) == request_id]


@pytest.fixture
def heard(world: World) -> Heard:
    return Heard(world)


def test_messages_of_subscribed_topics_are_received_once(world: World, heard: Heard) -> None:
    heard.client.subscribe([CONTENT])
    message = world.arrives(b"one")
    world.network.publish("stranger", message, PUBSUB)
    world.arrives(b"of another topic", OTHER)
    (event,) = heard.messages
    assert isinstance(event, MessageReceivedEvent)
    assert (event.message, event.message_hash[:2], len(event.message_hash)) == (message, "0x", 66)
    assert event.source is MessageSource.LIVE


@pytest.mark.parametrize("known", [False, True])
def test_a_message_that_a_bridge_found_in_a_store_is_history(world: World, heard: Heard, known: bool) -> None:
    message = world.arrives(b"missed")
    if known:
        assert len(world.node.history([CONTENT])) == 1
    heard.client.subscribe([CONTENT])
    world.transport.arrive(message, PUBSUB, Source.STORE)
    world.run()
    (event,) = heard.messages
    assert event.source is MessageSource.HISTORY


def test_a_topic_that_only_the_other_face_subscribed_to_is_not_received_here(world: World, heard: Heard) -> None:
    world.subscribe(OTHER)
    heard.client.subscribe([CONTENT])
    world.arrives(b"theirs", OTHER)
    assert heard.messages == []


def test_after_unsubscribing_nothing_is_received(world: World, heard: Heard) -> None:
    heard.client.subscribe([CONTENT, OTHER])
    heard.client.unsubscribe([CONTENT])
    world.arrives(b"gone")
    world.arrives(b"here", OTHER)
    assert [event.message.payload for event in heard.messages] == [b"here"]
    assert heard.client.content_topics == {OTHER}


def test_a_subscription_before_the_start_takes_effect_with_it(world: World, heard: Heard) -> None:
    world.node.stop()
    heard.client.subscribe([CONTENT])
    world.node.start(background=False)
    world.arrives(b"one")
    assert [event.message.payload for event in heard.messages] == [b"one"]


def test_topics_that_fail_are_named_and_the_others_are_subscribed(heard: Heard) -> None:
    with pytest.raises(SubscriptionsError, match="not a content topic") as caught:
        heard.client.subscribe(["nonsense", CONTENT])
    assert [one.content_topic for one in caught.value.errors] == ["nonsense"]
    assert heard.client.content_topics == {CONTENT}
    assert pickle.loads(pickle.dumps(caught.value)).errors == caught.value.errors  # noqa: S301


def test_unsubscribing_what_is_not_subscribed_is_an_error(heard: Heard) -> None:
    with pytest.raises(SubscriptionsError, match="not subscribed"):
        heard.client.unsubscribe([CONTENT])


def test_too_many_topics_are_refused_by_name(new_world: Callable[..., World]) -> None:
    heard = Heard(new_world(max_subscriptions=1))
    heard.client.subscribe([CONTENT, CONTENT])
    with pytest.raises(SubscriptionsError, match="1 subscriptions are active") as caught:
        heard.client.subscribe([CONTENT, OTHER])
    assert [one.content_topic for one in caught.value.errors] == [OTHER]


def test_the_first_message_on_a_topic_subscribes_to_it(world: World, heard: Heard) -> None:
    request_id = heard.client.send(MessageEnvelope(CONTENT, b"hello", ephemeral=True, meta=b"m"))
    assert heard.client.content_topics == {CONTENT}
    record = world.record(request_id)
    message = record.message
    assert (message.payload, message.ephemeral, message.meta, record.pubsub_topic) == (b"hello", True, b"m", PUBSUB)
    assert message.timestamp is not None


@pytest.mark.parametrize("topic", ["", "nonsense"])
def test_an_envelope_on_no_content_topic_is_refused(heard: Heard, topic: str) -> None:
    with pytest.raises(LocalError, match="not a content topic"):
        heard.client.send(MessageEnvelope(topic, b"hello"))
    with pytest.raises(EmptyMessage):
        heard.client.send(MessageEnvelope(CONTENT, b""))


def test_a_message_is_propagated_and_sent_when_a_node_accepts_it(world: World, heard: Heard) -> None:
    request_id = heard.client.send(MessageEnvelope(CONTENT, b"hello"))
    world.run()
    text = world.record(request_id).hash_hex
    sent = [MessagePropagatedEvent(request_id, text), MessageSentEvent(request_id, text)]
    assert [one for one in heard.messages if not isinstance(one, MessageReceivedEvent)] == sent


def test_with_store_confirmation_a_message_is_sent_when_a_store_has_it(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True)
    heard = Heard(world)
    request_id = heard.client.send(MessageEnvelope(CONTENT, b"hello"))
    ephemeral = heard.client.send(MessageEnvelope(CONTENT, b"not kept", ephemeral=True))
    world.run()
    assert heard.of(request_id) == ["message_propagated"]
    assert heard.of(ephemeral) == ["message_propagated", "message_sent"], "no store keeps it"
    world.run(70_000)
    assert heard.of(request_id) == ["message_propagated", "message_sent"]


def test_only_the_end_of_all_attempts_is_an_error(world: World, heard: Heard) -> None:
    world.transport.failing = FailureReason.UNREACHABLE
    request_id = heard.client.send(MessageEnvelope(CONTENT, b"hello"))
    world.run(2_000)
    assert "message:error" in world.names() and heard.of(request_id) == []
    world.run(10_000)
    assert heard.of(request_id) == ["message_error"]
    (event,) = heard.messages
    assert isinstance(event, MessageErrorEvent)
    assert event.error == world.record(request_id).error
    assert event.message_hash == world.record(request_id).hash_hex


def test_a_message_that_no_store_has_ends_in_an_error(new_world: Callable[..., World]) -> None:
    world = new_world(store_confirmation=True)
    heard = Heard(world)
    world.network.store_keeps = lambda message: False
    request_id = heard.client.send(MessageEnvelope(CONTENT, b"hello"))
    world.run(400_000)
    assert heard.of(request_id) == ["message_propagated", "message_error"]
    world.network.store.add(PUBSUB, world.record(request_id).message)
    world.run(70_000)
    assert heard.of(request_id) == ["message_propagated", "message_error", "message_sent"]


def test_a_cancelled_request_ends_in_an_error(world: World, heard: Heard) -> None:
    world.transport.failing = FailureReason.UNREACHABLE
    request_id = heard.client.send(MessageEnvelope(CONTENT, b"hello"))
    world.run()
    world.node.cancel_request(request_id)
    assert heard.of(request_id) == ["message_error"]


def test_sends_of_the_other_face_are_told_too(world: World, heard: Heard) -> None:
    request_id = world.send()
    world.run()
    assert heard.of(request_id) == ["message_propagated", "message_sent"]


def test_listeners_are_added_by_the_names_of_the_document(world: World, heard: Heard) -> None:
    named: list[Any] = []
    heard.client.message_events.on("message_propagated", call=named.append)
    world.send()
    world.run()
    assert [type(one) for one in named] == [MessagePropagatedEvent]


@pytest.mark.parametrize("kind", ["message_propagatd", "connection_status_change", ConnectionStatusChange, "", int])
def test_a_listener_of_what_never_comes_is_refused(heard: Heard, kind: Any) -> None:
    """It was never called, and nothing said why."""
    with pytest.raises(LocalError, match=r"message_error, message_propagated, message_received, message_sent\."):
        heard.client.message_events.on(kind, call=print)


@pytest.mark.parametrize(
    ("mode", "counts", "status"),
    [
        ("relay", {"relay_peers": 0, "lightpush_peers": 9, "filter_peers": 9, "store_peers": 9}, "Disconnected"),
        ("relay", {"relay_peers": 1}, "PartiallyConnected"),
        ("relay", {"relay_peers": 3}, "PartiallyConnected"),
        ("relay", {"relay_peers": 4}, "Connected"),
        ("relay", {"store_peers": 0}, "Connected"),
        ("edge", {"lightpush_peers": 0, "filter_peers": 1, "store_peers": 1}, "Disconnected"),
        ("edge", {"lightpush_peers": 1, "filter_peers": 0, "store_peers": 1}, "Disconnected"),
        ("edge", {"lightpush_peers": 1, "filter_peers": 1, "store_peers": 0}, "Disconnected"),
        ("edge", {"lightpush_peers": 1, "filter_peers": 2, "store_peers": 2}, "PartiallyConnected"),
        ("edge", {"lightpush_peers": 2, "filter_peers": 2, "store_peers": 2}, "Connected"),
        ("edge", {}, "Connected"),
    ],
)
def test_the_connection_status_counts_the_peers_of_the_mode(mode: str, counts: dict[str, int], status: str) -> None:
    assert connection_status(Mode(mode), Health(HEALTHY, **counts)) == status


@pytest.mark.parametrize(
    ("state", "status", "health"),
    [
        (UNHEALTHY, "Disconnected", "UNHEALTHY"),
        (MINIMAL, "PartiallyConnected", "MINIMALLY_HEALTHY"),
        (HEALTHY, "Connected", "SUFFICIENTLY_HEALTHY"),
    ],
)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_transport_without_peers_to_count_is_believed(
    mode: Mode, state: HealthState, status: str, health: str
) -> None:
    assert (connection_status(mode, Health(state)), topic_health(mode, Health(state))) == (status, health)


@pytest.mark.parametrize(
    ("mode", "peers", "health"),
    [
        ("relay", 0, "UNHEALTHY"),
        ("relay", 1, "MINIMALLY_HEALTHY"),
        ("relay", 4, "SUFFICIENTLY_HEALTHY"),
        ("edge", 0, "UNHEALTHY"),
        ("edge", 1, "MINIMALLY_HEALTHY"),
        ("edge", 2, "SUFFICIENTLY_HEALTHY"),
    ],
)
def test_the_health_of_a_topic_counts_the_peers_that_it_is_received_from(mode: str, peers: int, health: str) -> None:
    counts = {"relay_peers": peers} if mode == "relay" else {"filter_peers": peers}
    assert topic_health(Mode(mode), Health(HEALTHY, **counts)) == health


def test_a_change_of_peers_is_told_once_for_the_node_each_topic_and_each_shard(world: World, heard: Heard) -> None:
    heard.client.subscribe([CONTENT, OTHER])
    heard.health.clear()
    changes = len(world.names())
    for peers in (5, 5, 2, 2):  # two peers: unhealthy for the one text, partially connected for the other
        world.transport.report(Health(HEALTHY, relay_peers=peers))
        world.node.tick()
    assert heard.health == [
        ConnectionStatusChange(ConnectionStatus.PARTIALLY_CONNECTED),
        ContentTopicHealthChange(CONTENT, TopicHealth.MINIMALLY_HEALTHY),
        ContentTopicHealthChange(OTHER, TopicHealth.MINIMALLY_HEALTHY),
        ShardTopicHealthChange(PUBSUB, TopicHealth.MINIMALLY_HEALTHY),
    ]
    assert world.names()[changes:] == ["health:change", "health:change"]
    assert heard.client.connection_status is ConnectionStatus.PARTIALLY_CONNECTED
    world.node.stop()
    assert heard.client.connection_status is ConnectionStatus.DISCONNECTED


def test_the_health_of_a_topic_begins_and_ends_with_its_subscription(heard: Heard) -> None:
    assert heard.client.content_topic_health(CONTENT) is TopicHealth.NOT_SUBSCRIBED
    heard.client.subscribe([CONTENT, OTHER])
    assert heard.client.content_topic_health(CONTENT) is TopicHealth.SUFFICIENTLY_HEALTHY
    heard.client.unsubscribe([CONTENT])
    assert heard.client.content_topic_health(CONTENT) is TopicHealth.NOT_SUBSCRIBED
    heard.client.unsubscribe([OTHER])
    healthy, ended = TopicHealth.SUFFICIENTLY_HEALTHY, TopicHealth.NOT_SUBSCRIBED
    assert heard.health == [
        ContentTopicHealthChange(CONTENT, healthy),
        ContentTopicHealthChange(OTHER, healthy),
        ShardTopicHealthChange(PUBSUB, healthy),
        ContentTopicHealthChange(CONTENT, ended),
        ContentTopicHealthChange(OTHER, ended),
        ShardTopicHealthChange(PUBSUB, ended),
    ]


def test_what_calls_take_raise_and_report_can_be_imported_from_the_package() -> None:
    """Whoever caught ``KeyReusedError`` or listened by class had to find the module."""
    calls = [call for kind in (MessagingNode, MessagingClient) for call in vars(kind).values()]
    raised = {name for call in calls for name in re.findall(r"``(\w+Error)``", getattr(call, "__doc__", None) or "")}
    events = {one.__name__ for one in (*get_args(MessageEvent), *get_args(HealthEvent))}
    needed = {
        *raised,
        *events,
        "ConnectionStatus",
        "TopicHealth",
        "MessageSource",
        "IdempotencyKey",
        "SubscriptionError",
    }
    known = {name for name in dir(errors) if name.endswith("Error")} | {"ForkedError", "ValueError"}
    assert "KeyReusedError" in raised
    assert sorted(needed - known - set(messaging.__all__)) == []
    assert all(hasattr(messaging, name) for name in messaging.__all__)
