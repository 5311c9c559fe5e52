"""Runs our HTTP servers on one socket, with bounded connections and requests."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server

from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.transport.http.connections import (
    HttpLimits,
    Refusal,
    is_about_server,
    plain_text,
    protocol_class,
)
from reliable_channel.transport.http.guard import LOOPBACK_NAMES
from reliable_channel.transport.http.request_limit import RequestLimit

DEFAULT_LIMITS = HttpLimits()

STOP_TIMEOUT_S = 5
"""How long a server that stops waits for requests under way."""


class HttpServer(Server):
    """Uvicorn over ``app`` with every bound set. ``run()`` blocks until SIGTERM, SIGINT or SIGHUP.

    ``limits`` bound connections and requests; ``refusal`` formats the answers that are sent without a handler;
    ``on_stop`` is called when the server begins to stop, before it waits for requests to end, so that long polls can
    answer. ``lifespan`` "on" runs the application's own start and end."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: HttpLimits = DEFAULT_LIMITS,
        refusal: Refusal = plain_text,
        on_stop: Callable[[], object] = lambda: None,
        lifespan: Literal["on", "off"] = "off",
    ) -> None:
        super().__init__(
            Config(
                RequestLimit(_read_whole_urls(app), limits.running, refusal, slow_s=limits.slow_s),
                http=protocol_class(limits, refusal),
                ws="none",
                loop="asyncio",
                lifespan=lifespan,
                log_level="warning",
                access_log=False,
                server_header=False,
                h11_max_incomplete_event_size=limits.header_bytes,
                timeout_graceful_shutdown=STOP_TIMEOUT_S,
            )
        )
        self._on_stop = on_stop
        logging.getLogger("uvicorn.error").addFilter(is_about_server)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Stop on the signals on which uvicorn stops, and when a terminal is closed (unless ``nohup`` keeps that
        away)."""
        with super().capture_signals():
            before = signal.getsignal(signal.SIGHUP)
            if threading.current_thread() is not threading.main_thread() or before is signal.SIG_IGN:
                yield
                return
            signal.signal(signal.SIGHUP, self.handle_exit)
            try:
                yield
            finally:
                signal.signal(signal.SIGHUP, before)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: waiting calls answer first, then uvicorn waits for all that run."""
        self._on_stop()
        await super().shutdown(sockets)


def _read_whole_urls(app: ASGIApp) -> ASGIApp:
    """The application for requests that name a whole URL as well, as to a proxy: its host counts instead of the header
    (RFC 9112 3.2.2)."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["raw_path"].lower().startswith((b"http://", b"https://")):
            host, _, path = scope["raw_path"].partition(b"://")[2].partition(b"/")
            headers = [(b"host", host), *(header for header in scope["headers"] if header[0] != b"host")]
            path = b"/" + path
            scope = {**scope, "path": unquote(path.decode("ascii")), "raw_path": path, "headers": headers}
        await app(scope, receive, send)

    return serve


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """A bound socket for ``Server.run(sockets=[…])``; ``port=0`` picks a free one. Raises ``EnvironmentFault``
    when the port is taken or the address is not this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        sock = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise EnvironmentFault(f"Cannot listen on {host}:{port} ({reason}).", "Choose another with --port.") from None
    with sock:
        yield sock


def url_of(host: str, sock: socket.socket) -> str:
    """The address of a server that listens on ``sock``, for output."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{sock.getsockname()[1]}"


@contextmanager
def serve_in_thread(app: ASGIApp, host: str = "127.0.0.1", port: int = 0, **options: Any) -> Iterator[str]:
    """The address (by default on a free port of loopback) of ``HttpServer(app, **options)``, which answers on a thread
    of its own until the block ends. Raises ``EnvironmentFault`` when it does not start."""
    with listen(host, port) as sock:
        server = HttpServer(app, **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:  # uvicorn has no event for it
            if not thread.is_alive():
                raise EnvironmentFault(f"The server on {host} did not start.", "Read the log.")
            time.sleep(0.005)
        try:
            yield url_of(host, sock)
        finally:
            server.should_exit = True
            thread.join(4 * STOP_TIMEOUT_S)


def require_token(section: str, host: str, token: str | None) -> None:
    """Raise ``ConfigurationError`` when a server that leaves loopback has no token; ``section`` names its settings."""
    if host not in LOOPBACK_NAMES and token is None:
        raise ConfigurationError(
            f"{host} is not loopback, and {section}.token is not set.",
            f"Set RELIABLE_CHANNEL__{section.upper()}__TOKEN to a secret of 16 characters or more.",
        )
