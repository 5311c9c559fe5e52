"""The edges: bodies that a web user sends to the REST API, and JSON that a node answers with."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, partial
from typing import Any

from starlette.testclient import TestClient

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.transport.http.client import HttpResponse, NodeUnreachable
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode, StoreNodeError
from reliable_channel.transport.waku_api import NodeDialect, WakuApi
from tests.fuzz import inputs
from tests.fuzz.cases_format import Step, Target

_MESSAGE = WakuMessage(b"payload", inputs.TOPIC)


@cache
def _served() -> tuple[TestClient, tuple[tuple[str, str], ...]]:
    """A server over a node in memory, and the routes that take a body."""
    from tests.support.messaging_world import World

    world = World()
    app = create_app(
        world.node,
        channels=ReliableChannelConfig(query_on_connect=False),
        clock=world.clock,
        threaded=False,
        run_node=False,
    )
    paths: dict[str, Any] = app.openapi()["paths"]
    routes = tuple(
        (method, path)
        for path, operations in sorted(paths.items())
        for method, operation in sorted(operations.items())
        if "requestBody" in operation
    )
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=True), routes


def check_rest(steps: list[Step]) -> None:
    """No body makes the server fail; what it refuses it refuses with a JSON object."""
    client, routes = _served()
    for step in steps:
        method, path = routes[step.after_ms % len(routes)]
        headers = {"Content-Type": "application/json"}
        answer = client.request(method, path.replace("{id}", "none"), content=step.data, headers=headers)
        assert answer.status_code < 500, (method, path, answer.status_code)
        if answer.status_code >= 400:
            assert isinstance(answer.json(), dict)


REST = Target("rest", inputs.steps(("body", inputs.json_bodies), most=3), check_rest)


class _Answering:
    """An HTTP connection on which everything is answered with the same bytes."""

    name = "node"

    def __init__(self, answer: HttpResponse) -> None:
        self._answer = answer

    def get(self, *_: Any, **__: Any) -> HttpResponse:
        return self._answer

    post = put = delete = get

    def close(self) -> None: ...


def check_node_json(steps: list[Step]) -> None:
    """A node's answer gives messages, a refusal, or the error for a node that gives no usable answer."""
    for step in steps:
        answer = HttpResponse((200, 200, 400, 404, 429, 500)[step.after_ms % 6], step.data)
        http: Any = _Answering(answer)
        for dialect in NodeDialect:
            api = WakuApi(http, dialect)
            for ask in (
                partial(api.relay_publish, inputs.PUBSUB, _MESSAGE),
                partial(api.relay_read, inputs.PUBSUB),
                partial(api.lightpush, inputs.PUBSUB, _MESSAGE),
                partial(api.filter_subscribe, inputs.PUBSUB, [inputs.TOPIC]),
                partial(api.filter_read, inputs.PUBSUB, inputs.TOPIC),
                partial(api.relay_unsubscribe, [inputs.PUBSUB]),
                api.filter_ping,
                api.info,
                api.version,
                api.peers,
            ):
                with suppress(NodeUnreachable):
                    ask()
            for query in (StoreQuery(pubsub_topic=inputs.PUBSUB), StoreQuery(hashes=(bytes(32),))):
                with suppress(StoreNodeError):
                    RestStoreNode(http, dialect).query(query)


NODE_JSON = Target("node_json", inputs.steps(("answer", inputs.json_bodies), most=2), check_node_json)
