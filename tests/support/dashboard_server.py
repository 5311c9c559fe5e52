"""A dashboard in this process, for tests in a browser."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn

from reliable_channel.config import PathSettings
from reliable_channel.dashboard.app import create_app
from reliable_channel.dashboard.shelf import Shelf


@contextmanager
def serve(tables: Path) -> Iterator[str]:
    """A dashboard over ``tables`` on a free port of loopback, quick to notice what is new; gives its address."""
    paths = PathSettings(data_dir=str(tables))
    app = create_app(paths, refresh_ms=200, shelf=Shelf(paths, fresh_s=0.1))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(10)
