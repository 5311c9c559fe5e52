"""Streams server-sent events (``text/event-stream``): the events of a long poll on one connection.

Each event has an ``id``, the cursor of the long polls. A client that reconnects sends the last one as
``Last-Event-ID``, as browsers do automatically, and the stream continues after it. A comment every 15 s keeps
connections alive. The events of channels and clients are numbered and kept for them in an :class:`EventLog`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import takewhile
from typing import Annotated, Any, NamedTuple

from fastapi import Header
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from reliable_channel.messaging.rest.longpoll import LongPoll

MAX_EVENTS = 10_000
MAX_BYTES = 32 * 1024 * 1024
"""Bytes of the texts in the events, and 500 for everything else of each."""
MAX_OF_A_CHEAP_KIND = 100
"""Events of one kind that are kept, of those that strangers cause in any number with few envelopes."""


class EventLog:
    """Events as JSON values under their running number, the first after ``begin``. Where cursors outlive this object,
    ``begin`` is the time (Unix ms): numbers of an earlier process are then below it. Thread-safe."""

    def __init__(self, max_events: int = MAX_EVENTS, begin: int = 0) -> None:
        self._begin = begin
        self._max_events = max_events
        self._events: OrderedDict[int, tuple[dict[str, Any], int]] = OrderedDict()
        self._bytes = 0
        self._last = begin
        self.ended = False
        """Whether nothing is added any more: streams and polls of it end."""
        self._cheap: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=MAX_OF_A_CHEAP_KIND))
        """The last numbers by cheap kind."""
        self._lock = threading.Lock()

    def add(self, shown: dict[str, Any], cheap_kind: str | None = None) -> None:
        """Keep one event, as JSON. One of a ``cheap_kind`` replaces an older one of this kind if many are kept."""
        size = 500 + _count_text_bytes(shown)
        with self._lock:
            self._last += 1
            if cheap_kind is not None:
                numbers = self._cheap[cheap_kind]
                if len(numbers) == numbers.maxlen and numbers[0] in self._events:
                    self._bytes -= self._events.pop(numbers[0])[1]
                numbers.append(self._last)
            self._events[self._last] = ({"cursor": self._last, **shown}, size)
            self._bytes += size
            while len(self._events) > self._max_events or (self._bytes > MAX_BYTES and len(self._events) > 1):
                self._bytes -= self._events.popitem(last=False)[1][1]

    def read_after(self, since: int, take: int | None) -> tuple[list[dict[str, Any]], int, int]:
        """Events with a number above ``since``, at most ``take``; how many between ``since`` and the last of these are
        no longer here; and the cursor that is before the first of these events. A cursor of another log gives all
        events, and counts one as lost: nobody knows how many."""
        with self._lock:
            is_own = self._begin <= since <= self._last
            start = since if is_own else self._begin
            # From the newest on: each of the calls that wait looks at every event, and most have seen all but that one.
            later = [*takewhile(lambda number: number > start, reversed(self._events))][::-1]
            events = [self._events[number][0] for number in later[:take]]
            end = self._last if len(events) == len(later) else later[len(events)] - 1
        first, last = (events[0]["cursor"] - 1, events[-1]["cursor"]) if events else (end, end)
        gone = last - start - len(events)
        return events, gone + (not is_own and since > 0), first


def _count_text_bytes(value: Any) -> int:
    """The bytes of the texts in a JSON value."""
    if isinstance(value, dict):
        return sum(map(_count_text_bytes, value.values()))
    if isinstance(value, list):
        return sum(map(_count_text_bytes, value))
    return len(value) if isinstance(value, str) else 0


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
