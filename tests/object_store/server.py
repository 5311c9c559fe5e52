"""``python server.py PORT DIRECTORY``: moto's S3 server on loopback, of which a test can hold up requests.

A file ``DIRECTORY/<name>.hold`` has some words. A request in which all of them are (in its method, path, query and
``Authorization``) writes itself to ``DIRECTORY/<name>.held``, waits until that file is gone, twenty seconds at most,
and is refused with 503: a client that still lives asks again.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import run_simple

PATIENCE_S = 20.0


class Holding:
    """A WSGI application before moto's."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._moto = DomainDispatcherApplication(create_backend_app)
        # S3 decides and writes in one step; moto looks for the key first, so two conditional writes could both succeed.
        self._conditional_write = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        parts = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "HTTP_AUTHORIZATION")
        request = " ".join(environ.get(part, "") for part in parts)
        for hold in self._home.glob("*.hold"):
            if all(word in request for word in hold.read_text().split()):
                hold.with_suffix(".held").write_text(request)
                deadline = time.monotonic() + PATIENCE_S
                while hold.exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response("503 Slow Down", [("Content-Length", "0")])
                return []
        if "HTTP_IF_NONE_MATCH" not in environ:
            return self._moto(environ, start_response)
        with self._conditional_write:
            return self._moto(environ, start_response)


class Handler(MotoRequestHandler):
    """Says ``100 Continue`` once: werkzeug does, and the standard library would do it again."""

    def handle_expect_100(self) -> bool:
        return True


if __name__ == "__main__":
    application = Holding(Path(sys.argv[2]))
    run_simple("127.0.0.1", int(sys.argv[1]), application, threaded=True, request_handler=Handler)
