"""Reliable channels over HTTP: a client that only speaks JSON and a participant in Python talk through one network."""

from __future__ import annotations

import base64
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient

from reliable_channel.channel.api import create_reliable_channel
from reliable_channel.channel.channel import ReliableChannel
from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.events import MessageReceived
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.rest import channels as rest_channels
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.messaging.rest.channel_events import event_to_json
from reliable_channel.messaging.rest.channels import MAX_CHANNELS, ChannelSessions
from reliable_channel.messaging.rest.longpoll import LongPoll
from reliable_channel.messaging.rest.streams import MAX_OF_A_CHEAP_KIND, EventLog
from reliable_channel.transport.memory import MemoryNode
from tests.support.messaging_world import World

TOPIC = "/reliable-channel/1/lobby/proto"
ALICE = {"channelId": "lobby", "contentTopic": TOPIC, "senderId": "alice"}
CONFIG = ReliableChannelConfig(query_on_connect=False)


class Lobby:
    """Alice behind the REST server, Bob in Python."""

    def __init__(self, world: World, client: TestClient, bob: ReliableChannel) -> None:
        self.world = world
        self.client = client
        self.bob = bob
        self.heard: list[bytes] = []
        bob.on(MessageReceived, lambda event: self.heard.append(event.message))
        self.alice = client.post("/channels", json=ALICE).json()["id"]

    def run(self, ms: int) -> None:
        for _ in range(0, ms, 500):
            self.world.run(500)
            self.client.app.state.sessions.step()  # type: ignore[attr-defined]
            self.bob.step()

    def events(self, **query: Any) -> list[dict[str, Any]]:
        answer = self.client.get(f"/channels/{self.alice}/events", params=query)
        assert answer.status_code == 200
        found: list[dict[str, Any]] = answer.json()
        return found


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    app = create_app(world.node, channels=lambda _: CONFIG, clock=world.clock, threaded=False, run_node=False)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.fixture
def lobby(world: World, client: TestClient) -> Iterator[Lobby]:
    stranger = world.network.node("bob")
    stranger.start()
    with create_reliable_channel(
        stranger, "lobby", TOPIC, "bob", config=CONFIG, clock=world.clock, threaded=False
    ) as bob:
        yield Lobby(world, client, bob)


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_what_the_client_sends_the_participant_receives_and_acknowledges(lobby: Lobby) -> None:
    answer = lobby.client.post(f"/channels/{lobby.alice}/send", json={"payload": encoded(b"hello")})
    request_id = answer.json()["requestId"]
    lobby.run(2_000)
    assert lobby.heard == [b"hello"]
    lobby.bob.send(b"hello to you")
    lobby.run(2_000)
    names = [event["event"] for event in lobby.events() if event.get("requestId") == request_id]
    assert {"reliable:message:sent", "reliable:message:delivered"} <= set(names)
    state = lobby.client.get(f"/channels/{lobby.alice}/sends/{request_id}").json()
    assert state["state"] == "delivered"


def test_what_the_participant_sends_the_client_reads_once(lobby: Lobby) -> None:
    lobby.bob.send(b"x" * 250_000)
    lobby.run(3_000)
    received = [event for event in lobby.events() if event["event"] == "reliable:message:received"]
    assert [(event["senderId"], base64.b64decode(event["message"])) for event in received] == [("bob", b"x" * 250_000)]
    assert lobby.events(since=received[0]["cursor"], take=0) == []
    assert all(event["cursor"] > received[0]["cursor"] for event in lobby.events(since=received[0]["cursor"]))


def test_every_segment_went_through_the_messaging_api(lobby: Lobby) -> None:
    lobby.client.post(f"/channels/{lobby.alice}/send", json={"payload": encoded(b"y" * 250_000)})
    lobby.run(2_000)
    records = lobby.world.node.get_by_content_topic(TOPIC)
    assert len([record for record in records if record.sent]) >= 3
    rows = [row for row in lobby.world.feed.rows if row.event == "sent"]
    assert {(row.channel_id, row.sender_id) for row in rows} == {("lobby", "alice")}
    assert len({row.entire_message_hash for row in rows if row.entire_message_hash}) == 1


def test_channels_are_listed_described_and_closed(lobby: Lobby) -> None:
    client = lobby.client
    assert client.get("/channels").json() == [{"id": lobby.alice, **ALICE}]
    status = client.get(f"/channels/{lobby.alice}").json()
    assert (status["channelId"], status["senderId"], status["started"]) == ("lobby", "alice", True)
    for _ in range(2):
        assert client.delete(f"/channels/{lobby.alice}").json() == {"status": "ok"}
    assert client.get("/channels").json() == []
    assert lobby.world.transport.subscribed == frozenset()


def test_the_same_channel_twice_is_409(lobby: Lobby) -> None:
    answer = lobby.client.post("/channels", json=ALICE)
    assert (answer.status_code, set(answer.json())) == (409, {"error"})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/channels/none", None),
        ("GET", "/channels/none/events", None),
        ("GET", "/channels/none/sends/x", None),
        ("POST", "/channels/none/send", {"payload": encoded(b"x")}),
    ],
)
def test_an_unknown_channel_is_404(client: TestClient, method: str, path: str, body: Any) -> None:
    answer = client.request(method, path, json=body)
    assert (answer.status_code, answer.json()) == (404, {"error": "Channel 'none' not found"})


def test_an_unknown_send_is_404(lobby: Lobby) -> None:
    answer = lobby.client.get(f"/channels/{lobby.alice}/sends/unknown")
    assert (answer.status_code, answer.json()) == (404, {"error": "Send 'unknown' not found"})


@pytest.mark.parametrize("payload", ["", "no base64!"])
def test_a_payload_that_is_none_is_400(lobby: Lobby, payload: str) -> None:
    assert lobby.client.post(f"/channels/{lobby.alice}/send", json={"payload": payload}).status_code == 400


def test_a_message_over_the_limit_is_413(lobby: Lobby) -> None:
    body = {"payload": encoded(b"z" * (1_048_576 + 1))}
    assert lobby.client.post(f"/channels/{lobby.alice}/send", json=body).status_code == 413


def test_channels_are_bounded_in_number(client: TestClient) -> None:
    for number in range(MAX_CHANNELS):
        assert client.post("/channels", json={**ALICE, "channelId": f"c{number}"}).status_code == 200
    assert client.post("/channels", json=ALICE).status_code == 429


def test_channels_that_are_opened_at_once_are_bounded_in_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rest_channels, "MAX_CHANNELS", 1)
    during: list[str] = []

    def config(topic: str) -> ReliableChannelConfig:
        if not during:
            during.append("one more")
            with pytest.raises(HTTPException, match="429"):
                sessions.open(during[0], topic, "alice")
        return CONFIG

    poll = LongPoll(world.node.events, 1)
    sessions = ChannelSessions(world.node, config, poll, clock=world.clock, threaded=False)
    opened = sessions.open("lobby", TOPIC, "alice")
    sessions.close(opened.id)
    sessions.open("lobby", TOPIC, "alice")
    sessions.close_all()


def test_the_log_forgets_the_oldest_and_says_how_many() -> None:
    log = EventLog(max_events=2)
    event = MessageReceived(
        channel_id="c", at=1, message=b"\xff", message_id="m", sender_id="s", content_topic=TOPIC, sequence=1
    )
    for _ in range(5):
        log.add(event_to_json(event))
    found, lost, _ = log.read_after(1, None)
    assert ([one["cursor"] for one in found], lost) == ([4, 5], 2)
    assert found[0]["message"] == "/w=="
    assert log.read_after(5, None) == ([], 0, 5)


def test_who_waits_for_events_costs_nothing_for_those_it_has_seen() -> None:
    """All 10 000 were looked through at every event, for each of 64 waiting calls: 0.5 ms each."""

    class NewestFirst(OrderedDict[int, Any]):
        seen = 0

        def __reversed__(self) -> Iterator[int]:  # type: ignore[override]
            for number in super().__reversed__():
                self.seen += 1
                yield number

    log = EventLog()
    log._events = events = NewestFirst()
    for number in range(100):
        log.add({"number": number})
    assert [one["cursor"] for one in log.read_after(98, 50)[0]] == [99, 100]
    assert events.seen == 3


@pytest.mark.parametrize("take", [None, 0, 1, 3, 9])
def test_a_reader_that_takes_a_few_events_at_a_time_gets_all_that_are_kept(take: int | None) -> None:
    log = EventLog(max_events=8)
    for number in range(12):
        log.add({"number": number})
    for since in range(13):
        events, lost, first = log.read_after(since, take)
        kept = [number for number in range(5, 13) if number > since]
        assert [one["cursor"] for one in events] == kept[:take]
        last = events[-1]["cursor"] if events else first
        assert lost == last - since - len(events)


def join_behind_a_message(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> MemoryNode:
    """Keep 500 events for alice, to whom bob has sent a message; returns the node of a stranger."""
    monkeypatch.setattr(rest_channels, "EventLog", lambda: EventLog(max_events=500))
    lobby.client.delete(f"/channels/{lobby.alice}")
    lobby.alice = lobby.client.post("/channels", json=ALICE).json()["id"]
    lobby.bob.send(b"before")
    lobby.run(2_000)
    stranger = lobby.world.network.node("stranger")
    stranger.start()
    return stranger


def test_a_strangers_invented_ids_push_no_other_event_out(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten envelopes of 5 KB were 10 000 events, all that a client can be behind."""
    stranger = join_behind_a_message(lobby, monkeypatch)
    history = tuple(HistoryEntry(f"{number}") for number in range(900))
    naming = SdsMessage("mallory", "m", "lobby", lobby.world.clock.now_ns() // 10**6, history, content=b"x")
    stranger.send(WakuMessage(encode_sds_message(naming), TOPIC))
    lobby.run(2_000)
    names = Counter(event["event"] for event in lobby.events())
    assert (names["missing-message"], names["reliable:message:received"]) == (MAX_OF_A_CHEAP_KIND, 1)


def test_a_strangers_flood_of_problems_pushes_no_other_event_out(lobby: Lobby, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger = join_behind_a_message(lobby, monkeypatch)
    for number in range(1_000):
        stranger.send(WakuMessage(b"garbage %d" % number, TOPIC))
    lobby.run(6_000)
    problems = [event for event in lobby.events() if event["event"] == "channel-problem"]
    received = [event for event in lobby.events() if event["event"] == "reliable:message:received"]
    assert [base64.b64decode(event["message"]) for event in received if event["senderId"] == "bob"] == [b"before"]
    assert len(problems) == MAX_OF_A_CHEAP_KIND
    read, cursor, lost = 0, 0, 0
    while answer := lobby.client.get(f"/channels/{lobby.alice}/events", params={"since": cursor, "take": 7}):
        read, cursor, lost = (
            read + len(answer.json()),
            int(answer.headers["X-Cursor"]),
            lost + int(answer.headers["X-Lost-Events"]),
        )
        if not answer.json():
            break
    assert (read + lost, lost) == (cursor, 1_000 - MAX_OF_A_CHEAP_KIND)


def test_what_the_rate_limit_holds_back_is_in_the_senders_own_records(world: World) -> None:
    limited = ReliableChannelConfig(
        query_on_connect=False, rate_limit=RateLimitConfig(enabled=True, messages_per_epoch=1)
    )
    app = create_app(world.node, channels=lambda _: limited, clock=world.clock, threaded=False, run_node=False)
    with TestClient(app, base_url="http://localhost") as client:
        handle = client.post("/channels", json=ALICE).json()["id"]
        sends = [client.post(f"/channels/{handle}/send", json={"payload": encoded(b"%d" % n)}) for n in range(2)]
        client.post(f"/channels/{handle}/send", json={"payload": encoded(b"gone"), "ephemeral": True})
        for _ in range(4):
            world.run(1_000)
            app.state.sessions.step()
    held = [row for row in world.feed.rows if row.event == "rate_limited"]
    assert {(row.sds_id, row.channel_id, row.sender_id) for row in held} == {
        (sends[1].json()["requestId"], "lobby", "alice")
    }
    queued = {row.entire_message_hash: row.sds_id for row in world.feed.rows if row.event == "queued"}
    assert queued[keccak256(b"1")] == sends[1].json()["requestId"], "or nobody would know of it"
    dropped = [row for row in world.feed.rows if row.event == "dropped"]
    assert [row.entire_message_hash for row in dropped] == [keccak256(b"gone")]


def test_a_channel_whose_buffer_is_full_is_429_at_once(new_world: Callable[..., World]) -> None:
    world = new_world(max_pending_requests=1)
    app = create_app(world.node, channels=lambda _: replace(CONFIG, max_queued_bytes=1), run_node=False)
    with TestClient(app, base_url="http://localhost") as client:
        handle = client.post("/channels", json=ALICE).json()["id"]
        payload = base64.b64encode(b"hello").decode()
        answers = [client.post(f"/channels/{handle}/send", json={"payload": payload})]
        while len(answers) < 100 and answers[-1].status_code == 200:  # what is queued may leave in between
            answers.append(client.post(f"/channels/{handle}/send", json={"payload": payload}))
    assert answers[0].status_code == 200
    assert (answers[-1].status_code, answers[-1].headers["Retry-After"]) == (429, "1")


def test_a_server_that_stops_on_a_full_disk_stops_all_channels_and_its_node(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """It ended with a stack trace, the other channels open, and its node started."""
    app = create_app(world.node, channels=lambda _: CONFIG, clock=world.clock, threaded=False)
    sessions = app.state.sessions
    with TestClient(app, base_url="http://localhost"):
        for number in range(3):
            sessions.open(f"c{number}", TOPIC, "alice")
        first = sessions.find(sessions.list_open()[0].id).channel

        def full_disk(**_: object) -> None:
            raise EnvironmentFault("The disk is full.")

        first._cycle.finish = full_disk  # type: ignore[method-assign]
    assert sessions.list_open() == []
    assert not world.node._started
    assert "The disk is full." in caplog.text


def test_a_full_disk_is_503_names_no_file_of_the_server_and_needs_only_another_open(
    world: World, tmp_path: Path
) -> None:
    config = replace(CONFIG, history_backend="sqlite", database=tmp_path / "channel.sqlite")
    app = create_app(world.node, channels=lambda _: config, clock=world.clock, threaded=False, run_node=False)
    with TestClient(app, base_url="http://localhost") as client:
        handle = client.post("/channels", json=ALICE).json()["id"]
        persistence = app.state.sessions.find(handle).channel._cycle.journal._persistence
        persistence._connection.execute("PRAGMA max_page_count=1")
        answer = client.post(f"/channels/{handle}/send", json={"payload": encoded(bytes(500_000))})
        assert (answer.status_code, "full" in answer.text) == (503, True)
        events = client.get(f"/channels/{handle}/events").text
        persistence._connection.execute("PRAGMA max_page_count=1000000")
        again = client.post("/channels", json=ALICE)  # 409 until somebody closed it
        assert again.status_code == 200
        assert [one["id"] for one in client.get("/channels").json()] == [again.json()["id"]]
        sent = client.post(f"/channels/{again.json()['id']}/send", json={"payload": encoded(b"now it fits")})
        assert sent.status_code == 200
        assert client.get(f"/channels/{handle}/events").status_code == 404
    assert "stopped" in events
    assert str(tmp_path) not in answer.text + events
