"""How every HTTP server here listens: socket first, bounded requests, known host names, a token off loopback."""

from __future__ import annotations

import hmac
import socket
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Literal

from fastapi import FastAPI
from starlette.datastructures import Headers
from uvicorn import Config

from reliable_channel.errors import ConfigurationError, EnvironmentFault

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

MAX_HEADER_BYTES = 64 * 1024
"""nwaku's limit, request line included."""


def bounded(
    app: FastAPI,
    *,
    lifespan: Literal["on", "off"] = "off",
    concurrent: int = 128,
    header_bytes: int = MAX_HEADER_BYTES,
    **more: Any,
) -> Config:
    """Uvicorn's configuration with every bound set. ``concurrent``: connections and requests at once, more are answered
    503. ``more``: further settings of uvicorn."""
    return Config(
        app,
        **({"http": "h11"} | more),
        ws="none",
        loop="asyncio",
        lifespan=lifespan,
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=header_bytes,
        limit_concurrency=concurrent,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )


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
    """The address of a server that listens on ``sock``, for people."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{sock.getsockname()[1]}"


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


def answers_to(hosts: Collection[str], headers: Headers) -> bool:
    """Whether a request names one of these hosts, once; ``*`` among them is any."""
    names = headers.getlist("host")
    return "*" in hosts or (_host_name(names[0]) if len(names) == 1 else "") in hosts


def same_token(given: str, token: str) -> bool:
    """Whether a request's token is ours, in a time that does not tell how much of it is."""
    # Compared as bytes: compare_digest refuses text that is not ASCII.
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())


def _host_name(header: str) -> str:
    """The host of a ``Host`` header without its port, lower case, without the brackets of IPv6."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]
