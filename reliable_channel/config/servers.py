"""Configures what answers over HTTP: the REST server of the Messaging API, the live dashboard and the Prometheus
endpoint of continuous runs."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from reliable_channel.config.section import Bytes, Section

_Port = Annotated[int, Field(ge=0, lt=65_536)]


class _ServerSettings(Section):
    host: str = "127.0.0.1"
    port: _Port
    token: SecretStr | None = Field(default=None, min_length=16)
    allowed_hosts: tuple[str, ...] = ()


class ApiSettings(_ServerSettings):
    """Loopback by default. On any other address a token is required (``RELIABLE_CHANNEL__API__TOKEN``).

    ``transport``: ``kafka`` uses the bridge or the local loop, ``waku-rest`` connects directly to ``node.url``.
    ``allowed_hosts``: names in the Host header, beside the loopback ones; ``*`` is any. ``feed``: sent and received
    messages are also written to Kafka, for the pipeline.
    """

    port: _Port = 8647
    max_body_bytes: Bytes = 2 * 1024 * 1024
    transport: Literal["kafka", "waku-rest"] = "kafka"
    group_id: str = "reliable-channel-api"
    feed: bool = True


class DashboardSettings(_ServerSettings):
    """Loopback by default. On any other address a token is required (``RELIABLE_CHANNEL__DASHBOARD__TOKEN``); a browser
    asks for it as a password, with any user name.

    ``allowed_hosts``: names in the Host header, beside the loopback ones; ``*`` is any. ``refresh_ms``: how often a
    visible page checks for changes."""

    port: _Port = 8648
    refresh_ms: Annotated[int, Field(ge=100, description="ms")] = 5_000


class MetricsSettings(Section):
    """Loopback by default; the endpoint has no authentication, so open it to a trusted network only.

    ``port`` is that of ``reliable-channel run``; jobs in separate processes use the ports after it, in the order of the
    data flow. 0: no endpoint."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65_000)] = 9464
