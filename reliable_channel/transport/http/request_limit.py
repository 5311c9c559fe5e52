"""Bounds how many requests a server works on at once, without counting those that only wait, and shares them fairly.

A long poll, a stream of events or a body that arrives slowly uses no processor while it waits. Such a request frees its
slot meanwhile with :func:`release_slot`; so does one whose client does not read.

When all slots are taken, the client with most of them gives one up to a client with fewer. Clients are told apart by
address, on loopback by connection; if no client has more than the others, the request that has run longest gives way
once it is slow.
"""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reliable_channel.transport.http.connections import TOOK_LONG, Refusal


class _RequestSlot:
    """The slot of one running request."""

    def __init__(self, running: dict[_RequestSlot, None], client: object) -> None:
        self._running = running
        self._task = asyncio.current_task()
        self._waits = 0
        self.client = client
        self.since = time.monotonic()
        self.gave_way = False
        running[self] = None

    def wait(self) -> None:
        self._waits += 1
        self._running.pop(self, None)

    def go_on(self) -> None:
        self._waits -= 1
        if self._waits == 0 and not self.gave_way:
            self.since = time.monotonic()
            self._running[self] = None

    def leave(self) -> None:
        self._running.pop(self, None)

    def give_way(self) -> None:
        """End the request. A handler on a thread goes on there until it returns."""
        self.gave_way = True
        self.leave()
        if self._task is not None:
            self._task.cancel()


_STOPPING = "The server is stopping."
_SLOT: ContextVar[_RequestSlot | None] = ContextVar("reliable_channel_request", default=None)


@contextmanager
def release_slot() -> Iterator[None]:
    """Within this block the current request waits for something outside and does not count as running. Outside a server
    it does nothing. A request that continues afterwards may briefly exceed the bound, because it was already
    admitted."""
    slot = _SLOT.get()
    if slot is None:
        yield
        return
    slot.wait()
    try:
        yield
    finally:
        slot.go_on()


class RequestLimit:
    """Middleware: requests beyond ``most`` running ones are answered 503 with ``Retry-After``, as are those that give
    way to others or that the server cuts off when it stops. A request is slow that has run for ``slow_s`` (s).
    ``refusal`` forms these answers."""

    def __init__(self, app: ASGIApp, most: int, refusal: Refusal, *, slow_s: float) -> None:
        self._app, self._most, self._refusal, self._slow_s = app, most, refusal, slow_s
        self._running: dict[_RequestSlot, None] = {}

    @property
    def running(self) -> int:
        """The number of requests that a handler works on now."""
        return len(self._running)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        client = _client_of(scope)
        if self.running >= self._most and not self._free_slot(client):
            await self._refuse("Too many requests at once; try again later.")(scope, receive, send)
            return
        started = False

        async def send_and_note(message: Message) -> None:
            nonlocal started
            started = True
            with release_slot():  # until the client has read what was sent before
                await send(message)

        slot = _RequestSlot(self._running, client)
        token = _SLOT.set(slot)
        try:
            await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if not started:
                await self._refuse(TOOK_LONG if slot.gave_way else _STOPPING)(scope, receive, send)
            elif not slot.gave_way:  # what gave way ends here, and the server closes its connection
                raise
        finally:
            slot.leave()
            _SLOT.reset(token)

    def _free_slot(self, client: object) -> bool:
        """Take a slot from the client that holds most, the one whose request runs longest among equals; False if that
        is fair to nobody."""
        held = Counter(slot.client for slot in self._running)  # the longest running first
        greediest, most = held.most_common(1)[0]
        oldest = next(slot for slot in self._running if slot.client == greediest)
        if most <= held[client] + 1 and time.monotonic() - oldest.since < self._slow_s:
            return False
        oldest.give_way()
        return True

    def _refuse(self, reason: str) -> Response:
        kind, body = self._refusal(503, reason)
        return Response(body, 503, {"Retry-After": "1", "Connection": "close"}, kind)


def _client_of(scope: Scope) -> object:
    """Who sent a request: an address, and on loopback, where all programs have the same, a connection of it."""
    host, port = scope.get("client") or ("", 0)
    try:
        here = ipaddress.ip_address(host).is_loopback
    except ValueError:
        here = True
    return (host, port) if here else host
