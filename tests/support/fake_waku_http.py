"""The HTTP side of the fake Waku node: requests in, answers out, with the faults in between."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from tests.support.fake_waku_faults import Call, Reply

if TYPE_CHECKING:
    from tests.support.fake_waku_node import FakeWakuNode


def handler_of(node: FakeWakuNode) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet: in two, the second waits 40 ms for an acknowledgement of the first

        def setup(self) -> None:
            super().setup()
            node.connections.add(self.connection)

        def finish(self) -> None:
            node.connections.discard(self.connection)
            with contextlib.suppress(OSError):
                super().finish()

        def _serve(self) -> None:
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            split = urlsplit(self.path)
            if "Authorization" in self.headers:
                node.authorizations.append(self.headers["Authorization"])
            faults = node.faults
            if faults.paths in split.path:
                if faults.down:
                    self.close_connection = True
                    self.connection.close()
                    return
                if faults.status is not None:
                    faults.refused.append(split.path)
                    more = {"Retry-After": faults.retry_after} if faults.retry_after else {}
                    self._send(faults.status, faults.body.encode(), "text/plain", more)
                    return
            query = {k: v[-1] for k, v in parse_qs(split.query, keep_blank_values=True).items()}
            slow_s = faults.slow_s
            reply = node.answer(Call(self.command, split.path, query, raw))
            # Only the answer is slow: a request that the client has given up takes no message that is published later.
            if slow_s and faults.paths in split.path:
                time.sleep(slow_s)
            if faults.garbage is not None and faults.paths in split.path:
                self._send(200, faults.garbage, "application/json")
                return
            self._reply(reply)

        def _reply(self, reply: Reply) -> None:
            if reply.kind == "json":
                self._send(reply.status, json.dumps(reply.body).encode(), "application/json")
            else:
                self._send(reply.status, str(reply.body or "").encode(), "text/plain" if reply.kind == "text" else None)

        def _send(self, status: int, body: bytes, kind: str | None, more: Mapping[str, str] | None = None) -> None:
            try:
                self.send_response(status)
                if kind:
                    self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                for name, value in (more or {}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass

        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815 — the names http.server calls

        def log_message(self, *_: object) -> None:
            pass

    return Handler
