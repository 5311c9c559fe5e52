"""Serves reliable channels over HTTP, under paths of their own (RELIABLE-CHANNEL-API): for programs not written in
Python.

A channel is opened by ``POST /channels`` and named by the ``id`` of the answer; its events are read by long polling.
The channel's own persistence keeps its state: after a restart open it again under the same ids.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from fastapi import Path, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import Field, StrictBool, StringConstraints
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from reliable_channel.channel.api import create_reliable_channel
from reliable_channel.channel.channel import ReliableChannel
from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.errors import ChangedConfigurationError, SenderLocked
from reliable_channel.channel.events import ChannelEvent, cheap_kind
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.messaging.channel_evidence import ChannelEvidence
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.rest.channel_events import EventOut, event_to_json
from reliable_channel.messaging.rest.errors import document_errors, make_not_found
from reliable_channel.messaging.rest.longpoll import CURSOR_HEADER, LongPoll
from reliable_channel.messaging.rest.models import MAX_TEXT, ChannelPayload, Identifier, Status, Text, Wire
from reliable_channel.messaging.rest.parameters import (
    IdempotencyHeader,
    Poll,
    Since,
    Take,
    Wait,
    from_state,
    idempotency_key,
    make_router,
)
from reliable_channel.messaging.rest.streams import STREAM, EventLog, LastEventId, log_stream, start_of
from reliable_channel.transport.clock import Clock, SystemClock, now_ms

_log = logging.getLogger(__name__)

MAX_CHANNELS = 64
LOST_HEADER = "X-Lost-Events"
"""How many events after ``since`` the server no longer has."""

Handle = Annotated[
    str,
    Path(
        alias="id",
        max_length=MAX_TEXT,
        description="The handle of the channel, `id` of the answer that opened it.",
        examples=["7a3c2f0e-5b1d-4e0f-9c61-0d3a2b8f4e55"],
    ),
]
SendHandle = Annotated[
    str,
    Path(
        alias="requestId",
        max_length=MAX_TEXT,
        description="The send, `requestId` of the answer to `POST /channels/{id}/send`.",
        examples=["9a84aec9dce536788cfffa6b23e8dd141a12e1ec1afc94e3887bbe1bb868fc0d"],
    ),
]


class OpenRequest(Wire):
    """``POST /channels``. Without ``senderId`` the database's own is taken, and made at first use."""

    channel_id: Text
    content_topic: Text
    sender_id: Text | None = None


class OpenAnswer(Wire):
    """An open channel; ``id`` names it in the paths."""

    id: str
    channel_id: str
    content_topic: str
    sender_id: str


class ChannelSend(Wire):
    """``POST /channels/{id}/send``: a message of up to 1 MiB, or an ephemeral one of one segment."""

    payload: ChannelPayload
    ephemeral: StrictBool = False


class SendAnswer(Wire):
    """The ReliableSendId."""

    request_id: Identifier


class StateAnswer(Wire):
    """The state of a send, and the node's request ids of its segments by label."""

    state: Annotated[str, StringConstraints(max_length=40)]
    request_ids: Annotated[dict[str, str], Field(default_factory=dict)]


@dataclass(frozen=True)
class _Open:
    channel: ReliableChannel
    log: EventLog
    evidence: ChannelEvidence
    keyed: threading.Lock = field(default_factory=threading.Lock)
    """Held by sends with an Idempotency-Key, so that two simultaneous calls with one key send once."""


class ChannelSessions:
    """The channels that this server has opened on one node."""

    def __init__(
        self,
        node: MessagingNode,
        config_for: Callable[[str], ReliableChannelConfig],
        poll: LongPoll,
        *,
        clock: Clock | None = None,
        threaded: bool = True,
    ) -> None:
        self._node = node
        self._config_for = config_for
        self._poll = poll
        self._clock = clock
        self._threaded = threaded
        self._room = threading.BoundedSemaphore(MAX_CHANNELS)
        self._open: dict[str, _Open] = {}
        self._lock = threading.Lock()

    def open(self, channel_id: str, content_topic: str, sender_id: str | None) -> OpenAnswer:
        """Open a channel; one that a fault has stopped is closed first. Raises as ``create_reliable_channel``, and
        409 and 429."""
        with self._lock:
            opened = list(self._open.items())
        for handle, one in opened:
            same = (one.channel.channel_id, one.channel.content_topic) == (channel_id, content_topic)
            if same and sender_id in (None, one.channel.sender_id) and not one.channel.status()["started"]:
                self._close_with_fault(handle)
        if not self._room.acquire(blocking=False):
            raise HTTPException(429, f"{MAX_CHANNELS} channels are open. Close some first.", {"Retry-After": "1"})
        try:
            return self._start(channel_id, content_topic, sender_id)
        except BaseException:
            self._room.release()
            raise

    def _start(self, channel_id: str, content_topic: str, sender_id: str | None) -> OpenAnswer:
        log = EventLog()
        try:
            channel = create_reliable_channel(
                self._node.port,
                channel_id,
                content_topic,
                sender_id,
                # A full buffer is the caller's to wait for (429): waiting here would keep a thread from other calls.
                config=replace(self._config_for(content_topic), auto_start=False, send_timeout_ms=0),
                clock=self._clock,
                threaded=self._threaded,
            )
        except (EnvironmentFault, ConfigurationError, ChangedConfigurationError) as error:
            # Its text names files, processes and channels of this machine, which are no client's business.
            _log.error("channel %s was not opened: %s", channel_id, error)
            if isinstance(error, SenderLocked):
                sender = repr(sender_id or "of this server")
                raise HTTPException(409, f"Sender {sender} is in use elsewhere. Take another sender id.") from None
            raise EnvironmentFault("The server cannot keep this channel.", "Its log says why.") from None
        channel.on(ChannelEvent, self._make_keeper(log))
        evidence = ChannelEvidence(channel, self._node.pubsub_topic_for(content_topic), self._node.feed)
        evidence.follow()
        try:
            channel.start()
        except BaseException:
            channel.close()
            raise
        handle = str(uuid.uuid4())
        with self._lock:
            self._open[handle] = _Open(channel, log, evidence)
        return self._describe(handle, channel)

    def find(self, handle: str) -> _Open:
        """Raises 404."""
        with self._lock:
            opened = self._open.get(handle)
        if opened is None:
            raise make_not_found(f"Channel '{handle}' not found")
        return opened

    def step(self) -> None:
        """Do all due work in every channel, for channels created with ``threaded=False``."""
        with self._lock:
            channels = [one.channel for one in self._open.values()]
        for channel in channels:
            channel.step()

    def send(self, handle: str, body: ChannelSend, key: str | None = None) -> str:
        """Send on a channel; the ReliableSendId. The same Idempotency-Key sends once within a day. Raises as
        ``ReliableChannel.send``, ``KeyReusedError``, and 404."""
        opened = self.find(handle)
        channel = opened.channel
        scope = json.dumps([channel.channel_id, channel.content_topic, channel.sender_id])
        given = idempotency_key(scope, key, body)
        payload: bytes = body.payload  # type: ignore[assignment]
        if given is None:
            return self._send(opened, payload, body.ephemeral, None)
        # The label makes the channel remember the key together with the message. Once the node remembers it, and for
        # how long, the channel need not.
        label = f"Idempotency-Key {given.key}"
        with opened.keyed:
            request_id = self._node.run_once(given, lambda: self._send(opened, payload, body.ephemeral, label))
            if not body.ephemeral:
                channel.forget_label(label)
        return request_id

    def _send(self, opened: _Open, payload: bytes, ephemeral: bool, label: str | None) -> str:
        if ephemeral:
            return opened.channel.send_ephemeral(payload)
        request_id = opened.channel.send(payload, label=label)
        opened.evidence.record_queued(request_id, payload, now_ms(self._clock or SystemClock()))
        return request_id

    def list_open(self) -> list[OpenAnswer]:
        """Every open channel."""
        with self._lock:
            return [self._describe(handle, one.channel) for handle, one in self._open.items()]

    def close(self, handle: str) -> None:
        """Close a channel; unknown ones are ignored."""
        with self._lock:
            opened = self._open.pop(handle, None)
        if opened is not None:
            try:
                opened.channel.close()
            finally:
                self._room.release()
                opened.log.ended = True
                self._poll.notify()

    def close_all(self) -> None:
        """Close every channel, side by side: each waits for its node and for a store. One whose state cannot be stored
        keeps no other open."""
        with ThreadPoolExecutor(MAX_CHANNELS) as pool:
            list(pool.map(self._close_with_fault, [one.id for one in self.list_open()]))

    def _close_with_fault(self, handle: str) -> None:
        """Close a channel whose state perhaps cannot be stored."""
        try:
            self.close(handle)
        except EnvironmentFault as fault:
            _log.error("a channel did not close well, and is read from its journal next time: %s", fault)

    def _make_keeper(self, log: EventLog) -> Callable[[ChannelEvent], None]:
        def keep(event: ChannelEvent) -> None:
            log.add(event_to_json(event), cheap_kind(event))
            self._poll.notify()

        return keep

    @staticmethod
    def _describe(handle: str, channel: ReliableChannel) -> OpenAnswer:
        return OpenAnswer(
            id=handle,
            channel_id=channel.channel_id,
            content_topic=channel.content_topic,
            sender_id=channel.sender_id,
        )


_EVENTS: dict[int | str, dict[str, Any]] = {
    200: {
        "model": list[EventOut],
        "headers": {
            CURSOR_HEADER: {"description": "`since` of the next call", "schema": {"type": "string"}},
            LOST_HEADER: {"description": "events after `since` that are gone", "schema": {"type": "string"}},
        },
    }
}


Sessions = Annotated[ChannelSessions, from_state("sessions")]

CHANNEL_ROUTES = make_router("reliable channels")


@CHANNEL_ROUTES.post("/channels", responses=document_errors(404, 408, 409, 413, 415, 429))
def open_channel(sessions: Sessions, body: OpenRequest) -> OpenAnswer:
    """Open a reliable channel and subscribe to its content topic. One that a fault has stopped gets a new handle."""
    return sessions.open(body.channel_id, body.content_topic, body.sender_id)


@CHANNEL_ROUTES.get("/channels", responses=document_errors())
def channels(sessions: Sessions) -> list[OpenAnswer]:
    """The channels that were opened here."""
    return sessions.list_open()


@CHANNEL_ROUTES.get("/channels/{id}", responses=document_errors(404))
def channel_status(sessions: Sessions, id_: Handle) -> dict[str, Any]:
    """Numbers of a channel: sends by state, unacknowledged and missing segments, the clock."""
    status = sessions.find(id_).channel.status()
    return {to_camel(key): value for key, value in status.items()}


@CHANNEL_ROUTES.delete("/channels/{id}", responses=document_errors(413))
def close_channel(sessions: Sessions, id_: Handle) -> Status:
    """Close a channel; ignored when there is none of this id."""
    sessions.close(id_)
    return Status()


@CHANNEL_ROUTES.post("/channels/{id}/send", responses=document_errors(404, 408, 409, 413, 415, 429))
def send_on_channel(sessions: Sessions, id_: Handle, body: ChannelSend, key: IdempotencyHeader = None) -> SendAnswer:
    """Send a message; the answer names the send, events tell what becomes of it."""
    return SendAnswer(request_id=sessions.send(id_, body, key))


@CHANNEL_ROUTES.get("/channels/{id}/sends/{requestId}", responses=document_errors(404))
def send_state(
    sessions: Sessions,
    id_: Handle,
    request_id: SendHandle,
) -> StateAnswer:
    """The state of a send."""
    channel = sessions.find(id_).channel
    state = channel.send_state(request_id)
    if state is None:
        raise make_not_found(f"Send '{request_id}' not found")
    return StateAnswer(state=state.value, request_ids=channel.request_ids(request_id))


@CHANNEL_ROUTES.get("/channels/{id}/events", responses={**_EVENTS, **document_errors(404, 429)})
async def channel_events(
    sessions: Sessions,
    poll: Poll,
    request: Request,
    id_: Handle,
    take: Take = None,
    since: Since = None,
    wait: Wait = 0,
) -> Response:
    """Events of a channel after the cursor ``since``; with ``wait``, when there are any."""
    log = sessions.find(id_).log
    events, lost, start = await poll.wait_until(
        lambda: log.read_after(since or 0, take),
        lambda seen: bool(seen[0]) or take == 0 or log.ended,
        wait,
        request.receive,
    )
    cursor = events[-1]["cursor"] if events else start
    return JSONResponse(events, headers={CURSOR_HEADER: str(cursor), LOST_HEADER: str(lost)})


@CHANNEL_ROUTES.get(
    "/channels/{id}/events/stream",
    responses={**STREAM, **document_errors(404, 429)},
    response_class=StreamingResponse,
)
def channel_event_stream(
    sessions: Sessions, poll: Poll, id_: Handle, since: Since = None, last_event_id: LastEventId = None
) -> Response:
    """Server-sent events: the events of a channel. An event named `lost` counts those no longer available."""
    return log_stream(poll, sessions.find(id_).log, start_of(last_event_id, since))
