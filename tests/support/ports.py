"""Loopback ports for tests."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_port() -> Iterator[str]:
    """A port that refuses every connection. It is held, so that no other process listens there meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield str(held.getsockname()[1])
