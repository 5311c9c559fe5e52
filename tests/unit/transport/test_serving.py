"""How our HTTP servers treat connections: over real sockets on loopback, with deadlines made short."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from reliable_channel.messaging.rest.errors import refusal
from reliable_channel.transport.http.connections import BoundedProtocol, HttpLimits
from reliable_channel.transport.http.guard import AccessGuard, AccessRules, allowed_hosts
from reliable_channel.transport.http.request_limit import RequestLimit, release_slot
from tests.support.http_server import running

LIMITS = HttpLimits()


class App:
    """``/`` answers at once; ``/wait`` when :meth:`release` was called, and ``/event`` does so without counting as
    running; ``/large`` answers more than a socket's buffers hold, and ``/parts`` does so in parts."""

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
            with release_slot() if scope["path"] == "/event" else ExitStack():
                await self._released.wait()
        parts = 50 if scope["path"] == "/parts" else 1
        if scope["path"] in ("/large", "/parts"):
            body = bytes(50_000_000 // parts)
        length = b"%d" % (len(body) * parts)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for left in reversed(range(parts)):
            await send({"type": "http.response.body", "body": body, "more_body": left > 0})


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
    with serving(app, connections=2, per_peer=2, slow_s=3_600) as address:
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
    with serving(app, running=1, slow_s=3_600) as address:
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


def address_of(connection: int) -> tuple[str, int]:
    return f"192.0.2.{connection}", 40_000


async def status_of(limit: RequestLimit, client: tuple[str, int], path: str = "/") -> int:
    """The status of one request by ``client`` to an application behind ``limit``; 0 if it was cut off unanswered."""
    statuses = [0]

    async def send(message: Message) -> None:
        statuses.append(int(message.get("status", statuses[-1])))

    async def receive() -> Message:
        return {"type": "http.request"}

    await limit({"type": "http", "path": path, "client": client, "headers": []}, receive, send)
    return statuses[-1]


async def settle() -> None:
    """Let what was cancelled end."""
    for _ in range(10):
        await asyncio.sleep(0)


class Held:
    """An application whose requests stay until they are cancelled, but for those to ``/``; ``/answered`` has begun to
    answer by then."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/answered":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] != "/":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})


@given(
    others=st.lists(st.integers(1, 4), max_size=12),
    greedy=st.integers(8, 30),
    path=st.sampled_from(["/held", "/answered"]),
)
def test_requests_of_one_address_leave_slots_to_others(others: list[int], greedy: int, path: str) -> None:
    async def play() -> tuple[list[int], set[asyncio.Task[int]]]:
        limit = RequestLimit(Held(), 8, refusal, slow_s=3_600)
        held = {asyncio.create_task(status_of(limit, ("192.0.2.200", n), path)) for n in range(greedy)}
        await asyncio.sleep(0)
        answers = [await status_of(limit, address_of(other)) for other in others]
        assert limit.running <= 8
        await settle()
        ended = {task for task in held if task.done()}
        for task in held - ended:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        return answers, ended

    answers, ended = asyncio.run(play())
    assert answers == [200] * len(others)
    assert len(ended) == greedy - 8 + bool(others), "the first of the others took a slot, and left it to the next"


@pytest.mark.parametrize("path", ["/held", "/answered"])
def test_of_one_address_the_request_that_runs_longest_gives_way_once_it_is_slow(path: str) -> None:
    """On loopback all clients have one address: another connection may be another client."""

    async def play(slow_s: float) -> tuple[int, list[int]]:
        limit = RequestLimit(Held(), 2, refusal, slow_s=slow_s)
        held = [asyncio.create_task(status_of(limit, ("127.0.0.1", n), path)) for n in range(2)]
        await asyncio.sleep(0)
        answer = await status_of(limit, ("127.0.0.1", 9))
        await settle()
        ended = [number for number, task in enumerate(held) if task.done()]
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
        return answer, ended

    assert asyncio.run(play(0)) == (200, [0])
    assert asyncio.run(play(3_600)) == (503, [])


def test_a_request_that_gave_way_is_told_to_come_again() -> None:
    app = App()
    with serving(app, running=2, slow_s=0) as address:
        answers: list[http.client.HTTPResponse] = []
        busy = [threading.Thread(target=lambda: answers.append(ask(address, "/wait"))) for _ in range(2)]
        for one in busy:
            one.start()
            assert app.inside.acquire(timeout=120)
        assert ask(address).status == 200
        app.release()
        for one in busy:
            one.join(120)
    assert sorted((answer.status, answer.headers["Retry-After"]) for answer in answers) == [(200, None), (503, "1")]


def test_clients_that_do_not_read_leave_their_slots_to_others() -> None:
    with serving(running=2, slow_s=3_600) as address, ExitStack() as held:
        for _ in range(2):
            connection = held.enter_context(socket.create_connection(address, timeout=120))
            connection.sendall(b"GET /parts HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(10)
        assert ask(address).status == 200


def test_connections_that_are_busy_for_long_make_room_for_others() -> None:
    app = App()
    with serving(app, connections=3, per_peer=3, slow_s=0) as address, ExitStack() as held:
        for path in (b"/parts", b"/event", b"/event"):
            connection = held.enter_context(socket.create_connection(address, timeout=120))
            connection.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\n\r\n" % path)
            assert app.inside.acquire(timeout=120) if path == b"/event" else connection.recv(10)
        for _ in range(3):
            assert ask(address).status == 200
        app.release()


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


class Lines(logging.Handler):
    """The messages of a log."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def test_only_faults_of_the_server_are_logged_and_no_request_that_is_none() -> None:
    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("a fault of the application")

    upgrade = b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    log, lines = logging.getLogger("uvicorn.error"), Lines()
    with running(fail, limits=LIMITS, refusal=refusal) as url:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        log.addHandler(lines)
        try:
            for request in (b"nonsense\r\n\r\n", b"nonsense\r\n\r\n", upgrade):
                with socket.create_connection((host, int(port)), timeout=120) as connection:
                    connection.sendall(request)
                    everything(connection)
        finally:
            log.removeHandler(lines)
    assert lines.texts == ["Exception in ASGI application\n"]


def test_a_request_with_two_lengths_is_refused_and_what_follows_it_is_not_read() -> None:
    """RFC 9112 6.1: a proxy that believes the other length would take a part of the body for a request."""
    smuggled = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    request = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    app = AccessGuard(PlainTextResponse("served"), AccessRules())
    with running(app, limits=LIMITS, refusal=refusal) as url:
        host, port = url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((host, int(port)), timeout=120) as connection:
            connection.sendall(request + smuggled)
            answers = everything(connection)
    assert answers.startswith(b"HTTP/1.1 400 Bad Request")
    assert answers.count(b"HTTP/1.1") == 1


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
    monkeypatch.setattr("reliable_channel.transport.http.server.STOP_TIMEOUT_S", 0.1)
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
    app = AccessGuard(PlainTextResponse("secret"), AccessRules(allowed_hosts(()), "store.server.allowed_hosts"))
    answer = TestClient(app, base_url="http://localhost").get("/", headers=headers)
    assert (answer.status_code, answer.text == "secret") == (status, status == 200)


@pytest.mark.parametrize(
    ("target", "host", "status", "path"),
    [
        ("http://localhost:1/a%20b/c?d=/e", "rebound.example", 200, "/a b/c"),
        ("HTTPS://127.0.0.1", "rebound.example", 200, "/"),
        ("http://rebound.example/", "localhost", 403, None),
        ("http:///", "localhost", 403, None),
        ("//localhost/a", "localhost", 200, "//localhost/a"),
    ],
)
def test_a_request_may_name_a_whole_url_whose_host_then_counts(
    target: str, host: str, status: int, path: str | None
) -> None:
    """RFC 9112 3.2.2: every server accepts this form. Its path was looked up as it is, so the answer was 404."""
    paths: list[str | None] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        paths.append(scope["path"])
        await PlainTextResponse(scope["query_string"])(scope, receive, send)

    with running(AccessGuard(note, AccessRules(allowed_hosts(())))) as url:
        name, port = url.removeprefix("http://").rsplit(":", 1)
        with socket.create_connection((name, int(port)), timeout=120) as connection:
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            answer = everything(connection)
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert paths == ([] if path is None else [path])
    assert answer.endswith(b"d=/e") == ("d=/e" in target)


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
