"""``Idempotency-Key``: a call that is repeated sends once, also over a restart and after a crash in between."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.messaging import idempotency
from reliable_channel.messaging.idempotency import IdempotencyKey, KeyStore
from reliable_channel.messaging.store import RecordStore
from tests.support.messaging_world import World
from tests.unit.messaging.conftest_rest import MESSAGE, encoded, secured

CHANNEL = {"channelId": "lobby", "contentTopic": "/reliable-channel/1/lobby/proto", "senderId": "alice"}


def send(client: TestClient, key: str | None, **changes: Any) -> Any:
    headers = {} if key is None else {"Idempotency-Key": key}
    return client.post("/send", json={**MESSAGE, **changes}, headers=headers)


def test_the_same_key_gives_the_same_request_and_sends_once(client: TestClient, world: World) -> None:
    first, second = send(client, "a").json(), send(client, "a").json()
    assert first == second
    other, without = send(client, "b").json(), send(client, None).json()
    world.run()
    assert first == send(client, "a").json(), "also when it was sent meanwhile"
    assert len({one["requestId"] for one in (first, other, without)}) == 3
    assert world.node.record_cursor and len(world.node.get_by_content_topic(MESSAGE["contentTopic"])) == 3


def test_a_key_with_another_message_is_409_and_sends_nothing(client: TestClient, world: World) -> None:
    send(client, "a")
    answer = send(client, "a", payload=encoded(b"another"))
    assert answer.status_code == 409
    assert "Idempotency-Key" in answer.json()["error"]
    assert len(world.node.get_pending_requests()) == 1


@pytest.mark.parametrize("key", ["", "k" * 256])
def test_a_key_of_another_length_is_400(client: TestClient, key: str) -> None:
    assert send(client, key).status_code == 400


def test_a_call_that_was_refused_leaves_no_key(client: TestClient) -> None:
    assert send(client, "a", pubsubTopic="/waku/2/rs/1/9").status_code == 404
    assert send(client, "a").status_code == 200


def test_calls_with_one_key_at_the_same_time_send_once(client: TestClient, world: World) -> None:
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(send(client, "a").json()["requestId"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (len(answers), len(set(answers)), len(world.node.get_pending_requests())) == (8, 1, 1)


def test_a_key_is_remembered_over_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path / "messages.sqlite")
    with secured(world) as client:
        first = send(client, "a").json()
    world.node.close()
    world.node = world.make_node()
    with secured(world) as client:
        assert send(client, "a").json() == first
    world.node.close()


def test_a_key_is_forgotten_after_a_day(client: TestClient, world: World) -> None:
    first = send(client, "a").json()
    world.clock.advance(idempotency.KEPT_MS)
    assert send(client, "a").json() != first


def test_keys_are_bounded_in_number_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "CHECK_EVERY", 1)
    records = RecordStore(":memory:", 10, 10)
    keys = KeyStore(records, most=3)
    for number in range(5):
        keys.keep(IdempotencyKey("send", str(number), b"d"), f"id {number}", 1_000 + number)
    found = [keys.find(IdempotencyKey("send", str(number), b"d"), 2_000) for number in range(5)]
    assert found == [None, None, "id 2", "id 3", "id 4"]


def channel_app(world: World, tmp_path: Path) -> TestClient:
    config = ReliableChannelConfig(
        query_on_connect=False, history_backend="sqlite", database=tmp_path / "channels.sqlite"
    )
    return secured(world, channels=lambda _: config, clock=world.clock, threaded=False)


def send_on(client: TestClient, handle: str, key: str, payload: bytes = b"hello", ephemeral: bool = False) -> Any:
    body = {"payload": encoded(payload), "ephemeral": ephemeral}
    return client.post(f"/channels/{handle}/send", json=body, headers={"Idempotency-Key": key})


def test_a_channel_sends_once_for_a_key_also_over_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path / "messages.sqlite")
    with channel_app(world, tmp_path) as client:
        handle = client.post("/channels", json=CHANNEL).json()["id"]
        first = send_on(client, handle, "a").json()
        assert send_on(client, handle, "a").json() == first
        assert send_on(client, handle, "a", b"another").status_code == 409
        assert send_on(client, handle, "b").json() != first
        assert client.app.state.sessions.find(handle).channel.find_send("Idempotency-Key a") is None  # type: ignore[attr-defined]
    world.node.close()
    world.node = world.make_node()
    with channel_app(world, tmp_path) as client:
        handle = client.post("/channels", json=CHANNEL).json()["id"]
        assert send_on(client, handle, "a").json() == first
    world.node.close()


def test_a_crash_between_the_channel_and_the_key_sends_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise EnvironmentFault("The disk is full.")

    world = World(tmp_path / "messages.sqlite")
    with channel_app(world, tmp_path) as client:
        handle = client.post("/channels", json=CHANNEL).json()["id"]
        with monkeypatch.context() as patched:
            patched.setattr(KeyStore, "keep", crash)
            assert send_on(client, handle, "a").status_code == 503
        channel = client.app.state.sessions.find(handle).channel  # type: ignore[attr-defined]
        kept = channel.find_send("Idempotency-Key a")
        assert send_on(client, handle, "a").json() == {"requestId": kept.send_id}
        assert len(client.get("/send/requests").json()) <= 1
    world.node.close()


def test_an_ephemeral_message_of_a_channel_takes_a_key_too(tmp_path: Path) -> None:
    world = World(tmp_path / "messages.sqlite")
    with channel_app(world, tmp_path) as client:
        handle = client.post("/channels", json=CHANNEL).json()["id"]
        first = send_on(client, handle, "a", ephemeral=True).json()
        assert send_on(client, handle, "a", ephemeral=True).json() == first
        assert send_on(client, handle, "a").status_code == 409
    world.node.close()
