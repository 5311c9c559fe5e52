"""The node port of a messaging node: what a reliable channel dispatches its envelopes through."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from reliable_channel.core.rate_limit import RateLimitConfig, Traffic
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.codec import PlainDecoder
from reliable_channel.messaging.subscriptions import SubscriptionId
from reliable_channel.transport.base import Listener, Node, NodeEvent, Received, RequestId
from reliable_channel.transport.dispatch_limit import Count
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.envelopes import refuse_one_text
from reliable_channel.transport.health import Health
from reliable_channel.transport.store.model import StorePage, StoreQuery

if TYPE_CHECKING:
    from reliable_channel.messaging.node import MessagingNode


class TopicSubscriptions:
    """Content topics that one caller has subscribed to at a messaging node, each once. Thread-safe."""

    def __init__(self, messaging: MessagingNode) -> None:
        self._messaging = messaging
        self._ids: dict[str, SubscriptionId] = {}
        self._lock = threading.Lock()

    def add(self, content_topic: str) -> None:
        """Subscribe; a topic subscribed already stays as it is. Raises ``UnsupportedTopicError`` and
        ``SubscriptionLimitError``."""
        if content_topic in self:
            return
        decoder = PlainDecoder(self._messaging.pubsub_topic_for(content_topic), content_topic)
        own = self._messaging.subscribe(decoder, listed=False)
        with self._lock:
            kept = self._ids.setdefault(content_topic, own)
        if kept != own:  # another thread was faster
            self._messaging.unsubscribe(own)

    def remove(self, content_topic: str) -> bool:
        """Unsubscribe; False for a topic that is not subscribed."""
        with self._lock:
            ended = self._ids.pop(content_topic, None)
        if ended is not None:
            self._messaging.unsubscribe(ended)
        return ended is not None

    def content_topics(self) -> frozenset[str]:
        """All of them."""
        with self._lock:
            return frozenset(self._ids)

    def __contains__(self, content_topic: str) -> bool:
        return content_topic in self._ids


class NodePort:
    """A :class:`~reliable_channel.transport.base.Node` over a messaging node and its ``transport``. Envelopes become
    requests with records and retries; a subscription by content topics is one of the messaging node's. Thread-safe."""

    retries_sends = True
    """Tells the reliable channel that a failed send was retried here, so that it does not do so again."""

    def __init__(self, messaging: MessagingNode, transport: Node) -> None:
        self._messaging = messaging
        self._transport = transport
        self._listeners: Dispatcher[NodeEvent] = Dispatcher()
        self._topics = TopicSubscriptions(messaging)

    def start(self) -> None:
        """Start the messaging node."""
        self._messaging.start()

    def stop(self) -> None:
        """Stop the messaging node."""
        self._messaging.stop()

    def send(
        self,
        message: WakuMessage,
        pubsub_topic: str | None = None,
        *,
        max_wait_s: float | None = None,
        traffic: Traffic = Traffic.FIRST_SEGMENT,
    ) -> RequestId:
        """Schedule an envelope; never waits. Raises as :meth:`MessagingNode.send`."""
        topic = pubsub_topic or self.pubsub_topic_for(message.content_topic)
        # Channels hold their locks, which listeners may need.
        return self._messaging.submit(message, topic, traffic=traffic, drain=False)

    def withdraw(self, request_id: RequestId) -> bool:
        """Take back a send that waits here or for the rate limit of the transport."""
        return self._messaging.withdraw(request_id)

    def limit_rate(self, config: RateLimitConfig, count: Count | None = None) -> None:
        """Dispatch within this rate limit, as far as the transport dispatches itself."""
        self._transport.limit_rate(config, count)

    def subscribe(self, content_topics: Collection[str]) -> None:
        """Subscribe to these content topics as well. Raises ``UnsupportedTopicError`` and
        ``SubscriptionLimitError``."""
        refuse_one_text(content_topics)
        for topic in content_topics:
            self._topics.add(topic)

    def unsubscribe(self, content_topics: Collection[str]) -> None:
        """Unsubscribe; topics not subscribed are ignored."""
        refuse_one_text(content_topics)
        for topic in content_topics:
            self._topics.remove(topic)

    def query_store(self, query: StoreQuery) -> StorePage:
        """One page from a store. Raises ``StoreUnavailable``."""
        return self._transport.query_store(query)

    def health(self) -> Health:
        """The health with its evidence."""
        return self._messaging.health()

    def pubsub_topic_for(self, content_topic: str) -> str:
        """As :meth:`MessagingNode.pubsub_topic_for`."""
        return self._messaging.pubsub_topic_for(content_topic)

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` with every later event."""
        self._listeners.on(object, call=listener)

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener; unknown ones are ignored."""
        self._listeners.remove(object, listener)

    def announce(self, event: NodeEvent) -> None:
        """Call the listeners; with a received envelope only if its topic was subscribed here."""
        if not isinstance(event, Received) or event.envelope.message.content_topic in self._topics:
            self._listeners.emit(event)
