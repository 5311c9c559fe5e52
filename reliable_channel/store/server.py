"""A Store v3 server over an envelope source: what running nwaku nodes answer, byte for byte where it matters
(waku-rest.md *What a v3 server of ours must answer*).

Read only. A ``peerAddr`` is checked and then ignored: this server has no peers, its source is the archive.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import uuid
from typing import Any

import h11
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.middleware.trustedhost import TrustedHostMiddleware
from uvicorn import Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from reliable_channel.errors import EnvironmentFault
from reliable_channel.store.model import StoreEntry, StorePage
from reliable_channel.store.parameters import BadParameter, read_parameters
from reliable_channel.store.source import EnvelopeSource, UnknownCursorError, read_page
from reliable_channel.transport.serving import bounded
from reliable_channel.transport.waku_json import hash_to_hex, message_to_json

_log = logging.getLogger(__name__)

_LINGER_S = 2.0


def create_app(source: EnvelopeSource, allowed_hosts: list[str] | None = None, version: str = "0") -> FastAPI:
    """The application. ``allowed_hosts`` bounds the ``Host`` header, against web pages that rebind a name to
    loopback; ``None`` allows all. ``version`` is what ``/version`` says."""
    app = FastAPI(title="Waku Store v3", version=version, docs_url=None, redoc_url=None)
    if allowed_hosts is not None:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=allowed_hosts, www_redirect=False)

    @app.get("/store/v3/messages")
    def messages(request: Request) -> Response:
        try:
            asked = read_parameters(request.query_params)
            page = read_page(
                source,
                asked.selection,
                cursor=asked.cursor,
                page_size=asked.page_size,
                forward=asked.forward,
                include_data=asked.include_data,
            )
        except BadParameter as error:
            return PlainTextResponse(str(error), 400)
        except UnknownCursorError:
            return PlainTextResponse("cursor not found", 500)
        except EnvironmentFault as fault:
            _log.error("%s", fault)  # its text names places of this machine: not for clients
            return PlainTextResponse("the archive cannot be read now", 503)
        return JSONResponse(page_to_json(page))

    @app.get("/health")
    def health() -> dict[str, Any]:
        return {"nodeHealth": "READY", "connectionStatus": "Connected", "protocolsHealth": [{"Store": "READY"}]}

    @app.get("/version", response_class=PlainTextResponse)
    @app.get("/debug/v1/version", response_class=PlainTextResponse)
    def tell_version() -> str:
        return f"v{version} (reliable-channel store)"

    @app.get("/info")
    @app.get("/debug/v1/info")
    def info() -> dict[str, Any]:
        return {"listenAddresses": [], "enrUri": ""}

    return app


def page_to_json(page: StorePage) -> dict[str, Any]:
    """A page as nwaku writes it: ``message`` and ``pubsubTopic`` with data only, the cursor only when more follows."""
    answer: dict[str, Any] = {
        "requestId": uuid.uuid4().hex,
        "statusCode": 200,
        "statusDesc": "OK",
        "messages": [_entry_to_json(entry) for entry in page.entries],
    }
    if page.cursor is not None:
        answer["paginationCursor"] = hash_to_hex(page.cursor)
    return answer


def _entry_to_json(entry: StoreEntry) -> dict[str, Any]:
    found: dict[str, Any] = {"messageHash": hash_to_hex(entry.message_hash)}
    if entry.message is not None:
        # Always there on nwaku; `timestamp` is left out when the sender gave none, as its absence is part of the hash.
        defaults = {"version": 0, "ephemeral": False}
        found["message"] = defaults | message_to_json(entry.message)
        found["pubsubTopic"] = entry.pubsub_topic
    return found


class StoreServer(Server):
    """Uvicorn with this application, bounded: header size, concurrent requests, idle connections.

    ``run()`` blocks until SIGTERM or SIGINT; ``started`` tells when it listens. ``port=0`` picks a free one, found in
    ``port`` afterwards. From other threads, set ``should_exit``."""

    def __init__(self, app: FastAPI, host: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(bounded(app, host=host, port=port, http=_Protocol))

    @property
    def port(self) -> int:
        """The port it listens on; valid once ``started``."""
        port: int = self.servers[0].sockets[0].getsockname()[1]
        return port


class _Protocol(H11Protocol):
    """Says 431 where h11 means it; uvicorn says 400 to everything. What the client still sends is read and dropped for
    a moment: closing on unread bytes would reset the connection, and the client would never see the answer."""

    _dropping = False

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, h11.RemoteProtocolError) or error.error_status_hint != 431:
            super().send_400_response(msg)
            return
        self._dropping = True
        headers = [("content-type", "text/plain; charset=utf-8"), ("connection", "close"), ("content-length", "0")]
        for event in (h11.Response(status_code=431, headers=headers), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        asyncio.get_running_loop().call_later(_LINGER_S, self.transport.close)

    def data_received(self, data: bytes) -> None:
        if not self._dropping:
            super().data_received(data)

    def eof_received(self) -> None:
        if self._dropping:
            self.transport.close()
