"""Places where a messaging node can live: Waku nodes of both dialects and modes over REST, and Kafka.

The messaging node runs under a clock that stands still; the transports have threads of their own, so tests wait for
what they expect, with a limit, and never for a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import CustomEvent, Message, MessagingNode, PlainDecoder, PlainEncoder
from reliable_channel.messaging.events import EventName
from reliable_channel.transport.base import Node
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.sharding import NamedTopic
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.rest_node import RestStoreNode
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_rest import Pace, WakuRestNode
from tests.support.fake_waku_node import PEER_ADDRESS, PUBSUB_TOPIC, FakeWakuNode
from tests.support.messaging_world import CONTENT, KeptFeed, config
from tests.support.waiting import until

CLUSTER, SHARD = 16, 32
assert f"/waku/2/rs/{CLUSTER}/{SHARD}" == PUBSUB_TOPIC


@dataclass
class Site:
    """A messaging node on a transport, and a stranger on the same network (``publish``)."""

    transport: Node
    publish: Callable[[WakuMessage], object]
    clock: ManualClock = field(default_factory=ManualClock)
    feed: KeptFeed = field(default_factory=KeptFeed)
    fake: FakeWakuNode | None = None
    node: MessagingNode = field(init=False)
    events: list[tuple[str, Any]] = field(default_factory=list)
    edge: bool = False

    def start(self, **changes: Any) -> MessagingNode:
        mode = "edge" if self.edge else "relay"
        fields = {"mode": mode, "cluster_id": CLUSTER, "shards": (SHARD,), **changes}
        self.node = MessagingNode(config(**fields), self.transport, clock=self.clock, feed=self.feed)
        for name in EventName:
            self.node.events.add_event_listener(name, self._on_event)
        self.node.start(background=False)
        self.until(lambda: self.node.health_indicator != "Unhealthy")
        return self.node

    def _on_event(self, event: CustomEvent) -> None:
        self.events.append((event.type.value, event.detail))

    def until(self, happened: Callable[[], object]) -> None:
        """Do what is due until ``happened``."""

        def look() -> object:
            done = happened()
            if not done:
                self.node.tick()
            return done

        until(look, lambda: f"it did not happen; events: {[name for name, _ in self.events]}", every_s=0.005)

    def wait_for_requests(self, times: int) -> None:
        """Until the Waku node has been asked some more times."""
        fake = self.fake
        assert fake is not None
        before = len(fake.requests)
        self.until(lambda: len(fake.requests) > before + times)

    def wait_for_reads(self, times: int) -> None:
        """Until the Waku node has been asked some more times for what it received."""
        fake = self.fake
        assert fake is not None
        before = len(fake.requests)

        def reads() -> int:
            return sum(method == "GET" and "/messages/" in path for method, path in fake.requests[before:])

        self.until(lambda: reads() >= times)

    def send(self, payload: bytes = b"hello", **changes: Any) -> str:
        return self.node.send(PlainEncoder(PUBSUB_TOPIC, CONTENT), Message(payload, **changes))

    def record(self, request_id: str) -> Any:
        return self.node.get_by_request_id(request_id)

    def subscribe(self, listener: Any = None) -> str:
        return self.node.subscribe(PlainDecoder(PUBSUB_TOPIC, CONTENT), listener)

    def arrives(self, payload: bytes) -> WakuMessage:
        """A stranger's message, published again until it is here: a filter subscription takes a moment."""
        message = WakuMessage(payload, CONTENT, version=0, timestamp=self.clock.now_ns(), ephemeral=False)
        self.publish(message)
        return message


def waku_site(fake: FakeWakuNode, edge: bool, timeout_s: float = 5.0) -> Site:
    """A messaging node behind a fake Waku node; the stranger is in the mesh."""
    clock = ManualClock()
    api = WakuApi(BoundedHttp(fake.url, timeout_s))
    stores = [RestStoreNode(BoundedHttp(fake.url, timeout_s), peer_address=PEER_ADDRESS)]
    transport = WakuRestNode(
        api,
        NamedTopic(PUBSUB_TOPIC),
        Mode.EDGE if edge else Mode.RELAY,
        store=StoreClient(stores, RetryPolicy(attempts=1)),
        pace=Pace(poll_s=0.01, health_s=0.02, min_backoff_s=0.01, max_backoff_s=0.02),
        clock=clock,
    )
    return Site(
        transport,
        lambda message: fake.network.publish(PUBSUB_TOPIC, message),
        clock=clock,
        fake=fake,
        edge=edge,
    )
