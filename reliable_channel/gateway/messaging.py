"""A ``MessagingNode`` from the settings: transport, store nodes in the seed's order, feed for the pipeline."""

from __future__ import annotations

import logging
from pathlib import Path

from reliable_channel.config import Settings
from reliable_channel.config.node import RestSettings
from reliable_channel.errors import ConfigurationError
from reliable_channel.gateway.build import store_client, waku_api
from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.pipeline_feed import Feed, KafkaFeed, NoFeed
from reliable_channel.store.client import RetryPolicy, StoreClient
from reliable_channel.store.rest_node import RestStoreNode
from reliable_channel.transport.base import HealthChanged, Node, NodeEvent
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.http import BoundedHttp, NodeUnreachable
from reliable_channel.transport.sharding import Autosharding, NamedTopic, PubsubTopics
from reliable_channel.transport.waku_api import Dialect, WakuApi
from reliable_channel.transport.waku_rest import Pace, WakuRestNode

_log = logging.getLogger(__name__)


def messaging_config(settings: Settings) -> MessagingConfig:
    """The section ``messaging``. Raises ``ConfigurationError`` when it is missing: mode, cluster, shards and bootstrap
    nodes have no default (seed ``003…``)."""
    if settings.messaging is None:
        raise ConfigurationError(
            "The section messaging is missing.", "Set messaging.mode, cluster_id, shards and bootstrap_nodes."
        )
    return settings.messaging


def messaging_node(settings: Settings) -> MessagingNode:
    """The configured node, not started. Raises ``ConfigurationError`` and ``EnvironmentFault``."""
    config = messaging_config(settings)
    over_kafka = settings.api.transport == "kafka"
    transport: Node = _kafka(settings, config) if over_kafka else _waku(settings, config)
    database = settings.api.database or str(Path(settings.paths.run_dir) / "messaging.sqlite")
    feed: Feed = NoFeed()
    if settings.api.feed:
        feed = KafkaFeed(
            settings.kafka.client_options(),
            evidence_topic=settings.bridge.evidence_topic,
            envelopes_topic=settings.kafka.topics.envelopes,
            envelopes=not over_kafka,
        )
    return MessagingNode(config, transport, database, feed=feed)


def _kafka(settings: Settings, config: MessagingConfig) -> Node:
    from reliable_channel.transport.kafka import KafkaNode

    return KafkaNode(
        settings.kafka.client_options(),
        _topics(settings, config),
        envelopes_topic=settings.kafka.topics.envelopes,
        outgoing_topic=settings.kafka.topics.outgoing,
        group_id=settings.api.group_id,
        store=store_client(settings),
    )


def _waku(settings: Settings, config: MessagingConfig) -> Node:
    node = settings.node
    api = waku_api(settings)
    transport = WakuRestNode(
        api,
        _topics(settings, config),
        config.mode,
        store=_stores(settings, config),
        pace=Pace(
            poll_s=node.poll_interval_ms / 1000,
            health_s=node.health_interval_ms / 1000,
            max_backoff_s=node.max_backoff_ms / 1000,
        ),
    )
    known = [*config.bootstrap_nodes, *(config.preferred_service_nodes or ()), *(config.store_nodes or ())]
    if known:
        transport.add_listener(_Introduction(api, list(dict.fromkeys(known))).on_event)
    return transport


def _topics(settings: Settings, config: MessagingConfig) -> PubsubTopics:
    """One shard takes everything; with several a content topic has its own (autosharding)."""
    if len(config.pubsub_topics) == 1:
        return NamedTopic(config.pubsub_topics[0])
    return Autosharding(config.cluster_id, settings.node.shards)


def _stores(settings: Settings, config: MessagingConfig) -> StoreClient:
    """``store_nodes`` first, as peers that our node asks; without them ``preferred_service_nodes``; then the configured
    store servers, and last whatever our node knows or discovers."""
    node, store = settings.node, settings.store
    peers = config.store_nodes or config.preferred_service_nodes or ()
    nodes = [RestStoreNode(_http(node.url, node), _dialect(node), peer) for peer in peers]
    nodes += [RestStoreNode(_http(one.url, one), _dialect(one), one.peer_address) for one in store.nodes]
    nodes.append(RestStoreNode(_http(node.url, node), _dialect(node)))
    return StoreClient(nodes, RetryPolicy(store.attempts, store.first_wait_ms / 1000, store.longest_wait_ms / 1000))


def _http(url: str, rest: RestSettings) -> BoundedHttp:
    headers = {name: value.get_secret_value() for name, value in rest.headers.items()}
    return BoundedHttp(url, rest.timeout_ms / 1000, rest.max_body_bytes, headers)


def _dialect(rest: RestSettings) -> Dialect | None:
    return None if rest.dialect == "auto" else Dialect(rest.dialect)


class _Introduction:
    """Tells our node of the configured peers whenever it answers again: discovery itself is the node's. Best effort, as
    ``/admin`` may be off (waku-rest.md *Health, info, peers*)."""

    def __init__(self, api: WakuApi, peers: list[str]) -> None:
        self._api = api
        self._peers = peers
        self._done = False

    def on_event(self, event: NodeEvent) -> None:
        if not isinstance(event, HealthChanged):
            return
        if event.health.state is HealthState.UNHEALTHY:
            self._done = False
        elif not self._done:
            self._done = self._introduce()

    def _introduce(self) -> bool:
        try:
            if self._api.dialect() is Dialect.NWAKU:
                answers = [self._api.http.post("/admin/v1/peers", self._peers)]
            else:
                answers = [
                    self._api.http.post("/admin/v1/peers", {"multiaddr": peer, "shards": [], "protocols": []})
                    for peer in self._peers
                ]
        except NodeUnreachable as error:
            _log.warning("the node was not told of its peers: %s", error.cause)
            return False
        if not all(answer.ok for answer in answers):
            _log.warning("the node takes no peers (HTTP %s); is rest-admin on?", answers[-1].status)
        return True
