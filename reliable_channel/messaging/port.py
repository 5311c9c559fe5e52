"""The node port of a messaging node: what a reliable channel dispatches its envelopes through."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import TYPE_CHECKING

from reliable_channel.core.errors import LocalError
from reliable_channel.core.rate_limit import RateLimitConfig, Traffic
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.codec import PlainDecoder
from reliable_channel.messaging.subscriptions import SubscriptionId
from reliable_channel.transport.base import Listener, Node, NodeEvent, Received, RequestId
from reliable_channel.transport.dispatch_limit import Count
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.health import Health
from reliable_channel.transport.store.model import StorePage, StoreQuery

if TYPE_CHECKING:
    from reliable_channel.messaging.node import MessagingNode


class NodePort:
    """A :class:`~reliable_channel.transport.base.Node` over a messaging node and its ``transport``. Envelopes become
    requests with records and retries; a subscription by content topics is one of the messaging node's. Thread-safe."""

    retries_sends = True
    """Tells the reliable channel that a failed send was retried here, so that it does not do so again."""

    def __init__(self, messaging: MessagingNode, transport: Node) -> None:
        self._messaging = messaging
        self._transport = transport
        self._listeners: Dispatcher[NodeEvent] = Dispatcher()
        self._topics: dict[str, SubscriptionId] = {}
        self._lock = threading.Lock()

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
        return self._messaging.submit(message, topic, traffic=traffic)

    def withdraw(self, request_id: RequestId) -> bool:
        """Take back a send that waits for the rate limit of the transport."""
        return self._messaging.withdraw(request_id)

    def limit_rate(self, config: RateLimitConfig, count: Count | None = None) -> None:
        """Dispatch within this rate limit, as far as the transport dispatches itself."""
        self._transport.limit_rate(config, count)

    def subscribe(self, content_topics: Collection[str]) -> None:
        """Subscribe to these content topics as well. Raises ``UnsupportedTopicError`` and
        ``SubscriptionLimitError``."""
        if isinstance(content_topics, str):
            raise LocalError("subscribe takes a collection of content topics, not one text.")
        for topic in dict.fromkeys(content_topics):
            if topic not in self._topics:
                subscription_id = self._messaging.subscribe(PlainDecoder(self.pubsub_topic_for(topic), topic))
                with self._lock:
                    self._topics[topic] = subscription_id

    def unsubscribe(self, content_topics: Collection[str]) -> None:
        """Unsubscribe; topics not subscribed are ignored."""
        if isinstance(content_topics, str):
            raise LocalError("unsubscribe takes a collection of content topics, not one text.")
        with self._lock:
            ended = [self._topics.pop(topic) for topic in dict.fromkeys(content_topics) if topic in self._topics]
        for subscription_id in ended:
            self._messaging.unsubscribe(subscription_id)

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
