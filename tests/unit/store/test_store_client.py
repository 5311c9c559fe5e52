"""The store client against a fake node of each dialect: paging, bounds, faults, distrust."""

from __future__ import annotations

import random
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.base import StoreUnavailable
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.store.client import MAX_EMPTY_PAGES, NodeAnswer, RetryPolicy, StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode, StoreFault, StoreNodeError
from tests.support.examples import examples
from tests.support.fake_waku_node import PEER_ADDRESS, PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode
from tests.support.store_pages import pages_of

TOPIC = "/app/1/golden/proto"
BASE = 1_795_254_432_521_844_140
HOUR_NS = 3_600 * 10**9


def filled(count: int) -> tuple[FakeWakuNetwork, list[WakuMessage]]:
    network = FakeWakuNetwork()
    messages = [WakuMessage(b"m%d" % n, TOPIC, None, BASE + n, b"meta") for n in range(count)]
    for message in random.Random(1).sample(messages, count):
        network.publish(PUBSUB_TOPIC, message)
    return network, messages


def client(*nodes: FakeWakuNode, attempts: int = 2) -> StoreClient:
    rest = [RestStoreNode(BoundedHttp(node.url, 5), peer_address=PEER_ADDRESS) for node in nodes]
    return StoreClient(rest, RetryPolicy(attempts=attempts), sleep=lambda _: None)


def everything(**more: object) -> StoreQuery:
    return StoreQuery(PUBSUB_TOPIC, (TOPIC,), page_size=7, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
@pytest.mark.parametrize("forward", [True, False])
def test_all_pages_together_give_every_message_once(dialect: str, forward: bool) -> None:
    network, messages = filled(40)
    with FakeWakuNode(dialect, network) as node:  # type: ignore[arg-type]
        pages = pages_of(client(node), everything(forward=forward))
    found = [entry.message for page in (pages if forward else reversed(pages)) for entry in page.entries]
    assert [(m.payload, m.timestamp, m.meta) for m in found if m] == [
        (m.payload, m.timestamp, m.meta) for m in messages
    ]
    assert all(entry.verified for page in pages for entry in page.entries)


@pytest.mark.parametrize("include_data", [True, False])
def test_store_v1_gives_the_messages_without_claiming_their_hashes(include_data: bool) -> None:
    network, messages = filled(20)
    with FakeWakuNode("go-waku", network) as node:
        node.store = True
        node.faults.paths, node.faults.status = "/store/v3/", 404
        pages = pages_of(client(node), everything(include_data=include_data))
    found = [entry for page in pages for entry in page.entries]
    assert [e.message.payload for e in found if e.message] == [m.payload for m in messages]
    assert not any(entry.verified for entry in found)


@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
def test_hundreds_of_hashes_are_asked_for_in_lots_of_at_most_99(dialect: str) -> None:
    network, messages = filled(250)
    hashes = [message_hash(PUBSUB_TOPIC, m) for m in messages]
    unknown = bytes(32)
    with FakeWakuNode(dialect, network) as node:  # type: ignore[arg-type]
        (answer,) = client(node).look_up([*hashes, unknown, hashes[0]])
        asked = [path for _, path in node.requests if path.startswith("/store/v3")]
    assert {entry.message_hash for entry in answer.entries} == set(hashes)
    assert (answer.has(hashes[3]), answer.has(unknown), len(asked)) == (True, False, 3)


@given(start=st.integers(-2, 12), end=st.integers(-2, 12))
@settings(max_examples=examples(20), deadline=None)
def test_a_time_range_includes_both_its_ends_whatever_the_node_does(start: int, end: int) -> None:
    expected = {n for n in range(10) if start <= n <= end}
    query = everything(start_time_ns=BASE + start, end_time_ns=BASE + end)
    found = {
        (entry.message.timestamp or 0) - BASE
        for page in pages_of(client(RANGES), query)
        for entry in page.entries
        if entry.message
    }
    assert found == expected


@pytest.mark.parametrize("include_data", [True, False])
@pytest.mark.parametrize("forward", [True, False])
def test_a_range_of_more_than_a_day_is_asked_for_with_one_end_and_cut_here(forward: bool, include_data: bool) -> None:
    """Since autumn 2026 logos-delivery refuses both ends, so a bridge that was away for longer filled no gap."""
    network = FakeWakuNetwork()
    messages = [WakuMessage(b"%d" % hour, TOPIC, None, BASE + hour * HOUR_NS) for hour in range(100)]
    for message in messages:
        network.publish(PUBSUB_TOPIC, message)
    query = everything(
        forward=forward,
        include_data=include_data,
        start_time_ns=BASE + 30 * HOUR_NS,
        end_time_ns=BASE + 60 * HOUR_NS,
    )
    with FakeWakuNode("nwaku", network) as node:
        pages = pages_of(client(node), query)
    found = [entry.message_hash for page in (pages if forward else reversed(pages)) for entry in page.entries]
    assert sorted(found) == sorted(message_hash(PUBSUB_TOPIC, message) for message in messages[30:61])
    assert (len(pages), sum(page.refused for page in pages)) == (5, 0)


RANGES = FakeWakuNode("nwaku", filled(10)[0])


@pytest.fixture(autouse=True, scope="module")
def _serve_ranges() -> object:
    with RANGES:
        yield


@pytest.mark.parametrize("end_excluded", [True, False])
def test_either_end_rule_gives_the_message_at_the_end(end_excluded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network, messages = filled(5)
    if end_excluded:
        real = network.archive.select

        def select(query, after, limit):  # type: ignore[no-untyped-def]
            return [p for p in real(query, after, limit) if p.timestamp_ns != query.end_time_ns]

        monkeypatch.setattr(network.archive, "select", select)
    with FakeWakuNode("nwaku", network) as node:
        page = client(node).query(everything(end_time_ns=BASE + 2, include_data=False))
    assert [entry.message_hash for entry in page.entries] == [message_hash(PUBSUB_TOPIC, m) for m in messages[:3]]


@pytest.mark.parametrize("code", [300, 400, 503, 504])
def test_a_peers_failure_inside_200_is_a_failure(code: int) -> None:
    with FakeWakuNode("nwaku", filled(3)[0]) as node:
        node.faults.store_status_code = code
        with pytest.raises(StoreUnavailable, match=f"status {code} inside HTTP 200"):
            client(node).query(everything())


@pytest.mark.parametrize("status", [429, 500, 503, 504])
def test_a_busy_node_is_asked_again(status: int) -> None:
    with FakeWakuNode("nwaku", filled(3)[0]) as node:
        node.faults.status, node.faults.paths = status, "/store/"
        waits: list[float] = []

        def recover(wait: float) -> None:
            waits.append(wait)
            node.faults.status = None

        rest = RestStoreNode(BoundedHttp(node.url, 5))
        page = StoreClient([rest], RetryPolicy(attempts=3), sleep=recover).query(everything())
    assert len(page.entries) == 3
    assert len(waits) == 1


def test_a_busy_node_is_asked_again_when_it_says() -> None:
    with FakeWakuNode("nwaku", filled(3)[0]) as node:
        node.faults.status, node.faults.paths, node.faults.retry_after = 503, "/store/", "7"
        clock = [0.0]

        def recover(wait: float) -> None:
            clock[0] += wait
            node.faults.status = None

        rest = RestStoreNode(BoundedHttp(node.url, 5))
        asked = StoreClient([rest], RetryPolicy(attempts=3), sleep=recover, monotonic=lambda: clock[0])
        assert len(asked.query(everything()).entries) == 3
    assert 7.0 <= clock[0] <= 7.5


def test_a_node_that_wants_a_long_pause_is_left_alone_and_delays_nobody() -> None:
    """The next node answers at once, and the busy one gets no query until it said."""
    network, _ = filled(3)
    with FakeWakuNode("nwaku", network) as busy, FakeWakuNode("nwaku", network) as free:
        busy.faults.status, busy.faults.paths, busy.faults.retry_after = 429, "/store/", "30"
        clock = [0.0]
        nodes = [RestStoreNode(BoundedHttp(node.url, 5)) for node in (busy, free)]
        asked = StoreClient(nodes, sleep=lambda _: pytest.fail("waited"), monotonic=lambda: clock[0])
        for seconds in (0.0, 19.0):
            clock[0] = seconds
            assert asked.query(everything()).node == free.url
            faults = [page.fault for _, page in asked.walk_each(everything()) if isinstance(page, StoreNodeError)]
            assert faults == [StoreFault.BUSY]
        assert len(busy.faults.refused) == 1
        clock[0], busy.faults.status = 30.0, None
        assert asked.query(everything()).node == busy.url


def test_a_malformed_query_is_not_repeated() -> None:
    with FakeWakuNode("nwaku", filled(3)[0]) as node:
        node.faults.status, node.faults.body, node.faults.paths = 400, "time parsing error: x", "/store/"
        waits: list[float] = []
        with pytest.raises(StoreUnavailable, match="refused"):
            StoreClient([RestStoreNode(BoundedHttp(node.url, 5))], sleep=waits.append).query(everything())
    assert waits == []


def test_the_second_node_answers_when_the_first_is_down() -> None:
    network, _ = filled(3)
    down = FakeWakuNode("nwaku", network)
    down.up()
    with FakeWakuNode("nwaku", network) as node:
        asked = client(down, node)
        down.down()
        assert asked.query(everything()).node == node.url


def test_a_node_that_is_down_delays_one_query_and_not_every_page() -> None:
    """Each page waited for its four attempts, 4 s and more, also those of a thousand pages."""
    asked: list[str] = []
    now = [0.0]

    class Node:
        def __init__(self, name: str) -> None:
            self.name = name

        def query(self, query: StoreQuery) -> StorePage:
            asked.append(self.name)
            if self.name == "down":
                raise StoreNodeError(self.name, StoreFault.UNREACHABLE, "refused")
            return StorePage((), None, self.name)

        def close(self) -> None: ...

    nodes = [Node("down"), Node("up"), Node("spare")]
    stores = StoreClient(nodes, RetryPolicy(attempts=4), lambda _: None, 600, monotonic=lambda: now[0])
    for _ in range(100):
        stores.query(everything())
    assert asked == ["down"] * 4 + ["up"] * 100
    nodes[0].name = "down again"
    now[0] = 601
    assert stores.query(everything()).node == "down again"


def test_a_hash_that_the_first_node_lacks_is_asked_of_the_next() -> None:
    """A node that was away answers like the others, and lacks what they stored meanwhile."""
    network, messages = filled(3)
    late, last = FakeWakuNetwork(), FakeWakuNetwork()
    late.publish(PUBSUB_TOPIC, messages[0])
    last.publish(PUBSUB_TOPIC, rare := WakuMessage(b"here alone", TOPIC, None, BASE + 9))
    hashes = tuple(message_hash(PUBSUB_TOPIC, m) for m in (*messages, rare))
    with (
        FakeWakuNode("nwaku", late) as behind,
        FakeWakuNode("nwaku", network) as node,
        FakeWakuNode("nwaku", last) as spare,
    ):
        asked = client(behind, node, spare)
        page = asked.query(StoreQuery(hashes=hashes))
        assert {entry.message_hash for entry in page.entries} == set(hashes)
        assert page.node == behind.url
        assert len(page.entries) == len(hashes)
        spare.faults.status = 500
        for _ in range(10):
            assert len(asked.query(StoreQuery(hashes=hashes)).entries) == len(messages)
        assert len(spare.faults.refused) == 2  # the attempts of one query
        assert len(asked.query(everything()).entries) == 1  # a time is one node's


def test_disagreeing_stores_are_kept_apart() -> None:
    network, messages = filled(3)
    hashes = [message_hash(PUBSUB_TOPIC, m) for m in messages]
    with FakeWakuNode("nwaku", network) as full, FakeWakuNode("nwaku") as empty, FakeWakuNode("nwaku") as broken:
        broken.faults.status = 500
        answers = client(full, empty, broken).look_up(hashes, include_data=False)
    assert [answer.has(hashes[0]) for answer in answers] == [True, False, None]
    assert answers[2].error is not None


def test_a_message_that_does_not_fit_its_hash_is_left_out_and_counted() -> None:
    network, messages = filled(3)
    with FakeWakuNode("nwaku", network) as node:
        node.faults.store_corrupt = True
        (answer,) = client(node).look_up([message_hash(PUBSUB_TOPIC, m) for m in messages])
    assert (answer.entries, answer.refused) == ((), 3)


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"messages": 3}',
        b'{"messages": [null, 3, {"messageHash": 5}]}',
        b"[" * 100_000,
    ],
)
def test_no_answer_of_a_node_raises_anything_but_the_errors_of_the_client(garbage: bytes) -> None:
    with FakeWakuNode("nwaku", filled(1)[0]) as node:
        asked = client(node)
        node.faults.garbage, node.faults.paths = garbage, "/store/"
        try:
            page = asked.query(everything())
        except StoreUnavailable:
            return
    assert page.entries == ()


def test_an_endless_answer_is_cut_off() -> None:
    with FakeWakuNode("nwaku", filled(1)[0]) as node:
        node.faults.garbage, node.faults.paths = b" " * 200_000, "/store/"
        http = BoundedHttp(node.url, 5, max_body_bytes=100_000)
        asked = StoreClient([RestStoreNode(http)], RetryPolicy(attempts=1))
        with pytest.raises(StoreUnavailable, match="more than 100000 bytes"):
            asked.query(everything())


def test_a_cursor_that_goes_in_a_circle_ends_the_walk() -> None:
    class Circle:
        name = "circle"

        def query(self, query: StoreQuery) -> StorePage:
            return StorePage((StoreEntry(bytes(32)),), bytes([query.cursor != bytes(32)] * 32), self.name)

        def close(self) -> None: ...

    (answer,) = StoreClient([Circle()]).look_up([bytes(32)])
    assert isinstance(answer, NodeAnswer)
    assert answer.error is not None
    assert answer.error.fault is StoreFault.PEER_FAILED


class Scripted:
    """A node whose pages a test makes; it waits for ``ready`` before each."""

    def __init__(self, name: str, pages: int, per_page: int = 1, ready: threading.Event | None = None) -> None:
        self.name, self._pages, self._per_page, self._ready = name, pages, per_page, ready
        self.queries = 0

    def query(self, query: StoreQuery) -> StorePage:
        if self._ready is not None:
            self._ready.wait()
        self.queries += 1
        number = int.from_bytes(query.cursor or bytes(32), "big")
        entries = tuple(StoreEntry((number * 1_000 + n).to_bytes(32, "big")) for n in range(self._per_page))
        more = number + 1 < self._pages
        return StorePage(entries, (number + 1).to_bytes(32, "big") if more else None, self.name)

    def close(self) -> None: ...


def test_an_honest_answer_waits_for_no_other_node() -> None:
    ready = threading.Event()
    slow, honest = Scripted("slow", 2, ready=ready), Scripted("honest", 3)
    walk = StoreClient([slow, honest]).walk_each(StoreQuery(PUBSUB_TOPIC))
    assert [next(walk)[0] for _ in range(3)] == ["honest"] * 3
    ready.set()
    assert [name for name, _ in walk] == ["slow"] * 2


def test_a_node_that_never_ends_is_left_alone_until_it_does_and_for_as_long_as_it_took() -> None:
    ready, now = threading.Event(), [0.0]
    slow = Scripted("slow", 1, ready=ready)
    asked = StoreClient([slow], deadline_s=0.05, monotonic=lambda: now[0])
    (late,) = asked.look_up([bytes(32)])
    assert late.error is not None
    assert late.error.fault is StoreFault.UNREACHABLE
    now[0] = 1.0
    (again,) = asked.look_up([bytes(32)])
    assert again.error is not None
    assert "earlier query" in again.error.detail
    ready.set()
    for thread in [each for each in threading.enumerate() if each.name == "store slow"]:
        thread.join()
    now[0] = 0.04
    (rests,) = asked.look_up([bytes(32)])
    assert rests.error is not None
    assert "earlier query" in rests.error.detail
    now[0] = 0.06
    asked = StoreClient([slow], monotonic=lambda: now[0])
    assert asked.look_up([bytes(32)])[0].error is None


def test_endless_cursors_without_messages_end() -> None:
    node = Scripted("endless", 1_000_000, per_page=0)
    (answer,) = StoreClient([node]).look_up([bytes(32)])
    assert answer.error is not None
    assert answer.error.fault is StoreFault.PEER_FAILED
    assert node.queries == MAX_EMPTY_PAGES + 1


def test_a_walk_that_nobody_reads_on_ends_with_its_page() -> None:
    node = Scripted("long", 10_000)
    walk = StoreClient([node]).walk_each(StoreQuery(PUBSUB_TOPIC))
    next(walk)
    walk.close()  # type: ignore[attr-defined]
    assert node.queries < 10_000


def test_credentials_of_an_address_are_in_no_text() -> None:
    node = RestStoreNode(BoundedHttp("http://user:hunter2@127.0.0.1:9/base", 1))
    with pytest.raises(StoreNodeError) as caught:
        node.query(everything())
    assert "hunter2" not in f"{caught.value!s} {caught.value!r} {node.name}"


def test_hashes_beside_a_filter_are_refused() -> None:
    node = RestStoreNode(BoundedHttp("http://127.0.0.1:9", 1))
    with pytest.raises(LocalError):
        node.query(StoreQuery(hashes=(bytes(32),), content_topics=(TOPIC,)))
