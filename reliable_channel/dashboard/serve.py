"""The server process of the dashboard: loopback, or a token."""

from __future__ import annotations

import threading
from collections.abc import Callable

from uvicorn import Config, Server

from reliable_channel.config import Settings
from reliable_channel.dashboard.app import create_app
from reliable_channel.errors import ConfigurationError
from reliable_channel.messaging.rest.guard import LOOPBACK_NAMES
from reliable_channel.store.server import listening

MAX_HEADER_BYTES = 128 * 1024
"""An address may hold a channel key of three long ids, percent-encoded."""


def serve(settings: Settings, say: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM; ``say`` prints the address. Raises ``ConfigurationError`` and
    ``EnvironmentFault``."""
    dashboard = settings.dashboard
    token = dashboard.token.get_secret_value() if dashboard.token is not None else None
    if dashboard.host not in LOOPBACK_NAMES and token is None:
        raise ConfigurationError(
            f"{dashboard.host} is not loopback, and dashboard.token is not set.",
            "Set RELIABLE_CHANNEL__DASHBOARD__TOKEN to a secret of 16 characters or more.",
        )
    app = create_app(
        settings.paths,
        token=token,
        allowed_hosts=(dashboard.host, *dashboard.allowed_hosts),
        refresh_ms=dashboard.refresh_ms,
    )
    with listening(dashboard.host, dashboard.port) as sock:
        server = Server(
            Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_level="warning",
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                limit_concurrency=128,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=5,
            )
        )
        name = f"[{dashboard.host}]" if ":" in dashboard.host else dashboard.host
        say(f"Dashboard at http://{name}:{sock.getsockname()[1]}/ over {settings.paths.data_dir}; Ctrl-C ends it")
        # The first picture need not wait for the libraries that draw it.
        threading.Thread(target=_load_drawing, daemon=True).start()
        server.run(sockets=[sock])


def _load_drawing() -> None:
    import altair  # noqa: F401
    import vl_convert  # noqa: F401
