"""Builds transports and store clients from settings. Secrets in ``SecretStr`` are passed only to requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reliable_channel.config import Settings
from reliable_channel.config.node import NodeSettings, StoreNodeSettings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.transport.bridge import Bridge, BridgeNode
from reliable_channel.transport.bridge_context import BridgeTopics
from reliable_channel.transport.bridge_state import can_be_asked_for
from reliable_channel.transport.dispatch_limit import CountFile
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.sharding import Autosharding, NamedTopic, PubsubTopics
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.rest_node import RestStoreNode
from reliable_channel.transport.waku_api import NodeDialect, WakuApi
from reliable_channel.transport.waku_rest import Pace, WakuRestNode

if TYPE_CHECKING:
    from reliable_channel.transport.kafka import KafkaNode


def pubsub_topics(settings: Settings) -> PubsubTopics:
    """``node.pubsub_topic``, or autosharding."""
    node = settings.node
    if node.pubsub_topic is not None:
        return NamedTopic(node.pubsub_topic)
    return Autosharding(node.cluster_id, node.shards)


def waku_api(settings: Settings) -> WakuApi:
    """Create the client of the configured Waku node."""
    return WakuApi(*_connect(settings.node))


def store_client(settings: Settings, peers: Sequence[str] = (), own_node: bool = False) -> StoreClient:
    """Create the client of the stores to query, in this order: ``peers`` (multiaddrs) through the node at ``node.url``,
    the configured store nodes, and with ``own_node`` the peers that this node knows or discovers."""
    node, store = settings.node, settings.store
    nodes = [RestStoreNode(*_connect(node), peer) for peer in peers]
    nodes += [RestStoreNode(*_connect(one), one.peer_address) for one in store.nodes]
    if own_node:
        nodes.append(RestStoreNode(*_connect(node)))
    retry = RetryPolicy(store.attempts, store.first_wait_ms / 1000)
    return StoreClient(nodes, retry)


def waku_node(
    settings: Settings,
    *,
    api: WakuApi | None = None,
    topics: PubsubTopics | None = None,
    mode: Mode | None = None,
    store: StoreClient | None = None,
) -> WakuRestNode:
    """Create a node port on the configured Waku node, not started. Omitted arguments follow from the settings."""
    node = settings.node
    pace = Pace(
        poll_s=node.poll_interval_ms / 1000,
        max_backoff_s=node.max_backoff_ms / 1000,
        cache=node.cache_messages,
    )
    made = WakuRestNode(
        api or waku_api(settings),
        topics or pubsub_topics(settings),
        mode or Mode(node.mode),
        store=store or store_client(settings),
        pace=pace,
    )
    made.limit_rate(settings.rate_limit, dispatch_count(settings))
    return made


def dispatch_count(settings: Settings) -> CountFile:
    """Return the counter of dispatches for the membership of the configured Waku node, shared by all processes of
    ``run_dir``."""
    return CountFile.of_node(settings.paths.run_dir, settings.node.url)


def kafka_node(
    settings: Settings,
    group_id: str | None = None,
    *,
    topics: PubsubTopics | None = None,
    store: StoreClient | None = None,
) -> KafkaNode:
    """Create a node port on the configured Kafka, not started. ``group_id`` is the consumer group that stores its
    offsets. Omitted topics and store clients follow from the settings."""
    from reliable_channel.transport.kafka import KafkaNode

    return KafkaNode(
        settings.kafka.clients(),
        topics or pubsub_topics(settings),
        envelopes_topic=settings.kafka.topics.envelopes,
        outgoing_topic=settings.kafka.topics.outgoing,
        dispatched_topic=settings.kafka.topics.dispatched,
        group_id=group_id,
        store=store or store_client(settings),
    )


def _connect(node: NodeSettings | StoreNodeSettings) -> tuple[BoundedHttp, NodeDialect | None]:
    """How a node is reached, and the dialect that it speaks; ``None``: it is asked."""
    headers = {name: value.get_secret_value() for name, value in node.headers.items()}
    http = BoundedHttp(node.url, node.timeout_ms / 1000, node.max_body_bytes, headers)
    return http, None if node.dialect == "auto" else NodeDialect(node.dialect)


def make_bridge(settings: Settings, loop: bool = False) -> Bridge:
    """Create the configured bridge, or the local loop; not started. Raises ``ConfigurationError`` if the settings name
    no Waku topics to read."""
    node, bridge = settings.node, settings.bridge
    topics = BridgeTopics(
        settings.kafka.topics.envelopes,
        settings.kafka.topics.outgoing,
        settings.kafka.topics.dispatched,
        bridge.evidence_topic,
        () if loop else _list_waku_topics(settings),
        tuple(filter(can_be_asked_for, settings.channels.list_named())),
    )
    side = None
    if not loop:
        side = BridgeNode(
            waku_api(settings),
            Mode(node.mode),
            node.poll_interval_ms / 1000,
            node.max_backoff_ms / 1000,
            node.cache_messages,
            bridge.vantage,
            bridge.gap_settle_ms,
            bridge.gap_retry_ms,
        )
    return Bridge(
        settings.kafka.clients(),
        topics,
        side,
        store_client(settings),
        Path(settings.paths.run_dir) / "bridge" / "state.json",
        bridge.group_id,
        rate_limit=settings.rate_limit,
        count=dispatch_count(settings),
    )


def _list_waku_topics(settings: Settings) -> tuple[tuple[str, str | None], ...]:
    named = settings.bridge.content_topics
    if named:
        pubsub = pubsub_topics(settings)
        return tuple((pubsub.topic_for(topic), topic) for topic in named)
    if settings.node.mode == "edge":
        raise ConfigurationError(
            "bridge.content_topics is empty, and a node in edge mode receives by content topic.",
            "Name the content topics.",
        )
    if settings.node.pubsub_topic is None:
        raise ConfigurationError(
            "Neither node.pubsub_topic nor bridge.content_topics is set, so there is nothing to read.",
            "Set one of them.",
        )
    return ((settings.node.pubsub_topic, None),)
