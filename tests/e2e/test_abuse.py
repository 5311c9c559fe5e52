"""Abuse of a whole server over loopback: floods, slow clients, many long polls, a stop under load.

Each test is bounded in connections and time. What it holds: others are served meanwhile, refusals have the form of all
answers, and the server neither grows nor logs a stack trace.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from reliable_channel.messaging.rest.app import MAX_WAITING, create_app
from reliable_channel.messaging.rest.errors import refusal
from reliable_channel.transport.http.connections import HttpLimits
from tests.support.http_server import running
from tests.support.messaging_world import CONTENT, World
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LIMITS = HttpLimits(header_timeout_s=2.0, slow_s=2.0)
"""As a server's own, but with deadlines that a test can wait for."""

HOLD_S = 3.0
"""How long an attack is kept up: longer than the deadline of a request's headers."""

MESSAGE = json.dumps({"contentTopic": CONTENT, "payload": "aGVsbG8="})


@pytest.fixture
def address(caplog: pytest.LogCaptureFixture) -> Iterator[tuple[str, int]]:
    with serving(World(), caplog) as found:
        yield found
    assert "Traceback" not in caplog.text
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@contextmanager
def serving(world: World, caplog: pytest.LogCaptureFixture) -> Iterator[tuple[str, int]]:
    app = create_app(world.node, run_node=False)
    with running(app, limits=LIMITS, refusal=refusal, lifespan="on", on_stop=app.state.poll.stop) as url:
        logging.getLogger("uvicorn").addHandler(caplog.handler)  # whose configuration lets nothing reach the others
        host, port = url.removeprefix("http://").rsplit(":", 1)
        yield host, int(port)
    world.node.close()


def ask(address: tuple[str, int], path: str = "/health", **more: Any) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(*address, timeout=WAIT_S)
    try:
        connection.request(more.pop("method", "GET"), path, **more)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def served_meanwhile(address: tuple[str, int], seconds: float) -> Counter[int]:
    """What an honest client is answered, one call after the other, for so long and at least to 20 calls."""
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end or statuses.total() < 20:
        statuses[ask(address)[0]] += 1
        time.sleep(0.02)
    return statuses


def held(stack: ExitStack, address: tuple[str, int], count: int, begun: bytes) -> list[socket.socket]:
    """Connections that have sent this and say nothing more."""
    sockets = []
    for _ in range(count):
        connection = stack.enter_context(socket.create_connection(address, timeout=WAIT_S))
        with suppress(OSError):
            connection.sendall(begun)
        sockets.append(connection)
    return sockets


def test_a_thousand_connections_that_never_finish_keep_nobody_out(address: tuple[str, int]) -> None:
    """They have sent nothing, half a header, or half a body."""
    body = b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{"
    with ExitStack() as stack:
        for begun in (
            b"",
            b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
            b"POST /send HTTP/1.1\r\nHost: localhost\r\n" + body,
        ):
            held(stack, address, 334, begun)
        statuses = served_meanwhile(address, HOLD_S)
    assert set(statuses) == {200}, statuses


def test_headers_that_trickle_in_are_cut_off(address: tuple[str, int]) -> None:
    ended = threading.Event()

    def trickle() -> None:
        with ExitStack() as stack:
            sockets = held(stack, address, 200, b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
            while sockets and not ended.wait(0.5):
                sockets = [one for one in sockets if _sent(one, b"X-A: b\r\n")]
            cut_off.append(not sockets)

    cut_off: list[bool] = []
    thread = threading.Thread(target=trickle)
    thread.start()
    statuses = served_meanwhile(address, HOLD_S + 1)
    ended.set()
    thread.join(WAIT_S)
    assert (set(statuses), cut_off) == ({200}, [True])


def _sent(connection: socket.socket, data: bytes) -> bool:
    """Whether the server still takes something from this connection."""
    try:
        connection.sendall(data)
        connection.setblocking(False)
        try:
            return connection.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return True
        finally:
            connection.setblocking(True)
    except OSError:
        return False


def test_as_many_long_polls_as_may_wait_leave_the_others_served(address: tuple[str, int]) -> None:
    answers: Counter[int] = Counter()

    def wait() -> None:
        answers[ask(address, f"/messages?contentTopic={CONTENT}&wait=3000")[0]] += 1

    threads = [threading.Thread(target=wait) for _ in range(MAX_WAITING + 40)]
    for thread in threads:
        thread.start()
    statuses = served_meanwhile(address, 2)
    for thread in threads:
        thread.join(WAIT_S)
    assert set(statuses) == {200}
    assert answers == {404: MAX_WAITING, 429: 40}


def test_a_flood_of_calls_is_answered_or_refused_in_form(address: tuple[str, int]) -> None:
    statuses: Counter[int] = Counter()

    def flood() -> None:
        for _ in range(20):
            status, body = ask(address, "/send", method="POST", body=MESSAGE, headers=JSON)
            statuses[status] += 1
            assert status == 200 or set(body) == {"error"}

    threads = [threading.Thread(target=flood) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    assert set(statuses) <= {200, 429, 503}
    assert statuses[200] > 100


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("round_", range(3))
def test_a_stop_under_load_answers_everybody_and_ends_soon(caplog: pytest.LogCaptureFixture, round_: int) -> None:
    statuses: Counter[str] = Counter()
    stopping = threading.Event()

    def again(call: Callable[[], int]) -> None:
        while not stopping.is_set():
            try:
                statuses[str(call())] += 1
            except (OSError, http.client.HTTPException):
                # A connection that was never accepted, or one that closed between two calls.
                statuses["closed"] += stopping.is_set()
                return

    calls: list[Callable[[], int]] = [
        lambda: ask(address, "/send", method="POST", body=MESSAGE, headers=JSON)[0],
        lambda: ask(address, "/messages?contentTopic=/no/1/x/y&wait=30000")[0],
        lambda: ask(address)[0],
    ]
    with ExitStack() as stack:
        with serving(World(), caplog) as address:
            held(stack, address, 50, b"GET /hea")
            threads = [threading.Thread(target=again, args=(calls[n % 3],)) for n in range(30)]
            for thread in threads:
                thread.start()
            time.sleep(1.5)
            begun = time.monotonic()
            stopping.set()
        assert time.monotonic() - begun < 15
        for thread in threads:
            thread.join(WAIT_S)
    assert set(statuses) <= {"200", "404", "429", "503", "closed"}, statuses
    assert statuses["404"] == 10, "every long poll was answered when the server stopped"
    assert "Traceback" not in caplog.text
