"""Limits the connections of our HTTP servers by deadlines and counts, and formats the responses that are sent without a
handler.

Uvicorn's protocol over h11 lets a connection that never finishes its request stay for ever, and counts it against the
requests of everybody else. Here a connection without a request under way has a deadline, and is the first to be closed
when there are too many.

This is the one file that depends on internals of uvicorn: it subclasses ``H11Protocol``, reads its ``conn``, ``cycle``
and ``flow``, and knows its log lines. pyproject.toml therefore allows only one minor version of uvicorn;
``test_serving.py`` and ``test_abuse.py`` fail when a newer one behaves differently.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

_LINGER_S = 2.0
"""How long the remaining input of a refused client is read and discarded: closing with unread bytes resets the
connection, and the client may never see the answer."""

TOOK_LONG = "Others waited, and this took long; try again later."


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits of connections to a server. Times in seconds, sizes in bytes.

    ``connections`` and ``per_peer`` count open connections, of all and of one address. When one more comes, the one
    that has waited longest without a complete request is closed, or else the one that has been busy longest with its
    request, if that is ``slow_s`` or more; only when all are busy and none is slow the new one is refused (503).
    ``running`` counts requests that a handler works on; those that wait for an event do not count. When one more comes,
    one that has run for ``slow_s`` gives way (:mod:`.request_limit`).
    """

    connections: int = 512
    per_peer: int = 256
    running: int = 128
    header_bytes: int = 64 * 1024
    header_timeout_s: float = 10.0
    idle_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    slow_s: float = 10.0


Refusal = Callable[[int, str], tuple[str, bytes]]
"""The content type and the body of an answer with this status and reason."""


def plain_text(status: int, reason: str) -> tuple[str, bytes]:
    """A refusal as text, as running Waku nodes answer."""
    return "text/plain; charset=utf-8", reason.encode()


@dataclass(slots=True)
class Connections:
    """The open connections of one server, by peer, and which of them may be closed for a new one.

    ``unfinished`` holds connections without a complete request, the longest waiting first; ``busy`` those with one,
    the longest busy first, and since when (s)."""

    limits: HttpLimits
    refusal: Refusal
    by_peer: Counter[str] = field(default_factory=Counter)
    unfinished: dict[BoundedProtocol, None] = field(default_factory=dict)
    busy: dict[BoundedProtocol, float] = field(default_factory=dict)

    def admit(self, protocol: BoundedProtocol) -> bool:
        """Count a new connection, closing another one for it where needed; False when all others are busy and none is
        slow."""
        peer = protocol.peer
        if self.by_peer[peer] >= self.limits.per_peer and not (self._close_oldest(peer) or self._close_slow(peer)):
            return False
        if self.by_peer.total() >= self.limits.connections:
            greediest = self.by_peer.most_common(1)[0][0]
            if not (self._close_oldest(self._busiest_peer()) or self._close_slow(greediest)):
                return False
        self.by_peer[peer] += 1
        return True

    def forget(self, protocol: BoundedProtocol) -> None:
        """A connection ended."""
        self.unfinished.pop(protocol, None)
        self.busy.pop(protocol, None)
        self.by_peer[protocol.peer] -= 1
        if self.by_peer[protocol.peer] <= 0:
            del self.by_peer[protocol.peer]

    def _busiest_peer(self) -> str | None:
        waiting = Counter(protocol.peer for protocol in self.unfinished)
        return waiting.most_common(1)[0][0] if waiting else None

    def _close_oldest(self, peer: str | None) -> bool:
        oldest = next((protocol for protocol in self.unfinished if protocol.peer == peer), None)
        if oldest is None:
            return False
        oldest.drop()
        return True

    def _close_slow(self, peer: str) -> bool:
        longest = next((protocol for protocol in self.busy if protocol.peer == peer), None)
        if longest is None or time.monotonic() - self.busy[longest] < self.limits.slow_s:
            return False
        longest.give_way()
        return True


class BoundedProtocol(H11Protocol):
    """One connection. ``connections`` is shared by those of one server; :func:`protocol_class` binds it."""

    shared: Connections

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.peer = ""
        self._counted = False
        self._refused = False
        self._deadline: asyncio.TimerHandle | None = None
        self._write_deadline: asyncio.TimerHandle | None = None

    # -- the life of a connection -------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does so only for sockets that were made with IPPROTO_TCP. Without it the second half of an answer
        # waits for the acknowledgement of the first: 40 ms on Linux.
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in (socket.AF_INET, socket.AF_INET6):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peer = self.client[0] if self.client else ""
        self._counted = self.shared.admit(self)
        if self._counted:
            self._await_request(self.shared.limits.header_timeout_s)
        else:
            self.refuse(503, "Too many connections are busy; try again later.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._cancel_write_deadline()
        if self._counted:
            self._counted = False
            self.shared.forget(self)
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close a connection at once and without an answer."""
        self._cancel_deadline()
        self._counted = False
        self.shared.forget(self)
        self.transport.abort()

    def give_way(self) -> None:
        """Close a connection with a request under way, with a reason unless it is being answered."""
        if self.cycle is None or self.cycle.response_started:
            self.drop()
            return
        self._counted = False
        self.shared.forget(self)
        self.refuse(503, TOOK_LONG)

    def shutdown(self) -> None:
        if self._has_unfinished_request():
            self.refuse(503, "The server is stopping.")
        else:
            super().shutdown()

    # -- requests -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self.conn.their_state is h11.IDLE:
            waiting, limit = self.conn.trailing_data[0], self.shared.limits.header_bytes
            if not waiting:
                self._await_request(self.shared.limits.header_timeout_s)  # the first bytes of a further request
            if len(waiting) + len(data) > limit and not _ends_within(waiting + data, limit):
                # h11 bounds what is incomplete only: headers that come at once may be of any size.
                self._refuse_headers()
                return
        super().data_received(data)

    def handle_events(self) -> None:
        super().handle_events()
        if self._refused or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._cancel_deadline()
            if self.cycle.more_body:
                self.shared.unfinished.setdefault(self)
            else:
                self.shared.unfinished.pop(self, None)
                self.shared.busy.setdefault(self, time.monotonic())

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()
        if not self.transport.is_closing() and self.cycle.response_complete:
            self._await_request(self.shared.limits.idle_timeout_s)

    def eof_received(self) -> None:
        if self._refused:
            self.transport.close()

    def _await_request(self, seconds: float) -> None:
        """Close the connection unless a request is complete within ``seconds``."""
        self._cancel_deadline()
        self.shared.busy.pop(self, None)
        self.shared.unfinished.pop(self, None)
        self.shared.unfinished[self] = None  # the latest
        self._deadline = self.loop.call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.trailing_data[0] or self.cycle is None:
            self.refuse(408, "The request did not come in time.")
        else:
            self.transport.close()

    def _has_unfinished_request(self) -> bool:
        """Whether a request has begun, is not complete, and has no answer yet."""
        if self.cycle is None or self.cycle.response_complete:
            return bool(self.conn.trailing_data[0])
        return bool(self.cycle.more_body and not self.cycle.response_started)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- refusals -----------------------------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError) and error.error_status_hint == 431:
            self._refuse_headers()
        else:
            self.refuse(400, "This is not HTTP/1.1.")

    def _refuse_headers(self) -> None:
        self.refuse(431, f"The request line and headers are larger than {self.shared.limits.header_bytes} bytes.")

    def refuse(self, status: int, reason: str) -> None:
        """Answer a request that never reached a handler, and close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        self._cancel_deadline()
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        content_type, body = self.shared.refusal(status, reason)
        head = [
            f"HTTP/1.1 {status} {STATUS_PHRASES[status].decode()}",
            f"content-type: {content_type}",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        if status in (429, 503):
            head.append("retry-after: 1")
        # Written past h11: its connection may be in a state of error, in which it sends nothing.
        self.transport.write("\r\n".join([*head, "", ""]).encode("ascii") + body)
        if self.transport.can_write_eof():
            with suppress(OSError):  # the client has reset the connection, and the loop has not seen it yet
                self.transport.write_eof()  # the client sees the end at once
        self.flow.resume_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)

    # -- clients that do not read -------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._write_deadline is None:
            self._write_deadline = self.loop.call_later(self.shared.limits.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_deadline()
        super().resume_writing()

    def _cancel_write_deadline(self) -> None:
        if self._write_deadline is not None:
            self._write_deadline.cancel()
            self._write_deadline = None


def is_about_server(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's log is about the server. Its connections also warn of every request that is no HTTP,
    or asks for a WebSocket: the client learns that from the answer, and anybody could fill the disk with such lines."""
    return record.module != "h11_impl" or record.levelno > logging.WARNING


def _ends_within(data: bytes, limit: int) -> bool:
    """Whether the headers of a request end within the first ``limit`` bytes."""
    head = data[:limit]
    return b"\n\r\n" in head or b"\n\n" in head


def protocol_class(limits: HttpLimits, refusal: Refusal) -> type[BoundedProtocol]:
    """The class of the connections of one server."""
    return type("ServerProtocol", (BoundedProtocol,), {"shared": Connections(limits, refusal)})
