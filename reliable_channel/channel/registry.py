"""What the channels of one node share: topic subscriptions and the rate limit."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING

from reliable_channel.channel.errors import ChannelExistsError
from reliable_channel.channel.limits import KeepsValues, NodeRateLimit
from reliable_channel.channel.persistence import ChannelKey
from reliable_channel.errors import ConfigurationError
from reliable_channel.rate_limit import RateLimitConfig
from reliable_channel.transport.base import Node

if TYPE_CHECKING:
    from reliable_channel.channel.channel import ReliableChannel


class NodeChannels:
    """The open channels of one node. Thread-safe."""

    def __init__(self, node: Node) -> None:
        self._node = weakref.ref(node)
        self._lock = threading.RLock()
        self._channels: dict[ChannelKey, ReliableChannel | None] = {}
        self._topics: Counter[str] = Counter()
        self._limit: NodeRateLimit | None = None

    def limit(self, config: RateLimitConfig, kept: KeepsValues) -> NodeRateLimit:
        """The node's one counter. A channel without a limit takes part in no other's; two limits are an error."""
        if not config.enabled:
            return NodeRateLimit(config, kept)
        with self._lock:
            if self._limit is None or not self._channels:
                self._limit = NodeRateLimit(config, kept)
            elif self._limit.config != config:
                raise ConfigurationError(
                    "Two channels of one node have different rate limits.",
                    "Give all channels of a node the same rate_limit: a membership has one.",
                )
            return self._limit

    def reserve(self, key: ChannelKey) -> None:
        """Claim a channel. Raises :class:`ChannelExistsError`."""
        with self._lock:
            if key in self._channels:
                raise ChannelExistsError(
                    f"Channel {key.channel_id!r} is open already for sender {key.sender_id!r}.",
                    "Use the open handle, or close it first.",
                )
            self._channels[key] = None

    def opened(self, key: ChannelKey, channel: ReliableChannel) -> None:
        with self._lock:
            self._channels[key] = channel

    def release(self, key: ChannelKey) -> None:
        """Give a channel up; harmless when called twice."""
        with self._lock:
            self._channels.pop(key, None)

    def subscribe(self, content_topic: str) -> None:
        """One more channel listens on a topic."""
        node = self._node()
        with self._lock:
            self._topics[content_topic] += 1
            if self._topics[content_topic] == 1 and node is not None:
                node.subscribe([content_topic])

    def unsubscribe(self, content_topic: str) -> None:
        """One channel fewer; the last one unsubscribes."""
        node = self._node()
        with self._lock:
            self._topics[content_topic] -= 1
            if self._topics[content_topic] <= 0:
                del self._topics[content_topic]
                if node is not None:
                    node.unsubscribe([content_topic])

    def find(self, channel_id: str, content_topic: str) -> ReliableChannel | None:
        """An open channel by its id and topic."""
        with self._lock:
            for key, channel in self._channels.items():
                if key.channel_id == channel_id and key.content_topic == content_topic:
                    return channel
        return None


_nodes: weakref.WeakKeyDictionary[Node, NodeChannels] = weakref.WeakKeyDictionary()
_nodes_lock = threading.Lock()


def channels_of(node: Node) -> NodeChannels:
    """The registry of a node, made at its first channel."""
    with _nodes_lock:
        known = _nodes.get(node)
        if known is None:
            known = _nodes[node] = NodeChannels(node)
        return known
