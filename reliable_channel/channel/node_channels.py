"""The open channels of one node: which there are, and which of them hears what of the node."""

from __future__ import annotations

import threading
import weakref
from dataclasses import replace

from reliable_channel.channel.channel import ReliableChannel
from reliable_channel.channel.config import ChannelDefaults
from reliable_channel.channel.cycle import ChannelCycle, Result
from reliable_channel.channel.errors import ChannelExistsError
from reliable_channel.channel.persistence import ChannelKey
from reliable_channel.channel.retrieval import (
    StoreCheck,
    StoredHashes,
    StoreEnvelopes,
    StoreFailure,
    StoreResult,
    StoreRetrieval,
    TimeRange,
)
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_sds_message
from reliable_channel.transport.base import HealthChanged, Node, NodeEvent, Received, ReceivedEnvelope, Sent
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.health import HealthState


class TopicChannels:
    """What the channels of one content topic of a node share: their envelopes, and the queries of stores for them.
    ``clock``: that of its first channel."""

    def __init__(self, node: Node, key: ChannelKey, clock: Clock, threaded: bool) -> None:
        self._clock = clock
        self.cycles: tuple[ChannelCycle, ...] = ()
        """The channels that are started. Replaced, not changed: other threads read it without a lock."""
        self.retrieval = StoreRetrieval(
            node, key.pubsub_topic, key.content_topic, self._on_store_result, threaded=threaded
        )
        self.check = StoreCheck(self.retrieval)
        self._away_since: int | None = None
        """Since when (Unix ms) the node is unhealthy."""

    def receive(self, envelope: ReceivedEnvelope) -> None:
        """Give an envelope to the channels that may read it. What one of them had no room for, a later check of the
        store fetches."""
        accepted = [cycle.offer(envelope) for cycle in self._find_readers(envelope)]
        if all(accepted):
            self.note_hash(envelope.message_hash)

    def follow_health(self, state: HealthState) -> None:
        """Note since when the node is away; once it is back, query a store for what was missed, all channels in one
        query."""
        if state is HealthState.UNHEALTHY:
            if self._away_since is None:
                self._away_since = now_ms(self._clock)
            return
        # Not since the last activity: what waited for the node leaves, and what is new arrives, before it says so.
        away_since, self._away_since = self._away_since or now_ms(self._clock), None
        for cycle in self.cycles:
            cycle.catch_up(away_since)

    def report(self, result: Result) -> None:
        """Tell all channels."""
        for cycle in self.cycles:
            cycle.report(result)

    def note_hash(self, message_hash: bytes) -> None:
        """Note an envelope that arrived or was sent: no check fetches it."""
        self.check.note_hash(message_hash, now_ms(self._clock))

    def _on_store_result(self, result: StoreResult) -> None:
        match result:
            case StoreEnvelopes(envelopes):
                per_cycle: dict[ChannelCycle, list[ReceivedEnvelope]] = {}
                for envelope in envelopes:
                    for cycle in self._find_readers(envelope):
                        per_cycle.setdefault(cycle, []).append(envelope)
                accepted = [cycle.put_stored(stored) for cycle, stored in per_cycle.items()]
                if all(accepted):
                    for envelope in envelopes:
                        self.note_hash(envelope.message_hash)
            case StoredHashes():
                self.check.fetch_unknown(result)
            case TimeRange():
                self.check.note_range(result)
            case StoreFailure():
                self.check.note_failure()
                if result.is_new:  # look-ups and checks never end
                    self.report(result)

    def _find_readers(self, envelope: ReceivedEnvelope) -> list[ChannelCycle]:
        """The channels whose message it may be. Only one that encrypts can find out whether it is its own."""
        cycles = self.cycles
        if len(cycles) == 1:
            return list(cycles)
        now = now_ms(self._clock)
        named: dict[WireFamily, str | None] = {}
        readers: list[ChannelCycle] = []
        for cycle in cycles:
            family = cycle.plain_family
            if family is not None and family not in named:
                message = decode_sds_message(envelope.message.payload, family)
                named[family] = None if isinstance(message, Malformed) else message.channel_id
            if family is None or named[family] in (None, cycle.key.channel_id):
                readers.append(cycle)
            else:
                cycle.heard_at = now
        return readers


class NodeChannels:
    """The open channels of one node, their subscriptions, and the one listener of the node that passes its events on to
    them. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._channels: dict[str, dict[ChannelKey, ReliableChannel | None]] = {}
        """By content topic."""
        self._topics: dict[str, TopicChannels] = {}
        self._listening: dict[str, TopicChannels] = {}
        """Those with a started channel. Replaced, not changed: the node's thread reads it without the lock."""
        self.defaults: ChannelDefaults | None = None
        """The configuration of the node, without a reference to the node itself, which would keep it from being
        collected."""

    def reserve(self, key: ChannelKey) -> None:
        """Claim a channel. Raises :class:`ChannelExistsError`."""
        with self._lock:
            of_topic = self._channels.setdefault(key.content_topic, {})
            if key in of_topic:
                raise ChannelExistsError(
                    f"Channel {key.channel_id!r} is open already for sender {key.sender_id!r}.",
                    "Use the open handle, or close it first.",
                )
            of_topic[key] = None

    def add(self, key: ChannelKey, channel: ReliableChannel) -> None:
        with self._lock:
            self._channels[key.content_topic][key] = channel

    def release(self, key: ChannelKey) -> None:
        """Release a channel; harmless when called twice."""
        with self._lock:
            of_topic = self._channels.get(key.content_topic, {})
            of_topic.pop(key, None)
            if not of_topic:
                self._channels.pop(key.content_topic, None)
                self._topics.pop(key.content_topic, None)

    def find_topic(self, node: Node, key: ChannelKey, clock: Clock, threaded: bool) -> TopicChannels:
        """What the channels of a content topic share; its first channel creates it."""
        with self._lock:
            topic = self._topics.get(key.content_topic)
            if topic is None:
                topic = self._topics[key.content_topic] = TopicChannels(node, key, clock, threaded)
            return topic

    def subscribe(self, topic: TopicChannels, cycle: ChannelCycle) -> None:
        """Let a channel hear its topic; the first one of a topic subscribes."""
        with self._lock:
            first_of_node, first_of_topic = not self._listening, not topic.cycles
            self._add(topic, cycle)  # first: what the subscription brings comes at once
            try:
                if first_of_node:
                    cycle.node.add_listener(self._on_event)
                if first_of_topic:
                    cycle.node.subscribe([cycle.key.content_topic])
            except BaseException:
                self._remove(topic, cycle)
                raise

    def unsubscribe(self, topic: TopicChannels, cycle: ChannelCycle) -> None:
        """Let a channel hear no more; the last one of a topic unsubscribes."""
        with self._lock:
            self._remove(topic, cycle)
            if not topic.cycles:
                cycle.node.unsubscribe([cycle.key.content_topic])

    def _add(self, topic: TopicChannels, cycle: ChannelCycle) -> None:
        cycle.listens = True
        topic.cycles = (*topic.cycles, cycle)
        self._listening = {**self._listening, cycle.key.content_topic: topic}

    def _remove(self, topic: TopicChannels, cycle: ChannelCycle) -> None:
        cycle.unsure_since = topic.check.unsure_since  # first: what comes from now on is not taken
        cycle.listens = False
        topic.cycles = tuple(one for one in topic.cycles if one is not cycle)
        if not topic.cycles:
            listening = self._listening.copy()
            listening.pop(cycle.key.content_topic, None)
            self._listening = listening
        if not self._listening:
            cycle.node.remove_listener(self._on_event)

    def find(self, channel_id: str, content_topic: str) -> ReliableChannel | None:
        """An open channel by its id and topic."""
        with self._lock:
            for key, channel in self._channels.get(content_topic, {}).items():
                if key.channel_id == channel_id:
                    return channel
        return None

    def _on_event(self, event: NodeEvent) -> None:
        """Pass an event of the node on to the channels that it concerns: with a thousand channels, waking all of them
        for each envelope, or reading it in each, takes seconds of CPU."""
        match event:
            case Received(envelope):
                topic = self._listening.get(envelope.message.content_topic)
                if topic is not None:
                    topic.receive(envelope)
            case Sent(message=message):
                topic = self._listening.get(message.content_topic)
                if topic is not None:
                    topic.note_hash(event.message_hash)
                    # Without the payload, of which a busy channel would hold that of every envelope in flight.
                    topic.report(replace(event, message=replace(message, payload=b"")))
            case HealthChanged(health):
                for topic in self._listening.values():
                    topic.follow_health(health.state)
            case _:
                for topic in self._listening.values():
                    topic.report(event)


# Beside the nodes, because a node is any object with the methods of the protocol: it has no attribute for this.
_nodes: weakref.WeakKeyDictionary[Node, NodeChannels] = weakref.WeakKeyDictionary()
_nodes_lock = threading.Lock()


def channels_of(node: Node) -> NodeChannels:
    """The open channels of a node; its first channel creates the registry."""
    with _nodes_lock:
        return _nodes.setdefault(node, NodeChannels())
