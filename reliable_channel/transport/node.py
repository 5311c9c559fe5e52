"""Implements the common part of all nodes: listeners, subscriptions, request ids, timestamps, health changes."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection
from dataclasses import dataclass, replace

from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.core.rate_limit import Delayed, EphemeralDropped, LimitApproaching, RateLimitConfig, Traffic
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.base import (
    FailureReason,
    HealthChanged,
    Listener,
    NodeEvent,
    NodeStoppedError,
    RateLimitNear,
    RequestId,
    SendDelayed,
    SendFailed,
    Sent,
    StoreUnavailable,
)
from reliable_channel.transport.clock import Clock, SystemClock, Timestamps, now_ms
from reliable_channel.transport.dispatch_limit import Count, DispatchLimit
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.envelopes import check_envelope, refuse_one_text
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.sharding import PubsubTopics
from reliable_channel.transport.store.model import StorePage, StoreQuery, StoreQuerying

MAX_DETAIL = 300
"""Characters of a peer's error text that are kept."""


def new_request_id() -> RequestId:
    """A fresh GUID (MESSAGING-API, *RequestID*)."""
    return RequestId(str(uuid.uuid4()))


@dataclass(frozen=True, slots=True)
class Accepted:
    """A send that is on its way to the network."""

    request_id: RequestId
    message: WakuMessage
    pubsub_topic: str
    traffic: Traffic


class NodeBase:
    """Shared parts of a :class:`~reliable_channel.transport.base.Node`. Subclasses do the I/O and start the thread that
    calls the listeners, named after ``name``; those that dispatch themselves do so within ``_limit``. ``store`` answers
    ``query_store``."""

    store: StoreQuerying | None = None

    def __init__(self, pubsub_topics: PubsubTopics, clock: Clock | None = None, name: str = "node") -> None:
        self._pubsub_topics = pubsub_topics
        self._clock: Clock = clock or SystemClock()
        self._timestamps = Timestamps(self._clock)
        self._dispatcher: Dispatcher[NodeEvent] = Dispatcher(name)
        self._subscribed: frozenset[str] = frozenset()
        self._lock = threading.RLock()
        self._health = Health(HealthState.UNHEALTHY, "not started")
        self._limit: DispatchLimit[Accepted] = DispatchLimit()
        self._started = False

    def limit_rate(self, config: RateLimitConfig, count: Count | None = None) -> None:
        """Dispatch within this rate limit, counted in ``count`` when the counts given before are closed. The default
        configuration sets no limit. Raises ``ConfigurationError`` when the node already has another limit, because a
        membership has only one."""
        with self._lock:
            if config not in (RateLimitConfig(), self._limit.config):
                if self._limit.config != RateLimitConfig():
                    raise ConfigurationError(
                        "Two channels of one node have different rate limits.",
                        "Give all channels of a node the same rate_limit: a membership has one.",
                    )
                self._limit.configure(config)
            if count is not None:
                self._limit.add_count(count)

    def query_store(self, query: StoreQuery) -> StorePage:
        if self.store is None:
            raise StoreUnavailable("No store node is configured.", "Set store.nodes.")
        return self.store.query(query)

    def withdraw(self, request_id: RequestId) -> bool:
        return self._limit.withdraw(lambda one: one.request_id == request_id)

    def add_listener(self, listener: Listener) -> None:
        self._dispatcher.on(object, call=listener)

    def remove_listener(self, listener: Listener) -> None:
        self._dispatcher.remove(object, listener)

    def subscribe(self, content_topics: Collection[str]) -> None:
        refuse_one_text(content_topics)
        for topic in content_topics:
            try:
                is_topic = bool(topic.encode())
            except (AttributeError, UnicodeEncodeError):  # where it is read, it would end the thread
                is_topic = False
            if not is_topic:
                raise LocalError("A content topic is a text that UTF-8 can write, and not empty.")
            self.pubsub_topic_for(topic)  # a topic without a place here is the caller's mistake, and reported at once
        with self._lock:
            self._subscribed |= frozenset(content_topics)

    def unsubscribe(self, content_topics: Collection[str]) -> None:
        refuse_one_text(content_topics)
        with self._lock:
            self._subscribed -= frozenset(content_topics)

    @property
    def subscribed(self) -> frozenset[str]:
        """The content topics received now."""
        return self._subscribed

    def health(self) -> Health:
        return self._health

    def pubsub_topic_for(self, content_topic: str) -> str:
        return self._pubsub_topics.topic_for(content_topic)

    def send(
        self,
        message: WakuMessage,
        pubsub_topic: str | None = None,
        *,
        max_wait_s: float | None = None,
        traffic: Traffic = Traffic.FIRST_SEGMENT,
    ) -> RequestId:
        if not self._started:
            raise self._make_stopped_error()
        check_envelope(message, pubsub_topic)
        if not isinstance(message.payload, bytes):
            message = replace(message, payload=bytes(message.payload))  # its buffer may change before it is sent
        topic = pubsub_topic or self.pubsub_topic_for(message.content_topic)
        # An envelope marked ephemeral counts as ephemeral for the limit.
        accepted = Accepted(new_request_id(), message, topic, Traffic.EPHEMERAL if message.ephemeral else traffic)
        self._submit(accepted, max_wait_s)
        return accepted.request_id

    def _submit(self, accepted: Accepted, max_wait_s: float | None) -> None:
        """Put a send on its way to the network. Raises as ``Node.send``."""

    def _stamp(self, message: WakuMessage) -> WakuMessage:
        """The envelope as dispatched now."""
        return message if message.timestamp is not None else replace(message, timestamp=self._timestamps.next_ns())

    def _report_sent(self, request_id: RequestId, message: WakuMessage, pubsub_topic: str) -> Sent:
        return Sent(request_id, message, pubsub_topic, message_hash(pubsub_topic, message), now_ms(self._clock))

    def _report_failed(
        self, request_id: RequestId, reason: FailureReason, detail: str, envelope_hash: bytes | None = None
    ) -> SendFailed:
        return SendFailed(request_id, reason, detail[:MAX_DETAIL], now_ms(self._clock), envelope_hash)

    def _report_limit(self, event: Delayed[Accepted] | EphemeralDropped[Accepted] | LimitApproaching) -> None:
        """Report the rate limit's decisions other than dispatch to the listeners."""
        match event:
            case Delayed(one, until):
                self._emit(SendDelayed(one.request_id, until, now_ms(self._clock)))
            case EphemeralDropped(one, used, limit):
                detail = f"{used} of {limit} envelopes of this epoch are used"
                failed = self._report_failed(one.request_id, FailureReason.DROPPED, detail)
                self._emit(replace(failed, utilization=used / limit))
            case LimitApproaching(used, limit, until):
                self._emit(RateLimitNear(used, limit, until))

    def _set_health(self, health: Health) -> None:
        """Keep the newest evidence; one event per change of state."""
        with self._lock:
            changed = health.state != self._health.state
            self._health = health
        if changed:
            self._emit(HealthChanged(health))

    def _emit(self, event: NodeEvent) -> None:
        """Call the listeners on the dispatcher's thread, after every event before it."""
        self._dispatcher.put(lambda: self._dispatcher.emit(event))

    @staticmethod
    def _make_stopped_error() -> NodeStoppedError:
        return NodeStoppedError("The node is not started.", "Call start() first.")
