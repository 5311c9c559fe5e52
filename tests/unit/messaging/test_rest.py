"""The REST API: every path, status code and error text of MESSAGING-API, over a node in memory."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.messaging.rest import routes
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.messaging.rest.models import record_to_json
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.health import Health, HealthState
from tests.support.messaging_world import CONTENT, OTHER, PUBSUB, World
from tests.support.waiting import WAIT_S
from tests.unit.messaging.conftest_rest import MESSAGE, encoded, secured

GUID = "9978c4f1-4465-4537-9d95-0cf016fb1080"


def test_send_answers_with_the_request_id(client: TestClient, world: World) -> None:
    body = {**MESSAGE, "timestamp": 0, "ephemeral": False, "meta": encoded(b"example")}
    answer = client.post("/send", json=body)
    assert answer.status_code == 200
    record = world.record(answer.json()["requestId"])
    assert (record.message.payload, record.message.meta, record.message.ephemeral) == (b"example", b"example", False)


def test_send_without_a_pubsub_topic_takes_the_nodes_own(client: TestClient, world: World) -> None:
    answer = client.post("/send", json={"contentTopic": CONTENT, "payload": encoded(b"x")})
    assert world.record(answer.json()["requestId"]).pubsub_topic == PUBSUB


def test_send_to_an_unsupported_pubsub_topic_is_404_with_the_specified_sentence(client: TestClient) -> None:
    answer = client.post("/send", json={**MESSAGE, "pubsubTopic": "string"})
    assert answer.status_code == 404
    assert answer.json() == {"error": "Failed to send message. Target pubsubTopic 'string' not supported."}


@pytest.mark.parametrize(
    "change",
    [
        {"payload": None},
        {"payload": ""},
        {"payload": "no base64!"},
        {"payload": "QQ"},
        {"contentTopic": ""},
        {"contentTopic": None},
        {"contentTopic": "\ud800"},
        {"timestamp": "1.0"},
        {"timestamp": "9" * 19},
        {"timestamp": 2**63},
        {"timestamp": 1.5},
        {"timestamp": True},
        {"ephemeral": "yes"},
        {"meta": encoded(b"m" * 65)},
        {"unknown": 1},
    ],
)
def test_what_is_not_as_documented_is_400_and_names_the_field(refusing: TestClient, change: dict[str, Any]) -> None:
    body = json.dumps({**MESSAGE, **change})
    answer = refusing.post("/send", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400
    assert next(iter(change)) in answer.json()["error"]


@pytest.mark.parametrize("length", [1, 2, 3, 62, 63, 64])
def test_meta_of_up_to_64_bytes_is_taken(client: TestClient, world: World, length: int) -> None:
    answer = client.post("/send", json={**MESSAGE, "meta": encoded(b"m" * length)})
    assert world.record(answer.json()["requestId"]).message.meta == b"m" * length


def test_a_message_over_the_networks_limit_is_413(client: TestClient) -> None:
    answer = client.post("/send", json={**MESSAGE, "payload": encoded(b"x" * 149_990)})
    assert answer.status_code == 413
    assert "150000 bytes" in answer.json()["error"]


def test_too_many_pending_requests_are_429(new_world: Callable[..., World]) -> None:
    world = new_world(max_pending_requests=1)
    with secured(world) as client:
        assert client.post("/send", json=MESSAGE).status_code == 200
        answer = client.post("/send", json=MESSAGE)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")


def test_cancel_and_the_list_of_pending_requests(client: TestClient, world: World) -> None:
    request_id = client.post("/send", json=MESSAGE).json()["requestId"]
    assert client.get("/send/requests").json() == [request_id]
    for _ in range(2):
        answer = client.post("/send/cancel", json={"requestId": request_id})
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert client.get("/send/requests").json() == []
    assert client.post("/send/cancel", json={"requestId": "invalid"}).json() == {"status": "ok"}


def test_retry_sends_a_failed_request_again(client: TestClient, world: World) -> None:
    world.transport.failing = FailureReason.REFUSED
    request_id = client.post("/send", json=MESSAGE).json()["requestId"]
    assert client.post("/send/retry", json={"requestId": request_id}).status_code == 409
    world.run()
    assert client.post("/send/retry", json={"requestId": request_id}).json() == {"status": "ok"}
    assert client.post("/send/retry", json={"requestId": GUID}).status_code == 404


def test_subscribe_read_and_unsubscribe(client: TestClient, world: World) -> None:
    answer = client.post("/subscribe", json={"pubsubTopic": PUBSUB, "contentTopic": CONTENT})
    assert answer.status_code == 200
    subscription_id = answer.json()["subscriptionId"]
    assert client.get("/subscriptions").json() == [subscription_id]
    message = world.arrives(b"Initial message")
    expected = [
        {
            "sending": False,
            "sent": False,
            "stored": False,
            "received": True,
            "message": {
                "payload": encoded(b"Initial message"),
                "contentTopic": CONTENT,
                "pubsubTopic": PUBSUB,
                "hash": world.node.get_by_content_topic(CONTENT)[0].hash_hex,
                "timestamp": message.timestamp,
                "timestampText": str(message.timestamp),
            },
        }
    ]
    assert client.get("/messages", params={"subscriptionId": subscription_id}).json() == expected
    assert client.get("/messages", params={"subscriptionId": f'"{subscription_id}"'}).json() == expected
    for _ in range(2):
        answer = client.post("/unsubscribe", json={"subscriptionId": subscription_id})
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
    assert client.get("/subscriptions").json() == []


def test_subscribe_to_an_unsupported_cluster_is_404_with_the_specified_sentence(client: TestClient) -> None:
    answer = client.post("/subscribe", json={"pubsubTopic": "/waku/2/rs/0/2", "contentTopic": "/example/2/rfc/proto"})
    assert answer.status_code == 404
    assert answer.json() == {"error": "Cannot create subscription. clusterId 0 is not supported."}


def test_message_by_request_id_and_by_hash(client: TestClient, world: World) -> None:
    request_id = client.post("/send", json=MESSAGE).json()["requestId"]
    found = client.get("/message", params={"requestId": request_id}).json()
    assert {key: found[key] for key in ("sending", "sent", "stored", "received", "requestId")} == {
        "sending": True,
        "sent": False,
        "stored": False,
        "received": False,
        "requestId": request_id,
    }
    assert client.get("/message", params={"hash": found["message"]["hash"]}).json() == found


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"requestId": "xyz789"}, "Message with requestId 'xyz789' not found"),
        ({"hash": "abc123"}, "Message with hash 'abc123' not found"),
    ],
)
def test_message_not_found_is_404_with_the_specified_sentence(
    refusing: TestClient, query: dict[str, str], text: str
) -> None:
    answer = refusing.get("/message", params=query)
    assert (answer.status_code, answer.json()) == (404, {"error": text})


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ({"contentTopic": CONTENT}, f"No messages found for contentTopic '{CONTENT}'"),
        ({"subscriptionId": GUID}, f"No messages found for subscriptionId '{GUID}'"),
        ({"subscriptionId": GUID, "skip": 1, "take": 0}, f"No messages found for subscriptionId '{GUID}'"),
    ],
)
def test_messages_not_found_is_404_with_the_specified_sentence(
    refusing: TestClient, query: dict[str, Any], text: str
) -> None:
    answer = refusing.get("/messages", params=query)
    assert (answer.status_code, answer.json()) == (404, {"error": text})


def test_skip_and_take_page_and_an_empty_page_is_no_404(client: TestClient, world: World) -> None:
    world.subscribe()
    for number in range(3):
        world.clock.advance(1)
        world.arrives(b"%d" % number)

    def page(**query: Any) -> tuple[int, list[bytes]]:
        answer = client.get("/messages", params={"contentTopic": CONTENT, **query})
        return answer.status_code, [base64.b64decode(one["message"]["payload"]) for one in answer.json()]

    assert page() == (200, [b"0", b"1", b"2"])
    assert page(skip=1, take=1) == (200, [b"1"])
    assert page(take=10) == (200, [b"0", b"1", b"2"])
    assert page(take=0) == (200, [])
    assert page(skip=3) == (200, [])
    assert page(skip=10**30, take=10**30) == (200, [])


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/messages", {}),
        ("/messages", {"contentTopic": CONTENT, "subscriptionId": GUID}),
        ("/messages", {"contentTopic": CONTENT, "skip": -1}),
        ("/messages", {"contentTopic": CONTENT, "take": "many"}),
        ("/messages", {"contentTopic": CONTENT, "wait": 30_001}),
        ("/messages", {"contentTopic": "x" * 1_025}),
        ("/message", {}),
        ("/message", {"requestId": "a", "hash": "b"}),
        ("/message", {"requestId": "a", "since": -1}),
        ("/health", {"wait": -1}),
    ],
)
def test_a_query_that_is_not_as_documented_is_400(refusing: TestClient, path: str, query: dict[str, Any]) -> None:
    answer = refusing.get(path, params=query)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error"}


def test_health(client: TestClient, world: World) -> None:
    assert client.get("/health").json() == {"status": "Healthy", "connectionStatus": "Connected"}
    world.transport.report(Health(HealthState.MINIMALLY_HEALTHY))
    assert client.get("/health").json() == {"status": "MinimallyHealthy", "connectionStatus": "PartiallyConnected"}


def test_a_monitor_may_ask_for_the_health_without_a_body(client: TestClient) -> None:
    answer = client.head("/health")
    assert (answer.status_code, answer.headers["x-cursor"]) == (200, client.get("/health").headers["x-cursor"])
    assert client.head("/messaging/v1/events/received").status_code == 405  # it would take events away


def test_history_makes_records_of_what_the_store_has(client: TestClient, world: World) -> None:
    message = world.arrives()
    body = {"contentTopics": [CONTENT], "startTime": message.timestamp, "endTime": message.timestamp}
    answer = client.post("/history", json=body)
    assert answer.status_code == 200
    assert [(one["stored"], one["received"]) for one in answer.json()] == [(True, False)]
    assert client.get("/messages", params={"contentTopic": CONTENT}).json() == answer.json()
    assert client.post("/history", json={"contentTopics": [OTHER]}).json() == []


def test_history_without_a_store_is_503(client: TestClient, world: World) -> None:
    world.transport.store = None
    answer = client.post("/history", json={"contentTopics": [CONTENT]})
    assert (answer.status_code, set(answer.json())) == (503, {"error"})


def test_the_openapi_document_names_every_path_of_the_specification(client: TestClient) -> None:
    document = client.get("/openapi.json").json()
    calls = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert calls >= {
        ("POST", "/send"),
        ("POST", "/send/cancel"),
        ("GET", "/send/requests"),
        ("POST", "/subscribe"),
        ("POST", "/unsubscribe"),
        ("GET", "/subscriptions"),
        ("GET", "/message"),
        ("GET", "/messages"),
        ("GET", "/health"),
    }
    assert all("422" not in call["responses"] for path in document["paths"].values() for call in path.values())


def test_the_node_starts_and_stops_with_the_server() -> None:
    world = World()
    world.node.stop()
    with TestClient(create_app(world.node), base_url="http://localhost") as client:
        assert client.get("/health").json()["status"] == "Healthy"
    assert world.node.health_indicator == "Unhealthy"
    world.node.close()


def test_servers_of_one_process_act_on_their_own_nodes(new_world: Callable[..., World]) -> None:
    first, second = new_world(), new_world()
    apps = [create_app(world.node, run_node=False) for world in (first, second)]
    routes_of_each = [[route for route in app.routes if getattr(route, "path", None) == "/send"] for app in apps]
    assert routes_of_each[0] == routes_of_each[1] != []  # a route takes longer to make than a call to answer
    with (
        TestClient(apps[0], base_url="http://localhost") as one,
        TestClient(apps[1], base_url="http://localhost") as two,
    ):
        request_id = one.post("/send", json=MESSAGE).json()["requestId"]
        assert one.get("/send/requests").json() == [request_id]
        assert two.get("/send/requests").json() == []
    assert list(first.node.get_pending_requests()) == [request_id]


@pytest.mark.parametrize("timestamp", [1795254432521844140, "1795254432521844140"])
def test_a_timestamp_is_a_number_or_its_digits_and_comes_back_as_both(
    client: TestClient, world: World, timestamp: int | str
) -> None:
    request_id = client.post("/send", json={**MESSAGE, "timestamp": timestamp}).json()["requestId"]
    shown = client.get("/message", params={"requestId": request_id}).json()["message"]
    assert (shown["timestamp"], shown["timestampText"]) == (1795254432521844140, "1795254432521844140")


@pytest.mark.parametrize("size", [150_000, 150_001, 200_000])
def test_a_payload_over_the_networks_limit_is_413_whatever_finds_it_out(client: TestClient, size: int) -> None:
    answer = client.post("/send", json={**MESSAGE, "payload": encoded(b"x" * size)})
    assert (answer.status_code, set(answer.json())) == (413, {"error"})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/messages?contenttopic=a", "it is written contentTopic"),
        ("/messages?contentTopic=a&contentTopic=b", "more than once"),
        ("/message?RequestId=a", "it is written requestId"),
        ("/health?Since=1", "it is written since"),
    ],
)
def test_a_parameter_that_would_be_ignored_is_400(refusing: TestClient, path: str, words: str) -> None:
    answer = refusing.get(path)
    assert (answer.status_code, words in answer.json()["error"]) == (400, True)


def test_a_history_query_on_an_unsupported_topic_says_what_was_asked(client: TestClient) -> None:
    answer = client.post("/history", json={"contentTopics": [CONTENT], "pubsubTopic": "/waku/2/rs/1/9"})
    assert answer.status_code == 404
    assert answer.json() == {"error": "Cannot query history. shard 9 is not supported."}


def test_the_document_names_each_call_once_and_explains_every_parameter(client: TestClient) -> None:
    from reliable_channel.channel.config import ReliableChannelConfig
    from reliable_channel.messaging.rest.app import create_app

    world = World()
    document = create_app(world.node, channels=lambda _: ReliableChannelConfig(), run_node=False).openapi()
    world.node.close()
    calls = [call for path in document["paths"].values() for call in path.values()]
    names = [call["operationId"] for call in calls]
    assert len(set(names)) == len(names)
    assert {"send", "sendOnChannel", "messageStream", "channelEvents"} <= set(names)
    for call in calls:
        for parameter in call.get("parameters", []):
            shown = parameter["schema"]
            assert parameter.get("description"), (call["operationId"], parameter["name"])
            assert "examples" in shown or "examples" in parameter, (call["operationId"], parameter["name"])
    received = document["components"]["schemas"]["MessageReceived"]["properties"]
    assert (received["event"]["const"], received["message"]["format"]) == ("reliable:message:received", "byte")


@pytest.mark.parametrize("path", ["/health?foo=1", "/subscriptions?foo=1", "/send/requests?foo=1"])
def test_a_query_parameter_of_no_call_is_ignored(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 200


def test_a_history_is_written_record_by_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it was made at once: five times its bytes, of which 256 MiB are allowed."""
    one = MessageRecord(WakuMessage(b"x", CONTENT), stored=True, message_hash=bytes(32), pubsub_topic=PUBSUB)
    written: list[int] = []
    made = 0

    def shown(record: MessageRecord) -> dict[str, Any]:
        nonlocal made
        made += 1
        return record_to_json(record)

    monkeypatch.setattr(routes, "record_to_json", shown)
    monkeypatch.setattr(world.node, "history", lambda *_, **__: [one] * 50)
    app = create_app(world.node, run_node=False)

    async def call() -> None:
        body = json.dumps({"contentTopics": [CONTENT]}).encode()
        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/history", "query_string": b"", "headers": headers}
        messages = iter([{"type": "http.request", "body": body}])

        async def receive() -> Any:
            return next(messages, None) or await asyncio.sleep(WAIT_S)

        async def send(message: Any) -> None:
            written.append(made)

        await app(scope, receive, send)

    asyncio.run(call())
    assert made == 50
    assert written[1] <= 2
