"""Reads the body of every call before it reaches a handler, and checks its size, time, content type and number of
values.

Plain ASGI, so that a refused body is not kept in memory. The JSON content type and the absence of CORS stop web pages
that call the server blindly, beside what the access guard refuses.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_channel.core.foreign_json import has_more_values
from reliable_channel.messaging.rest.errors import error_response
from reliable_channel.transport.http.request_limit import release_slot

MAX_VALUES = 10_000
"""More than any call takes. The framework describes each value that is wrong: 190 000 unknown fields, 1.8 MB, took
170 MB and 1.6 s, in which no other call was answered."""

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class BodyGuard:
    """Middleware: a body has at most ``max_bytes`` and arrives within ``timeout_s``; one that changes something is
    JSON of at most :data:`MAX_VALUES` values."""

    def __init__(self, app: ASGIApp, max_bytes: int, timeout_s: float = 30.0) -> None:
        self._app, self._max_bytes, self._timeout_s = app, max_bytes, timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            body = await self._read_body(headers, receive)
            if scope["method"] in _CHANGING and body:
                _check_content_type(headers)
                if has_more_values(body, MAX_VALUES):
                    raise HTTPException(HTTPStatus.BAD_REQUEST, f"The body has more than {MAX_VALUES} values.")
        except ClientDisconnect:
            return
        except HTTPException as refused:
            await error_response(refused.status_code, refused.detail, refused.headers)(scope, receive, send)
            return
        await self._app(scope, _Replay(body, receive), send)

    async def _read_body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._max_bytes
        too_large = HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {limit} bytes.", {"Connection": "close"}
        )
        length = headers.get("content-length", "")
        # Cut, because int() refuses more than 4 300 digits.
        if length.isascii() and length.isdigit() and int(length[:20]) > limit:
            raise too_large
        received = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                while True:
                    with release_slot():
                        message = await receive()
                    if message["type"] != "http.request":
                        raise ClientDisconnect
                    received += message.get("body", b"")
                    if len(received) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(received)
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time.", {"Connection": "close"}
            ) from None


class _Replay:
    """The body that was read, then whatever comes (the end of the connection)."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()


def _check_content_type(headers: Headers) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
