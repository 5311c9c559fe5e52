"""LIP-168 over HTTP: the paths, bodies and statuses of ``/messaging/v1`` beside the seed's, on one node."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from reliable_channel.messaging.rest import messaging_v1
from reliable_channel.messaging.rest.messaging_v1 import MAX_RECEIVED
from reliable_channel.transport.health import Health, HealthState
from tests.support.event_streams import Stream, serving
from tests.support.messaging_world import CONTENT, OTHER, World
from tests.unit.messaging.conftest_rest import encoded, secured

V1 = "/messaging/v1"
ENVELOPE = {"contentTopic": CONTENT, "payload": encoded(b"hello")}


def send(client: TestClient, **changes: Any) -> str:
    answer = client.post(f"{V1}/messages", json={**ENVELOPE, **changes})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["requestId"])


def test_subscribe_receive_and_unsubscribe(world: World, client: TestClient) -> None:
    answer = client.post(f"{V1}/subscriptions", json=[CONTENT, OTHER])
    assert (answer.status_code, answer.text, answer.headers["content-type"].partition(";")[0]) == (
        200, "OK", "text/plain",
    )  # fmt: skip
    assert client.get(f"{V1}/subscriptions").json() == sorted([CONTENT, OTHER])
    sent = world.arrives(b"one", meta=b"m", rate_limit_proof=b"p", version=1, ephemeral=True)
    world.arrives(b"two", OTHER)
    first, second = client.get(f"{V1}/events/received").json()
    assert first == {
        "messageHash": world.node.get_by_content_topic(CONTENT)[0].hash_hex,
        "message": {
            "payload": encoded(b"one"),
            "contentTopic": CONTENT,
            "version": 1,
            "timestamp": sent.timestamp,
            "ephemeral": True,
            "meta": encoded(b"m"),
            "proof": encoded(b"p"),
        },
        "source": "live",
        "seq": 1,
    }
    assert second["seq"] == 2
    assert set(second["message"]) == {"payload", "contentTopic", "version", "timestamp", "ephemeral"}
    assert client.get(f"{V1}/events/received").json() == [], "each is returned once"
    for _ in range(2):  # what is not subscribed is ignored
        answer = client.request("DELETE", f"{V1}/subscriptions", json=[CONTENT])
        assert (answer.status_code, answer.text) == (200, "OK")
    assert client.get(f"{V1}/subscriptions").json() == [OTHER]
    world.arrives(b"three")
    assert client.get(f"{V1}/events/received").json() == []


def test_the_oldest_of_too_many_received_messages_are_dropped(world: World, client: TestClient) -> None:
    client.post(f"{V1}/subscriptions", json=[CONTENT])
    for number in range(MAX_RECEIVED + 5):
        world.arrives(b"%d" % number)
    received = client.get(f"{V1}/events/received").json()
    assert [one["seq"] for one in received] == list(range(6, MAX_RECEIVED + 6)), "a gap tells how many were dropped"
    payloads = [base64.b64decode(one["message"]["payload"]) for one in received]
    assert payloads == [b"%d" % number for number in range(5, MAX_RECEIVED + 5)]


def test_a_send_is_followed_by_its_request_id(world: World, client: TestClient) -> None:
    one, two = send(client), send(client, payload=encoded(b"second"), ephemeral=True, meta=encoded(b"m"))
    world.run()
    answer = client.get(f"{V1}/events/send/{one}").json()
    assert answer["requestId"] == one
    assert [event["kind"] for event in answer["events"]] == ["propagated", "sent"]
    assert {event["messageHash"] for event in answer["events"]} == {world.record(one).hash_hex}
    assert {event["timestamp"] // 10**15 for event in answer["events"]} == {time.time_ns() // 10**15}
    again = client.get(f"{V1}/events/send/{one}")
    assert (again.status_code, again.json()["error"]) == (404, f"No send events for requestId: {one}")
    (rest,) = client.get(f"{V1}/events/send").json()
    assert rest["requestId"] == two
    assert client.get(f"{V1}/events/send").json() == []
    assert world.record(two).message.meta == b"m"


def test_a_failed_send_has_its_error(world: World, client: TestClient) -> None:
    request_id = send(client)
    world.node.cancel_request(request_id)
    ((event,),) = [one["events"] for one in client.get(f"{V1}/events/send").json()]
    assert (event["kind"], event["error"]) == ("error", "cancelled")


def test_requests_and_their_events_are_bounded(
    world: World, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messaging_v1, "MAX_REQUESTS", 2)
    ids = [send(client, payload=encoded(b"%d" % number)) for number in range(3)]
    world.run()
    assert [one["requestId"] for one in client.get(f"{V1}/events/send").json()] == ids[1:]


def test_both_faces_see_one_node(world: World, client: TestClient) -> None:
    request_id = send(client)
    world.run()
    assert client.get(f"/message?requestId={request_id}").json()["sent"] is True
    other = client.post("/send", json={"contentTopic": CONTENT, "payload": encoded(b"from the other")}).json()
    world.run()
    assert client.get(f"{V1}/events/send/{other['requestId']}").status_code == 200


def test_the_same_idempotency_key_sends_once(client: TestClient) -> None:
    headers = {"Idempotency-Key": "one"}
    first, second = (client.post(f"{V1}/messages", json=ENVELOPE, headers=headers) for _ in range(2))
    assert first.json() == second.json()
    assert client.post(f"{V1}/messages", json={**ENVELOPE, "ephemeral": True}, headers=headers).status_code == 409


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "subscriptions", ["nonsense"], 400, "not a content topic"),
        ("POST", "subscriptions", {"contentTopic": CONTENT}, 400, "list"),
        ("POST", "subscriptions", [CONTENT] * 1_001, 400, "1000"),
        ("POST", "subscriptions", [1], 400, "string"),
        ("DELETE", "subscriptions", "nonsense", 400, "list"),
        ("POST", "messages", {**ENVELOPE, "contentTopic": "nonsense"}, 400, "not a content topic"),
        ("POST", "messages", {"contentTopic": CONTENT}, 400, "payload"),
        ("POST", "messages", {**ENVELOPE, "payload": ""}, 400, "payload"),
        ("POST", "messages", {**ENVELOPE, "payload": "%"}, 400, "payload"),
        ("POST", "messages", {**ENVELOPE, "pubsubTopic": "/waku/2/rs/1/0"}, 400, "pubsubTopic"),
        ("POST", "messages", {**ENVELOPE, "payload": encoded(b"x" * 150_000)}, 413, "bytes"),
    ],
)
def test_what_is_not_as_documented_is_refused(
    refusing: TestClient, method: str, path: str, body: Any, status: int, words: str
) -> None:
    answer = refusing.request(method, f"{V1}/{path}", json=body)
    assert answer.status_code == status
    assert words in answer.json()["error"]


@pytest.mark.parametrize(("changes", "status"), [({"max_subscriptions": 1}, 429), ({"shards": (1, 2)}, 404)])
def test_a_message_whose_topic_cannot_be_subscribed_is_refused_with_the_cause(
    new_world: Callable[..., World], changes: dict[str, Any], status: int
) -> None:
    with secured(new_world(**changes)) as client:
        client.post("/subscribe", json={"contentTopic": OTHER})
        answer = client.post(f"{V1}/messages", json=ENVELOPE)
    assert (answer.status_code, "Retry-After" in answer.headers) == (status, status == 429)


def test_the_limits_and_the_guard_hold_here_too(world: World) -> None:
    with secured(world, token="x" * 16, max_body_bytes=100) as client:
        assert client.get(f"{V1}/events/send").status_code == 401
        headers = {"Authorization": "Bearer " + "x" * 16}
        assert client.get(f"{V1}/events/send", headers=headers).status_code == 200
        assert client.get(f"{V1}/events/send", headers={**headers, "Host": "evil.example"}).status_code == 403
        long = client.post(f"{V1}/subscriptions", json=[CONTENT] * 100, headers=headers)
        assert long.status_code == 413
        for method in ("POST", "DELETE"):
            plain = client.request(
                method, f"{V1}/subscriptions", content="[]", headers={**headers, "Content-Type": "text/plain"}
            )
            assert plain.status_code == 415


def test_no_link_on_a_page_takes_events_away(client: TestClient) -> None:
    request_id = send(client)
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert client.get("/health", headers=headers).status_code == 200, "other calls may be links"
    for path in ("send", f"send/{request_id}", "received"):
        assert client.get(f"{V1}/events/{path}", headers=headers).status_code == 403


def test_all_events_come_on_the_stream_and_go_on_after_a_break(world: World) -> None:
    with serving(world) as (address, _):
        stream = Stream(address, f"{V1}/events/stream")
        world.transport.report(Health(HealthState.UNHEALTHY))
        _, event = stream.event()
        first = world.clock.now_ns() // 1_000_000 + 1
        assert event == {"cursor": first, "event": "connection_status_change", "connectionStatus": "Disconnected"}
        world.send()
        world.run()
        last, event = stream.event()
        assert (event["event"], len(event["messageHash"])) == ("message_propagated", 66)
        stream.close()
        again = Stream(address, f"{V1}/events/stream", last)
        assert again.event()[1]["event"] == "message_sent"
        again.close()


def test_a_stream_has_what_a_poll_took(new_world: Callable[..., World]) -> None:
    world = new_world()
    with serving(world) as (address, app):
        client = TestClient(app, base_url="http://localhost")
        client.post(f"{V1}/subscriptions", json=[CONTENT])
        world.arrives(b"one")
        assert len(client.get(f"{V1}/events/received").json()) == 1
        stream = Stream(address, f"{V1}/events/stream?since=0")
        while (event := stream.event()[1])["event"] != "message_received":
            pass
        assert event["message"]["payload"] == encoded(b"one")
        stream.close()
