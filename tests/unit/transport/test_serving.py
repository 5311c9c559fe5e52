"""How our HTTP servers treat connections: over real sockets on loopback, with deadlines made short."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from reliable_channel.messaging.rest.errors import refusal
from reliable_channel.transport.http_protocol import BoundedProtocol, HttpLimits
from reliable_channel.transport.request_limit import waiting
from reliable_channel.transport.serving import SiteGuard, allowed
from tests.support.http_server import running

LIMITS = HttpLimits()


class App:
    """``/`` answers at once; ``/wait`` when :meth:`release` was called, and ``/event`` does so without counting as
    running; ``/large`` answers more than a socket's buffers hold."""

    def __init__(self) -> None:
        self.inside = threading.Semaphore(0)
        self.nodelay: list[bool] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._released = asyncio.Event()

    def release(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._released.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        body = b"{}"
        if scope["path"] in ("/wait", "/event"):
            self.inside.release()
            with waiting() if scope["path"] == "/event" else ExitStack():
                await self._released.wait()
        elif scope["path"] == "/large":
            body = bytes(50_000_000)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: App | None = None, **limits: Any) -> Iterator[tuple[str, int]]:
    with running(app or App(), limits=replace(LIMITS, **limits), refusal=refusal) as url:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        yield host, int(port)


def ask(address: tuple[str, int], path: str = "/") -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*address, timeout=120)
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def everything(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    while data := connection.recv(65_536):
        received += data
    return received


def test_answers_are_not_held_back_for_an_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[int] = []
    made = BoundedProtocol.connection_made

    def noting(protocol: BoundedProtocol, transport: asyncio.Transport) -> None:
        made(protocol, transport)
        options.append(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr(BoundedProtocol, "connection_made", noting)
    with serving() as address:
        assert ask(address).status == 200
    assert options == [1]


def test_more_half_open_connections_than_a_server_takes_keep_nobody_out() -> None:
    with serving(connections=20, per_peer=20) as address, ExitStack() as held:
        for number in range(60):
            connection = held.enter_context(socket.create_connection(address, timeout=120))
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x" if number % 2 else b"")
        for _ in range(5):
            assert ask(address).status == 200


def test_connections_that_are_all_busy_refuse_one_more_with_a_reason() -> None:
    app = App()
    with serving(app, connections=2, per_peer=2) as address:
        busy = [threading.Thread(target=ask, args=(address, "/event")) for _ in range(2)]
        for one in busy:
            one.start()
        for _ in busy:
            assert app.inside.acquire(timeout=120)
        refused = ask(address)
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        app.release()
        for one in busy:
            one.join(120)
        assert ask(address).status == 200


def test_requests_that_wait_for_events_leave_their_places_to_others() -> None:
    app = App()
    with serving(app, running=1) as address:
        waits = [threading.Thread(target=ask, args=(address, "/event")) for _ in range(3)]
        for one in waits:
            one.start()
            assert app.inside.acquire(timeout=120)
        assert ask(address).status == 200
        busy = threading.Thread(target=ask, args=(address, "/wait"))
        busy.start()
        assert app.inside.acquire(timeout=120)
        assert ask(address).status == 503
        app.release()
        for one in [*waits, busy]:
            one.join(120)


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: x\r\n"])
def test_a_request_that_does_not_come_is_408(begun: bytes) -> None:
    with serving(header_timeout_s=0.05) as address, socket.create_connection(address, timeout=120) as connection:
        connection.sendall(begun)
        answer = everything(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout")
    assert json.loads(body) == {"error": "The request did not come in time."}


def test_an_idle_connection_is_closed_without_an_answer() -> None:
    with serving(idle_timeout_s=0.05) as address, socket.create_connection(address, timeout=120) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = everything(connection)
    assert answer.count(b"HTTP/1.1") == 1


def test_the_second_request_of_a_connection_has_a_deadline_too() -> None:
    with serving(header_timeout_s=0.05) as address, socket.create_connection(address, timeout=120) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200")
        connection.sendall(b"GET / HT")
        assert b"HTTP/1.1 408" in everything(connection)


def test_a_client_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = threading.Event()
    lost = BoundedProtocol.connection_lost

    def noting(protocol: BoundedProtocol, error: Exception | None) -> None:
        lost(protocol, error)
        dropped.set()

    monkeypatch.setattr(BoundedProtocol, "connection_lost", noting)
    with serving(write_timeout_s=0.05) as address, socket.create_connection(address, timeout=120) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        assert dropped.wait(120), "the server still holds it"


@pytest.mark.parametrize(
    ("request_bytes", "status", "words"),
    [
        (b"nonsense\r\n\r\n", b"400 Bad Request", "not HTTP"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"x" * 70_000 + b"\r\n\r\n", b"431 Request Header", "65536 bytes"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400 Bad Request", "not HTTP"),
    ],
)
def test_what_no_handler_sees_is_refused_in_the_form_of_all_answers(
    request_bytes: bytes, status: bytes, words: str
) -> None:
    with serving() as address, socket.create_connection(address, timeout=120) as connection:
        connection.sendall(request_bytes)
        head, _, body = everything(connection).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert words in json.loads(body)["error"]


def test_a_server_that_stops_ends_what_is_half_sent_and_lets_what_waits_answer() -> None:
    app, answers = App(), []
    with ExitStack() as held:
        with running(app, limits=LIMITS, refusal=refusal, on_stop=lambda: app.release()) as url:
            host, port = url.removeprefix("http://").rsplit(":", 1)
            address = (host, int(port))
            half = held.enter_context(socket.create_connection(address, timeout=120))
            half.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Le")
            wait = threading.Thread(target=lambda: answers.append(ask(address, "/event").status))
            wait.start()
            assert app.inside.acquire(timeout=120)
        wait.join(120)
        assert answers == [200]
        assert b"The server is stopping" in everything(half)


def test_a_request_that_never_ends_is_503_when_the_server_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliable_channel.transport.serving.STOP_TIMEOUT_S", 0.1)
    app, answers = App(), []
    with serving(app) as address:
        wait = threading.Thread(target=lambda: answers.append(ask(address, "/wait").status))
        wait.start()
        assert app.inside.acquire(timeout=120)
    wait.join(120)
    assert answers == [503]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
    ],
)
def test_servers_without_a_guard_of_their_own_answer_no_page_of_another_site(
    headers: dict[str, str], status: int
) -> None:
    app = SiteGuard(PlainTextResponse("secret"), allowed(()), "store.server.allowed_hosts")
    answer = TestClient(app, base_url="http://localhost").get("/", headers=headers)
    assert (answer.status_code, answer.text == "secret") == (status, status == 200)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_client_that_resets_its_connection_at_the_end_does_not_spoil_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server may answer a connection before it sees that the client is gone."""

    def gone(_transport: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    with ExitStack() as held, serving(header_timeout_s=60.0) as address:
        connection = held.enter_context(socket.create_connection(address, timeout=120))
        connection.sendall(b"GET / HTTP/1.1\r\n")
        assert ask(address).status == 200  # so the first connection was accepted, too
        monkeypatch.setattr("asyncio.selector_events._SelectorSocketTransport.write_eof", gone)
