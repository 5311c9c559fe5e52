"""Transports and store clients from the settings; secrets go from ``SecretStr`` into requests and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from reliable_channel.config import Settings
from reliable_channel.config.node import RestSettings
from reliable_channel.store.client import RetryPolicy, StoreClient
from reliable_channel.store.rest_node import RestStoreNode
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http import BoundedHttp
from reliable_channel.transport.sharding import Autosharding, NamedTopic, PubsubTopics
from reliable_channel.transport.waku_api import Dialect, WakuApi
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
    """The configured Waku node."""
    return WakuApi(_http(settings.node.url, settings.node), _dialect(settings.node))


def store_client(settings: Settings) -> StoreClient:
    """The configured store nodes, perhaps none."""
    store = settings.store
    nodes = [RestStoreNode(_http(one.url, one), _dialect(one), one.peer_address) for one in store.nodes]
    retry = RetryPolicy(store.attempts, store.first_wait_ms / 1000, store.longest_wait_ms / 1000)
    return StoreClient(nodes, retry)


def waku_node(settings: Settings) -> WakuRestNode:
    """A node port on the configured Waku node, not started."""
    node = settings.node
    pace = Pace(
        poll_s=node.poll_interval_ms / 1000,
        health_s=node.health_interval_ms / 1000,
        max_backoff_s=node.max_backoff_ms / 1000,
    )
    return WakuRestNode(
        waku_api(settings), pubsub_topics(settings), Mode(node.mode), store=store_client(settings), pace=pace
    )


def kafka_node(
    settings: Settings, group_id: str | None = None, start_at: Literal["latest", "earliest"] = "latest"
) -> KafkaNode:
    """A node port on the configured Kafka, not started. ``group_id`` names where its read offsets are kept."""
    from reliable_channel.transport.kafka import KafkaNode

    return KafkaNode(
        settings.kafka.client_options(),
        pubsub_topics(settings),
        envelopes_topic=settings.kafka.topics.envelopes,
        outgoing_topic=settings.kafka.topics.outgoing,
        group_id=group_id,
        start_at=start_at,
        store=store_client(settings),
    )


def _http(url: str, rest: RestSettings) -> BoundedHttp:
    headers = {name: value.get_secret_value() for name, value in rest.headers.items()}
    return BoundedHttp(url, rest.timeout_ms / 1000, rest.max_body_bytes, headers)


def _dialect(rest: RestSettings) -> Dialect | None:
    return None if rest.dialect == "auto" else Dialect(rest.dialect)
