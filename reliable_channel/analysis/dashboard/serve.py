"""Runs the dashboard's server, on loopback or with a token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module

from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.config import Settings
from reliable_channel.transport.http.connections import HttpLimits
from reliable_channel.transport.http.server import HttpServer, listen, require_token, url_of

LIMITS = HttpLimits(header_bytes=128 * 1024)
"""An address may hold a channel key of three long ids, percent-encoded."""


def serve(settings: Settings, say: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM; ``say`` prints the address. Raises ``ConfigurationError`` and
    ``EnvironmentFault``."""
    dashboard = settings.dashboard
    token = dashboard.token.get_secret_value() if dashboard.token is not None else None
    require_token("dashboard", dashboard.host, token)
    app = create_app(
        settings.paths,
        token=token,
        allowed_hosts=(dashboard.host, *dashboard.allowed_hosts),
        refresh_ms=dashboard.refresh_ms,
    )
    with listen(dashboard.host, dashboard.port) as sock:
        server = HttpServer(app, limits=LIMITS)
        say(f"Dashboard at {url_of(dashboard.host, sock)}/ over {settings.paths.data_dir}; Ctrl-C ends it")
        # The first picture need not wait for the libraries that draw it.
        drawing = "reliable_channel.analysis.report.drawing"
        threading.Thread(target=import_module, args=(drawing,), daemon=True).start()
        server.run(sockets=[sock])
