"""Checks every call before it reaches a handler: host name, token, content type, body size.

Plain ASGI, so that a refused body is not kept in memory. The host allow-list stops web pages that point their own name
at this address; the headers that browsers send for pages of other sites, the JSON content type and the absence of CORS
stop those that call it blindly.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_channel.messaging.rest.errors import error_response
from reliable_channel.transport.request_limit import waiting
from reliable_channel.transport.serving import OTHER_SITE, allows_host, comes_from_another_site, same_token

_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})


class _GoneError(Exception):
    """The client closed the connection before its request was complete."""


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


@dataclass(frozen=True)
class ApiGuard:
    """Limits of the server. ``token`` None lets everybody in; ``allowed_hosts`` are names without port, ``*`` any."""

    token: str | None
    allowed_hosts: frozenset[str]
    max_body_bytes: int
    body_timeout_s: float = 30.0


class ApiGuardMiddleware:
    """Applies a :class:`ApiGuard`."""

    def __init__(self, app: ASGIApp, guard: ApiGuard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_host(headers)
            self._check_token(headers)
            body = await self._body(headers, receive)
            if scope["method"] in _CHANGING and body:
                _check_content_type(headers)
        except _GoneError:
            return
        except _RefusedError as refused:
            await error_response(refused.status, refused.text, refused.headers)(scope, receive, send)
            return
        await self._app(scope, _Replay(body, receive), send)

    def _check_host(self, headers: Headers) -> None:
        if not allows_host(self._guard.allowed_hosts, headers):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "This host name is not served here.")
        if comes_from_another_site(headers):
            raise _RefusedError(HTTPStatus.FORBIDDEN, OTHER_SITE)

    def _check_token(self, headers: Headers) -> None:
        token = self._guard.token
        if token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not same_token(given, token):
            raise _RefusedError(
                HTTPStatus.UNAUTHORIZED, "The bearer token is missing or wrong.", {"WWW-Authenticate": "Bearer"}
            )

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._guard.max_body_bytes
        too_large = _RefusedError(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"The body is larger than {limit} bytes.", {"Connection": "close"}
        )
        length = headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:20]) > limit:
            raise too_large
        received = bytearray()
        try:
            async with asyncio.timeout(self._guard.body_timeout_s):
                while True:
                    with waiting():
                        message = await receive()
                    if message["type"] != "http.request":
                        raise _GoneError
                    received += message.get("body", b"")
                    if len(received) > limit:
                        raise too_large
                    if not message.get("more_body", False):
                        return bytes(received)
        except TimeoutError:
            raise _RefusedError(
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
        raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Send application/json.")
