"""Serves Store v3 (13/WAKU2-STORE) over an envelope source, answering as running nwaku nodes do.

Read only. Refusals are plain text with the wording of nodes, which clients and the published interop tests look for; an
unknown path gives 400, as on nodes. A ``peerAddr`` is validated and not dialled: this server's own archive answers.
"""

from __future__ import annotations

import logging
import uuid
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.http.guard import AccessGuard, AccessRules
from reliable_channel.transport.store.document import document
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.parameters import read_parameters
from reliable_channel.transport.store.source import EnvelopeSource, UnknownCursorError, read_page
from reliable_channel.transport.waku_json import hash_to_hex, message_to_json

_log = logging.getLogger(__name__)

UNKNOWN_CURSOR = "BAD_RESPONSE: archive error: DIRVER_ERROR: cursor not found"
"""nwaku's wording, its misspelling included, because the interop tests compare it."""

_SMALL_PAGE = 20
"""The maximum number of messages of a page that is built without a separate thread."""

_PEER_BAD_RESPONSE = 300
"""13/WAKU2-STORE as running nodes use it: the status of a peer that could not answer the query."""


def create_app(source: EnvelopeSource, allowed_hosts: frozenset[str] | None = None, version: str = "0") -> Starlette:
    """The application. ``allowed_hosts`` bounds the ``Host`` header, against web pages that rebind a name to loopback;
    ``None`` allows all. ``version`` is the answer of ``/version``.

    Starlette without FastAPI: parameters are parsed here, and FastAPI would take a third of a look-up's time.
    """
    middleware = [Middleware(AccessGuard, rules=AccessRules(allowed_hosts, "store.server.allowed_hosts"))]

    async def messages(request: Request) -> Response:
        return await _answer(source, request)

    def health(request: Request) -> Response:
        reason = source.fault()
        if reason is None:
            return JSONResponse(
                {"nodeHealth": "READY", "connectionStatus": "Connected", "protocolsHealth": [{"Store": "READY"}]}
            )
        store = {"Store": "NOT_READY", "desc": reason}
        answer = {"nodeHealth": "NOT_READY", "connectionStatus": "Disconnected", "protocolsHealth": [store]}
        return JSONResponse(answer, 503, {"Retry-After": "1"})

    def version_text(request: Request) -> Response:
        return PlainTextResponse(f"v{version} (reliable-channel store)")

    def info(request: Request) -> Response:
        return JSONResponse({"listenAddresses": [], "enrUri": ""})

    def openapi(request: Request) -> Response:
        return JSONResponse(document(version))

    calls = {
        "/store/v3/messages": messages,
        "/health": health,
        "/version": version_text,
        "/debug/v1/version": version_text,
        "/info": info,
        "/debug/v1/info": info,
        "/openapi.json": openapi,
    }
    app = Starlette(
        routes=[Route(path, call, methods=["GET", "HEAD"]) for path, call in calls.items()],
        middleware=middleware,
        exception_handlers={HTTPException: _refuse, Exception: _answer_unforeseen},
    )
    app.router.redirect_slashes = False
    return app


async def _answer(source: EnvelopeSource, request: Request) -> Response:
    """The answer to a query."""
    try:
        query = read_parameters(request.query_params.multi_items())
        page = _read_small_page(source, query)
        if page is None:
            page = await run_in_threadpool(read_page, source, query)
    except UnknownCursorError:
        if request.query_params.get("peerAddr"):  # for whose archive this server answers
            return JSONResponse(_make_response(_PEER_BAD_RESPONSE, UNKNOWN_CURSOR))
        return PlainTextResponse(f"error in handleSelfStoreRequest: {UNKNOWN_CURSOR}", 500)
    except EnvironmentFault as fault:
        # Its text names places of this machine, so it is not for clients. A lasting fault is logged by the source.
        if (reason := source.fault()) is None:
            _log.error("%s", fault)
            reason = "the archive cannot be read now"
        return PlainTextResponse(reason, 503, {"Retry-After": "1"})
    return JSONResponse(page_to_json(page))


def _read_small_page(source: EnvelopeSource, query: StoreQuery) -> StorePage | None:
    """A page that needs only a few reads of one index and payloads in memory; None for any other. It is built on the
    request's thread: passing it to another thread and back would take as long again."""
    topics = (query.pubsub_topic is not None) + len(query.content_topics)
    if topics > 1 or max(query.page_size, len(query.hashes)) > _SMALL_PAGE:
        return None
    try:
        with source.read_without_waiting() as reading:
            return None if reading is None else read_page(reading, query)
    except BlockingIOError:
        return None


async def _refuse(request: Request, error: Any) -> Response:
    if error.status_code == 404:
        return PlainTextResponse(f"Unknown path: {request.url.path[:200]}", 400)
    if error.status_code == 405:
        return PlainTextResponse("This path is only read.", 405, {"Allow": "GET, HEAD"})
    return PlainTextResponse(str(error.detail), error.status_code, error.headers)


async def _answer_unforeseen(request: Request, error: Exception) -> Response:
    _log.exception("%s %s failed", request.method, request.url.path)
    return PlainTextResponse("Internal error.", 500)


def page_to_json(page: StorePage) -> dict[str, Any]:
    """A page in nwaku's format: ``message`` and ``pubsubTopic`` with data only, the cursor only when more follows."""
    answer = _make_response(200, "OK", [_entry_to_json(entry) for entry in page.entries])
    if page.cursor is not None:
        answer["paginationCursor"] = hash_to_hex(page.cursor)
    return answer


def _make_response(code: int, description: str, messages: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    return {"requestId": uuid.uuid4().hex, "statusCode": code, "statusDesc": description, "messages": messages or []}


def _entry_to_json(entry: StoreEntry) -> dict[str, Any]:
    answer: dict[str, Any] = {"messageHash": hash_to_hex(entry.message_hash)}
    if entry.message is not None:
        # Always there on nwaku; `timestamp` is left out when the sender gave none, as its absence is part of the hash.
        defaults = {"version": 0, "ephemeral": False}
        answer["message"] = defaults | message_to_json(entry.message)
        answer["pubsubTopic"] = entry.pubsub_topic
    return answer
