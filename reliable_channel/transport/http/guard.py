"""Checks who may call one of our HTTP servers: host name, browser's site, method and token.

The host allow-list stops web pages that point their own name at this address. The headers that browsers send for pages
of other sites stop those that call it blindly.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_channel.transport.http.connections import Refusal, plain_text

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class AccessRules:
    """Who may call a server.

    ``hosts`` are names of :func:`allowed_hosts`, None or ``*`` among them any; ``setting`` is the setting that lists
    them. ``token`` None lets everybody in; it is a Bearer token and, if there is a ``realm``, also the password of
    Basic, which browsers ask for. ``methods`` None allows all. ``headers`` are added to every response that does not
    set them, refusals included. ``refusal`` formats the refusals."""

    hosts: frozenset[str] | None = None
    setting: str = ""
    token: str | None = None
    realm: str | None = None
    methods: frozenset[str] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    refusal: Refusal = plain_text


class AccessGuard:
    """Middleware: refuses what :class:`AccessRules` do not allow. A refused request reaches nothing."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self._app, self._rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._rules.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._check(scope["method"], Headers(scope=scope)) or self._app
        await answer(scope, receive, send_with_headers if self._rules.headers else send)

    def _check(self, method: str, headers: Headers) -> Response | None:
        """The refusal of a request; None for one that is allowed."""
        rules = self._rules
        if "content-length" in headers and "transfer-encoding" in headers:
            return self._refuse(400, "A request has one length, not two.", {"Connection": "close"})
        if rules.hosts is not None and not _allows_host(rules.hosts, headers):
            return self._refuse(403, f"This host name is not served here. See {rules.setting}.")
        if _comes_from_another_site(headers):
            return self._refuse(403, "Pages of other sites are not answered.")
        if rules.methods is not None and method not in rules.methods:
            return self._refuse(405, "This server only reads.", {"Allow": ", ".join(sorted(rules.methods))})
        if rules.token is not None and not self._has_token(rules.token, headers.get("authorization", "")):
            if rules.realm is None:
                return self._refuse(401, "The bearer token is missing or wrong.", {"WWW-Authenticate": "Bearer"})
            challenge = {"WWW-Authenticate": f'Basic realm="{rules.realm}", charset="UTF-8"'}
            return self._refuse(401, "The token is missing or wrong: give it as the password.", challenge)
        return None

    def _has_token(self, token: str, authorization: str) -> bool:
        scheme, _, given = authorization.partition(" ")
        if scheme.lower() == "basic" and self._rules.realm is not None:
            try:
                given = base64.b64decode(given.strip(), validate=True).decode("utf-8").partition(":")[2]
            except (binascii.Error, UnicodeDecodeError, ValueError):
                return False
        elif scheme.lower() != "bearer":
            return False
        # Compared as bytes: compare_digest refuses text that is not ASCII.
        return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.encode())

    def _refuse(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
        content_type, body = self._rules.refusal(status, reason)
        return Response(body, status, headers, content_type)


def allowed_hosts(names: Collection[str]) -> frozenset[str]:
    """Host names a server answers to, lower case and without brackets, the loopback ones included."""
    return frozenset(name.lower().strip("[]") for name in names) | LOOPBACK_NAMES


def _allows_host(hosts: Collection[str], headers: Headers) -> bool:
    """Whether a request names one of these hosts, once."""
    names = headers.getlist("host")
    return "*" in hosts or (_read_host_name(names[0]) if len(names) == 1 else "") in hosts


def _read_host_name(header: str) -> str:
    """The host of a ``Host`` header without its port, lower case, without the brackets of IPv6."""
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.partition(":")[0]


def _comes_from_another_site(headers: Headers) -> bool:
    """Whether a browser says that a page of another site asks, in the background: an image, a script, a frame, a fetch.
    Following a link to a page is allowed; programs do not send these headers."""
    site = headers.get("sec-fetch-site", "none").strip().lower()
    if site not in ("none", "same-origin"):
        return headers.get("sec-fetch-mode") != "navigate" or headers.get("sec-fetch-dest") != "document"
    origins = headers.getlist("origin")
    return bool(origins) and any(
        origin.partition("://")[2].lower() != headers.get("host", "").lower() for origin in origins
    )
