"""Configures the live dashboard: ``reliable-channel dashboard``."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr

from reliable_channel.config.section import Section


class DashboardSettings(Section):
    """Loopback by default. On any other address a token is required (``RELIABLE_CHANNEL__DASHBOARD__TOKEN``); a browser
    asks for it as a password, with any user name.

    ``allowed_hosts``: names in the Host header, beside the loopback ones; ``*`` is any. ``refresh_ms``: how often a
    visible page checks for changes."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65_536)] = 8648
    token: SecretStr | None = Field(default=None, min_length=16)
    allowed_hosts: tuple[str, ...] = ()
    refresh_ms: Annotated[int, Field(ge=100, description="ms")] = 5_000
