"""Runs our HTTP servers on one socket with bounded connections and requests, known host names, and a token off
loopback."""

from __future__ import annotations

import hmac
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn import Config, Server

from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.transport.http_protocol import HttpLimits, Refusal, plain_text, protocol_class
from reliable_channel.transport.request_limit import RequestLimit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

OTHER_SITE = "Pages of other sites are not answered."

DEFAULT_LIMITS = HttpLimits()

STOP_TIMEOUT_S = 5
"""How long a server that stops waits for requests under way."""


class HttpServer(Server):
    """Uvicorn over ``app`` with every bound set. ``run()`` blocks until SIGTERM or SIGINT.

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
                RequestLimit(app, limits.running, refusal, slow_s=limits.slow_s),
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: waiting calls answer first, then uvicorn waits for all that run."""
        self._on_stop()
        await super().shutdown(sockets)


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
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
def served(app: ASGIApp, **options: Any) -> Iterator[str]:
    """The address (on a free port of loopback) of ``HttpServer(app, **options)``, which answers on a thread of its own
    until the block ends. Raises ``EnvironmentFault`` when it does not start."""
    with listening("127.0.0.1", 0) as sock:
        server = HttpServer(app, **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            if not thread.is_alive():
                raise EnvironmentFault("A server on loopback did not start.", "Read the log.")
            time.sleep(0.005)
        try:
            yield url_of("127.0.0.1", sock)
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


def allowed(names: Collection[str]) -> frozenset[str]:
    """Host names a server answers to, lower case and without brackets, the loopback ones included."""
    return frozenset(name.lower().strip("[]") for name in names) | LOOPBACK_NAMES


def allows_host(hosts: Collection[str], headers: Headers) -> bool:
    """Whether a request names one of these hosts, once; ``*`` among them is any."""
    names = headers.getlist("host")
    return "*" in hosts or (_host_name(names[0]) if len(names) == 1 else "") in hosts


def comes_from_another_site(headers: Headers) -> bool:
    """Whether a browser says that a page of another site asks, in the background: an image, a script, a frame, a fetch.
    Following a link to a page is allowed; programs do not send these headers."""
    site = headers.get("sec-fetch-site", "none").strip().lower()
    if site not in ("none", "same-origin"):
        return headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document"
    origins = headers.getlist("origin")
    return bool(origins) and any(
        origin.partition("://")[2].lower() != headers.get("host", "").lower() for origin in origins
    )


class SiteGuard:
    """Middleware of servers without a guard of their own: refuses requests for other host names than ``hosts``, unless
    that is ``None``, and those that a browser sends for a page of another site. ``setting`` names the allowed hosts."""

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None, setting: str = "") -> None:
        self._app, self._hosts, self._setting = app, hosts, setting

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(Headers(scope=scope)) if scope["type"] == "http" else None
        answer = self._app if refusal is None else PlainTextResponse(refusal, 403)
        await answer(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        if self._hosts is not None and not allows_host(self._hosts, headers):
            return f"This host name is not served here. See {self._setting}."
        return OTHER_SITE if comes_from_another_site(headers) else None


def same_token(given: str, token: str) -> bool:
    """Whether a request has the right token, compared in constant time."""
    # Compared as bytes: compare_digest refuses text that is not ASCII.
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())


def _host_name(header: str) -> str:
    """The host of a ``Host`` header without its port, lower case, without the brackets of IPv6."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
