"""Implements calls that wait until something has changed: long polls and streams of server-sent events.

A call checks its condition and, while it does not hold, waits for the next event of the node and checks again, at most
``wait`` ms. Events follow the stored change, so no change is missed between two checks. The number of waiting calls is
bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.types import Receive

from reliable_channel.messaging.events import CustomEvent, EventName, EventSource
from reliable_channel.transport.http.request_limit import release_slot

T = TypeVar("T")

CURSOR_HEADER = "X-Cursor"
"""The value of ``since`` for the next call."""


async def _end_with_client(limit: asyncio.Timeout, receive: Receive) -> None:
    """End a wait when the client closes its connection: its place is somebody else's."""
    while (await receive())["type"] != "http.disconnect":
        pass
    with suppress(RuntimeError):  # it ends already
        limit.reschedule(0)


class LongPoll:
    """Waiting calls of one event loop."""

    def __init__(self, events: EventSource, max_waiting: int) -> None:
        self._events = events
        self._max_waiting = max_waiting
        self.waiting = 0
        """The number of calls that wait now."""
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped = False

    def start(self) -> None:
        """Listen to the node; call it on the event loop that serves."""
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._stopped = False
        for name in EventName:
            self._events.add_event_listener(name, self._on_event)

    def stop(self) -> None:
        """Stop listening, and let every waiting call answer."""
        self._stopped = True
        for name in EventName:
            self._events.remove_event_listener(name, self._on_event)
        self._bump()

    async def wait_until(
        self, look: Callable[[], T], satisfied: Callable[[T], bool], wait_ms: int, receive: Receive
    ) -> T:
        """The first result that satisfies the condition, or the last result after ``wait_ms``, or when ``receive`` of
        the call says that the client has left. Raises 429 when too many calls wait."""
        changed = self._changed
        result = await run_in_threadpool(look)
        if satisfied(result) or wait_ms <= 0:
            return result
        with self.hold_place():
            try:
                async with asyncio.timeout(wait_ms / 1000) as limit:
                    leaving = asyncio.create_task(_end_with_client(limit, receive))
                    try:
                        while not satisfied(result) and not self._stopped:
                            with release_slot():
                                await changed.wait()
                            changed = self._changed
                            result = await run_in_threadpool(look)
                    finally:
                        leaving.cancel()
            except TimeoutError:
                result = await run_in_threadpool(look)
        return result

    async def follow(self, look: Callable[[], list[T] | None], idle_s: float) -> AsyncIterator[list[T]]:
        """Every non-empty result, and an empty one whenever nothing changed for ``idle_s``. Ends with the result
        ``None``, and with :meth:`stop`."""
        while not self._stopped:
            changed = self._changed
            result = await run_in_threadpool(look)
            if result is None:
                return
            if not result:
                with release_slot(), suppress(TimeoutError):
                    await asyncio.wait_for(changed.wait(), idle_s)
                if changed.is_set():
                    continue
            yield result

    @contextmanager
    def hold_place(self) -> Iterator[None]:
        """Count as a waiting call within this block; on the event loop only. Raises 429 when too many calls wait."""
        if self.waiting >= self._max_waiting:
            raise HTTPException(429, f"{self._max_waiting} calls are waiting already.", {"Retry-After": "1"})
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    def _on_event(self, event: CustomEvent) -> None:
        self.notify()

    def notify(self) -> None:
        """Make every waiting call check again. From any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._bump)  # asyncio.Event is not thread-safe

    def _bump(self) -> None:
        # Replaced instead of cleared: a call takes the event before it looks, so a change in between has set it.
        self._changed.set()
        self._changed = asyncio.Event()
