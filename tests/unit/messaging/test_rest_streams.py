"""Server-sent events over real HTTP: what long polls return comes by itself, in order, and goes on after a break."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from starlette.types import Message

from reliable_channel.messaging.events import EventSource
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.messaging.rest import streams
from reliable_channel.messaging.rest.longpoll import LongPoll
from reliable_channel.messaging.rest.routes import message_stream
from reliable_channel.messaging.rest.streams import EventLog
from reliable_channel.transport.health import Health, HealthState
from tests.support.event_streams import Stream, serving
from tests.support.messaging_world import CONTENT, World
from tests.support.waiting import until


def test_messages_come_as_they_arrive_and_go_on_after_a_break(world: World) -> None:
    world.subscribe()
    world.arrives(b"old")
    with serving(world) as (address, _):
        stream = Stream(address, f"/messages/stream?contentTopic={CONTENT}")
        last, record = stream.event()
        assert record["message"]["payload"] == "b2xk"
        world.arrives(b"new")
        seen, record = stream.event()
        assert record["message"]["payload"] == "bmV3"
        stream.close()
        world.clock.advance(1)
        world.arrives(b"third")
        again = Stream(address, f"/messages/stream?contentTopic={CONTENT}", last)
        assert again.event() == (seen, record), "what came after the last event that the client has"
        assert again.event()[1]["message"]["payload"] == "dGhpcmQ="
        again.close()


def test_a_record_that_changes_comes_again(world: World) -> None:
    with serving(world) as (address, _):
        stream = Stream(address, f"/messages/stream?contentTopic={CONTENT}")
        world.send()
        assert stream.event()[1]["sent"] is False
        world.run()
        while not (record := stream.event()[1])["sent"]:
            pass
        assert record["sending"] is False
        stream.close()


def test_the_health_comes_at_once_and_when_it_changes(world: World) -> None:
    with serving(world) as (address, _):
        stream = Stream(address, "/health/stream")
        first, value = stream.event()
        assert value["status"] != "Unhealthy"
        world.transport.report(Health(HealthState.UNHEALTHY))
        assert stream.event()[1] == {"status": "Unhealthy"}
        stream.close()
        again = Stream(address, "/health/stream", first)
        assert again.event()[1] == {"status": "Unhealthy"}
        again.close()


def test_events_of_a_channel_come_in_order_and_say_what_is_lost(world: World) -> None:
    with serving(world) as (address, app):
        sessions = app.state.sessions
        handle = sessions.open("lobby", "/reliable-channel/1/lobby/proto", "alice").id
        stream = Stream(address, f"/channels/{handle}/events/stream")
        channel = sessions.find(handle).channel
        request_id = channel.send(b"hello")
        for _ in range(4):
            world.run(500)
            sessions.step()
        last, event = stream.event()
        while event["event"] != "reliable:message:sent":
            last, event = stream.event()
        assert (event["requestId"], event["cursor"]) == (request_id, int(last))
        stream.close()
        log = sessions.find(handle).log
        log._max_events = 1
        channel.send(b"again")
        for _ in range(4):
            world.run(500)
            sessions.step()
        again = Stream(address, f"/channels/{handle}/events/stream", "1")
        fields = again.block()
        assert fields is not None and fields["event"] == "lost"
        assert json.loads(fields["data"])["lostEvents"] == int(fields["id"]) - 1
        again.close()


def subscribe(address: str) -> None:
    connection = http.client.HTTPConnection(address, timeout=120)
    connection.request(
        "POST", "/messaging/v1/subscriptions", json.dumps([CONTENT]), {"Content-Type": "application/json"}
    )
    assert connection.getresponse().status == 200
    connection.close()


def next_payload(stream: Stream) -> tuple[str, str]:
    """The id of the next received message's event, and the message in base64."""
    while True:
        last, event = stream.event()
        if event.get("event") == "message_received":
            return last, event["message"]["payload"]


def test_a_stream_of_events_goes_on_at_a_server_that_was_started_anew(
    world: World, new_world: Callable[..., World]
) -> None:
    with serving(world) as (address, _):
        subscribe(address)
        stream = Stream(address, "/messaging/v1/events/stream")
        for number in range(9):
            world.clock.advance(1)
            world.arrives(b"%d" % number)
        (last, _), *_ = [next_payload(stream) for _ in range(9)][::-1]
        stream.close()
    started_anew = new_world()
    started_anew.clock.advance(60_000)
    with serving(started_anew) as (address, _):
        again = Stream(address, "/messaging/v1/events/stream", last)
        fields = again.block()
        assert fields is not None and (fields["event"], fields["data"]) == ("lost", '{"lostEvents":1}')
        subscribe(address)
        started_anew.arrives(b"new")
        assert next_payload(again)[1] == "bmV3"
        again.close()


def test_the_health_of_a_server_that_was_started_anew_comes_at_once(
    world: World, new_world: Callable[..., World]
) -> None:
    for state in (HealthState.UNHEALTHY, HealthState.HEALTHY):
        world.transport.report(Health(state))
    with serving(world) as (address, _):
        stream = Stream(address, "/health/stream")
        last, _ = stream.event()
        stream.close()
    with serving(new_world()) as (address, _):
        again = Stream(address, "/health/stream", last)
        assert again.event()[1]["status"] == "Healthy"
        again.close()


def test_records_of_a_new_database_come_although_the_cursor_is_higher(world: World) -> None:
    world.subscribe()
    world.arrives(b"first")
    with serving(world) as (address, _):
        stream = Stream(address, f"/messages/stream?contentTopic={CONTENT}", "4711")
        assert stream.event()[1]["message"]["payload"] == "Zmlyc3Q="
        stream.close()


def test_a_quiet_stream_says_that_it_is_still_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "KEEP_ALIVE_S", 0.01)
    with serving(world) as (address, _):
        stream = Stream(address, f"/messages/stream?contentTopic={CONTENT}")
        assert stream.answer.readline() == b": still here\n"
        stream.close()


def test_streams_end_when_the_server_stops(world: World) -> None:
    with serving(world) as (address, _):
        stream = Stream(address, f"/messages/stream?contentTopic={CONTENT}")
    assert stream.block() is None


def test_streams_count_as_waiting_calls(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliable_channel.messaging.rest.app.MAX_WAITING", 1)
    with serving(world) as (address, app):
        stream = Stream(address, "/health/stream")
        stream.event()
        connection = http.client.HTTPConnection(address, timeout=120)
        connection.request("GET", "/health/stream")
        refused = connection.getresponse()
        assert (refused.status, refused.headers["Retry-After"]) == (429, "1")
        connection.close()
        stream.close()
        until(lambda: app.state.poll.waiting == 0)


def test_streams_that_begin_at_once_are_bounded_in_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them began, and those beyond the bound were cut off, with a traceback in the log."""
    monkeypatch.setattr("reliable_channel.messaging.rest.app.MAX_WAITING", 1)
    with serving(world) as (address, _):
        connections = [http.client.HTTPConnection(address, timeout=120) for _ in range(8)]
        for connection in connections:
            connection.request("GET", "/health/stream")
        assert sorted(connection.getresponse().status for connection in connections) == [200] + [429] * 7
        for connection in connections:
            connection.close()


def test_little_is_written_after_a_client_has_left() -> None:
    """Of each batch all was, with a line of asyncio in the log for each event."""
    log = EventLog()
    for number in range(streams.MOST_AT_ONCE):
        log.add({"number": number})
    written: list[bytes] = []

    async def scenario() -> None:
        left = asyncio.Event()

        async def receive() -> Message:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            written.append(message.get("body", b""))
            if b"data" in written[-1]:
                left.set()

        poll = LongPoll(EventSource(), 1)
        poll.start()
        await streams.log_stream(poll, log, None)({"type": "http"}, receive, send)

    asyncio.run(scenario())
    assert sum(b"data" in body for body in written) < 5


def test_few_records_are_read_ahead_of_a_client_that_does_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 streams of records of 80 KB that nobody read on from took 420 MB."""
    world.subscribe()
    for number in range(60):
        world.arrives(b"%d" % number)
    read: list[MessageRecord] = []
    monkeypatch.setattr("reliable_channel.messaging.rest.routes.record_to_json", lambda record: read.append(record))

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    async def leave(message: Message) -> None:
        if b"data" in message.get("body", b""):
            raise OSError

    answer = message_stream(world.node, LongPoll(EventSource(), 1), CONTENT)
    with suppress(OSError, ExceptionGroup):
        asyncio.run(answer({"type": "http"}, receive, leave))
    assert 0 < len(read) <= 10
    assert len(list(world.node.records_of(world.node.find_keys(CONTENT, None)))) == 60


def test_a_stream_ends_with_its_channel(world: World) -> None:
    """It said for ever that it was still there, and nothing came any more."""
    with serving(world) as (address, app):
        handle = app.state.sessions.open("lobby", CONTENT, "alice").id
        stream = Stream(address, f"/channels/{handle}/events/stream")
        app.state.sessions.close(handle)
        assert stream.block() is None
        stream.close()


@pytest.mark.parametrize("query", ["", "contentTopic=a&subscriptionId=b", "contentTopic=a&since=x"])
def test_a_stream_of_nothing_known_is_400(world: World, query: str) -> None:
    with serving(world) as (address, _):
        connection = http.client.HTTPConnection(address, timeout=120)
        connection.request("GET", f"/messages/stream?{query}")
        assert connection.getresponse().status == 400
        connection.close()
