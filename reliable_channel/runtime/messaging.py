"""Builds a ``MessagingNode`` from the settings: the transport, the store nodes in the specified order, and the
pipeline's feed; and runs the REST server over it, which off loopback requires a token."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.pipeline_feed import Feed, KafkaFeed
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.messaging.rest.errors import refusal
from reliable_channel.runtime.build import kafka_node, store_client, waku_api, waku_node
from reliable_channel.runtime.own_broker import check_kafka
from reliable_channel.runtime.participant import topic_config
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from reliable_channel.transport.base import HealthChanged, Node, NodeEvent
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.http.client import NodeUnreachable
from reliable_channel.transport.http.server import HttpServer, listen, require_token, url_of
from reliable_channel.transport.sharding import Autosharding, NamedTopic, PubsubTopics
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.waku_api import NodeDialect, WakuApi

_log = logging.getLogger(__name__)


def messaging_config(settings: Settings) -> MessagingConfig:
    """Return the section ``messaging``. Raises ``ConfigurationError`` if it is missing."""
    if settings.messaging is None:
        raise ConfigurationError("The section messaging is missing.", "Write `messaging: {}` for that of the node.")
    return settings.messaging


def messaging_node(settings: Settings) -> MessagingNode:
    """Create the configured node, not started. Raises ``ConfigurationError`` and ``EnvironmentFault``."""
    config = messaging_config(settings)
    over_kafka = settings.api.transport == "kafka"
    if over_kafka:
        refuse_what_kafka_cannot(settings, config)
    topics, store = _choose_topics(settings, config), _make_stores(settings, config, over_kafka)
    transport: Node
    if over_kafka:
        transport = kafka_node(settings, settings.api.group_id, topics=topics, store=store)
    else:
        api = waku_api(settings)
        transport = waku_node(settings, api=api, topics=topics, mode=config.mode, store=store)
        known = [*config.bootstrap_nodes, *(config.preferred_service_nodes or ()), *(config.store_nodes or ())]
        if known:
            transport.add_listener(_Introduction(api, list(dict.fromkeys(known))).on_event)
    database = str(Path(settings.paths.run_dir) / "messaging.sqlite")
    feed = Feed()
    if settings.api.feed:
        feed = KafkaFeed(
            settings.kafka.clients(),
            evidence_topic=settings.bridge.evidence_topic,
            envelopes_topic=settings.kafka.topics.envelopes,
            envelopes=not over_kafka,
        )
    return MessagingNode(config, transport, database, feed=feed)


def refuse_what_kafka_cannot(settings: Settings, config: MessagingConfig) -> None:
    """Raise ``ConfigurationError`` for settings without an effect over Kafka, where the bridge's Waku node sends,
    receives and finds its peers. ``store_nodes`` has an effect, because stores are queried over REST, whatever the
    transport."""
    for name in ("bootstrap_nodes", "preferred_service_nodes"):
        if getattr(config, name):
            raise ConfigurationError(
                f"messaging.{name} has no effect over Kafka: the bridge's Waku node finds its peers itself.",
                "Give them to that node, or set api.transport to waku-rest.",
            )
    if config.mode != settings.node.mode:
        raise ConfigurationError(
            f"messaging.mode is {config.mode}, but over Kafka the bridge's node sends, as {settings.node.mode}.",
            "Leave messaging.mode out, or set api.transport to waku-rest.",
        )


def _choose_topics(settings: Settings, config: MessagingConfig) -> PubsubTopics:
    """With one shard, all content topics use it; with several, autosharding selects the shard of each."""
    if len(config.pubsub_topics) == 1:
        return NamedTopic(config.pubsub_topics[0])
    return Autosharding(config.cluster_id, settings.node.shards)


def _make_stores(settings: Settings, config: MessagingConfig, over_kafka: bool) -> StoreClient:
    """Create the store client: ``store_nodes`` first, as peers queried through the node at ``node.url``; without them
    ``preferred_service_nodes``; then the configured store nodes. Over Kafka a Waku node is optional, so it is used only
    for the named peers; otherwise the peers that it knows or discovers come last."""
    peers = config.store_nodes or config.preferred_service_nodes or ()
    return store_client(settings, peers, own_node=not over_kafka)


class _Introduction:
    """Sends the configured peers to our node whenever it answers again; the node itself does the discovery. Best
    effort, because ``/admin`` may be off (docs/spec/waku-rest.md *Health, info, peers*)."""

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
            if self._api.dialect() is NodeDialect.NWAKU:
                responses = [self._api.http.post("/admin/v1/peers", self._peers)]
            else:
                responses = [
                    self._api.http.post("/admin/v1/peers", {"multiaddr": peer, "shards": [], "protocols": []})
                    for peer in self._peers
                ]
        except NodeUnreachable as error:
            _log.warning("the peers were not passed to the node: %s", error.cause)
            return False
        if not all(response.ok for response in responses):
            _log.warning("the node accepts no peers (HTTP %s); is rest-admin enabled?", responses[-1].status)
        return True


def serve_api(settings: Settings, say: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM; ``say`` prints the address. Raises ``ConfigurationError`` and
    ``EnvironmentFault``."""
    api = settings.api
    token = api.token.get_secret_value() if api.token is not None else None
    require_token("api", api.host, token)
    if api.transport == "kafka" or api.feed:
        check_kafka(settings)
        ensure_topics(settings.kafka)
        ensure_evidence_topic(settings)
    with listen(api.host, api.port) as sock, closing(messaging_node(settings)) as node:
        app = create_app(
            node,
            token=token,
            allowed_hosts=(api.host, *api.allowed_hosts),
            max_body_bytes=api.max_body_bytes,
            channels=partial(channel_config, settings),
        )
        server = HttpServer(app, refusal=refusal, on_stop=app.state.poll.stop, lifespan="on")
        say(f"Messaging API at {url_of(api.host, sock)} (documented at /openapi.json), over {api.transport}")
        server.run(sockets=[sock])


def channel_config(settings: Settings, content_topic: str) -> ReliableChannelConfig:
    """Return the configuration of a channel that a client opens on ``content_topic``; its state is stored beside the
    records."""
    return replace(
        topic_config(settings, content_topic),
        history_backend="sqlite",
        database=Path(settings.paths.run_dir) / "channels.sqlite",
        send_timeout_ms=5_000,
    )
