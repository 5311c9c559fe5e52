"""Bounds how many requests a server works on at once, without counting those that only wait.

A long poll, a stream of events or a body that arrives slowly uses no processor while it waits. Such a request frees its
slot meanwhile with :func:`waiting`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_channel.transport.http_protocol import Refusal


class _RequestSlot:
    """The slot of one running request."""

    def __init__(self, limit: RequestLimit) -> None:
        self._limit = limit
        self._waits = 0
        limit.running += 1

    def wait(self) -> None:
        self._waits += 1
        if self._waits == 1:
            self._limit.running -= 1

    def go_on(self) -> None:
        self._waits -= 1
        if self._waits == 0:
            self._limit.running += 1

    def leave(self) -> None:
        if self._waits == 0:
            self._limit.running -= 1


_PLACE: ContextVar[_RequestSlot | None] = ContextVar("reliable_channel_request", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Within this block the current request waits for something outside and does not count as running. Outside a server
    it does nothing. A request that continues afterwards may briefly exceed the bound, because it was already
    admitted."""
    place = _PLACE.get()
    if place is None:
        yield
        return
    place.wait()
    try:
        yield
    finally:
        place.go_on()


class RequestLimit:
    """Middleware: requests beyond ``most`` running ones are answered 503 with ``Retry-After``, as are those that the
    server cuts off when it stops. ``refusal`` forms these answers."""

    def __init__(self, app: ASGIApp, most: int, refusal: Refusal) -> None:
        self._app, self._most, self._refusal = app, most, refusal
        self.running = 0
        """Requests that a handler works on now."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self.running >= self._most:
            await self._refused("Too many requests at once; try again later.")(scope, receive, send)
            return
        started = False

        async def noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        place = _RequestSlot(self)
        token = _PLACE.set(place)
        try:
            await self._app(scope, receive, noting)
        except asyncio.CancelledError:
            if started:
                raise
            await self._refused("The server is stopping.")(scope, receive, send)
        finally:
            place.leave()
            _PLACE.reset(token)

    def _refused(self, reason: str) -> Response:
        kind, body = self._refusal(503, reason)
        return Response(body, 503, {"Retry-After": "1", "Connection": "close"}, kind)
