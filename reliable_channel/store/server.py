"""Serves Store v3 (13/WAKU2-STORE) over an envelope source, answering as running nwaku nodes do.

Read only. Refusals are plain text in the words of nodes, which clients and the published interop tests look for; an
unknown path is 400, as there. A ``peerAddr`` is checked and not dialled: this server's archive stands for that peer's.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from reliable_channel.errors import EnvironmentFault
from reliable_channel.store.document import document
from reliable_channel.store.model import StoreEntry, StorePage
from reliable_channel.store.parameters import BadParameter, read_parameters
from reliable_channel.store.source import EnvelopeSource, UnknownCursorError, read_page
from reliable_channel.transport.serving import answers_to
from reliable_channel.transport.waku_json import hash_to_hex, message_to_json

_log = logging.getLogger(__name__)

UNKNOWN_CURSOR = "BAD_RESPONSE: archive error: DIRVER_ERROR: cursor not found"
"""nwaku's words, its misspelling included: the interop tests compare them."""

_PEER_BAD_RESPONSE = 300
"""13/WAKU2-STORE as running nodes use it: the status of a peer that could not answer the query."""


def create_app(source: EnvelopeSource, allowed_hosts: frozenset[str] | None = None, version: str = "0") -> FastAPI:
    """The application. ``allowed_hosts`` bounds the ``Host`` header, against web pages that rebind a name to
    loopback; ``None`` allows all. ``version`` is what ``/version`` says."""
    app = FastAPI(title="Waku Store v3", version=version, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.openapi = lambda: document(version)  # type: ignore[method-assign]
    if allowed_hosts is not None:
        app.add_middleware(_KnownHosts, hosts=allowed_hosts)

    @app.exception_handler(HTTPException)
    async def _refused(request: Request, error: HTTPException) -> PlainTextResponse:
        if error.status_code == 404:
            return PlainTextResponse(f"Unknown path: {request.url.path[:200]}", 400)
        if error.status_code == 405:
            return PlainTextResponse("This path is only read.", 405, {"Allow": "GET, HEAD"})
        return PlainTextResponse(str(error.detail), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def _unforeseen(request: Request, error: Exception) -> PlainTextResponse:
        _log.exception("%s %s failed", request.method, request.url.path)
        return PlainTextResponse("Internal error.", 500)

    @app.api_route("/store/v3/messages", methods=["GET", "HEAD"])
    def messages(request: Request) -> Response:
        try:
            asked = read_parameters(request.query_params.multi_items())
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
            if asked.of_a_peer:
                return JSONResponse(_answer(_PEER_BAD_RESPONSE, UNKNOWN_CURSOR))
            return PlainTextResponse(f"error in handleSelfStoreRequest: {UNKNOWN_CURSOR}", 500)
        except EnvironmentFault as fault:
            # Its text names places of this machine, so it is not for clients. A lasting fault is logged by the source.
            if (reason := source.fault()) is None:
                _log.error("%s", fault)
                reason = "the archive cannot be read now"
            return PlainTextResponse(reason, 503, {"Retry-After": "1"})
        return JSONResponse(page_to_json(page))

    @app.api_route("/health", methods=["GET", "HEAD"])
    def health() -> Response:
        reason = source.fault()
        if reason is None:
            return JSONResponse(
                {"nodeHealth": "READY", "connectionStatus": "Connected", "protocolsHealth": [{"Store": "READY"}]}
            )
        store = {"Store": "NOT_READY", "desc": reason}
        answer = {"nodeHealth": "NOT_READY", "connectionStatus": "Disconnected", "protocolsHealth": [store]}
        return JSONResponse(answer, 503, {"Retry-After": "1"})

    @app.api_route("/version", methods=["GET", "HEAD"], response_class=PlainTextResponse)
    @app.api_route("/debug/v1/version", methods=["GET", "HEAD"], response_class=PlainTextResponse)
    def tell_version() -> str:
        return f"v{version} (reliable-channel store)"

    @app.api_route("/info", methods=["GET", "HEAD"])
    @app.api_route("/debug/v1/info", methods=["GET", "HEAD"])
    def info() -> dict[str, Any]:
        return {"listenAddresses": [], "enrUri": ""}

    return app


def page_to_json(page: StorePage) -> dict[str, Any]:
    """A page as nwaku writes it: ``message`` and ``pubsubTopic`` with data only, the cursor only when more follows."""
    answer = _answer(200, "OK", [_entry_to_json(entry) for entry in page.entries])
    if page.cursor is not None:
        answer["paginationCursor"] = hash_to_hex(page.cursor)
    return answer


def _answer(code: int, description: str, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"requestId": uuid.uuid4().hex, "statusCode": code, "statusDesc": description, "messages": messages or []}


def _entry_to_json(entry: StoreEntry) -> dict[str, Any]:
    found: dict[str, Any] = {"messageHash": hash_to_hex(entry.message_hash)}
    if entry.message is not None:
        # Always there on nwaku; `timestamp` is left out when the sender gave none, as its absence is part of the hash.
        defaults = {"version": 0, "ephemeral": False}
        found["message"] = defaults | message_to_json(entry.message)
        found["pubsubTopic"] = entry.pubsub_topic
    return found


class _KnownHosts:
    """Middleware: refuses requests for other host names."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not answers_to(self._hosts, Headers(scope=scope)):
            refusal = PlainTextResponse("This host name is not served here. See store.server.allowed_hosts.", 403)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)
