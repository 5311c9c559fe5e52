"""Configures the REST server of the Messaging API: ``reliable-channel api serve``."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from reliable_channel.config.section import Bytes, Section


class ApiSettings(Section):
    """Loopback by default. On any other address a token is required (``RELIABLE_CHANNEL__API__TOKEN``).

    ``transport``: ``kafka`` uses the bridge or the local loop, ``waku-rest`` connects directly to ``node.url``.
    ``allowed_hosts``: names in the Host header, beside the loopback ones; ``*`` is any. ``feed``: sent and received
    messages are also written to Kafka, for the pipeline.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65536)] = 8647
    token: SecretStr | None = Field(default=None, min_length=16)
    allowed_hosts: tuple[str, ...] = ()
    max_body_bytes: Bytes = 2 * 1024 * 1024
    transport: Literal["kafka", "waku-rest"] = "kafka"
    group_id: str = "reliable-channel-api"
    feed: bool = True
