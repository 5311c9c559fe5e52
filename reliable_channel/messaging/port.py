"""Manages the listeners and subscriptions of the node port, beside those of MESSAGING-API."""

from __future__ import annotations

import threading
from collections.abc import Collection

from reliable_channel.messaging.subscriptions import SubscriptionId
from reliable_channel.transport.base import NodeEvent
from reliable_channel.transport.dispatcher import Dispatcher


class Port:
    """The listeners of node events, and the subscription of each content topic."""

    def __init__(self) -> None:
        self.listeners: Dispatcher[NodeEvent] = Dispatcher()
        self._topics: dict[str, SubscriptionId] = {}
        self._lock = threading.Lock()

    def wanted(self, content_topics: Collection[str]) -> list[str]:
        """Those of ``content_topics`` that have no subscription yet."""
        with self._lock:
            return [topic for topic in dict.fromkeys(content_topics) if topic not in self._topics]

    def subscribed(self, content_topic: str, subscription_id: SubscriptionId) -> None:
        """Remember the subscription of a content topic."""
        with self._lock:
            self._topics[content_topic] = subscription_id

    def unsubscribed(self, content_topics: Collection[str]) -> list[SubscriptionId]:
        """Forget them; the subscriptions that stood for them."""
        with self._lock:
            found = [self._topics.pop(topic, None) for topic in dict.fromkeys(content_topics)]
        return [subscription_id for subscription_id in found if subscription_id is not None]

    def wants(self, content_topic: str) -> bool:
        """Whether the port's listeners receive this content topic."""
        return content_topic in self._topics
