"""The REST API against its own OpenAPI document: schemathesis makes valid and invalid calls of every operation.

Whatever is sent, the server never fails, answers only what it documents, and refuses what the document refuses."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.messaging.rest.app import create_app
from tests.support.examples import examples
from tests.support.messaging_world import CONTENT, PUBSUB, World

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

_world = World()
_world.transport.report(_world.transport.health())
_world.subscribe()
_world.arrives(b"one")
_world.send(b"two")
_world.run()
_app = create_app(
    _world.node,
    channels=lambda _: ReliableChannelConfig(query_on_connect=False),
    clock=_world.clock,
    threaded=False,
    run_node=False,
)
_wait_until = _app.state.poll.wait_until
# Waits of a millisecond instead of up to 30 s.
_app.state.poll.wait_until = lambda look, satisfied, wait_ms, receive: _wait_until(
    look, satisfied, min(wait_ms, 1), receive
)
_channel = _app.state.sessions.open("lobby", "/reliable-channel/1/lobby/proto", "alice").id
schema = schemathesis.openapi.from_asgi("/openapi.json", _app, headers={"Host": "localhost"}).exclude(
    path_regex="/stream$"  # their answers never end
)


@schema.hook
def map_query(context: Any, query: dict[str, Any] | None) -> dict[str, Any] | None:
    """Topics that exist now and then."""
    if query and query.get("contentTopic") and len(str(query["contentTopic"])) % 2:
        query["contentTopic"] = CONTENT
    return query


@schema.hook
def map_body(context: Any, body: Any) -> Any:
    """Supported topics now and then, so that calls also get through."""
    if isinstance(body, dict):
        for name, supported in (("pubsubTopic", PUBSUB), ("contentTopic", CONTENT)):
            if isinstance(body.get(name), str) and len(body[name]) % 2:
                body[name] = supported
    if isinstance(body, list) and len(body) % 2:
        return [CONTENT]
    return body


@schema.hook
def map_path_parameters(context: Any, path_parameters: dict[str, Any] | None) -> dict[str, Any] | None:
    """The channel that is open, now and then."""
    if path_parameters and len(str(path_parameters.get("id"))) % 2:
        path_parameters["id"] = _channel
    return path_parameters


OPERATIONS = [operation.ok() for operation in schema.get_all_operations()]


def check_answers(operation: APIOperation) -> Callable[..., None]:
    """The property of one operation, as a test."""

    @schema.include(path=operation.path, method=operation.method).parametrize()
    @settings(max_examples=examples(25), deadline=None, suppress_health_check=list(HealthCheck))
    def test_it_answers_as_the_document_says(case: Case) -> None:
        response = case.call(headers={"Host": "localhost"})
        case.validate_response(response, checks=CHECKS)

    test: Callable[..., None] = test_it_answers_as_the_document_says
    return test


# A test of its own name for each: all operations that one test is parametrized with have one node id under pytest 9.2,
# of which pytest-xdist runs the first only.
for _operation in OPERATIONS:
    _words = "_".join(re.findall(r"\w+", _operation.label.lower()))
    globals()[f"test_{_words}_answers_as_the_document_says"] = check_answers(_operation)


def test_the_generated_calls_both_get_through_and_are_refused() -> None:
    """Guards the property above against testing nothing but refusals. Of calls of its own: those of the property may be
    shared out among processes."""
    statuses: set[int] = set()

    @settings(max_examples=examples(10), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(data=st.data())
    def call_all(data: st.DataObject) -> None:
        for operation in OPERATIONS:
            case = data.draw(operation.as_strategy())
            statuses.add(case.call(headers={"Host": "localhost"}).status_code)

    call_all()
    assert statuses >= {200, 400, 404}
