"""Reports events to the application's listeners: in order, and at least once across crashes.

A listener is a synchronous callback or a bounded asynchronous iterator. One that raises is logged; the others are still
called, and the channel continues.

A received message is recorded as reported right after its callbacks return, so a crash repeats at most the message
whose callback it interrupted. Events about sends may be repeated without harm; they are recorded in one transaction at
the end of the round.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, Protocol

from reliable_channel.channel.events import ChannelEvent, MessageLost, MessageReceived
from reliable_channel.channel.journal import Journal
from reliable_channel.channel.steps import Deliver, Emit, PendingEvent

_log = logging.getLogger(__name__)

Listener = Callable[[Any], object]

DEFAULT_QUEUE_EVENTS = 100_000
"""Events an iterator may be behind before it loses the oldest."""


class EventEmitter:
    """``on(name or class, callback)``; ``events()`` for ``async for``. Callbacks run in the order of registration, in
    the thread that drives the channel; they may call ``send``. Thread-safe."""

    def __init__(self) -> None:
        self.on_listener_added: Callable[[], None] = lambda: None
        """Called after a listener was added."""
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
        self.on_listener_added()

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
        self.on_listener_added()
        return opened

    def listens(self, event: ChannelEvent) -> bool:
        """Whether a listener for this event exists now."""
        with self._lock:
            return any(matches(event, kind) for kind, _ in self._listeners) or any(
                stream.takes(event) for stream in self._streams
            )

    def emit(self, event: ChannelEvent) -> None:
        """Pass one event to all its listeners."""
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


MAX_UNDELIVERED = 1_000
MAX_UNDELIVERED_BYTES = 16 * 1024 * 1024
"""Messages, and bytes of them, kept until somebody listens; beyond that the oldest count as reported."""


class UndeliveredEvents:
    """A bounded queue of received messages that nobody has listened for yet, in order."""

    def __init__(self) -> None:
        self._waiting: deque[PendingEvent] = deque()
        self._bytes = 0

    def add(self, pending: PendingEvent) -> list[PendingEvent]:
        """Append one; returns the oldest ones that were removed to stay within the bounds."""
        self._waiting.append(pending)
        self._bytes += pending.size
        removed: list[PendingEvent] = []
        while len(self._waiting) > MAX_UNDELIVERED or self._bytes > MAX_UNDELIVERED_BYTES:
            removed.append(self._waiting.popleft())
            self._bytes -= removed[-1].size
        return removed

    def take(self, listens: Callable[[ChannelEvent], bool]) -> PendingEvent | None:
        """Remove and return the first event that somebody listens for."""
        for pending in self._waiting:
            if listens(pending.event):
                self._waiting.remove(pending)
                self._bytes -= pending.size
                return pending
        return None

    def __iter__(self) -> Iterator[PendingEvent]:
        return iter(self._waiting)


class EventListeners(Protocol):
    """The application's listeners. Called without the channel's lock."""

    def emit(self, event: ChannelEvent) -> None:
        """Call everybody who listens for the event."""
        ...

    def listens(self, event: ChannelEvent) -> bool:
        """Whether somebody listens for the event."""
        ...


class EventDispatcher:
    """The pending events of one channel, guarded by the channel's ``lock``. ``wake`` requests another round."""

    def __init__(
        self, journal: Journal, listeners: EventListeners, lock: threading.RLock, wake: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._listeners = listeners
        self._lock = lock
        self._wake = wake
        self._queue: deque[PendingEvent] = deque()
        self._undelivered = UndeliveredEvents()
        self._listener_added = True
        self._current: PendingEvent | None = None
        self._reported: list[PendingEvent] = []
        self._closed = False

    # ---- queueing ------------------------------------------------------------------------------------------------

    def restore(self, pending: list[PendingEvent]) -> None:
        """Queue the events that the previous process did not report."""
        for one in pending:
            self._reported += self._undelivered.add(one)

    def emit(self, event: ChannelEvent) -> None:
        """Queue an event that no restart reports again."""
        self._queue.append(PendingEvent(event))

    def enqueue(self, effect: Deliver | Emit) -> None:
        """Queue the event of an effect, unless it was reported before."""
        pending = self._journal.pending_event(effect)
        if pending is not None:
            self._queue.append(pending)

    def unreported(self) -> list[PendingEvent]:
        """The events not reported yet, in order; a snapshot contains them."""
        return [*self._undelivered, *self._queue]

    def on_listener_added(self) -> None:
        """Deliver waiting events to a new listener in the next round. Called from any thread."""
        self._listener_added = True
        self._wake()

    # ---- reporting -----------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Call the listeners with every queued event. Must be called without the lock."""
        while (pending := self._next()) is not None:
            self._listeners.emit(pending.event)
            with self._lock:
                self._reported.append(pending)
                self._current = None
                if pending.report_key and isinstance(pending.event, MessageReceived):
                    self._record()
        with self._lock:
            self._record()

    def close(self, *, sound: bool) -> None:
        """Stop reporting. When the state is ``sound``, record what was reported, including the event whose callback
        closed the channel. Nothing is recorded after that."""
        with self._lock:
            if self._current is not None:
                self._reported.append(self._current)
            if sound:
                self._record()
            self._closed = True

    def _next(self) -> PendingEvent | None:
        """The next event to report. Events that waited for a listener come first, so that sequence numbers rise."""
        with self._lock:
            if self._closed and self._journal.keeps:
                return None  # a callback closed the channel; the snapshot has the rest
            self._current = self._take_undelivered()
            while self._current is None and self._queue:
                pending = self._queue.popleft()
                if self._must_wait_for_listener(pending):
                    self._reported += self._undelivered.add(pending)
                else:
                    self._current = pending
            return self._current

    def _take_undelivered(self) -> PendingEvent | None:
        """The first waiting event that somebody listens for; searched only after a listener was added."""
        if not self._listener_added:
            return None
        self._listener_added = False  # before the search: a listener added during it causes another one
        found = self._undelivered.take(self._listeners.listens)
        self._listener_added = self._listener_added or found is not None
        return found

    def _must_wait_for_listener(self, pending: PendingEvent) -> bool:
        """Whether a received or lost message is kept for the next listener, in this process or a later one."""
        is_message = bool(pending.report_key) and isinstance(pending.event, MessageReceived | MessageLost)
        return is_message and self._journal.keeps and not self._listeners.listens(pending.event)

    def _record(self) -> None:
        reported, self._reported = self._reported, []
        if not self._closed:
            self._journal.mark_reported(reported)
