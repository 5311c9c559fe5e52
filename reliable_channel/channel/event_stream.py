"""Lets ``async for`` iterate over the events of a channel."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import TypeVar
from weakref import finalize, ref

from reliable_channel.channel.events import ChannelEvent, cheap_kind
from reliable_channel.channel.steps import Report
from reliable_channel.core.errors import LocalError
from reliable_channel.core.settings import check_type
from reliable_channel.transport.dispatcher import Dispatcher, Kind

DEFAULT_QUEUE_EVENTS = 100_000
"""Events an iterator may be behind before it loses the oldest."""
MAX_QUEUE_BYTES = 256 * 1024 * 1024
"""Bytes of messages that it may be behind."""

E = TypeVar("E", bound=ChannelEvent)

_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


def _put(stream: ref[EventStream[E]], _waiting: list[_Waiter], event: E) -> None:
    """Pass an event to a stream that somebody holds. ``_waiting`` is here to be held: event loops hold the tasks of
    waiting readers weakly."""
    held = stream()
    if held is not None:
        held.put(event)


class EventStream(AsyncIterator[E]):
    """Events for ``async for``, from any thread into one event loop, until nobody holds it. Bounded in number and
    bytes: a reader that is too slow loses the oldest, and ``dropped`` counts them. Events of a :func:`.cheap_kind` take
    half of the room at most: further ones are dropped."""

    def __init__(self, dispatcher: Dispatcher[ChannelEvent], kinds: tuple[Kind, ...], limit: int) -> None:
        check_type("limit", limit, int)
        if limit < 1:
            raise LocalError(f"The limit of an iterator is {limit} events.", "Use 1 or more.")
        self._events: deque[E] = deque()
        self._limit = limit
        self._lock = threading.Lock()
        self._cheap = 0
        self._bytes = 0
        self._ended = False
        self._waiting: list[_Waiter] = []
        self.dropped = 0
        # Held weakly: a reader that left its loop would take the messages of later listeners, and keep them for ever.
        listener = partial(_put, ref(self), self._waiting)
        self._remove = dispatcher.on(*(kinds or (ChannelEvent,)), call=listener)
        finalize(self, self._remove).atexit = False

    def put(self, event: E) -> None:
        """Append an event for the reader."""
        is_cheap = cheap_kind(event) is not None
        with self._lock:
            if is_cheap and self._cheap * 2 >= self._limit:
                self.dropped += 1
                return
            self._events.append(event)
            self._cheap += is_cheap
            self._bytes += Report(event).size
            while len(self._events) > self._limit or (self._bytes > MAX_QUEUE_BYTES and len(self._events) > 1):
                self.dropped += 1
                self._take()
        self._wake()

    def end(self) -> None:
        """Stop listening; the iterator ends after the events that wait."""
        self._remove()
        with self._lock:
            self._ended = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting = self._waiting.copy()
            self._waiting.clear()
        for loop, flag in waiting:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(flag.set)

    def _take(self) -> E:
        event = self._events.popleft()
        self._cheap -= cheap_kind(event) is not None
        self._bytes -= Report(event).size
        return event

    def __aiter__(self) -> EventStream[E]:
        return self

    async def __anext__(self) -> E:
        while True:
            with self._lock:
                if self._events:
                    return self._take()
                if self._ended:
                    raise StopAsyncIteration
                # asyncio's events are not thread-safe (https://docs.python.org/3/library/asyncio-sync.html): `_wake`
                # has the loop that waits set this one.
                flag = asyncio.Event()
                waiter = (asyncio.get_running_loop(), flag)
                self._waiting.append(waiter)
            try:
                await flag.wait()
            finally:
                with self._lock, suppress(ValueError):  # woken, or cancelled
                    self._waiting.remove(waiter)

    async def aclose(self) -> None:
        """:meth:`end` for asyncio."""
        self.end()
