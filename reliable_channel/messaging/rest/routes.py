"""Defines the calls of the Messaging API: its paths, status codes and sentences, long polls, and streams of events.

A 404 of ``/message`` and ``/messages`` means that nothing matches at all: ``take=0`` and a ``skip`` past the end are
200 with an empty list. ``/send/retry``, ``/history`` and the streams are additions to the API document.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Annotated, Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from reliable_channel.messaging.client import connection_status
from reliable_channel.messaging.codec import Message, PlainDecoder, PlainEncoder
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.messaging.rest.errors import document_errors, make_not_found
from reliable_channel.messaging.rest.longpoll import CURSOR_HEADER
from reliable_channel.messaging.rest.models import (
    HealthAnswer,
    HistoryRequest,
    RecordOut,
    RequestIdentifier,
    SendRequest,
    Status,
    SubscribeRequest,
    SubscriptionIdentifier,
    record_to_json,
)
from reliable_channel.messaging.rest.parameters import (
    ContentTopicKey,
    HashKey,
    IdempotencyHeader,
    Poll,
    RequestKey,
    Since,
    Skip,
    SubscriptionKey,
    Take,
    Wait,
    from_state,
    idempotency_key,
    make_router,
)
from reliable_channel.messaging.rest.streams import (
    STREAM,
    LastEventId,
    StreamEvent,
    event_stream,
    start_of,
)
from reliable_channel.messaging.store import BATCH, RecordKey

MAX_HISTORIES = 4
"""The maximum number of history queries at once, because each holds a thread while a store answers."""

_CURSOR = {CURSOR_HEADER: {"description": "`since` of the next call", "schema": {"type": "string"}}}


def _describe_ok(model: Any) -> dict[int | str, dict[str, Any]]:
    return {200: {"model": model, "headers": _CURSOR}}


Node = Annotated[MessagingNode, from_state("node")]
Histories = Annotated[threading.BoundedSemaphore, from_state("histories")]

ROUTES = make_router("messaging")


@ROUTES.post("/send", responses=document_errors(404, 408, 409, 413, 415, 429))
def send(node: Node, body: SendRequest, key: IdempotencyHeader = None) -> RequestIdentifier:
    """Schedule a message; the answer names the request."""
    topic = body.pubsub_topic or node.pubsub_topic_for(body.content_topic)
    message = Message(body.payload, body.meta, body.timestamp, body.ephemeral)  # type: ignore[arg-type]
    encoder = PlainEncoder(topic, body.content_topic)
    return RequestIdentifier(request_id=node.send(encoder, message, key=idempotency_key("send", key, body)))


@ROUTES.post("/send/cancel", responses=document_errors(408, 413, 415))
def cancel_request(node: Node, body: RequestIdentifier) -> Status:
    """Cancel a pending request; ignored for one that is fulfilled or unknown."""
    node.cancel_request(body.request_id)
    return Status()


@ROUTES.post("/send/retry", responses=document_errors(404, 408, 409, 413, 415))
def retry(node: Node, body: RequestIdentifier) -> Status:
    """Send a failed or cancelled request again."""
    if node.get_by_request_id(body.request_id) is None:
        raise make_not_found(f"Message with requestId '{body.request_id}' not found")
    if not node.retry(body.request_id):
        raise HTTPException(409, f"Request '{body.request_id}' is neither failed nor cancelled.")
    return Status()


@ROUTES.get("/send/requests", responses=document_errors())
def pending_requests(node: Node) -> list[str]:
    """The ids of all pending requests."""
    return list(node.get_pending_requests())


@ROUTES.post("/subscribe", responses=document_errors(404, 408, 413, 415, 429))
def subscribe(node: Node, body: SubscribeRequest) -> SubscriptionIdentifier:
    """Begin to receive; read with ``/messages?subscriptionId=…``."""
    topic = body.pubsub_topic or node.pubsub_topic_for(body.content_topic)
    return SubscriptionIdentifier(subscription_id=node.subscribe(PlainDecoder(topic, body.content_topic), None))


@ROUTES.post("/unsubscribe", responses=document_errors(408, 413, 415))
def unsubscribe(node: Node, body: SubscriptionIdentifier) -> Status:
    """End a subscription; ignored when there is none of this id."""
    node.unsubscribe(body.subscription_id)
    return Status()


@ROUTES.get("/subscriptions", responses=document_errors())
def subscriptions(node: Node) -> list[str]:
    """The ids of all active subscriptions."""
    return list(node.get_active_subscriptions())


@ROUTES.get("/message", responses={**_describe_ok(RecordOut), **document_errors(404, 429)})
async def message(
    node: Node,
    poll: Poll,
    request: Request,
    request_id: RequestKey = None,
    hash_: HashKey = None,
    since: Since = None,
    wait: Wait = 0,
) -> Response:
    """One record, by ``requestId`` or by ``hash``; with ``wait``, when it appears or has changed since."""
    name, key = _choose_key(requestId=request_id, hash=hash_)
    look_up: Callable[[str], MessageRecord | None] = node.get_by_request_id if name == "requestId" else node.get_by_hash
    matched = await poll.wait_until(
        lambda: look_up(key),
        lambda record: record is not None and (since is None or record.change_seq > since),
        wait,
        request.receive,
    )
    if matched is None:
        raise make_not_found(f"Message with {name} '{key}' not found")
    return JSONResponse(record_to_json(matched), headers={CURSOR_HEADER: str(matched.change_seq)})


@ROUTES.get("/messages", responses={**_describe_ok(list[RecordOut]), **document_errors(404, 429)})
async def messages(
    node: Node,
    poll: Poll,
    request: Request,
    content_topic: ContentTopicKey = None,
    subscription_id: SubscriptionKey = None,
    skip: Skip = None,
    take: Take = None,
    since: Since = None,
    wait: Wait = 0,
) -> Response:
    """Records of a ``contentTopic`` or a ``subscriptionId``; with ``wait``, when there are any that are new."""
    name, key = _choose_key(contentTopic=content_topic, subscriptionId=subscription_id)
    topic, subscription = (key, None) if name == "contentTopic" else (None, key)

    def look() -> tuple[int, list[RecordKey]]:
        return node.record_cursor, node.find_keys(topic, subscription, skip or 0, take, since)

    cursor, keys = await poll.wait_until(look, lambda seen: bool(seen[1]) or take == 0, wait, request.receive)
    if not keys and not await run_in_threadpool(lambda: node.find_keys(topic, subscription, take=1)):
        raise make_not_found(f"No messages found for {name} '{key}'")
    if since is not None:
        cursor = keys[-1][1] if keys else since
    return StreamingResponse(
        _write_json_list(node.records_of(keys)), media_type="application/json", headers={CURSOR_HEADER: str(cursor)}
    )


@ROUTES.get("/messages/stream", responses={**STREAM, **document_errors(429)}, response_class=StreamingResponse)
def message_stream(
    node: Node,
    poll: Poll,
    content_topic: ContentTopicKey = None,
    subscription_id: SubscriptionKey = None,
    since: Since = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Server-sent events: every record there is, then each one again whenever it changes."""
    name, key = _choose_key(contentTopic=content_topic, subscriptionId=subscription_id)
    topic, subscription = (key, None) if name == "contentTopic" else (None, key)

    def look(cursor: int | None) -> Iterator[StreamEvent]:
        keys = node.find_keys(topic, subscription, take=BATCH, since=cursor or 0)
        for record in node.records_of(keys):
            yield StreamEvent(record.change_seq, record_to_json(record))

    return event_stream(poll, look, start_of(last_event_id, since))


@ROUTES.post("/history", responses=document_errors(404, 408, 413, 415, 429), response_model=list[RecordOut])
def history(node: Node, histories: Histories, body: HistoryRequest) -> Response:
    """The messages that stores have of these content topics and times; they become records."""
    if not histories.acquire(blocking=False):
        raise HTTPException(429, f"{MAX_HISTORIES} history queries are running already.", {"Retry-After": "1"})
    try:
        records = node.history(
            body.content_topics, body.start_time, body.end_time, pubsub_topic=body.pubsub_topic, limit=body.limit
        )
    finally:
        histories.release()
    return StreamingResponse(_write_json_list(iter(records)), media_type="application/json")


@ROUTES.head("/health", include_in_schema=False)
@ROUTES.get("/health", responses={**_describe_ok(HealthAnswer), **document_errors(429)})
async def health(node: Node, poll: Poll, request: Request, since: Since = None, wait: Wait = 0) -> Response:
    """The node's health; with ``wait``, when it has changed since."""
    seq, status = await poll.wait_until(
        lambda: (node.health_change_seq, node.health_indicator),
        lambda seen: seen[0] != since,
        wait,
        request.receive,
    )
    connection = connection_status(node.config.mode, node.health())
    body = {"status": status.value, "connectionStatus": connection.value}
    return JSONResponse(body, headers={CURSOR_HEADER: str(seq)})


@ROUTES.get("/health/stream", responses={**STREAM, **document_errors(429)}, response_class=StreamingResponse)
def health_stream(node: Node, poll: Poll, since: Since = None, last_event_id: LastEventId = None) -> Response:
    """Server-sent events: the node's health, and then its changes."""

    def look(cursor: int | None) -> list[StreamEvent]:
        seq, status = node.health_change_seq, node.health_indicator
        return [StreamEvent(seq, {"status": status.value})] if seq != cursor else []

    return event_stream(poll, look, start_of(last_event_id, since))


def _choose_key(**keys: str | None) -> tuple[str, str]:
    """The one key of the call, without the quotation marks that the API document puts around a GUID in one place."""
    given = [(name, key) for name, key in keys.items() if key is not None]
    if len(given) != 1:
        raise HTTPException(400, f"Give exactly one of {' and '.join(keys)}.")
    name, key = given[0]
    return name, key.strip('"')


def _write_json_list(records: Iterator[MessageRecord]) -> Iterator[str]:
    """A JSON list, record by record: all records together may be too much for memory."""
    separator = "["
    for record in records:
        yield separator + json.dumps(record_to_json(record), separators=(",", ":"))
        separator = ","
    yield "]" if separator == "," else "[]"
