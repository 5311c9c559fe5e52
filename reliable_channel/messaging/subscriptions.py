"""Keeps the subscriptions (MESSAGING-API, *Subscribe*), and computes the topics that the node must join for them.

Values and bookkeeping; receiving itself is ``receiving``, the recurring store query ``confirmation``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import NewType, TypeAlias

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.messaging.codec import Decoder
from reliable_channel.messaging.records import MessageRecord

SubscriptionId = NewType("SubscriptionId", str)
"""A GUID as text."""

SubscriptionListener: TypeAlias = Callable[[MessageRecord], object]
"""Called with each newly received record; a coroutine that it returns is run."""

TopicPair: TypeAlias = tuple[str, str]
"""Pubsub topic and content topic."""


class SubscriptionLimitError(EnvironmentFault):
    """The configured maximum of subscriptions is active already."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One active subscription. ``listens`` asks for messages from the network, ``confirms`` for the recurring store
    query; ``since_ms`` (Unix ms) is when it began; ``listed``: callers see its id."""

    subscription_id: SubscriptionId
    decoders: tuple[Decoder, ...]
    listener: SubscriptionListener | None
    listens: bool
    confirms: bool
    since_ms: int
    listed: bool = True

    @property
    def topics(self) -> frozenset[TopicPair]:
        """The pairs it covers."""
        return frozenset((decoder.pubsub_topic, decoder.content_topic) for decoder in self.decoders)


class Subscriptions:
    """The active subscriptions, in the order in which they were made. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._active: dict[str, Subscription] = {}
        self._listening: dict[TopicPair, list[Subscription]] = {}
        self._lock = threading.Lock()

    def add(self, subscription: Subscription) -> frozenset[str]:
        """Register a subscription; returns the content topics that the node must now listen to.

        Raises :class:`SubscriptionLimitError`."""
        with self._lock:
            if len(self._active) >= self._limit:
                raise SubscriptionLimitError(f"{self._limit} subscriptions are active.", "End some first.")
            before = self._list_topics()
            self._active[subscription.subscription_id] = subscription
            for pair in subscription.topics if subscription.listens else ():
                self._listening.setdefault(pair, []).append(subscription)
            return self._list_topics() - before

    def remove(self, subscription_id: str) -> frozenset[str]:
        """Remove a subscription; returns the content topics that have no listener any more. Empty for unknown ids."""
        with self._lock:
            subscription = self._active.pop(subscription_id, None)
            if subscription is None or not subscription.listens:
                return frozenset()
            before = self._list_topics()
            for pair in subscription.topics:
                self._listening[pair].remove(subscription)
                if not self._listening[pair]:
                    del self._listening[pair]
            return before - self._list_topics()

    def ids(self) -> list[SubscriptionId]:
        """The ids of all active subscriptions that are listed."""
        return [one.subscription_id for one in self._list_active() if one.listed]

    def __contains__(self, subscription_id: object) -> bool:
        """Whether a subscription is active."""
        return subscription_id in self._active

    def _list_active(self) -> tuple[Subscription, ...]:
        """All active subscriptions."""
        with self._lock:
            return tuple(self._active.values())

    def find_by_topic(self, pubsub_topic: str, content_topic: str) -> list[Subscription]:
        """The subscriptions that receive messages of this pair from the network."""
        with self._lock:
            return [*self._listening.get((pubsub_topic, content_topic), ())]

    def list_topics_to_confirm(self) -> dict[TopicPair, int]:
        """The pairs that the recurring store query asks for, each since the earliest of its subscriptions (Unix ms)."""
        since_by_topics: dict[TopicPair, int] = {}
        for one in self._list_active():
            for pair in one.topics if one.confirms else ():
                since_by_topics[pair] = min(one.since_ms, since_by_topics.get(pair, one.since_ms))
        return since_by_topics

    def content_topics(self) -> frozenset[str]:
        """All content topics that the node must listen to now."""
        with self._lock:
            return self._list_topics()

    def _list_topics(self) -> frozenset[str]:
        return frozenset(content_topic for _, content_topic in self._listening)
