"""Long polling over the REST API. The waits are upper bounds: what is waited for happens at once."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient
from starlette.types import Message

from reliable_channel.messaging.events import EventSource
from reliable_channel.messaging.rest.longpoll import LongPoll
from reliable_channel.transport.health import Health, HealthState
from tests.support.messaging_world import CONTENT, World
from tests.support.waiting import WAIT_S
from tests.unit.messaging.conftest_rest import encoded, secured


def test_a_look_up_with_since_gives_only_what_is_new_and_a_cursor(client: TestClient, world: World) -> None:
    world.subscribe()
    world.arrives(b"old")
    answer = client.get("/messages", params={"contentTopic": CONTENT})
    cursor = answer.headers["X-Cursor"]
    answer = client.get("/messages", params={"contentTopic": CONTENT, "since": cursor})
    assert (answer.status_code, answer.json(), answer.headers["X-Cursor"]) == (200, [], cursor)
    world.arrives(b"new")
    answer = client.get("/messages", params={"contentTopic": CONTENT, "since": cursor})
    assert [one["message"]["payload"] for one in answer.json()] == [encoded(b"new")]
    assert client.get("/messages", params={"contentTopic": CONTENT, "since": answer.headers["X-Cursor"]}).json() == []


def test_following_the_cursor_page_by_page_misses_nothing(client: TestClient, world: World) -> None:
    world.subscribe()
    for number in range(5):
        world.clock.advance(1)
        world.arrives(b"%d" % number)
    cursor, seen = "0", []
    while page := (
        answer := client.get("/messages", params={"contentTopic": CONTENT, "since": cursor, "take": 2})
    ).json():
        cursor = answer.headers["X-Cursor"]
        seen += [base64.b64decode(one["message"]["payload"]) for one in page]
    assert seen == [b"0", b"1", b"2", b"3", b"4"]


def waiting(client: TestClient, path: str, **query: Any) -> Callable[[], Any]:
    """Start a long poll on another thread; the result waits for its answer."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(client.get(path, params={**query, "wait": 20_000})))
    thread.start()

    def result() -> Any:
        thread.join(120)
        assert answers, "the long poll did not answer"
        return answers[0]

    return result


def test_a_long_poll_answers_when_a_message_arrives(client: TestClient, world: World) -> None:
    subscription_id = world.subscribe()
    result = waiting(client, "/messages", subscriptionId=subscription_id)
    world.arrives(b"at last")
    assert [one["message"]["payload"] for one in result().json()] == [encoded(b"at last")]


def test_a_long_poll_of_a_request_answers_when_its_record_changes(client: TestClient, world: World) -> None:
    request_id = world.send()
    since = world.record(request_id).change_seq
    result = waiting(client, "/message", requestId=request_id, since=since)
    world.run()
    assert result().json()["sent"] is True


def test_a_long_poll_of_the_health_answers_when_it_changes(client: TestClient, world: World) -> None:
    since = client.get("/health").headers["X-Cursor"]
    result = waiting(client, "/health", since=since)
    world.transport.report(Health(HealthState.UNHEALTHY))
    assert result().json()["status"] == "Unhealthy"


def test_a_long_poll_that_waits_in_vain_says_what_there_is(client: TestClient, world: World) -> None:
    assert client.get("/messages", params={"contentTopic": CONTENT, "wait": 1}).status_code == 404
    request_id = world.send()
    since = world.record(request_id).change_seq
    answer = client.get("/message", params={"requestId": request_id, "since": since, "wait": 1})
    assert (answer.status_code, answer.json()["sending"]) == (200, True)


def test_waiting_calls_are_bounded_in_number(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliable_channel.messaging.rest.app.MAX_WAITING", 0)
    with secured(world) as client:
        answer = client.get("/messages", params={"contentTopic": CONTENT, "wait": 1_000})
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


class Connection:
    """The ``receive`` of a call without a body, whose client stays until ``left`` is set."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self._begun = False

    async def __call__(self) -> Message:
        if not self._begun:
            self._begun = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}


def waits_until(end: Callable[[LongPoll, Connection], object]) -> object:
    """What a call answers that waits in vain until ``end``."""

    async def scenario() -> object:
        poll, connection = LongPoll(EventSource(), max_waiting=1), Connection()
        poll.start()
        waiting = poll.wait_until(lambda: "nothing", lambda found: False, 10**9, connection)
        call = asyncio.create_task(waiting)
        while poll.waiting == 0:
            await asyncio.sleep(0)
        end(poll, connection)
        answer = await asyncio.wait_for(call, WAIT_S)
        assert poll.waiting == 0
        return answer

    return asyncio.run(scenario())


def test_stopping_the_server_ends_waiting_calls() -> None:
    assert waits_until(lambda poll, _: poll.stop()) == "nothing"


def test_a_call_whose_client_has_left_waits_no_longer() -> None:
    """64 calls that had been given up kept everybody else out for up to 30 s."""
    assert waits_until(lambda _, connection: connection.left.set()) == "nothing"
