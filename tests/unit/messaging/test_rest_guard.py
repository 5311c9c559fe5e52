"""What the REST API refuses before it reaches the node: bodies, host names, callers without the token."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from reliable_channel.messaging.rest.app import create_app
from reliable_channel.messaging.rest.body_guard import BodyGuard
from tests.support.messaging_world import World
from tests.unit.messaging.conftest_rest import MESSAGE, encoded, secured

UNREADABLE = "The body cannot be read: send JSON in UTF-8, not compressed and not deeply nested."


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "body: Field required"),
        (b"{", "The body is not JSON: Expecting property name enclosed in double quotes, at character 1."),
        (b"{} {}", "The body is not JSON: Extra data, at character 3."),
        (b"[]", "body: Input should be a valid dictionary or object to extract fields from"),
        (b"null", "body: Input should be a valid dictionary or object to extract fields from"),
        (b"[" * 100_000, UNREADABLE),
        (b'{"payload": ' + b"9" * 5_000 + b"}", UNREADABLE),
        (b"\x1f\x8b\x08\x00", UNREADABLE),
    ],
)
def test_a_body_that_is_no_document_is_400(refusing: TestClient, body: bytes, error: str) -> None:
    answer = refusing.post("/send", content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()) == (400, {"error": error})


def test_a_body_over_the_limit_is_413_and_not_read_to_its_end(world: World) -> None:
    with secured(world, max_body_bytes=1_000) as client:
        answer = client.post("/send", json={**MESSAGE, "payload": encoded(b"x" * 2_000)})
        assert (answer.status_code, answer.json()) == (413, {"error": "The body is larger than 1000 bytes."})
        chunks = (b"x" * 500 for _ in range(5))
        answer = client.post("/send", content=chunks, headers={"Content-Type": "application/json"})
        assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/send", "/messaging/v1/subscriptions", "/history"])
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(refusing: TestClient, path: str) -> None:
    """Each unknown field became a sentence: 1.8 MB of them took 170 MB and 1.6 s."""
    body = dict.fromkeys(map(str, range(20_000)), 0)
    answer = refusing.post(path, json=body)
    assert (answer.status_code, answer.json()) == (400, {"error": "The body has more than 10000 values."})
    answer = refusing.post(path, json={"contentTopic": "," * 20_000})
    assert (answer.status_code, "values" in answer.text) == (400, False), "commas in a text are none"


def test_a_body_that_does_not_come_is_408() -> None:
    answered: list[Any] = []

    async def never() -> Any:
        await asyncio.Event().wait()

    async def keep(message: Any) -> None:
        answered.append(message)

    async def unreachable(*_: Any) -> None:
        raise AssertionError("a refused call reached the application")

    scope = {"type": "http", "method": "POST", "path": "/send", "headers": [(b"host", b"localhost")]}
    asyncio.run(BodyGuard(unreachable, 1_000, timeout_s=0.01)(scope, never, keep))
    assert answered[0]["status"] == 408


def test_unknown_paths_and_methods_answer_in_json(client: TestClient) -> None:
    assert (client.get("/nothing").status_code, client.get("/nothing").json()) == (
        404,
        {"error": "There is no such path; see /openapi.json."},
    )
    assert (client.get("/send").status_code, set(client.get("/send").json())) == (405, {"error"})


def test_a_path_with_a_slash_at_its_end_is_another_one(client: TestClient) -> None:
    answer = client.get("/health/", follow_redirects=False)
    assert (answer.status_code, set(answer.json())) == (404, {"error"})


def test_only_json_is_taken_so_that_no_web_form_can_send(client: TestClient) -> None:
    answer = client.post("/send", content="{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 415
    assert "access-control-allow-origin" not in client.options("/send", headers={"Origin": "http://evil"}).headers


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::2]"])
def test_names_that_are_not_on_the_list_are_403(refusing: TestClient, host: str) -> None:
    assert refusing.get("/health", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:9", "LOCALHOST", "node.example:1"])
def test_names_on_the_list_are_served(world: World, host: str) -> None:
    with secured(world, allowed_hosts=["node.example"]) as client:
        assert client.get("/health", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("given", [None, "Bearer wrong", "Basic s3cret", "s3cret", "Bearer", "Bearer s3cretx"])
def test_without_the_token_every_call_is_401(world: World, given: str | None) -> None:
    headers = {} if given is None else {"Authorization": given}
    with secured(world, token="s3cret") as client:
        for answer in (client.post("/send", json=MESSAGE, headers=headers), client.get("/health", headers=headers)):
            assert answer.status_code == 401
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            assert "s3cret" not in answer.text
    assert world.node.get_pending_requests() == []


def test_with_the_token_calls_are_served(world: World) -> None:
    with secured(world, token="s3cret") as client:
        answer = client.post("/send", json=MESSAGE, headers={"Authorization": "Bearer s3cret"})
    assert answer.status_code == 200


def test_with_a_token_the_document_says_so(world: World) -> None:
    with secured(world, token="s3cret") as client:
        document = client.get("/openapi.json", headers={"Authorization": "Bearer s3cret"}).json()
    assert document["security"] == [{"bearer": []}]


def test_a_fault_of_the_server_is_500_without_its_text(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(world.node, "get_pending_requests", broken)
    app = create_app(world.node, run_node=False)
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        answer = client.get("/send/requests")
    assert (answer.status_code, answer.json()) == (500, {"error": "Internal error."})


OTHER_SITES = [
    {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "empty"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
]


@pytest.mark.parametrize("headers", OTHER_SITES)
def test_a_page_of_another_site_can_neither_read_nor_send(refusing: TestClient, headers: dict[str, str]) -> None:
    here = {"Host": "localhost", **headers}
    for method, path in (("GET", "/health"), ("POST", "/send")):
        answer = refusing.request(method, path, headers=here, json={} if method == "POST" else None)
        assert (answer.status_code, "other sites" in answer.text) == (403, True)
