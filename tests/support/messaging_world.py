"""A messaging node on an in-memory network under a clock that stands still: no test here sleeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.codec import Message, PlainDecoder, PlainEncoder
from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.messaging.events import CustomEvent, EventName
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.pipeline_feed import Feed
from reliable_channel.messaging.sender_events import LossReport, SenderEvent
from reliable_channel.transport.base import ReceivedEnvelope
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.memory import MemoryNetwork, MemoryNode
from reliable_channel.transport.sharding import NamedTopic

PUBSUB = "/waku/2/rs/1/0"
CONTENT = "/messaging/2/api/utf8"
OTHER = "/messaging/2/other/utf8"
STEP_MS = 250


def config(**changes: Any) -> MessagingConfig:
    """A valid configuration; ``changes`` replace fields."""
    fields: dict[str, Any] = {"mode": "relay", "cluster_id": 1, "shards": (0,), "bootstrap_nodes": ()}
    return MessagingConfig.of(**{**fields, **changes})


class KeptFeed(Feed):
    """A feed that keeps what it is given."""

    def __init__(self) -> None:
        self.rows: list[SenderEvent | LossReport] = []
        self.envelopes: list[tuple[str, WakuMessage]] = []

    def record(self, event: SenderEvent | LossReport) -> None:
        self.rows.append(event)

    def record_dispatched(self, message: WakuMessage, pubsub_topic: str) -> None:
        self.envelopes.append(("sender", message))

    def record_received(self, envelope: ReceivedEnvelope) -> None:
        self.envelopes.append((envelope.source.value, envelope.message))


class World:
    """One messaging node, ``node``, beside a stranger on the same network."""

    def __init__(self, database: Path | str = ":memory:", **changes: Any) -> None:
        self.clock = ManualClock()
        self.network = MemoryNetwork(self.clock, pubsub_topics=NamedTopic(PUBSUB))
        self.transport: MemoryNode = self.network.node("me")
        self.feed = KeptFeed()
        self.database = database
        self.changes = changes
        self.events: list[tuple[str, Any]] = []
        self.node = self.make_node()

    def make_node(self) -> MessagingNode:
        """A new node on the same transport and database, started without threads."""
        node = MessagingNode(config(**self.changes), self.transport, self.database, clock=self.clock, feed=self.feed)
        for name in EventName:
            node.events.add_event_listener(name, self._on_event)
        node.start(background=False)
        return node

    def _on_event(self, event: CustomEvent) -> None:
        self.events.append((event.type.value, event.detail))

    def names(self) -> list[str]:
        """The names of the events so far."""
        return [name for name, _ in self.events]

    def run(self, ms: int = 0) -> None:
        """Let ``ms`` pass, doing what is due on the way."""
        self._turn()
        for _ in range(0, ms, STEP_MS):
            self.clock.advance(STEP_MS)
            self._turn()

    def _turn(self) -> None:
        self.network.pump()
        self.node.tick()
        self.network.pump()
        self.node.tick()

    def send(self, payload: bytes = b"hello", content_topic: str = CONTENT, **changes: Any) -> str:
        return self.node.send(PlainEncoder(PUBSUB, content_topic), Message(payload, **changes))

    def subscribe(self, content_topic: str = CONTENT, listener: Any = None) -> str:
        return self.node.subscribe(PlainDecoder(PUBSUB, content_topic), listener)

    def arrives(self, payload: bytes = b"from afar", content_topic: str = CONTENT, **changes: Any) -> WakuMessage:
        """A stranger's message, now on the network."""
        fields: dict[str, Any] = {"timestamp": self.clock.now_ns(), **changes}
        message = WakuMessage(payload, content_topic, **fields)
        self.network.publish("stranger", message, PUBSUB)
        self.run()
        return message

    def record(self, request_id: str) -> Any:
        kept = self.node.get_by_request_id(request_id)
        assert kept is not None
        return kept


@pytest.fixture
def new_world() -> Iterator[Callable[..., World]]:
    """Makes worlds and closes them."""
    made: list[World] = []

    def make(*arguments: Any, **changes: Any) -> World:
        made.append(World(*arguments, **changes))
        return made[-1]

    yield make
    for world in made:
        world.node.close()


@pytest.fixture
def world(new_world: Callable[..., World]) -> World:
    return new_world()
