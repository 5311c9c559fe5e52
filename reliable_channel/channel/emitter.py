"""Listeners of one channel: synchronous callbacks and bounded asynchronous iterators.

A listener that raises affects nobody: its exception is logged, the others are still called, the channel goes on.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from reliable_channel.channel.events import ChannelEvent

_log = logging.getLogger(__name__)

Listener = Callable[[Any], object]

DEFAULT_QUEUE_EVENTS = 100_000
"""Events an iterator may be behind before it loses the oldest."""


class EventEmitter:
    """``on(name or class, callback)``; ``events()`` for ``async for``. Callbacks run in the order of registration, in
    the thread that drives the channel; they may call ``send``. Thread-safe."""

    def __init__(self) -> None:
        self.joined: Callable[[], None] = lambda: None
        """Called after somebody began to listen."""
        self._lock = threading.Lock()
        self._listeners: list[tuple[str | type[ChannelEvent], Listener]] = []
        self._streams: list[EventStream] = []
        self._closed = False

    def on(self, event: str | type[ChannelEvent], callback: Listener) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of that name (``reliable:message:received``, ``message-sent`` …) or
        class (:class:`ChannelEvent` for all). Returns a function that removes it, harmless when called twice."""
        entry = (event, callback)
        with self._lock:
            self._listeners.append(entry)
        self.joined()

        def remove() -> None:
            with self._lock:
                self._listeners = [kept for kept in self._listeners if kept is not entry]

        return remove

    def stream(self, kinds: Iterable[str | type[ChannelEvent]], limit: int) -> EventStream:
        """An iterator over the events emitted from now on; ends when the channel closes."""
        opened = EventStream(self, tuple(kinds), limit)
        with self._lock:
            if self._closed:
                opened.end()
            else:
                self._streams.append(opened)
        self.joined()
        return opened

    def listens(self, event: ChannelEvent) -> bool:
        """Whether somebody listens for this event now."""
        with self._lock:
            return any(matches(event, kind) for kind, _ in self._listeners) or any(
                stream.takes(event) for stream in self._streams
            )

    def emit(self, event: ChannelEvent) -> None:
        """Hand one event to everybody who listens for it."""
        with self._lock:
            listeners = [callback for kind, callback in self._listeners if matches(event, kind)]
            streams = list(self._streams)
        for callback in listeners:
            try:
                callback(event)
            except Exception:  # of the application, and whatever it is: the channel must go on
                _log.exception("a listener of %s raised; the others are still called", event.name)
        for stream in streams:
            stream.put(event)

    def close(self) -> None:
        """End all iterators. Closing twice is fine."""
        with self._lock:
            self._closed = True
            streams, self._streams = self._streams, []
        for stream in streams:
            stream.end()

    def forget(self, stream: EventStream) -> None:
        """Stop feeding an iterator."""
        with self._lock:
            self._streams = [kept for kept in self._streams if kept is not stream]


def matches(event: ChannelEvent, kind: str | type[ChannelEvent]) -> bool:
    """Whether an event is of that class, or has that name or alias."""
    if isinstance(kind, str):
        return kind == event.name or kind in event.aliases
    return isinstance(event, kind)


class EventStream(AsyncIterator[ChannelEvent]):
    """Events for ``async for``, from any thread into one event loop. Bounded: a reader that is too slow loses the
    oldest, and ``dropped`` counts them."""

    def __init__(self, emitter: EventEmitter, kinds: tuple[str | type[ChannelEvent], ...], limit: int) -> None:
        self._emitter = emitter
        self._kinds = kinds
        self._events: deque[ChannelEvent] = deque(maxlen=limit)
        self._lock = threading.Lock()
        self._ended = False
        self._waiting: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self.dropped = 0

    def takes(self, event: ChannelEvent) -> bool:
        """Whether the iterator is for events of this kind."""
        return not self._kinds or any(matches(event, kind) for kind in self._kinds)

    def put(self, event: ChannelEvent) -> None:
        if not self.takes(event):
            return
        with self._lock:
            self.dropped += len(self._events) == self._events.maxlen
            self._events.append(event)
        self._wake()

    def end(self) -> None:
        with self._lock:
            self._ended = True
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, None
        if waiting is not None:
            loop, flag = waiting
            if not loop.is_closed():
                loop.call_soon_threadsafe(flag.set)

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> ChannelEvent:
        while True:
            with self._lock:
                if self._events:
                    return self._events.popleft()
                if self._ended:
                    raise StopAsyncIteration
                flag = asyncio.Event()
                self._waiting = (asyncio.get_running_loop(), flag)
            await flag.wait()

    async def aclose(self) -> None:
        """Stop listening; the next ``async for`` step ends."""
        self._emitter.forget(self)
        self.end()
