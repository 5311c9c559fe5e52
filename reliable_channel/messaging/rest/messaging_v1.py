"""Defines the calls under ``/messaging/v1``: the Messaging API of LIP-168, with the paths and bodies of logos-delivery.

``GET …/events/send`` and ``…/events/received`` return an event once. The stream, which is an addition, loses none.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from typing import Annotated, Any, Literal

from fastapi import Depends, Path, Request, Response
from fastapi.responses import PlainTextResponse, StreamingResponse
from pydantic import Field, StrictBool
from starlette.exceptions import HTTPException

from reliable_channel.channel.config import MessageEnvelope
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.client import (
    HealthEvent,
    MessageErrorEvent,
    MessageEvent,
    MessagePropagatedEvent,
    MessageReceivedEvent,
    MessageSentEvent,
    MessageSource,
    MessagingClient,
)
from reliable_channel.messaging.rest.channel_events import event_to_json
from reliable_channel.messaging.rest.errors import document_errors, make_not_found
from reliable_channel.messaging.rest.longpoll import LongPoll
from reliable_channel.messaging.rest.models import (
    MAX_TEXT,
    Base64Out,
    Meta,
    Payload,
    RequestIdentifier,
    Text,
    Wire,
)
from reliable_channel.messaging.rest.parameters import (
    IdempotencyHeader,
    Poll,
    Since,
    from_state,
    idempotency_key,
    make_router,
)
from reliable_channel.messaging.rest.streams import STREAM, EventLog, LastEventId, log_stream, start_of
from reliable_channel.transport.clock import Clock, now_ms

MAX_RECEIVED = 50
"""How many received messages are kept for the next poll, as logos-delivery does."""
MAX_REQUESTS = 10_000
MAX_EVENTS_OF_REQUEST = 100
"""Events wait for a poll that may never come: the oldest requests, and the oldest events of one, are forgotten."""

_OK: dict[int | str, dict[str, Any]] = {
    200: {"description": "`OK`", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_KINDS = {MessageSentEvent: "sent", MessagePropagatedEvent: "propagated", MessageErrorEvent: "error"}

ContentTopics = Annotated[list[Text], Field(max_length=1_000, examples=[["/my-app/1/chat/proto"]])]
SentRequest = Annotated[
    str,
    Path(
        alias="requestId",
        max_length=MAX_TEXT,
        description="The request, `requestId` of the answer to `POST /messaging/v1/messages`.",
        examples=["7a3c2f0e-5b1d-4e0f-9c61-0d3a2b8f4e55"],
    ),
]


class EnvelopeRequest(Wire):
    """``MessageEnvelope``."""

    payload: Payload
    content_topic: Text
    ephemeral: StrictBool = False
    meta: Meta | None = None


class SendEventRecord(Wire):
    """An event of one request. ``messageHash`` is empty when there was no attempt."""

    kind: Literal["sent", "propagated", "error"]
    message_hash: str
    error: str | None = None
    timestamp: int = Field(description="Unix time in ns by the server's clock", json_schema_extra={"format": "int64"})


class SendStatus(Wire):
    """The events of one request since the last call, oldest first."""

    request_id: str
    events: list[SendEventRecord]


class EnvelopeOut(Wire):
    """A received envelope. ``version`` and ``timestamp`` are 0 where it has none."""

    payload: Base64Out
    content_topic: str
    version: int = Field(json_schema_extra={"format": "int64"})
    timestamp: int = Field(description="Unix time in ns by the sender's clock", json_schema_extra={"format": "int64"})
    ephemeral: bool
    meta: Base64Out | None = None
    proof: Base64Out | None = None


class ReceivedMessage(Wire):
    """A message that arrived on a subscribed content topic. ``seq`` counts all since the server's start from 1: what
    is missing between two calls was dropped, or another client took it."""

    message_hash: str
    message: EnvelopeOut
    source: MessageSource
    seq: int


class MessagingEvents:
    """The events of a client: once for polls, and in order for streams. Thread-safe."""

    def __init__(self, client: MessagingClient, poll: LongPoll, clock: Clock) -> None:
        self.log = EventLog(begin=now_ms(clock))
        self._poll = poll
        self._clock = clock
        self._sends: OrderedDict[str, deque[SendEventRecord]] = OrderedDict()
        self._received: deque[ReceivedMessage] = deque(maxlen=MAX_RECEIVED)
        self._received_count = 0
        self._lock = threading.Lock()
        client.message_events.on(object, call=self._on_message)
        client.health_events.on(object, call=self._keep)

    def take_sends(self) -> list[SendStatus]:
        """The events of all requests, which are then forgotten."""
        with self._lock:
            taken, self._sends = self._sends, OrderedDict()
        return [SendStatus(request_id=request_id, events=list(events)) for request_id, events in taken.items()]

    def take_send(self, request_id: str) -> SendStatus | None:
        """The events of one request, which are then forgotten; None when there are none."""
        with self._lock:
            events = self._sends.pop(request_id, None)
        return None if events is None else SendStatus(request_id=request_id, events=list(events))

    def take_received(self) -> list[ReceivedMessage]:
        """The received messages, which are then forgotten."""
        with self._lock:
            taken = list(self._received)
            self._received.clear()
        return taken

    def _on_message(self, event: MessageEvent) -> None:
        with self._lock:
            match event:
                case MessageReceivedEvent():
                    self._received_count += 1
                    self._received.append(
                        ReceivedMessage(
                            message_hash=event.message_hash,
                            message=_make_envelope(event.message),
                            source=event.source,
                            seq=self._received_count,
                        )
                    )
                case _:
                    self._add_send(event)
        self._keep(event)

    def _add_send(self, event: MessageSentEvent | MessagePropagatedEvent | MessageErrorEvent) -> None:
        events = self._sends.setdefault(event.request_id, deque(maxlen=MAX_EVENTS_OF_REQUEST))
        events.append(
            SendEventRecord.model_validate(
                {
                    "kind": _KINDS[type(event)],
                    "message_hash": event.message_hash or "",
                    "error": getattr(event, "error", None),
                    "timestamp": self._clock.now_ns(),
                }
            )
        )
        while len(self._sends) > MAX_REQUESTS:
            self._sends.popitem(last=False)

    def _keep(self, event: MessageEvent | HealthEvent) -> None:
        self.log.add(event_to_json(event))
        self._poll.notify()


def _make_envelope(message: WakuMessage) -> EnvelopeOut:
    return EnvelopeOut(
        payload=message.payload,
        content_topic=message.content_topic,
        version=message.version or 0,
        timestamp=message.timestamp or 0,
        ephemeral=bool(message.ephemeral),
        meta=message.meta,
        proof=message.rate_limit_proof,
    )


async def refuse_links(request: Request) -> None:
    """Refuse a browser that follows a link of another site, which the access guard allows: here a ``GET`` takes events
    away."""
    if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise HTTPException(403, "Pages of other sites are not answered.")


Client = Annotated[MessagingClient, from_state("client")]
Events = Annotated[MessagingEvents, from_state("client_events")]

V1_ROUTES = make_router("messaging v1", Depends(refuse_links), prefix="/messaging/v1")


@V1_ROUTES.get("/subscriptions", responses=document_errors())
def subscribed_topics(client: Client) -> list[str]:
    """The subscribed content topics, sorted."""
    return sorted(client.content_topics)


@V1_ROUTES.post("/subscriptions", responses={**_OK, **document_errors(408, 413, 415)}, response_class=Response)
def subscribe_topics(client: Client, body: ContentTopics) -> Response:
    """Subscribe to content topics; those subscribed already are left as they are."""
    client.subscribe(body)
    return PlainTextResponse("OK")


@V1_ROUTES.delete("/subscriptions", responses={**_OK, **document_errors(408, 413, 415)}, response_class=Response)
def unsubscribe_topics(client: Client, body: ContentTopics) -> Response:
    """Unsubscribe from content topics; those not subscribed are ignored."""
    client.unsubscribe(client.content_topics.intersection(body))
    return PlainTextResponse("OK")


@V1_ROUTES.post("/messages", responses=document_errors(404, 408, 409, 413, 415, 429))
def send_envelope(client: Client, body: EnvelopeRequest, key: IdempotencyHeader = None) -> RequestIdentifier:
    """Schedule a message, and subscribe to its content topic; the answer names the request."""
    envelope = MessageEnvelope(body.content_topic, body.payload, body.ephemeral, body.meta)  # type: ignore[arg-type]
    given = idempotency_key("messaging/v1", key, body)
    return RequestIdentifier(request_id=client.send(envelope, key=given))


@V1_ROUTES.get("/events/send", responses=document_errors(), response_model_exclude_none=True)
def send_events(events: Events) -> list[SendStatus]:
    """The events of all requests since the last call. Each is returned once."""
    return events.take_sends()


@V1_ROUTES.get("/events/send/{requestId}", responses=document_errors(404), response_model_exclude_none=True)
def send_events_of(events: Events, request_id: SentRequest) -> SendStatus:
    """The events of one request since the last call. Each is returned once."""
    taken = events.take_send(request_id)
    if taken is None:
        raise make_not_found(f"No send events for requestId: {request_id}")
    return taken


@V1_ROUTES.get("/events/received", responses=document_errors(), response_model_exclude_none=True)
def received_events(events: Events) -> list[ReceivedMessage]:
    """The messages received since the last call, oldest first, at most 50. Each is returned once."""
    return events.take_received()


@V1_ROUTES.get("/events/stream", responses={**STREAM, **document_errors(429)}, response_class=StreamingResponse)
def messaging_event_stream(
    poll: Poll, events: Events, since: Since = None, last_event_id: LastEventId = None
) -> Response:
    """Server-sent events: every event of messages and of health; one named `lost` counts those no longer
    available."""
    return log_stream(poll, events.log, start_of(last_event_id, since))
