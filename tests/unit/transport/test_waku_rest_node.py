"""The node port over the REST API, against fake nodes of both dialects that answer as the recordings do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from reliable_channel.core.errors import LocalError, MessageTooLarge
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport import waku_rest
from reliable_channel.transport.base import (
    FailureReason,
    HealthChanged,
    Node,
    NodeEvent,
    NodeStoppedError,
    Received,
    ReceivedEnvelope,
    SendFailed,
    Sent,
    Source,
    StoreUnavailable,
)
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.health import HealthState, Mode
from reliable_channel.transport.http.client import BoundedHttp, HttpResponse
from reliable_channel.transport.sharding import Autosharding, NamedTopic
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_health import judge_report
from reliable_channel.transport.waku_receiver import Batch, ReadInterrupted, WakuReceiver
from reliable_channel.transport.waku_rest import Pace, WakuRestNode
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode
from tests.support.waiting import WAIT_S, until
from tests.unit.channel.channel_world import fail_with

TOPIC = "/app/1/golden/proto"
OTHER = "/app/1/other/proto"
FAST = Pace(poll_s=0.01, health_s=0.05, min_backoff_s=0.01, max_backoff_s=0.05)
KINDS = [("nwaku", Mode.RELAY), ("nwaku", Mode.EDGE), ("go-waku", Mode.RELAY), ("go-waku", Mode.EDGE)]


def test_a_filter_subscription_is_pinged_after_the_clock_was_set_back() -> None:
    """It lapses after five minutes without a ping, and nobody would say so."""
    pings: list[int] = []

    class Pinged(WakuApi):
        def filter_ping(self) -> None:
            pings.append(clock.now_ns())

    clock = ManualClock()
    with FakeWakuNode("nwaku") as fake:
        receiver = WakuReceiver(Pinged(BoundedHttp(fake.url, WAIT_S)), Mode.EDGE, clock)
        clock.advance(3_600_000)
        receiver.read([(PUBSUB_TOPIC, TOPIC)])
        clock.advance(-3_600_000)
        for _ in range(3):
            receiver.read([(PUBSUB_TOPIC, TOPIC)])
            clock.advance(60_000)
    assert len(pings) == 3


def test_ten_thousand_content_topics_are_left_a_hundred_at_a_time() -> None:
    """A service node refuses more in one call, and would go on to push all of them."""
    calls: list[int] = []

    class Counting(BoundedHttp):
        def delete(self, path: str, body: Any, timeout_s: float | None = None) -> HttpResponse:
            calls.append(len(body["contentFilters"]))
            return HttpResponse(200, b"OK")

    topics = [f"/app/1/{number}/proto" for number in range(10_001)]
    assert WakuApi(Counting("http://localhost")).filter_unsubscribe(PUBSUB_TOPIC, topics) is None
    assert calls == [100] * 100 + [1]


class Participant:
    """A node under test with the events it gave."""

    def __init__(self, fake: FakeWakuNode, mode: Mode, timeout_s: float = WAIT_S) -> None:
        self.events: list[NodeEvent] = []
        self.mode = mode
        self.node = WakuRestNode(WakuApi(BoundedHttp(fake.url, timeout_s)), NamedTopic(PUBSUB_TOPIC), mode, pace=FAST)
        self.node.add_listener(self.events.append)
        self.node.subscribe([TOPIC])

    def __enter__(self) -> Participant:
        self.node.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.node.stop()

    def of(self, kind: type) -> list:  # type: ignore[type-arg]
        return [event for event in self.events if isinstance(event, kind)]

    def payloads(self) -> list[bytes]:
        return [event.envelope.message.payload for event in self.of(Received)]

    def until_reading(self, fake: FakeWakuNode) -> None:
        """Until the fake would keep a message for us, and is being read."""
        wanted = {(PUBSUB_TOPIC, topic) for topic in self.node.subscribed}
        until(lambda: fake._relay.get(PUBSUB_TOPIC) if self.mode is Mode.RELAY else set(fake._filter) == wanted)
        seen = len(fake.requests)
        until(lambda: any(method == "GET" and "/messages/" in path for method, path in fake.requests[seen:]))


@pytest.fixture(params=KINDS, ids=lambda kind: f"{kind[0]}-{kind[1]}")
def kind(request: pytest.FixtureRequest) -> tuple[str, Mode]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def fake(kind: tuple[str, Mode]) -> Iterator[FakeWakuNode]:
    with FakeWakuNode(kind[0], relay_cache=1000, filter_cache=1000) as node:  # type: ignore[arg-type]
        yield node


@pytest.fixture
def participant(fake: FakeWakuNode, kind: tuple[str, Mode]) -> Iterator[Participant]:
    with Participant(fake, kind[1]) as found:
        found.until_reading(fake)
        yield found


def message(number: int, topic: str = TOPIC) -> WakuMessage:
    return WakuMessage(b"m%d" % number, topic, timestamp=time.time_ns(), meta=b"RELIABLE-CHANNEL-API/1")


def test_it_is_a_node(participant: Participant) -> None:
    assert isinstance(participant.node, Node)


def test_what_it_sends_reaches_the_network_with_a_fresh_timestamp(participant: Participant, fake: FakeWakuNode) -> None:
    before = time.time_ns()
    request_id = participant.node.send(WakuMessage(b"hello", TOPIC, meta=b"m", ephemeral=True))
    until(lambda: participant.of(Sent))
    (sent,) = participant.of(Sent)
    ((topic, published),) = fake.published
    assert (sent.request_id, topic, published) == (request_id, PUBSUB_TOPIC, sent.message)
    assert sent.message_hash == message_hash(PUBSUB_TOPIC, published)
    assert before <= (published.timestamp or 0) <= time.time_ns()


def test_equal_payloads_are_two_messages(participant: Participant, fake: FakeWakuNode) -> None:
    for _ in range(2):
        participant.node.send(WakuMessage(b"ok", TOPIC))
    until(lambda: len(participant.of(Sent)) == 2)
    assert len({message_hash(*pair) for pair in fake.published}) == 2


def test_it_gives_every_message_of_a_subscribed_topic_once(
    participant: Participant, fake: FakeWakuNode, kind: tuple[str, Mode]
) -> None:
    fake.faults.repeat_reads = True
    for number in range(30):
        fake.network.publish(PUBSUB_TOPIC, message(number))
        fake.network.publish(PUBSUB_TOPIC, message(number, OTHER))
    until(lambda: len(participant.payloads()) >= 30)
    time.sleep(0.1)
    assert sorted(participant.payloads()) == sorted(b"m%d" % n for n in range(30))
    expected = Source.RELAY if kind[1] is Mode.RELAY else Source.FILTER
    assert {event.envelope.source for event in participant.of(Received)} == {expected}


def test_an_unsubscribed_topic_is_not_given_any_more(participant: Participant, fake: FakeWakuNode) -> None:
    participant.node.unsubscribe([TOPIC])
    participant.node.subscribe([OTHER])
    participant.until_reading(fake)
    fake.network.publish(PUBSUB_TOPIC, message(1))
    fake.network.publish(PUBSUB_TOPIC, message(2, OTHER))
    until(lambda: participant.payloads())
    assert participant.payloads() == [b"m2"]


def test_a_node_that_is_down_for_a_while_changes_nothing_but_health(
    participant: Participant, fake: FakeWakuNode
) -> None:
    until(lambda: participant.node.health().state is HealthState.HEALTHY)
    fake.down()
    until(lambda: participant.node.health().state is HealthState.UNHEALTHY)
    request_id = participant.node.send(WakuMessage(b"lost", TOPIC))
    until(lambda: participant.of(SendFailed))
    (failed,) = participant.of(SendFailed)
    assert (failed.request_id, failed.reason, failed.retriable) == (request_id, FailureReason.UNREACHABLE, True)
    fake.restart()
    until(lambda: participant.node.health().state is HealthState.HEALTHY)
    participant.until_reading(fake)
    fake.network.publish(PUBSUB_TOPIC, message(7))
    until(lambda: participant.payloads() == [b"m7"])
    states = [event.health.state for event in participant.of(HealthChanged)]
    assert states == [HealthState.HEALTHY, HealthState.UNHEALTHY, HealthState.HEALTHY]


def test_a_node_that_answers_too_slowly_is_unhealthy_and_recovers(fake: FakeWakuNode, kind: tuple[str, Mode]) -> None:
    participant = Participant(fake, kind[1], timeout_s=0.3)
    with participant:
        participant.until_reading(fake)
        fake.faults.slow_s = 1.0
        until(lambda: participant.node.health().state is HealthState.UNHEALTHY)
        fake.faults.slow_s = 0.0
        until(lambda: participant.node.health().state is HealthState.HEALTHY)
        fake.network.publish(PUBSUB_TOPIC, message(1))
        until(lambda: participant.payloads() == [b"m1"])


def test_a_content_topic_without_a_place_on_the_network_is_refused_at_once() -> None:
    node = WakuRestNode(WakuApi(BoundedHttp("http://127.0.0.1:9")), Autosharding(1))
    with pytest.raises(LocalError, match="application/version"):
        node.subscribe(["nonsense"])


def test_credentials_of_an_address_are_sent_and_logged_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    with FakeWakuNode("nwaku") as fake, caplog.at_level("DEBUG"):
        http = BoundedHttp(fake.url.replace("http://", "http://user:hunter2@"), WAIT_S)
        assert http.get("/version").ok
        http.close()
        assert fake.authorizations == ["Basic dXNlcjpodW50ZXIy"]
    assert "hunter2" not in caplog.text
    assert "dXNlcjpodW50ZXIy" not in caplog.text


@pytest.mark.parametrize(
    ("faults", "reasons"),
    [
        ({"status": 429}, {FailureReason.RATE_LIMITED}),
        ({"status": 500}, {FailureReason.UNREACHABLE}),
        ({"status": 503}, {FailureReason.UNREACHABLE, FailureReason.NO_PEERS}),
        ({"status": 400, "body": "illegal base64 data"}, {FailureReason.REFUSED}),
        ({"down": True}, {FailureReason.UNREACHABLE}),
    ],
)
def test_a_refused_send_fails_once_with_its_reason(
    participant: Participant,
    fake: FakeWakuNode,
    kind: tuple[str, Mode],
    faults: dict[str, object],
    reasons: set[FailureReason],
) -> None:
    fake.faults.paths = "/lightpush/" if kind[1] is Mode.EDGE else "/relay/v1/messages"
    for name, value in faults.items():
        setattr(fake.faults, name, value)
    participant.node.send(WakuMessage(b"x", TOPIC))
    until(lambda: participant.of(SendFailed))
    assert participant.of(SendFailed)[0].reason in reasons
    assert len(participant.of(SendFailed)) == 1
    assert participant.of(Sent) == []


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("mode", list(Mode))
def test_a_send_waits_as_long_as_the_node_says(status: int, mode: Mode) -> None:
    with FakeWakuNode("nwaku") as fake, Participant(fake, mode) as participant:
        participant.until_reading(fake)
        fake.faults.status, fake.faults.retry_after = status, "1"
        fake.faults.paths = "/lightpush/" if mode is Mode.EDGE else "/relay/v1/messages"
        participant.node.send(message(0))
        until(lambda: participant.of(SendFailed))
        refused_at, fake.faults.status = time.monotonic(), None
        participant.node.send(message(1))
        until(lambda: participant.of(Sent))
        assert time.monotonic() - refused_at > 0.9


@pytest.mark.parametrize(("mode", "path"), [(Mode.RELAY, "/relay/v1/sub"), (Mode.EDGE, "/filter/v2/sub")])
def test_a_subscription_waits_as_long_as_the_node_says_and_the_others_are_read(mode: Mode, path: str) -> None:
    clock = ManualClock()
    with FakeWakuNode("nwaku", joined=()) as fake:
        receiver = WakuReceiver(WakuApi(BoundedHttp(fake.url, WAIT_S)), mode, clock)
        receiver.read([(PUBSUB_TOPIC, TOPIC)])
        fake.faults.status, fake.faults.retry_after, fake.faults.paths = 429, "30", path
        before = "/waku/2/rs/0/0"  # in relay mode topics are read in this order
        wanted = [(before, OTHER), (PUBSUB_TOPIC, TOPIC)]
        for number in range(3):
            fake.network.publish(PUBSUB_TOPIC, message(number))
            with pytest.raises(ReadInterrupted, match="refused a subscription") as interrupted:
                receiver.read(wanted)
            received = [envelope.message.payload for envelope in interrupted.value.partial.envelopes]
            assert received == [message(number).payload]
            clock.advance(9_500)
        assert fake.faults.refused == [f"{path}scriptions"]
        fake.faults.status = None
        clock.advance(2_000)
        receiver.read(wanted)


def test_reading_waits_as_long_as_the_node_says() -> None:
    with FakeWakuNode("nwaku") as fake, Participant(fake, Mode.RELAY) as participant:
        participant.until_reading(fake)
        fake.faults.status, fake.faults.retry_after, fake.faults.paths = 503, "1", "/relay/v1/messages"
        until(lambda: fake.faults.refused)
        fake.faults.status = None
        fake.network.publish(PUBSUB_TOPIC, message(0))
        refused_at = time.monotonic()
        until(participant.payloads)
        assert time.monotonic() - refused_at > 0.8


def test_a_healthy_node_of_which_nothing_can_be_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Its health was all that was told."""
    with FakeWakuNode("nwaku", joined=()) as fake:
        fake.faults.status, fake.faults.body, fake.faults.paths = 404, "not mounted", "/relay/v1/"
        with Participant(fake, Mode.RELAY) as participant:
            until(lambda: len(fake.faults.refused) > 50)
            assert participant.node.health().state is not HealthState.UNHEALTHY
    assert [record.message.count("not mounted") for record in caplog.records] == [1]


def test_a_send_that_comes_while_the_node_stops_is_refused(
    participant: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was accepted, and neither sent nor failed."""
    node = participant.node
    put = node._outgoing.put

    def stop_and_put(accepted: Any, timeout: float) -> None:
        node.stop()
        put(accepted, timeout=timeout)

    monkeypatch.setattr(node._outgoing, "put", stop_and_put)
    with pytest.raises(NodeStoppedError):
        node.send(message(0))
    assert node._outgoing.empty()


def test_what_waits_behind_a_slow_publish_can_be_taken_back(
    participant: Participant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that restarted while its node was slow queued its envelopes once more each time."""
    node, begun, go_on = participant.node, threading.Event(), threading.Event()
    publish = node._publish

    def publish_slowly(topic: str, envelope: WakuMessage) -> Any:
        begun.set()
        assert go_on.wait(WAIT_S)
        return publish(topic, envelope)

    monkeypatch.setattr(node, "_publish", publish_slowly)
    first, second, third = (node.send(message(number)) for number in range(3))
    assert begun.wait(WAIT_S)
    assert [node.withdraw(request_id) for request_id in (first, second, second)] == [False, True, False]
    go_on.set()
    until(lambda: len(participant.of(Sent)) == 2)
    assert [event.request_id for event in participant.of(Sent)] == [first, third]


def test_an_envelope_over_the_limit_is_refused_at_once(participant: Participant) -> None:
    with pytest.raises(MessageTooLarge, match="150000"):
        participant.node.send(WakuMessage(bytes(150_000), TOPIC))


@pytest.mark.parametrize(
    "wrong",
    [
        {"payload": "text"},
        {"payload": 5},
        {"content_topic": "/app/1/half a pair \ud800/proto"},
        {"timestamp": "now"},
        {"timestamp": 2**63},
        {"version": -1},
        {"meta": "text"},
        {"meta": 5},
        {"rate_limit_proof": 5},
    ],
    ids=lambda wrong: str(wrong)[:25].encode("ascii", "replace").decode(),
)
def test_an_envelope_that_is_none_is_refused_at_once_and_the_node_goes_on(wrong: dict[str, Any]) -> None:
    """It ended the thread that sends, and nothing was sent any more."""
    with FakeWakuNode("nwaku") as fake, Participant(fake, Mode.RELAY) as participant:
        with pytest.raises(LocalError):
            participant.node.send(WakuMessage(**{"payload": b"x", "content_topic": TOPIC, **wrong}))
        with pytest.raises(LocalError):
            participant.node.send(message(0), "half a pair \ud800")
        request_id = participant.node.send(message(1))
        until(lambda: [one.request_id for one in participant.of(Sent)] == [request_id])


@pytest.mark.parametrize("topic", ["half a pair \ud800", "", 5, None])
def test_a_content_topic_that_is_none_is_refused_at_once(topic: Any) -> None:
    """It ended the thread that reads, and the node stayed healthy."""
    node = WakuRestNode(WakuApi(BoundedHttp("http://127.0.0.1:9")), NamedTopic(PUBSUB_TOPIC), Mode.RELAY, pace=FAST)
    with pytest.raises(LocalError):
        node.subscribe([TOPIC, topic])
    assert node.subscribed == frozenset()


def test_the_largest_envelope_that_passes_the_check_passes_the_node(
    participant: Participant, fake: FakeWakuNode
) -> None:
    size = 150_000
    while True:
        try:
            participant.node.send(WakuMessage(bytes(size), TOPIC))
            break
        except MessageTooLarge:
            size -= 1
    until(lambda: participant.of(Sent))
    assert size > 149_900


def test_after_stop_nothing_happens_and_no_thread_is_left(fake: FakeWakuNode, kind: tuple[str, Mode]) -> None:
    before = set(threading.enumerate())
    with Participant(fake, kind[1]) as participant:
        participant.until_reading(fake)
        ids = {participant.node.send(WakuMessage(b"x%d" % n, TOPIC)) for n in range(50)}
    answered = [event.request_id for event in participant.events if isinstance(event, Sent | SendFailed)]
    assert sorted(answered) == sorted(ids)
    count = len(participant.events)
    participant.node.stop()
    left = {t for t in set(threading.enumerate()) - before if t.name.startswith("waku-node")}
    assert (len(participant.events), left) == (count, set())
    with pytest.raises(NodeStoppedError):
        participant.node.send(WakuMessage(b"late", TOPIC))


def test_a_stopped_node_starts_again(fake: FakeWakuNode, kind: tuple[str, Mode]) -> None:
    participant = Participant(fake, kind[1])
    for number in range(2):
        with participant:
            participant.until_reading(fake)
            fake.network.publish(PUBSUB_TOPIC, message(number))
            until(lambda number=number: len(participant.payloads()) == number + 1)  # type: ignore[misc]


def test_a_listener_that_raises_affects_nobody(participant: Participant, fake: FakeWakuNode) -> None:
    def bad(_: NodeEvent) -> None:
        raise RuntimeError("no")

    later: list[NodeEvent] = []
    participant.node.add_listener(bad)
    participant.node.add_listener(later.append)
    participant.node.send(WakuMessage(b"x", TOPIC))
    until(lambda: later)
    participant.node.remove_listener(later.append)
    participant.node.remove_listener(later.append)


@pytest.mark.parametrize(
    ("mode", "mesh", "services", "state"),
    [
        (Mode.RELAY, 0, 2, HealthState.UNHEALTHY),
        (Mode.RELAY, 3, 2, HealthState.UNHEALTHY),
        (Mode.RELAY, 4, 0, HealthState.MINIMALLY_HEALTHY),
        (Mode.RELAY, 6, 0, HealthState.HEALTHY),
        (Mode.EDGE, 6, 0, HealthState.UNHEALTHY),
        (Mode.EDGE, 0, 1, HealthState.MINIMALLY_HEALTHY),
        (Mode.EDGE, 0, 2, HealthState.HEALTHY),
    ],
)
@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
def test_health_is_judged_from_the_peers(
    dialect: str, mode: Mode, mesh: int, services: int, state: HealthState
) -> None:
    with FakeWakuNode(dialect, mesh_peers=mesh, service_peers=services) as fake:  # type: ignore[arg-type]
        node = WakuRestNode(WakuApi(BoundedHttp(fake.url, WAIT_S)), NamedTopic(PUBSUB_TOPIC), mode, pace=FAST)
        node.start()
        until(lambda: "not started" not in node.health().detail)
        found = node.health().state
        node.stop()
    assert found is state


@pytest.mark.parametrize("spell", [str, lambda status: status.replace("_", " ").title()], ids=["READY", "Ready"])
@pytest.mark.parametrize(
    ("node", "relay", "connection", "state"),
    [
        ("READY", "READY", None, HealthState.MINIMALLY_HEALTHY),
        ("READY", "READY", "Connected", HealthState.HEALTHY),
        ("READY", "NOT_READY", "Connected", HealthState.UNHEALTHY),
        ("NOT_READY", "READY", None, HealthState.UNHEALTHY),
        ("INITIALIZING", "NOT_MOUNTED", None, HealthState.UNHEALTHY),
    ],
)
def test_without_the_admin_api_health_is_what_any_nwaku_says_of_itself(
    spell: Callable[[str], str], node: str, relay: str, connection: str | None, state: HealthState
) -> None:
    reported = {"nodeHealth": spell(node), "connectionStatus": connection, "protocolsHealth": [{"Relay": spell(relay)}]}
    assert judge_report(reported, Mode.RELAY).state is state


def test_an_old_nwaku_gets_lightpush_v1() -> None:
    with FakeWakuNode("nwaku", lightpush_v3=False) as fake, Participant(fake, Mode.EDGE) as participant:
        for number in range(3):
            participant.node.send(WakuMessage(b"%d" % number, TOPIC))
        until(lambda: len(participant.of(Sent)) == 3)
        assert [path for _, path in fake.requests if "lightpush" in path].count("/lightpush/v3/message") == 1


def test_it_joins_a_go_waku_topic_once_and_not_again_after_a_crash_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WakuReceiver, "leave", lambda _self: None)  # a crash leaves nothing in order
    with FakeWakuNode("go-waku") as fake:
        for _ in range(2):
            with Participant(fake, Mode.RELAY) as participant:
                participant.until_reading(fake)
        assert len(fake._relay[PUBSUB_TOPIC]) == 1


def test_leaving_gives_up_only_a_shard_that_the_node_did_not_serve_before() -> None:
    for joined in ((), (PUBSUB_TOPIC,)):
        with FakeWakuNode("go-waku", joined=joined) as fake:
            with Participant(fake, Mode.RELAY) as participant:
                participant.until_reading(fake)
            assert (set(fake._relay), fake.joined) == (set(joined), set(joined))


def test_the_first_envelope_waits_until_the_node_has_joined_its_shard() -> None:
    with FakeWakuNode("nwaku", joined=()) as fake:
        participant = Participant(fake, Mode.RELAY)
        with participant:
            participant.node.send(WakuMessage(b"first", TOPIC))
            until(lambda: participant.of(Sent) or participant.of(SendFailed))
        assert participant.of(SendFailed) == []


def test_a_store_is_asked_only_when_one_is_configured(participant: Participant) -> None:
    with pytest.raises(StoreUnavailable):
        participant.node.query_store(StoreQuery(PUBSUB_TOPIC))


def test_the_proof_of_an_envelope_counts_among_the_bytes_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    node = WakuRestNode(WakuApi(BoundedHttp("http://localhost")), NamedTopic(PUBSUB_TOPIC))
    node.subscribe([TOPIC])
    sizes: list[int] = []
    monkeypatch.setattr(node._dispatcher, "put_bounded", lambda _, size: sizes.append(size))
    envelope = WakuMessage(b"x", TOPIC, timestamp=1, rate_limit_proof=bytes(99))
    node._deliver(Batch((ReceivedEnvelope(envelope, PUBSUB_TOPIC, bytes(32), Source.RELAY),)))
    assert sizes == [100]


def test_two_nodes_of_one_network_talk() -> None:
    network = FakeWakuNetwork()
    with (
        FakeWakuNode("nwaku", network) as one,
        FakeWakuNode("go-waku", network) as two,
        Participant(one, Mode.RELAY) as alice,
        Participant(two, Mode.EDGE) as bob,
    ):
        alice.until_reading(one)
        bob.until_reading(two)
        alice.node.send(WakuMessage(b"to bob", TOPIC))
        bob.node.send(WakuMessage(b"to alice", TOPIC))
        until(lambda: b"to bob" in bob.payloads() and b"to alice" in alice.payloads())


def test_an_answer_on_which_the_program_fails_ends_neither_reading_nor_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread was gone: the node stayed healthy and received nothing, or a send had no end."""
    monkeypatch.setattr(waku_rest, "FAULT_WAIT_S", 0.01)
    with FakeWakuNode("nwaku") as fake, Participant(fake, Mode.RELAY) as participant:
        participant.until_reading(fake)
        api = participant.node._api
        for name in ("relay_read", "relay_publish"):
            monkeypatch.setattr(api, name, fail_with(KeyError(name)))
        until(lambda: "nothing is received: KeyError" in participant.node.health().detail)
        request = participant.node.send(WakuMessage(b"first", TOPIC))
        until(lambda: participant.of(SendFailed))
        (failed,) = participant.of(SendFailed)
        assert (failed.request_id, failed.reason) == (request, FailureReason.UNREACHABLE)
        monkeypatch.undo()
        participant.node.send(WakuMessage(b"second", TOPIC))
        until(lambda: participant.of(Sent))
        participant.until_reading(fake)
        fake.network.publish(PUBSUB_TOPIC, WakuMessage(b"third", TOPIC, timestamp=1))
        until(lambda: b"third" in participant.payloads())
