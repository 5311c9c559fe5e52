"""``MessagingClient``: the Messaging API as LIP-168 has it, over a :class:`MessagingNode`.

Where the text of LIP-168 is open, the running node (logos-delivery, ``MessagingClient``) decides: a message is
*propagated* when a Waku node accepted it, and *sent* when a store has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeAlias, get_args

from reliable_channel.channel.config import MessageEnvelope
from reliable_channel.core.errors import LocalError, ReliableChannelError
from reliable_channel.core.settings import check_type
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.config import Mode, check_content_topic
from reliable_channel.messaging.events import CustomEvent, EventName
from reliable_channel.messaging.idempotency import IdempotencyKey
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.port import TopicSubscriptions
from reliable_channel.messaging.records import NOT_STORED, MessageRecord
from reliable_channel.transport.base import NodeEvent, RequestId, SendFailed, Sent
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.envelopes import refuse_one_text
from reliable_channel.transport.health import HEALTHY_SERVICE_PEERS, MINIMAL_MESH_PEERS, Health, HealthState
from reliable_channel.transport.waku_json import hash_to_hex


class ConnectionStatus(StrEnum):
    """The node's connection to the network."""

    DISCONNECTED = "Disconnected"
    PARTIALLY_CONNECTED = "PartiallyConnected"
    CONNECTED = "Connected"


class TopicHealth(StrEnum):
    """The health of a content topic or a shard."""

    UNHEALTHY = "UNHEALTHY"
    MINIMALLY_HEALTHY = "MINIMALLY_HEALTHY"
    SUFFICIENTLY_HEALTHY = "SUFFICIENTLY_HEALTHY"
    NOT_SUBSCRIBED = "NOT_SUBSCRIBED"


class MessageSource(StrEnum):
    """How a message arrived: from the network as it was published, or from a store afterwards."""

    LIVE = "live"
    HISTORY = "history"


class _NamedEvent:
    name: ClassVar[str]


@dataclass(frozen=True)
class MessageReceivedEvent(_NamedEvent):
    """A message of a subscribed content topic arrived, for the first time. ``message_hash``: ``0x`` and 64 hex
    digits, as in all events."""

    name = "message_received"
    message_hash: str
    message: WakuMessage
    source: MessageSource


@dataclass(frozen=True)
class MessageSentEvent(_NamedEvent):
    """A store has the message; without store confirmation, and for an ephemeral message, a Waku node accepted it."""

    name = "message_sent"
    request_id: RequestId
    message_hash: str


@dataclass(frozen=True)
class MessagePropagatedEvent(_NamedEvent):
    """A Waku node accepted the message."""

    name = "message_propagated"
    request_id: RequestId
    message_hash: str


@dataclass(frozen=True)
class MessageErrorEvent(_NamedEvent):
    """The message was given up: no Waku node accepted it, no store has it, or it was cancelled."""

    name = "message_error"
    request_id: RequestId
    message_hash: str | None
    error: str


@dataclass(frozen=True)
class ConnectionStatusChange(_NamedEvent):
    """``EventConnectionStatusChange``."""

    name = "connection_status_change"
    connection_status: ConnectionStatus


@dataclass(frozen=True)
class ContentTopicHealthChange(_NamedEvent):
    """``EventContentTopicHealthChange``."""

    name = "content_topic_health_change"
    content_topic: str
    health: TopicHealth


@dataclass(frozen=True)
class ShardTopicHealthChange(_NamedEvent):
    """``EventShardTopicHealthChange``; ``topic`` is the pubsub topic."""

    name = "shard_topic_health_change"
    topic: str
    health: TopicHealth


MessageEvent: TypeAlias = MessageReceivedEvent | MessageSentEvent | MessagePropagatedEvent | MessageErrorEvent
HealthEvent: TypeAlias = ConnectionStatusChange | ContentTopicHealthChange | ShardTopicHealthChange
_Topic: TypeAlias = tuple[type[ContentTopicHealthChange | ShardTopicHealthChange], str]


@dataclass(frozen=True, slots=True)
class SubscriptionError:
    """Why one content topic was not subscribed or unsubscribed."""

    content_topic: str
    error: str


class SubscriptionsError(LocalError):
    """Some topics of a call failed for good: ``errors`` names each. The other topics of the call are done."""

    def __init__(self, errors: tuple[SubscriptionError, ...]) -> None:
        more = f" And {len(errors) - 5} more." if len(errors) > 5 else ""
        super().__init__(" ".join(f"{one.content_topic[:200]!r}: {one.error}" for one in errors[:5]) + more)
        self.errors = errors

    def __reduce__(self) -> tuple[type[SubscriptionsError], tuple[tuple[SubscriptionError, ...]]]:
        return type(self), (self.errors,)


class MessagingClient:
    """A node's messages and subscriptions by content topic. Its events are about every send of the node, also about
    those of reliable channels. Thread-safe."""

    def __init__(self, node: MessagingNode) -> None:
        check_type("node", node, MessagingNode)
        self._node = node
        self._topics = TopicSubscriptions(node)
        self.message_events: Dispatcher[MessageEvent] = Dispatcher("messages", get_args(MessageEvent))
        """Listeners of ``message_sent``, ``message_propagated``, ``message_error`` and ``message_received``."""
        self.health_events: Dispatcher[HealthEvent] = Dispatcher("health", get_args(HealthEvent))
        """Listeners of ``connection_status_change``, ``content_topic_health_change`` and
        ``shard_topic_health_change``."""
        self._status = ConnectionStatus.DISCONNECTED
        self._healths: dict[_Topic, TopicHealth] = {}
        node.port.add_listener(self._on_node)
        node.events.add_event_listener(EventName.MESSAGE_RECEIVED, self._on_received)
        node.events.add_event_listener(EventName.MESSAGE_STORED, self._on_stored)
        node.events.add_event_listener(EventName.MESSAGE_ERROR, self._on_error)
        node.health_reports.on(Health, call=self._on_health)
        self._on_health(node.health())

    def send(self, envelope: MessageEnvelope, *, key: IdempotencyKey | None = None) -> RequestId:
        """Schedule an envelope, and subscribe to its content topic. Returns the request id and raises as
        :meth:`MessagingNode.send` and :meth:`MessagingNode.subscribe`, and ``LocalError`` for no content topic."""
        topic = envelope.content_topic
        if topic not in self._topics:
            self._subscribe(topic)
            self._announce_topics()
        message = WakuMessage(envelope.payload, topic, meta=envelope.meta, ephemeral=envelope.ephemeral or None)
        return self._node.submit(message, self._node.pubsub_topic_for(topic), key=key)

    def subscribe(self, content_topics: Iterable[str]) -> None:
        """Receive the messages of these content topics; those subscribed already are left as they are. Raises
        :class:`SubscriptionsError`."""
        self._change(content_topics, self._subscribe)

    def unsubscribe(self, content_topics: Iterable[str]) -> None:
        """Receive no further messages of these content topics. Raises :class:`SubscriptionsError` naming those that
        were not subscribed."""
        self._change(content_topics, self._unsubscribe)

    @property
    def content_topics(self) -> frozenset[str]:
        """The content topics that are subscribed."""
        return self._topics.content_topics()

    @property
    def connection_status(self) -> ConnectionStatus:
        """The connection status as of the last event."""
        return self._status

    def content_topic_health(self, content_topic: str) -> TopicHealth:
        """The health of a content topic as of the last event."""
        return self._healths.get((ContentTopicHealthChange, content_topic), TopicHealth.NOT_SUBSCRIBED)

    # -- inside -------------------------------------------------------------------------------------------------

    def _change(self, content_topics: Iterable[str], change: Callable[[str], None]) -> None:
        refuse_one_text(content_topics)
        errors = []
        for topic in dict.fromkeys(content_topics):
            try:
                change(topic)
            except ReliableChannelError as error:
                errors.append(SubscriptionError(topic, error.cause))
        self._announce_topics()
        if errors:
            raise SubscriptionsError(tuple(errors))

    def _announce_topics(self) -> None:
        """Report the health of topics that were subscribed or unsubscribed, in the order of the node's events."""
        self._node.events.put(self._report_topic_health)
        self._node.events.drain()

    def _subscribe(self, topic: str) -> None:
        try:
            check_content_topic(topic)
        except ValueError as error:
            raise LocalError(f"{error}.") from None
        self._topics.add(topic)

    def _unsubscribe(self, topic: str) -> None:
        if not self._topics.remove(topic):
            raise LocalError("not subscribed.")

    def _awaits_store(self, message: WakuMessage) -> bool:
        return self._node.config.store_confirmation and not message.ephemeral

    def _on_node(self, event: NodeEvent) -> None:
        match event:
            case Sent():
                text = hash_to_hex(event.message_hash)
                self.message_events.emit(MessagePropagatedEvent(event.request_id, text))
                if not self._awaits_store(event.message):
                    self.message_events.emit(MessageSentEvent(event.request_id, text))
            case SendFailed():
                last = None if event.message_hash is None else hash_to_hex(event.message_hash)
                self.message_events.emit(MessageErrorEvent(event.request_id, last, event.detail))

    def _on_received(self, event: CustomEvent) -> None:
        record: MessageRecord = event.detail
        if record.message.content_topic in self._topics:
            source = MessageSource.HISTORY if record.from_store else MessageSource.LIVE
            self.message_events.emit(MessageReceivedEvent(record.hash_hex, record.message, source))

    def _on_stored(self, event: CustomEvent) -> None:
        record: MessageRecord = event.detail
        if record.request_id is not None and self._awaits_store(record.message):
            self.message_events.emit(MessageSentEvent(RequestId(record.request_id), record.hash_hex))

    def _on_error(self, event: CustomEvent) -> None:
        """Only an error that ends the wait for a store: those of attempts end in a ``SendFailed`` or in success."""
        record: MessageRecord = event.detail
        if record.request_id is not None and record.error is not None and record.error.startswith(NOT_STORED):
            self.message_events.emit(MessageErrorEvent(RequestId(record.request_id), record.hash_hex, record.error))

    def _on_health(self, report: Health) -> None:
        status = connection_status(self._node.config.mode, report)
        if status is not self._status:
            self._status = status
            self.health_events.emit(ConnectionStatusChange(status))
        self._report_topic_health()

    def _report_topic_health(self) -> None:
        """Emit what has changed since the last time. Only ever called in the order of the node's events."""
        health = topic_health(self._node.config.mode, self._node.health())
        topics = self._topics.content_topics()
        healths: dict[_Topic, TopicHealth] = {(ContentTopicHealthChange, topic): health for topic in topics}
        healths |= {(ShardTopicHealthChange, self._node.pubsub_topic_for(topic)): health for topic in topics}
        before, self._healths = self._healths, healths
        for kind, topic in sorted(before.keys() | healths.keys(), key=lambda one: (one[0].name, one[1])):
            now = healths.get((kind, topic), TopicHealth.NOT_SUBSCRIBED)
            if now is not before.get((kind, topic), TopicHealth.NOT_SUBSCRIBED):
                self.health_events.emit(kind(topic, now))


def connection_status(mode: Mode, report: Health) -> ConnectionStatus:
    """The connection status, from peers as logos-delivery counts them, or from the reporter's own state where it counts
    none. Relay peers suffice; an edge node needs peers for lightpush, filter and store, two of each to be connected."""
    if mode is Mode.RELAY and report.relay_peers is not None:
        fewest, many = report.relay_peers, MINIMAL_MESH_PEERS
    else:
        counts = (report.lightpush_peers, report.filter_peers, report.store_peers)
        known = [count for count in counts if count is not None]
        if mode is Mode.RELAY or not known:
            return _STATUS[report.state]
        fewest, many = min(known), HEALTHY_SERVICE_PEERS
    if fewest == 0:
        return ConnectionStatus.DISCONNECTED
    return ConnectionStatus.CONNECTED if fewest >= many else ConnectionStatus.PARTIALLY_CONNECTED


def topic_health(mode: Mode, report: Health) -> TopicHealth:
    """The health of every subscribed topic, since Waku nodes report their peers and not those of a shard: relay peers
    (four are sufficient) or filter peers (two are), or the reporter's own state where it counts none."""
    peers, enough = (
        (report.relay_peers, MINIMAL_MESH_PEERS) if mode is Mode.RELAY else (report.filter_peers, HEALTHY_SERVICE_PEERS)
    )
    if peers is None:
        return _TOPIC_HEALTH[report.state]
    if peers == 0:
        return TopicHealth.UNHEALTHY
    return TopicHealth.SUFFICIENTLY_HEALTHY if peers >= enough else TopicHealth.MINIMALLY_HEALTHY


_STATUS = dict(zip(HealthState, ConnectionStatus, strict=True))
_TOPIC_HEALTH = dict(zip(HealthState, list(TopicHealth)[:3], strict=True))  # all but NOT_SUBSCRIBED
