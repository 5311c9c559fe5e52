"""Subscriptions: who receives what, and what the records and the transport show of it."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable, Collection
from typing import Any

import pytest

from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import (
    CONFIRMATION_SUBSCRIPTION_ID,
    MessageRecord,
    MessagingClient,
    PlainDecoder,
    UnsupportedTopicError,
)
from reliable_channel.messaging.subscriptions import SubscriptionLimitError
from reliable_channel.transport.base import Node, Received
from reliable_channel.transport.recent import RecentHashes
from tests.support.messaging_world import CONTENT, OTHER, PUBSUB, World
from tests.support.waiting import until


def test_a_subscription_has_a_guid_and_calls_its_listener_with_each_new_record(world: World) -> None:
    heard: list[MessageRecord] = []
    subscription_id = world.subscribe(listener=heard.append)
    assert str(uuid.UUID(subscription_id)) == subscription_id
    message = world.arrives()
    assert [record.message for record in heard] == [message]
    assert world.node.get_by_subscription_id(subscription_id) == heard
    unlisted: list[MessageRecord] = []
    world.node.subscribe(PlainDecoder(PUBSUB, CONTENT), unlisted.append, listed=False)
    world.arrives(b"again")
    assert unlisted == heard[1:] != []
    assert (heard[0].received, heard[0].sending, heard[0].sent, heard[0].request_id) == (True, False, False, None)


def test_nothing_is_recorded_before_anybody_subscribes(world: World) -> None:
    world.arrives()
    assert world.node.get_by_content_topic(CONTENT) == []


def test_messages_of_other_content_topics_are_not_received(world: World) -> None:
    subscription_id = world.subscribe()
    world.arrives(content_topic=OTHER)
    assert world.node.get_by_subscription_id(subscription_id) == []


def test_a_repeated_message_changes_nothing(world: World) -> None:
    heard: list[MessageRecord] = []
    world.subscribe(listener=heard.append)
    message = world.arrives()
    before = len(world.events)
    world.transport._seen = RecentHashes()
    world.transport.arrive(message, PUBSUB)
    assert len(heard) == 1
    assert len(world.events) == before


def test_after_unsubscribing_the_listener_hears_nothing_and_the_transport_stops_listening(world: World) -> None:
    heard: list[MessageRecord] = []
    subscription_id = world.subscribe(listener=heard.append)
    assert world.transport.subscribed == {CONTENT}
    world.node.unsubscribe(subscription_id)
    world.arrives()
    assert (heard, world.transport.subscribed) == ([], frozenset())


def test_a_topic_is_left_only_with_its_last_subscription(world: World) -> None:
    first, second = world.subscribe(), world.subscribe()
    world.node.unsubscribe(first)
    message = world.arrives()
    assert [record.message for record in world.node.get_by_subscription_id(second)] == [message]
    assert world.node.get_by_subscription_id(first) == []


def test_a_listener_that_unsubscribes_another_silences_it_at_once(world: World) -> None:
    heard: list[MessageRecord] = []
    ids: list[str] = []
    world.subscribe(listener=lambda record: world.node.unsubscribe(ids[0]))
    ids.append(world.subscribe(listener=heard.append))
    world.arrives()
    assert heard == []


def test_unsubscribing_what_is_not_active_is_ignored(world: World) -> None:
    subscription_id = world.subscribe()
    world.node.unsubscribe(subscription_id)
    world.node.unsubscribe(subscription_id)
    world.node.unsubscribe("unknown")
    assert world.node.get_active_subscriptions() == []


def test_active_subscriptions_are_listed_without_duplicates(world: World) -> None:
    ids = [world.subscribe(), world.subscribe(), world.subscribe(OTHER)]
    assert world.node.get_active_subscriptions() == ids
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("pubsub_topic", "text"),
    [
        ("/waku/2/rs/0/2", "Cannot create subscription. clusterId 0 is not supported."),
        ("/waku/2/rs/1/9", "Cannot create subscription. shard 9 is not supported."),
        ("nonsense", "Cannot create subscription. pubsubTopic 'nonsense' is not supported."),
    ],
)
def test_an_unsupported_pubsub_topic_is_refused_by_name(world: World, pubsub_topic: str, text: str) -> None:
    with pytest.raises(UnsupportedTopicError) as caught:
        world.node.subscribe(PlainDecoder(pubsub_topic, CONTENT), print)
    assert str(caught.value) == text
    assert world.node.get_active_subscriptions() == []


class Failing:
    pubsub_topic = PUBSUB
    content_topic = CONTENT

    def decode(self, message: WakuMessage) -> WakuMessage | None:
        raise ValueError("secret plaintext")


class Choosy(Failing):
    def decode(self, message: WakuMessage) -> WakuMessage | None:
        return None


def test_a_decoder_that_fails_leaves_an_error_without_its_text(world: World) -> None:
    heard: list[MessageRecord] = []
    world.node.subscribe(Failing(), heard.append)
    world.arrives()
    (record,) = world.node.get_by_content_topic(CONTENT)
    assert (record.received, record.error, heard) == (False, "decoding: ValueError", [])
    assert world.names()[-2:] == ["message:change", "message:error"]


def test_a_decoder_that_does_not_want_a_message_leaves_no_record(world: World) -> None:
    world.node.subscribe(Choosy(), None)
    world.arrives()
    assert world.node.get_by_content_topic(CONTENT) == []


def test_a_listener_that_raises_affects_neither_the_record_nor_other_listeners(world: World) -> None:
    heard: list[MessageRecord] = []

    def raising(record: MessageRecord) -> None:
        raise RuntimeError("mine alone")

    world.subscribe(listener=raising)
    world.subscribe(listener=heard.append)
    world.arrives()
    assert [record.received for record in heard] == [True]


def test_a_listener_may_be_a_coroutine(world: World) -> None:
    heard: list[MessageRecord] = []

    async def listener(record: MessageRecord) -> None:
        await asyncio.sleep(0)
        heard.append(record)

    world.subscribe(listener=listener)
    world.arrives()
    assert len(heard) == 1


def test_a_listener_may_send(world: World) -> None:
    world.subscribe(listener=lambda record: world.send(b"answer", OTHER))
    world.arrives()
    assert [message.payload for message in world.transport.sent] == [b"answer"]


def test_an_own_message_that_comes_back_is_the_same_record_and_received(world: World) -> None:
    subscription_id = world.subscribe()
    request_id = world.send()
    world.run()
    world.transport.arrive(world.transport.sent[0], PUBSUB)
    record = world.record(request_id)
    assert (record.sent, record.received) == (True, True)
    assert world.node.get_by_subscription_id(subscription_id) == [record]
    assert world.names()[-2:] == ["message:change", "message:received"]


def test_subscriptions_beyond_the_configured_number_are_refused(new_world: Callable[..., World]) -> None:
    world = new_world(max_subscriptions=1)
    world.subscribe()
    with pytest.raises(SubscriptionLimitError):
        world.subscribe()


def test_confirm_content_topics_are_listened_to_from_the_start_under_the_reserved_id(
    new_world: Callable[..., World],
) -> None:
    world = new_world(confirm_content_topics=(CONTENT,))
    assert world.node.get_active_subscriptions() == [CONFIRMATION_SUBSCRIPTION_ID]
    world.arrives()
    assert [one.received for one in world.node.get_by_subscription_id(CONFIRMATION_SUBSCRIPTION_ID)] == [True]
    world.node.unsubscribe(CONFIRMATION_SUBSCRIPTION_ID)
    assert world.transport.subscribed == frozenset(), "it can be handled the same way"


def test_without_filter_confirmation_received_is_not_populated_until_subscribing(
    new_world: Callable[..., World],
) -> None:
    world = new_world(confirm_content_topics=(CONTENT,), filter_confirmation=False)
    assert world.node.get_active_subscriptions() == []
    world.arrives()
    assert world.node.get_by_content_topic(CONTENT) == []
    world.subscribe()
    world.arrives(b"now")
    assert [one.received for one in world.node.get_by_content_topic(CONTENT)] == [True]


def test_the_node_port_receives_what_it_subscribed_to(world: World) -> None:
    events: list[object] = []
    node: Node = world.node.port
    assert isinstance(node, Node)
    node.add_listener(events.append)
    node.subscribe([CONTENT, CONTENT])
    node.subscribe([CONTENT])
    message = world.arrives()
    assert [event.envelope.message for event in events if isinstance(event, Received)] == [message]
    node.unsubscribe([CONTENT, OTHER])
    world.arrives(b"later")
    assert len(events) == 1
    node.remove_listener(events.append)


def test_a_caller_who_ends_all_subscriptions_ends_no_others(world: World) -> None:
    """Channels and clients of LIP-168 heard nothing any more."""
    heard: list[object] = []
    world.node.port.add_listener(heard.append)
    world.node.port.subscribe([CONTENT])
    client = MessagingClient(world.node)
    client.message_events.on("message_received", call=heard.append)
    client.subscribe([CONTENT])
    own = world.subscribe()
    assert world.node.get_active_subscriptions() == [own]
    for subscription_id in world.node.get_active_subscriptions():
        world.node.unsubscribe(subscription_id)
    world.arrives()
    assert len(heard) == 2


def test_what_only_the_subscribers_want_does_not_reach_the_port(world: World) -> None:
    events: list[object] = []
    world.node.port.add_listener(events.append)
    world.subscribe()
    world.arrives()
    assert events == []


def test_one_text_is_no_collection_of_content_topics(world: World) -> None:
    node, client = world.node, MessagingClient(world.node)
    calls: list[Callable[[Any], object]] = [node.port.subscribe, node.port.unsubscribe, node.history, client.subscribe]
    for call in calls:
        with pytest.raises(LocalError, match="One text"):
            call(CONTENT)


def test_an_own_message_that_a_decoder_cannot_read_is_an_error_of_its_record(world: World) -> None:
    world.node.subscribe(Failing(), None)
    request_id = world.send()
    world.run()
    for _ in range(2):
        world.transport.arrive(world.transport.sent[0], PUBSUB)
        world.transport._seen = RecentHashes()
    record = world.record(request_id)
    assert (record.sent, record.received, record.error) == (True, False, "decoding: ValueError")
    assert world.names().count("message:error") == 1


def test_a_coroutine_runs_on_the_event_loop_that_delivers(world: World) -> None:
    heard: list[str] = []

    async def listener(record: MessageRecord) -> None:
        await asyncio.sleep(0)
        heard.append("later")

    async def scenario() -> None:
        world.subscribe(listener=listener)
        world.arrives()
        heard.append("first")
        while len(heard) < 2:
            await asyncio.sleep(0)

    asyncio.run(scenario())
    assert heard == ["first", "later"]


def test_who_subscribes_while_the_last_other_one_leaves_receives(world: World) -> None:
    first = world.subscribe()
    unsubscribe = world.transport.unsubscribe
    others: list[str] = []

    def unsubscribe_slowly(content_topics: Collection[str]) -> None:
        other = threading.Thread(target=lambda: others.append(world.subscribe()))
        other.start()
        other.join(0.2)
        unsubscribe(content_topics)

    world.transport.unsubscribe = unsubscribe_slowly  # type: ignore[method-assign]
    world.node.unsubscribe(first)
    until(lambda: others)
    world.arrives()
    assert len(world.node.get_by_subscription_id(others[0])) == 1


def test_a_channel_receives_what_cannot_be_recorded_and_the_log_says_it_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> bool:
        raise EnvironmentFault("The disk is full.")

    heard: list[object] = []
    world.node.port.subscribe([CONTENT])
    world.node.port.add_listener(heard.append)
    monkeypatch.setattr(world.node._receiver, "on_envelope", fail)
    messages = [world.arrives(text) for text in (b"one", b"two", b"three")]
    assert [event.envelope.message for event in heard if isinstance(event, Received)] == messages
    assert [record.getMessage() for record in caplog.records] == [
        "events of the transport are not recorded: The disk is full."
    ]


@pytest.mark.parametrize("topic", ["half a pair \ud800", "", 5])
def test_a_topic_that_the_node_refuses_leaves_no_subscription(world: World, topic: Any) -> None:
    with pytest.raises(LocalError):
        world.node.subscribe(PlainDecoder(PUBSUB, topic))
    assert world.node.get_active_subscriptions() == []
