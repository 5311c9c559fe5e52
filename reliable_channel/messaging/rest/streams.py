"""Streams server-sent events (``text/event-stream``): the events of a long poll on one connection.

Each event has an ``id``, the cursor of the long polls. A client that reconnects sends the last one as
``Last-Event-ID``, as browsers do automatically, and the stream continues after it. A comment every 15 s keeps
connections alive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Annotated, Any, NamedTuple

from fastapi import Header
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reliable_channel.messaging.rest.event_log import EventLog
from reliable_channel.messaging.rest.longpoll import LongPoll

KEEP_ALIVE_S = 15.0
MOST_AT_ONCE = 50
"""The number of events that are looked up at once."""

LastEventId = Annotated[
    str | None,
    Header(
        alias="Last-Event-ID",
        description="`id` of the last event that arrived: go on after it. It counts instead of `since`.",
        pattern="^[0-9]{1,18}$",
        examples=["42"],
    ),
]

STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events without end: `id` is the cursor, `data` one JSON value.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}


class StreamEvent(NamedTuple):
    """One event: its cursor, its value and, for a named kind of event, its ``name``."""

    cursor: int
    data: Any
    name: str | None = None


def start_of(last_event_id: str | None, since: int | None) -> int | None:
    """The cursor after which a stream begins; None when the client gave none."""
    return since if last_event_id is None else int(last_event_id)


class _CountedStream(StreamingResponse):
    """A stream that counts as a waiting call from before its status is sent: 429 can only be answered then."""

    def __init__(self, poll: LongPoll, lines: AsyncIterator[str]) -> None:
        # nginx buffers answers by default, so events would arrive late and in groups
        # (https://nginx.org/en/docs/http/ngx_http_proxy_module.html#proxy_buffering).
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(lines, media_type="text/event-stream", headers=headers)
        self._poll = poll

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._poll.hold_place():
            await super().__call__(scope, receive, send)


def event_stream(
    poll: LongPoll,
    look: Callable[[int | None], Iterable[StreamEvent]],
    after: int | None,
    is_over: Callable[[], bool] = lambda: False,
) -> StreamingResponse:
    """The answer that sends the results of ``look(cursor)``, again whenever the node has changed, until the client
    disconnects, the server stops, or ``is_over`` and nothing is left. Answers 429 when too many calls wait."""
    cursor = after

    def take_next() -> list[StreamEvent] | None:
        nonlocal cursor
        ends = is_over()  # before the look: what comes in between is sent
        events = list(look(cursor))
        if events:
            cursor = events[-1].cursor
        return events if events or not ends else None

    async def lines() -> AsyncIterator[str]:
        yield "retry: 1000\n\n"  # ms: browsers differ in how long they wait before they connect again
        async for events in poll.follow(take_next, KEEP_ALIVE_S):
            if not events:
                yield ": still here\n\n"
            for event in events:
                name = f"event: {event.name}\n" if event.name is not None else ""
                yield f"id: {event.cursor}\n{name}data: {json.dumps(event.data, separators=(',', ':'))}\n\n"
                await asyncio.sleep(0)  # or many are written to a lost connection, which asyncio logs one by one

    return _CountedStream(poll, lines())


def log_stream(poll: LongPoll, log: EventLog, after: int | None) -> StreamingResponse:
    """The events of a log as :func:`event_stream`, until the log ends; one named ``lost`` counts those no longer
    available."""

    def look(cursor: int | None) -> Iterator[StreamEvent]:
        events, lost, start = log.read_after(cursor or 0, MOST_AT_ONCE)
        if lost:
            yield StreamEvent(start, {"lostEvents": lost}, "lost")
        for event in events:
            yield StreamEvent(event["cursor"], event)

    return event_stream(poll, look, after, lambda: log.ended)
