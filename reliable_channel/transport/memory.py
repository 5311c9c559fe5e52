"""Simulates a network in one process: deterministic loss, duplication and delay, under the test's control.

No threads and no sleeping: ``send`` puts deliveries into a queue ordered by time, :meth:`MemoryNetwork.pump` delivers
what is due, :meth:`MemoryNetwork.run` lets time pass. Listeners run on the pumping thread.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

from reliable_channel.core.rate_limit import Admitted, EphemeralDropped, RateLimitEvent
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.base import (
    FailureReason,
    NodeEvent,
    Received,
    ReceivedEnvelope,
    RequestId,
    Source,
)
from reliable_channel.transport.clock import Clock, ManualClock, now_ms
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.node import Accepted, NodeBase
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.sharding import NamedTopic, PubsubTopics
from reliable_channel.transport.store.source import MemorySource

DEFAULT_PUBSUB_TOPIC = "/waku/2/rs/0/0"

Link = Callable[[str, str, WakuMessage], Sequence[float]]
"""(sender, receiver, envelope) → delays in ms, one per copy that arrives: empty is a loss, two are a duplicate."""


def perfect_link(sender: str, receiver: str, message: WakuMessage) -> Sequence[float]:
    """Everything arrives once, at once."""
    return (0.0,)


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """Independent faults per delivery: probabilities in [0, 1], delays in ms, drawn from ``seed``."""

    loss: float = 0.0
    duplication: float = 0.0
    min_delay_ms: float = 0.0
    max_delay_ms: float = 0.0
    seed: int = 0

    def link(self) -> Link:
        """A link with these faults; reordering comes from the spread of the delays."""
        rng = random.Random(self.seed)  # noqa: S311 — a simulation, and it must be repeatable

        def deliveries(sender: str, receiver: str, message: WakuMessage) -> Sequence[float]:
            if rng.random() < self.loss:
                return ()
            copies = 2 if rng.random() < self.duplication else 1
            return [rng.uniform(self.min_delay_ms, self.max_delay_ms) for _ in range(copies)]

        return deliveries


class MemoryNetwork:
    """All nodes, the envelopes between them, and a store that keeps envelopes that are not ephemeral.

    ``link`` decides about every delivery and may be replaced at any time; ``gossip_seen`` holds message hashes already
    relayed: like gossip, equal envelopes are accepted and not delivered again. Not thread-safe, except for one pumping
    thread.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        link: Link = perfect_link,
        pubsub_topics: PubsubTopics | None = None,
    ) -> None:
        self.clock: Clock = clock or ManualClock()
        self.link = link
        self.pubsub_topics: PubsubTopics = pubsub_topics or NamedTopic(DEFAULT_PUBSUB_TOPIC)
        self.store = MemorySource()
        self.store_keeps: Callable[[WakuMessage], bool] = lambda message: not message.ephemeral
        self.gossip_seen = RecentHashes()
        self._nodes: dict[str, MemoryNode] = {}
        self._queue: list[tuple[int, int, Callable[[], None]]] = []
        self._order = count()

    def node(self, name: str) -> MemoryNode:
        """The node of that name, made on first use."""
        if name not in self._nodes:
            self._nodes[name] = MemoryNode(self, name)
        return self._nodes[name]

    def publish(self, sender: str, message: WakuMessage, pubsub_topic: str) -> None:
        """Give one envelope to the network, as a node or as a stranger who is not one."""
        envelope_hash = message_hash(pubsub_topic, message)
        if not self.gossip_seen.add(envelope_hash):
            return
        if self.store_keeps(message):
            self.store.add(pubsub_topic, message)
        for name, node in list(self._nodes.items()):
            if name == sender:
                continue
            for delay_ms in self.link(sender, name, message):
                self.schedule(delay_ms, lambda node=node: node.arrive(message, pubsub_topic))  # type: ignore[misc]

    def schedule(self, delay_ms: float, task: Callable[[], None]) -> None:
        """Run ``task`` when ``delay_ms`` has passed, after everything due before it."""
        due = self.clock.now_ns() + int(delay_ms * 1_000_000)
        heapq.heappush(self._queue, (due, next(self._order), task))

    def pump(self) -> int:
        """Run all due tasks, including those that become due thereby; returns how many ran."""
        done = 0
        while self._queue and self._queue[0][0] <= self.clock.now_ns():
            heapq.heappop(self._queue)[2]()
            done += 1
        return done

    def run(self, ms: float) -> int:
        """Let ``ms`` pass on a :class:`ManualClock`, stopping at every due task; how many ran."""
        if not isinstance(self.clock, ManualClock):
            raise TypeError("run() moves a ManualClock; with another clock call pump()")
        end = self.clock.now_ns() + int(ms * 1_000_000)
        done = self.pump()
        while self._queue and self._queue[0][0] <= end:
            self.clock.advance((self._queue[0][0] - self.clock.now_ns()) / 1_000_000)
            # The division may lose a few ns of the due time.
            if self._queue[0][0] > self.clock.now_ns():
                self.clock.advance(0.001)
            done += self.pump()
        self.clock.advance((end - self.clock.now_ns()) / 1_000_000)
        return done


class MemoryNode(NodeBase):
    """A node of a :class:`MemoryNetwork`. ``failing`` makes every send fail with that reason while it is set;
    ``store`` replaces the network's store, ``None`` for one that cannot be reached."""

    def __init__(self, network: MemoryNetwork, name: str) -> None:
        super().__init__(network.pubsub_topics, network.clock)
        self.name = name
        self.failing: FailureReason | None = None
        self.store = network.store
        self.sent: list[WakuMessage] = []
        self._network = network
        self._seen = RecentHashes()
        self._limit_due: int | None = None
        """When (ms) waiting envelopes are looked at next."""
        self._pending: set[RequestId] = set()

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._set_health(Health(HealthState.HEALTHY, "in memory"))

    def stop(self) -> None:
        if self._started:
            for request_id in sorted(self._pending):
                self._emit(self._report_failed(request_id, FailureReason.STOPPED, "the node was stopped"))
            self._pending.clear()
            self._limit.drain()
            self._set_health(Health(HealthState.UNHEALTHY, "stopped"))
            self._started = False

    def report(self, health: Health) -> None:
        """Make the node report this health."""
        self._set_health(health)

    def _submit(self, accepted: Accepted, max_wait_s: float | None) -> None:
        self._pending.add(accepted.request_id)
        self._network.schedule(
            0, lambda: self._follow(self._limit.submit(accepted, accepted.traffic, now_ms(self._clock)))
        )

    def arrive(self, message: WakuMessage, pubsub_topic: str, source: Source = Source.RELAY) -> None:
        """One delivered copy."""
        if not self._started or message.content_topic not in self._subscribed:
            return
        envelope_hash = message_hash(pubsub_topic, message)
        if self._seen.add(envelope_hash):
            envelope = ReceivedEnvelope(message, pubsub_topic, envelope_hash, source)
            self._emit(Received(envelope))

    def _follow(self, events: list[RateLimitEvent[Accepted]]) -> None:
        for event in events:
            if isinstance(event, Admitted):
                self._dispatch(event.item.request_id, event.item.message, event.item.pubsub_topic)
                continue
            if isinstance(event, EphemeralDropped):
                self._pending.discard(event.item.request_id)
            self._report_limit(event)
        due = self._limit.next_due()
        if due is not None and due != self._limit_due:
            self._limit_due = due
            self._network.schedule(
                due - now_ms(self._clock), lambda: self._follow(self._limit.tick(now_ms(self._clock)))
            )

    def _dispatch(self, request_id: RequestId, message: WakuMessage, pubsub_topic: str) -> None:
        if request_id not in self._pending:
            return
        self._pending.discard(request_id)
        message = self._stamp(message)
        if self.failing is not None:
            self._emit(self._report_failed(request_id, self.failing, "made to fail"))
            return
        self.sent.append(message)
        self._network.publish(self.name, message, pubsub_topic)
        self._emit(self._report_sent(request_id, message, pubsub_topic))

    def _emit(self, event: NodeEvent) -> None:
        if self._started:
            self._dispatcher.emit(event)
