"""The store server over real HTTP: every expectation of the interop tests, and our own client against it."""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.http.guard import allowed_hosts
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode
from reliable_channel.transport.store.server import create_app
from reliable_channel.transport.store.source import MemorySource
from tests.support.examples import examples
from tests.support.http_server import running
from tests.support.store_pages import pages_of

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "waku_rest.json").read_text())
EXPECTATIONS = VECTORS["store_v3_expectations"]
PUBSUB_TOPIC = "/waku/2/rs/16/32"
TOPIC = "/app/1/golden/proto"
HTTP = httpx.Client(trust_env=False, verify=False)  # noqa: S501 — loopback, and no TLS
BASE = 1_795_254_432_521_844_140


class Swappable:
    """One server for all tests; each puts its own archive behind it."""

    def __init__(self) -> None:
        self.archive = MemorySource()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.archive, name)


@pytest.fixture(scope="module")
def source() -> Swappable:
    return Swappable()


@pytest.fixture(scope="module")
def url(source: Swappable) -> Iterator[str]:
    with running(create_app(source, allowed_hosts({"127.0.0.1"}))) as address:  # type: ignore[arg-type]
        yield address


def stored(source: Swappable, count: int, topics: bool = False) -> list[WakuMessage]:
    source.archive = MemorySource()
    messages = [
        WakuMessage(b"%d" % n, f"/app/1/t{n}/proto" if topics else TOPIC, 2, BASE + 1_000_000 * n, b"meta")
        for n in range(count)
    ]
    for message in reversed(messages):
        source.archive.add(PUBSUB_TOPIC, message)
    return messages


def hex_hash(message: WakuMessage) -> str:
    return "0x" + message_hash(PUBSUB_TOPIC, message).hex()


def substituted(value: str, messages: list[WakuMessage], key: str) -> str:
    def one(match: re.Match[str]) -> str:
        what = match.group(1)
        if "not stored" in what:
            return "0x" + "ab" * 32
        if time_of := re.fullmatch(r"t(\d+)( - (\d+))?", what):
            return str((messages[int(time_of[1]) - 1].timestamp or 0) - int(time_of[3] or 0))
        number = re.search(r"(\d+)(st|nd|rd|th)", what)
        chosen = messages[int(number[1]) - 1] if number else messages[-1]
        return chosen.content_topic if key == "contentTopics" else hex_hash(chosen)

    return "x" * 3_000_000 if value == "(megabytes)" else re.sub(r"<([^>]*)>", one, value)


def raw_status(url: str, query: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
    connection.request("GET", "/store/v3/messages?" + urlencode(query))
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize(
    "expected", EXPECTATIONS, ids=[f"{n}-{e['stored']}-{e['query']}"[:70] for n, e in enumerate(EXPECTATIONS)]
)
def test_what_the_interop_tests_expect(url: str, source: Swappable, expected: dict[str, Any]) -> None:
    messages = stored(source, expected["stored"], topics=expected["stored"] == 8)
    query = {key: substituted(value, messages, key) for key, value in expected["query"].items()}
    about_topics = {"pubsubTopic", "contentTopics"} & set(query)
    if not about_topics and expected["stored"] != 8:
        query["pubsubTopic"] = PUBSUB_TOPIC
    query.setdefault("ascending", "true")
    if expected["status"] == 431:
        assert raw_status(url, query) == 431  # httpx refuses to send such a request
        return
    answer = HTTP.get(f"{url}/store/v3/messages", params=query)
    assert answer.status_code == expected["status"]
    if "contains" in expected:
        assert expected["contains"] in answer.text
    if expected["status"] != 200:
        assert answer.headers.get("content-type", "text/plain").startswith("text/plain")
        return
    body = answer.json()
    assert (body["statusCode"], bool(body["statusDesc"]), isinstance(body["requestId"], str)) == (200, True, True)
    assert len(body["messages"]) == expected["messages"]
    if "cursor" in expected:
        assert ("paginationCursor" in body) is expected["cursor"]
    if order := expected.get("order"):
        first, last = (int(number) for number in re.findall(r"\d+", order)[:2])
        assert [m["messageHash"] for m in body["messages"]] == [hex_hash(m) for m in messages[first - 1 : last]]


@pytest.mark.parametrize(
    "recording",
    [r for r in VECTORS["nwaku_documented"] if r["evidence"] == "computed" and "store" in r["name"]],
    ids=lambda r: r["name"],
)
def test_the_documented_pages_of_nwaku(url: str, source: Swappable, recording: dict[str, Any]) -> None:
    source.archive = MemorySource()
    for n in range(5):
        source.archive.add(
            PUBSUB_TOPIC, WakuMessage(b"message %d" % n, TOPIC, None, BASE + n, b"RELIABLE-CHANNEL-API/1")
        )
    answer = HTTP.get(url + recording["path"], params=recording["query"]).json()
    assert answer | {"requestId": ""} == recording["response"]


@pytest.mark.parametrize(
    "name",
    [
        "store, cursor of the wrong length",
        "store, hash not hexadecimal",
        "store, startTime not a number",
        "store, pageSize not a number",
        "store, includeData not boolean",
        "store, peerAddr malformed",
        "store, unknown cursor, own archive",
    ],
)
def test_the_documented_refusals_of_nwaku(url: str, source: Swappable, name: str) -> None:
    stored(source, 3)
    recording = next(r for r in VECTORS["nwaku_documented"] if r["name"] == name)
    answer = HTTP.get(url + recording["path"], params=recording["query"])
    assert answer.status_code == recording["status"]
    assert answer.text.startswith(recording.get("response", recording.get("response_startswith", "")))
    assert recording.get("response_contains", "") in answer.text


def test_version_meta_and_time_come_back_as_they_were(url: str, source: Swappable) -> None:
    (message,) = stored(source, 1)
    body = HTTP.get(f"{url}/store/v3/messages", params={"includeData": "TRUE"}).json()
    (entry,) = body["messages"]
    assert entry["pubsubTopic"] == PUBSUB_TOPIC
    assert entry["message"] == {
        "payload": "MA==",
        "contentTopic": TOPIC,
        "version": 2,
        "timestamp": message.timestamp,
        "meta": "bWV0YQ==",
        "ephemeral": False,
    }


def test_a_capital_true_pages_backward_as_on_nwaku(url: str, source: Swappable) -> None:
    messages = stored(source, 5)
    query = {"ascending": "True", "pageSize": "2"}
    body = HTTP.get(f"{url}/store/v3/messages", params=query).json()
    assert [m["messageHash"] for m in body["messages"]] == [hex_hash(m) for m in messages[3:]]


def test_a_request_for_another_host_is_refused(url: str) -> None:
    answer = HTTP.get(f"{url}/store/v3/messages", headers={"Host": "evil.example"})
    assert answer.status_code == 403


NAMES = ["includeData", "pubsubTopic", "contentTopics", "startTime", "endTime", "hashes", "cursor", "pageSize"]
NAMES += ["ascending", "peerAddr", "other"]
VALUES = st.text(max_size=40) | st.integers().map(str) | st.sampled_from(["0x" + "ab" * 32, "true", "/", ",", "0x"])


@given(query=st.dictionaries(st.sampled_from(NAMES), VALUES))
@settings(max_examples=examples(150))
def test_no_query_is_answered_by_anything_but_a_page_or_a_documented_refusal(
    url: str, source: Swappable, query: dict[str, str]
) -> None:
    stored(source, 3)
    answer = HTTP.get(f"{url}/store/v3/messages", params=query)
    if answer.status_code == 200:
        assert answer.json()["statusCode"] == 200
    else:
        assert answer.status_code == 400 or (answer.status_code, "cursor not found" in answer.text) == (500, True)
        assert answer.text


def test_an_archive_that_cannot_be_read_is_503_without_its_places(url: str, source: Swappable) -> None:
    class Broken(MemorySource):
        def select(self, *_: object) -> None:
            raise EnvironmentFault("The table /secret/place cannot be read.")

    source.archive = Broken()
    answer = HTTP.get(f"{url}/store/v3/messages")
    assert (answer.status_code, "/secret/place" in answer.text) == (503, False)


class Reads(MemorySource):
    """Notes in which thread it is read; ``busy`` says what whoever must not wait gets."""

    def __init__(self, busy: type[BaseException] | None) -> None:
        super().__init__()
        self.busy = busy
        self.threads: list[str] = []

    @contextmanager
    def read_without_waiting(self) -> Iterator[MemorySource]:
        yield self
        if self.busy is not None:
            raise self.busy

    def select(self, *arguments: Any) -> Any:
        self.threads.append(threading.current_thread().name)
        return super().select(*arguments)


@pytest.mark.parametrize(
    ("query", "busy", "reads"),
    [
        ("pageSize=20&includeData=true&pubsubTopic=/a", None, ["loop"]),
        ("hashes=" + "ab" * 32, None, ["loop"]),
        ("pageSize=20", BlockingIOError, ["loop", "worker"]),
        ("pageSize=21", None, ["worker"]),
        ("pubsubTopic=/a&contentTopics=/b", None, ["worker"]),
        ("contentTopics=/b,/c", None, ["worker"]),
    ],
)
def test_only_a_page_that_is_small_and_in_memory_is_made_between_two_requests(
    url: str, source: Swappable, query: str, busy: type[BaseException] | None, reads: list[str]
) -> None:
    source.archive = archive = Reads(busy)
    assert HTTP.get(f"{url}/store/v3/messages?{query}").status_code == 200
    assert ["worker" if "worker" in name.lower() else "loop" for name in archive.threads] == reads


@given(
    times=st.lists(st.integers(0, 6), max_size=25),
    page_size=st.integers(1, 9),
    forward=st.booleans(),
    start=st.none() | st.integers(0, 6),
    end=st.none() | st.integers(0, 6),
    topic=st.none() | st.sampled_from(["/a/1/x/p", "/a/1/y/p"]),
)
@settings(max_examples=examples(60), deadline=None)
def test_paging_with_our_client_gives_exactly_what_matches_in_order(
    url: str,
    source: Swappable,
    times: list[int],
    page_size: int,
    forward: bool,
    start: int | None,
    end: int | None,
    topic: str | None,
) -> None:
    source.archive = MemorySource()
    messages = [WakuMessage(b"%d" % n, f"/a/1/{'xy'[n % 2]}/p", None, BASE + t) for n, t in enumerate(times)]
    for message in messages:
        source.archive.add(PUBSUB_TOPIC, message)
    client = StoreClient([RestStoreNode(BoundedHttp(url))])
    query = StoreQuery(
        PUBSUB_TOPIC,
        (topic,) if topic else (),
        None if start is None else BASE + start,
        None if end is None else BASE + end,
        page_size=page_size,
        forward=forward,
    )
    pages = [page.entries for page in pages_of(client, query)]
    found = [entry.message_hash for page in (pages if forward else reversed(pages)) for entry in page]
    client.close()
    expected = sorted(
        ((m.timestamp or 0), message_hash(PUBSUB_TOPIC, m))
        for m, t in zip(messages, times, strict=True)
        if (start is None or t >= start) and (end is None or t <= end) and topic in (None, m.content_topic)
    )
    assert found == [h for _, h in expected]


PEER = "/ip4/127.0.0.1/tcp/60001/p2p/16Uiu2HAkvaJ1E6ZaY3dAddTgUqvorsHYsY4cxuqSeCcvuccdR4Xz"


@pytest.mark.parametrize(
    ("peer", "words"),
    [
        (PEER[1:], "Invalid MultiAddress"),
        (PEER[:-1], "Failed parsing remote peer info"),
        (PEER.replace("/tcp", ""), "Unsupported protocol"),
        (PEER.rpartition("/p2p/")[0], "no peer id"),
        (PEER.replace("127.0.0.1", "127.0.0.256"), "wrong value of `ip4`"),
        (PEER.replace("60001", "65536"), "wrong value of `tcp`"),
        ("/" + "p2p-circuit/" * 1_000, "longer than"),
    ],
)
def test_a_peer_address_that_no_node_could_dial_is_refused_in_the_words_of_nodes(
    url: str, source: Swappable, peer: str, words: str
) -> None:
    stored(source, 1)
    answer = HTTP.get(f"{url}/store/v3/messages", params={"peerAddr": peer})
    assert answer.status_code == 400
    assert answer.text.startswith("Failed parsing remote peer info: ")
    assert words in answer.text


def test_a_peer_address_that_can_be_dialled_is_answered_from_this_archive(url: str, source: Swappable) -> None:
    stored(source, 2)
    answer = HTTP.get(f"{url}/store/v3/messages", params={"peerAddr": PEER})
    assert len(answer.json()["messages"]) == 2


def test_the_cursor_of_a_message_that_is_gone_is_refused_in_the_words_of_nodes(url: str, source: Swappable) -> None:
    stored(source, 3)
    gone = "0x" + "ab" * 32
    answer = HTTP.get(f"{url}/store/v3/messages", params={"cursor": gone})
    expected = "error in handleSelfStoreRequest: BAD_RESPONSE: archive error: DIRVER_ERROR: cursor not found"
    assert (answer.status_code, answer.text) == (500, expected)
    of_a_peer = HTTP.get(f"{url}/store/v3/messages", params={"cursor": gone, "peerAddr": PEER})
    body = of_a_peer.json()
    assert (of_a_peer.status_code, body["statusCode"], body["messages"]) == (200, 300, [])


@pytest.mark.parametrize("query", ["pagesize=5", "PageSize=5", "CURSOR=", "includedata=true"])
def test_a_parameter_in_another_case_is_refused_and_not_ignored(url: str, source: Swappable, query: str) -> None:
    stored(source, 1)
    answer = HTTP.get(f"{url}/store/v3/messages?{query}")
    assert answer.status_code == 400
    assert "is written" in answer.text


def test_a_repeated_parameter_is_refused_and_not_half_ignored(url: str, source: Swappable) -> None:
    stored(source, 1)
    answer = HTTP.get(f"{url}/store/v3/messages?contentTopics=/a/1/x/p&contentTopics=/a/1/y/p")
    assert (answer.status_code, "several values" in answer.text) == (400, True)


def test_a_parameter_that_is_repeated_with_its_value_says_the_same_as_once(url: str, source: Swappable) -> None:
    stored(source, 1)
    answer = HTTP.get(f"{url}/store/v3/messages?pubsubTopic={PUBSUB_TOPIC}&pubsubTopic={PUBSUB_TOPIC}")
    assert (answer.status_code, len(answer.json()["messages"])) == (200, 1)


@pytest.mark.parametrize("path", ["/store/v1/messages", "/nothing", "/health/", "/store/v3/messages/"])
def test_unknown_paths_are_400_as_on_nodes(url: str, path: str) -> None:
    answer = HTTP.get(url + path)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "text/plain; charset=utf-8")


def test_other_methods_are_405_with_those_that_there_are(url: str) -> None:
    answer = HTTP.post(f"{url}/store/v3/messages", json={})
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/health", "/version", "/info", "/store/v3/messages", "/debug/v1/version"])
def test_head_is_get_without_a_body(url: str, source: Swappable, path: str) -> None:
    stored(source, 1)
    answer = HTTP.head(url + path)
    assert (answer.status_code, answer.content) == (200, b"")


def test_a_store_that_cannot_answer_says_so_in_its_health_and_to_every_query(url: str, source: Swappable) -> None:
    class Gone(MemorySource):
        def fault(self) -> str:
            return "the envelopes table is not there"

        def position(self, _: bytes) -> None:
            raise EnvironmentFault("There is no table at /secret/place.")

        def select(self, *_: object) -> None:
            raise EnvironmentFault("There is no table at /secret/place.")

    source.archive = Gone()
    health = HTTP.get(f"{url}/health")
    assert (health.status_code, health.headers["Retry-After"]) == (503, "1")
    assert health.json()["protocolsHealth"] == [{"Store": "NOT_READY", "desc": "the envelopes table is not there"}]
    assert HTTP.head(f"{url}/health").status_code == 503
    for query in ({}, {"includeData": "true"}, {"cursor": "0x" + "ab" * 32}, {"hashes": "0x" + "ab" * 32}):
        answer = HTTP.get(f"{url}/store/v3/messages", params=query)
        assert (answer.status_code, answer.text) == (503, "the envelopes table is not there")
        assert answer.headers["Retry-After"] == "1"


def test_the_document_describes_every_parameter_that_is_read(url: str) -> None:
    document = HTTP.get(f"{url}/openapi.json").json()
    described = document["paths"]["/store/v3/messages"]["get"]["parameters"]
    assert {one["name"] for one in described} == set(NAMES) - {"other"}
    assert all(one["description"] and one["example"] for one in described)


def test_every_example_of_the_document_is_a_query_that_is_answered(url: str, source: Swappable) -> None:
    stored(source, 3)
    document = HTTP.get(f"{url}/openapi.json").json()
    for one in document["paths"]["/store/v3/messages"]["get"]["parameters"]:
        answer = HTTP.get(f"{url}/store/v3/messages", params={one["name"]: one["example"]})
        assert answer.status_code == (500 if one["name"] == "cursor" else 200), one["name"]
