"""The HTTP client of nodes against servers that are slow, wrong or hostile, over real sockets on loopback."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.http.client import BoundedHttp, NodeTimedOut, NodeUnreachable
from reliable_channel.transport.http.deadline import deadline, open_client
from reliable_channel.transport.waku_api import WakuApi
from tests.support.hostile_server import OK, WHOLE, answering, drip


@pytest.mark.parametrize(
    ("begin", "each"),
    [(b"", b"H"), (OK + b"X: ", b"a"), (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"), (OK + b"\r\n", b" ")],
    ids=["status line", "headers", "interim answers", "body"],
)
@pytest.mark.parametrize("earlier", [0, 1], ids=["new connection", "kept connection"])
def test_an_answer_that_drips_ends_although_each_byte_is_in_time(
    begin: bytes, each: bytes, earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_channel.transport.http.client.EXCHANGE_S", 120.0)
    with answering(*[lambda c: c.sendall(WHOLE)] * earlier, drip(begin, each)) as url:
        http = BoundedHttp(url, 60)
        for _ in range(earlier):
            assert http.get("/").json() == {}
        monkeypatch.setattr("reliable_channel.transport.http.client.EXCHANGE_S", 0.3)
        with pytest.raises(NodeTimedOut, match="did not answer in time"):
            http.get("/")
        http.close()


def test_a_deadline_that_has_passed_spares_the_connection() -> None:
    url = httpx.URL("http://127.0.0.1:9/")
    with open_client(url) as client, deadline(-1), pytest.raises(httpx.ConnectTimeout):
        client.get(url)


def test_without_a_deadline_the_client_is_as_it_was() -> None:
    with answering(lambda c: c.sendall(WHOLE)) as url, open_client(httpx.URL(url)) as client:
        assert client.get(url).json() == {}


def test_a_proxy_obeys_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(drip(OK, b"X")) as url:
        monkeypatch.setenv("http_proxy", url)
        node = httpx.URL("http://node.example/")
        with open_client(node) as client, deadline(0.3), pytest.raises(httpx.ReadTimeout):
            client.get(node)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("all_proxy", "socks5://user:geheim@127.0.0.1:1080"),
        ("http_proxy", "direct://geheim"),
        ("no_proxy", "10.0.0.0/8,fd00:geheim::/8"),
        ("no_proxy", "[::1]"),
        ("SSL_CERT_FILE", "/geheim/ca.pem"),
    ],
)
def test_variables_that_httpx_refuses_are_named_but_not_shown(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # httpx looks at no_proxy only where there is a proxy
    with pytest.raises(EnvironmentFault, match=f"cannot be used.*{name.upper()}") as caught:
        BoundedHttp("https://node.example:8645")
    assert "geheim" not in str(caught.value)
    BoundedHttp("http://127.0.0.1:8645").close()  # nothing of it is for loopback


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "br", "deflate"])
def test_a_compressed_answer_is_not_unpacked(encoding: str) -> None:
    """A bomb of 50 kB, which httpx would unpack whole before any limit of size sees it."""
    body = gzip.compress(bytes(50_000_000))
    head = OK + f"Content-Encoding: {encoding}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with answering(lambda c: c.sendall(head + body)) as url:
        http = BoundedHttp(url, 60)
        with pytest.raises(NodeUnreachable, match="compressed"):
            http.get("/")
        http.close()


@pytest.mark.parametrize(
    "body", [b"<html>", b"[" + b"0," * 300_000 + b"0]", b"[[[", b"\xff", b'{"error": "not mounted"}', b'"none"']
)
def test_a_read_that_is_no_list_is_a_fault_not_an_empty_one(body: bytes) -> None:
    head = OK + f"Content-Length: {len(body)}\r\n\r\n".encode()
    with answering(lambda c: c.sendall(head + body)) as url:
        api = WakuApi(BoundedHttp(url, 60))
        with pytest.raises(NodeUnreachable, match="no JSON"):
            api.relay_read("/waku/2/rs/1/0")
        api.http.close()


@pytest.mark.parametrize("status", [b"200 OK", b"302 Found"])
@pytest.mark.parametrize("call", ["relay_publish", "lightpush", "relay_subscribe", "filter_subscribe", "filter_ping"])
def test_a_page_of_another_program_is_no_success(call: str, status: bytes) -> None:
    """A proxy's front page or login, which it sends with 200 for every path."""
    page = b"\n<!doctype html><title>Log in</title>"
    head = b"HTTP/1.1 %b\r\nLocation: http://127.0.0.1:9/login\r\nContent-Length: %d\r\n\r\n" % (status, len(page))
    message = WakuMessage(b"x", "/app/1/x/proto")
    arguments = {
        "relay_publish": ("/waku/2/rs/1/0", message),
        "lightpush": ("/waku/2/rs/1/0", message),
        "relay_subscribe": (["/waku/2/rs/1/0"],),
        "filter_subscribe": ("/waku/2/rs/1/0", ["/app/1/x/proto"]),
        "filter_ping": (),
    }
    with answering(*[lambda c: c.sendall(head + page)] * 2) as url:
        api = WakuApi(BoundedHttp(url, 60))
        try:
            answer = getattr(api, call)(*arguments[call])
            assert answer is not None
            assert getattr(answer, "reason", FailureReason.UNREACHABLE) is FailureReason.UNREACHABLE
        except NodeUnreachable as error:
            assert "a page" in str(error)
        api.http.close()


@pytest.mark.parametrize("body", [b"", b" null\n", b"[]"])
def test_a_read_of_no_messages_is_an_empty_one(body: bytes) -> None:
    head = OK + f"Content-Length: {len(body)}\r\n\r\n".encode()
    with answering(lambda c: c.sendall(head + body)) as url:
        api = WakuApi(BoundedHttp(url, 60))
        assert api.relay_read("/waku/2/rs/1/0").messages == ()
        api.http.close()


def ask_with(header: str, status: str = "503 Service Unavailable") -> float:
    """How long a node with this header asks to be left alone."""
    head = f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n{header}\r\n\r\n".encode("latin-1")
    with answering(lambda c: c.sendall(head)) as url:
        http = BoundedHttp(url, 60)
        wait_s = http.get("/").retry_after_s
        http.close()
    return wait_s


@pytest.mark.parametrize(
    ("text", "wait_s"), [("7", 7.0), ("0", 0.0), (" 60 ", 60.0), ("61", 60.0), ("9999999999", 60.0)], ids=str
)
def test_a_node_says_in_seconds_when_it_may_be_asked_again(text: str, wait_s: float) -> None:
    assert ask_with(f"Retry-After: {text}") == wait_s
    assert ask_with(f"retry-after: {text}", "429 Too Many Requests") == wait_s


@pytest.mark.parametrize("form", ["%a, %d %b %Y %H:%M:%S GMT", "%A, %d-%b-%y %H:%M:%S GMT", "%a %b %d %H:%M:%S %Y"])
def test_a_node_says_with_a_date_when_it_may_be_asked_again(form: str) -> None:
    """The three forms of RFC 9110 5.6.7."""
    soon, late = (datetime.now(UTC) + timedelta(seconds=s) for s in (30, 86_400))
    assert 20.0 < ask_with(f"Retry-After: {soon.strftime(form)}") <= 30.0
    assert ask_with(f"Retry-After: {late.strftime(form)}") == 60.0


@pytest.mark.parametrize(
    "text",
    [
        "", "-5", "+5", "1.5", "1e3", "soon", "7, 7", "9" * 5_000, "\u00b2", "inf", "nan",
        format_datetime(datetime(2020, 1, 1, tzinfo=UTC), usegmt=True),
        "Sun, 06 Nov 99999999999999999999 08:49:37 GMT", "Sun, 99 Nov 2094 99:99:99 GMT", "Sun, 06 Nov 2094",
        "Fri, 31 Dec 9999 23:59:59 -2359", "Sat, 01 Jan 0000 00:00:00 GMT", "\xff\xfe",
    ],
    ids=lambda text: text[:20].encode("ascii", "replace").decode(),
)  # fmt: skip
def test_a_wait_that_is_none_is_ignored(text: str) -> None:
    assert ask_with(f"Retry-After: {text}") in (0.0, 60.0 if "2094" in text or "9999 23" in text else 0.0)


def test_a_success_asks_for_no_wait() -> None:
    assert ask_with("Retry-After: 5", "200 OK") == 0.0
