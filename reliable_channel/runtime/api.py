"""Runs the REST server of the Messaging API from the settings, including reliable channels; off loopback it requires a
token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.config import Settings
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.messaging.rest.errors import refusal
from reliable_channel.runtime.messaging import messaging_node
from reliable_channel.runtime.own_broker import check_kafka
from reliable_channel.runtime.participant import topic_config
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from reliable_channel.transport.http.server import HttpServer, listen, require_token, url_of


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
