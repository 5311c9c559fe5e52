"""Opens httpx clients whose whole exchanges end at a deadline. The time-outs of httpx start again at every byte, in the
headers, in interim answers (1xx, of any number) and in the body.

This is the one file that depends on internals of httpx, which has no public way to replace the network of its own
transports. pyproject.toml therefore allows only one minor version of httpx; ``tests/unit/transport/test_http.py`` fails
when a newer one behaves differently."""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import httpcore
import httpx

from reliable_channel.core.errors import EnvironmentFault

_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_EXCHANGE = threading.local()


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Within this block the exchanges of this thread by clients of :func:`open_client` take this long together;
    then they raise ``httpx.TimeoutException``."""
    _EXCHANGE.end = time.monotonic() + seconds
    try:
        yield
    finally:
        del _EXCHANGE.end


def open_client(url: httpx.URL, **options: Any) -> httpx.Client:
    """Open a client for the host of ``url`` that obeys :func:`deadline`, also by way of the environment's proxy, and
    follows no redirects, which would send secrets elsewhere. Raises ``EnvironmentFault`` if the environment's variables
    for proxies or certificates cannot be used."""
    try:
        client = httpx.Client(
            follow_redirects=False,
            trust_env=url.host not in _LOOPBACK,  # a proxy is not for loopback
            verify=url.scheme == "https",  # loading the authorities takes longer than a whole exchange on loopback
            **options,
        )
    except (httpx.InvalidURL, ImportError, OSError, ValueError):  # their texts may hold a proxy's password
        raise EnvironmentFault(
            "The environment's variables for proxies or certificates cannot be used.",
            "HTTP_PROXY, HTTPS_PROXY and ALL_PROXY are like http://proxy:3128 (no SOCKS), NO_PROXY has no IPv6 network"
            " or bracket, SSL_CERT_FILE is a file.",
        ) from None
    # A transport of our own would know no proxies.
    for transport in (client._transport, *client._mounts.values()):
        pool: Any = getattr(transport, "_pool", None)
        if pool is not None:
            pool._network_backend = _Backend(pool._network_backend)
    return client


def _limit(timeout: float | None, late: type[httpcore.TimeoutException]) -> float | None:
    end: float | None = getattr(_EXCHANGE, "end", None)
    if end is None:
        return timeout
    left = end - time.monotonic()
    if left <= 0:
        raise late
    return left if timeout is None else min(timeout, left)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _limit(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _limit(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _limit(timeout, httpcore.ConnectTimeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, backend: httpcore.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        bound = _limit(timeout, httpcore.ConnectTimeout)
        return _Stream(self._backend.connect_tcp(host, port, bound, local_address, socket_options))
