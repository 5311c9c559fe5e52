"""Checks every request (host name, method, token), and adds the security headers to every response.

The host allow-list stops web pages that point their own name at this address. The policy allows only our own files, so
that markup that was not escaped could neither run nor load anything.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_channel.transport.serving import allows_host, comes_from_another_site, same_token

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""The policy for a chart opened alone: it allows the chart's own styles and nothing else."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


@dataclass(frozen=True)
class DashboardGuard:
    """``token`` None allows everybody; ``allowed_hosts`` are names without port, ``*`` any."""

    token: str | None
    allowed_hosts: frozenset[str]


class DashboardGuardMiddleware:
    """Applies a :class:`DashboardGuard`. Plain ASGI: a refused request reaches nothing."""

    def __init__(self, app: ASGIApp, guard: DashboardGuard) -> None:
        self._app, self._guard = app, guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Content-Security-Policy", POLICY)
                headers.setdefault("Cache-Control", "no-cache, private")
            await send(message)

        refusal = self._refusal(scope["method"], Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_guarded)

    def _refusal(self, method: str, headers: Headers) -> PlainTextResponse | None:
        if not allows_host(self._guard.allowed_hosts, headers):
            return PlainTextResponse("This host name is not served here. See dashboard.allowed_hosts.", 403)
        if comes_from_another_site(headers):
            return PlainTextResponse("Pages of other sites cannot read the dashboard.", 403)
        if method != "GET":
            return PlainTextResponse("The dashboard only reads.", 405, {"Allow": "GET"})
        if self._guard.token is not None and not _carries(self._guard.token, headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": 'Basic realm="reliable-channel dashboard", charset="UTF-8"'}
            return PlainTextResponse("The token is missing or wrong: give it as the password.", 401, challenge)
        return None


def _carries(token: str, header: str) -> bool:
    """Whether an ``Authorization`` header has the token, as a Bearer token or as the password of Basic."""
    scheme, _, given = header.partition(" ")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given.strip(), validate=True).decode("utf-8").partition(":")[2]
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return False
    elif scheme.lower() != "bearer":
        return False
    return same_token(given, token)
