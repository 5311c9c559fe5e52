"""Configures the Prometheus endpoint of continuous runs."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from reliable_channel.config.section import Section


class MetricsSettings(Section):
    """Loopback by default; the endpoint has no authentication, so open it to a trusted network only.

    ``port`` is that of ``reliable-channel run``; jobs in separate processes use the ports after it, in the order of the
    data flow. 0: no endpoint."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65_000)] = 9464
