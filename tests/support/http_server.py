"""A server of ours on a free port of loopback, on a thread, for the length of a block."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.types import ASGIApp

from reliable_channel.transport.serving import HttpServer, listening, url_of


@contextmanager
def running(app: ASGIApp, **options: Any) -> Iterator[str]:
    """The address of ``HttpServer(app, **options)``, which answers until the block ends."""
    with listening("127.0.0.1", 0) as sock:
        server = HttpServer(app, **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.005)
        try:
            yield url_of("127.0.0.1", sock)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive(), "the server did not stop"
