"""The handle of an open reliable channel (RELIABLE-CHANNEL-API)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from types import TracebackType
from typing import Any, NewType, Self, TypeVar
from weakref import WeakSet

from reliable_channel.channel.driver import ChannelDriver
from reliable_channel.channel.errors import ChannelClosedError, ChannelNotStartedError
from reliable_channel.channel.event_stream import DEFAULT_QUEUE_EVENTS, EventStream
from reliable_channel.channel.events import (
    EVENT_NAMES,
    ChannelEvent,
    ChannelProblem,
    MessageDelivered,
    MessageReceived,
    MessageSendError,
    MessageSent,
)
from reliable_channel.channel.persistence import LabelledSend
from reliable_channel.channel.sends import SendState
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.dispatcher import Dispatcher, Listener

_log = logging.getLogger(__name__)

T = TypeVar("T")

ACKNOWLEDGE_TIMEOUT_S = 2.0
"""How long ``stop`` and ``close`` wait for the node to take the last acknowledgement."""

CLOSE_TIMEOUT_S = 60.0
"""How long a second ``close`` waits for the first."""

ReliableSendId = NewType("ReliableSendId", str)
"""One ``send``: it groups the RequestIds of its segments, labels ``<id>:1`` to ``<id>:N``. It is the SDS id of the
send's first segment, so it is the same after a restart."""


class ReliableChannel:
    """An open channel. Made by ``create_reliable_channel``; usable from any thread, and from asyncio.

    Sending returns when the message is segmented, wrapped and stored; everything later is an event. A context manager,
    with ``with`` or ``async with``: leaving it closes.
    """

    def __init__(
        self,
        driver: ChannelDriver,
        *,
        channel_id: str,
        pubsub_topic: str,
        content_topic: str,
        sender_id: str,
        listeners: Dispatcher[ChannelEvent],
        subscribe: Callable[[], None],
        unsubscribe: Callable[[], None],
        release: Callable[[], None],
        wake: threading.Event,
        threaded: bool,
    ) -> None:
        self.channel_id = channel_id
        self.pubsub_topic = pubsub_topic
        self.content_topic = content_topic
        self.sender_id = sender_id
        self.message_events = listeners
        self._driver = driver
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._release = release
        self._wake = wake
        self._threaded = threaded
        self._worker: threading.Thread | None = None
        self._last_worker: threading.Thread | None = None
        self._state = threading.RLock()
        self._started = False
        self._closed = False
        self._closing = False
        self._gone = threading.Event()
        self._fault: Exception | None = None
        self._settled = threading.Condition()
        self._streams: WeakSet[EventStream] = WeakSet()
        self._on_release: list[Callable[[], None]] = []

    # ---- sending -------------------------------------------------------------------------------------------------

    def send(self, message: bytes, *, label: str | None = None) -> ReliableSendId:
        """Send a message reliably. When this returns, the message is stored and survives the process.

        ``label``, such as the id of a table's row, names the send permanently: the same label, in this process or a
        later one, is the same message. It is not sent twice, unless the send failed: then the same bytes are sent
        again.

        Raises ``EmptyMessage``, ``MessageTooLarge`` (both sizes in its text), ``ChannelNotStartedError``,
        ``ChannelClosedError``, and ``SendBufferFull`` when ``max_queued_bytes`` wait for ``send_timeout_ms``."""
        self._check()
        self._await_space()
        return ReliableSendId(self._guarded(lambda: self._driver.send(bytes(message), label)))

    def send_ephemeral(self, message: bytes) -> ReliableSendId:
        """Send an untracked message of one segment at most. It is dropped near the rate limit, with an event. Raises as
        :meth:`send`."""
        self._check()
        return ReliableSendId(self._driver.send_ephemeral(bytes(message)))

    async def asend(self, message: bytes) -> ReliableSendId:
        """:meth:`send` for asyncio: the event loop keeps running while this waits for space."""
        return await asyncio.to_thread(self.send, message)

    def send_state(self, request_id: str) -> SendState | None:
        """The state of a send, also of an earlier process; ``None`` when it is unknown or long finished."""
        with self._driver.lock:
            send = self._driver.machine.sends.get(request_id)
            return send.state if send is not None else None

    def forget_label(self, label: str) -> None:
        """Forget a label, once the caller has stored its send elsewhere. Used again, it names a new message."""
        self._driver.forget_label(label)

    def labelled(self, label: str) -> LabelledSend | None:
        """The send of a label, with its segments as they are on the wire."""
        return self._driver.labelled(label)

    @property
    def wire_family(self) -> WireFamily:
        """The SDS family that this channel speaks."""
        return self._driver.machine.sds_config.wire_family

    def request_ids(self, request_id: str) -> dict[str, str]:
        """The node's RequestIds of a send that is being dispatched, by label ``<request_id>:1`` to ``:N``."""
        with self._driver.lock:
            labels = self._driver.labels.get(request_id, {})
            return {f"{request_id}:{index + 1}": str(node_id) for index, node_id in sorted(labels.items())}

    def wait(
        self,
        request_ids: Iterable[str],
        *,
        delivered: bool = False,
        queued: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """Wait until these sends are sent (or ``delivered``, or at least ``queued``), or have failed; ``False`` after
        the time-out."""
        open_sends = list(dict.fromkeys(request_ids))
        enough = {SendState.DELIVERED, SendState.FAILED, None} | (set() if delivered else {SendState.SENT})
        if queued:
            enough.add(SendState.QUEUED)

        def done() -> bool:
            # What is done stays done: every send is looked at until it is, and then no more.
            while open_sends and self._fault is None and self.send_state(open_sends[-1]) in enough:
                open_sends.pop()
            return self._fault is not None or not open_sends

        with self._settled:
            return self._settled.wait_for(done, timeout_s)

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has reported on all pending dispatches, ephemeral messages included; ``False`` after the
        time-out."""
        driver = self._driver

        def done() -> bool:
            with driver.lock:
                return self._fault is not None or not (driver.backlog() or driver.outgoing.in_flight)

        with self._settled:
            return self._settled.wait_for(done, timeout_s)

    # ---- events --------------------------------------------------------------------------------------------------

    def on(self, event: str | type[ChannelEvent], callback: Listener) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of that name or class; returns a function that ends it. Callbacks
        run one at a time on the channel's thread; one that raises affects no other."""
        if isinstance(event, str) and event not in EVENT_NAMES:
            raise LocalError(f"There is no event {event!r}.", f"Use one of {', '.join(sorted(EVENT_NAMES))}.")
        return self.message_events.on(event, call=callback)

    def on_message_received(self, callback: Callable[[MessageReceived], object]) -> Callable[[], None]:
        """A complete message was received."""
        return self.on(MessageReceived, callback)

    def on_message_sent(self, callback: Callable[[MessageSent], object]) -> Callable[[], None]:
        """All segments of a send were dispatched."""
        return self.on(MessageSent, callback)

    def on_message_delivered(self, callback: Callable[[MessageDelivered], object]) -> Callable[[], None]:
        """A send was acknowledged end to end."""
        return self.on(MessageDelivered, callback)

    def on_message_send_error(self, callback: Callable[[MessageSendError], object]) -> Callable[[], None]:
        """A send failed."""
        return self.on(MessageSendError, callback)

    def events(self, *kinds: str | type[ChannelEvent], limit: int = DEFAULT_QUEUE_EVENTS) -> EventStream:
        """``async for event in channel.events(MessageReceived)``: from now until the channel closes; all events when no
        kind is named. A reader more than ``limit`` events behind loses the oldest."""
        stream = EventStream(self.message_events, kinds, limit)
        with self._state:
            if self._closed:
                stream.end()
            else:
                self._streams.add(stream)
        return stream

    def __aiter__(self) -> AsyncIterator[ChannelEvent]:
        return self.events()

    # ---- life ----------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the handle was closed."""
        return self._closed

    def start(self) -> None:
        """Subscribe, resend unacknowledged messages, query a store for missed ones, run the timers. Starting twice does
        nothing."""
        with self._state:
            if self._closed:
                raise ChannelClosedError(f"Channel {self.channel_id!r} is closed.", "Create it again.")
            if self._started:
                return
            self._driver.retrieval.start()
            self._subscribe()
            self._started = True
            self._guarded(self._driver.open)
            if self._threaded:
                self._worker = threading.Thread(
                    target=self._run, name=f"reliable-channel-{self.channel_id}", daemon=True
                )
                self._last_worker = self._worker
                self._worker.start()

    def stop(self) -> None:
        """Acknowledge received messages, then end timers and subscription.

        Unacknowledged messages are kept and sent again at the next start. Waits up to ``ACKNOWLEDGE_TIMEOUT_S`` for the
        node to accept the acknowledgement. Stopping twice does nothing; from a callback, the thread ends when the
        callback returns."""
        if self._started and not self._closing and self._fault is None:
            self._closing = True
            self._acknowledge()
        with self._state:
            self._closing = False
            if not self._started:
                return
            self._started = False
            self._unsubscribe()
            worker, self._worker = self._worker, None
            self._wake.set()
        self._driver.retrieval.stop()
        if worker is not None and worker is not threading.current_thread():
            worker.join()
        with self._driver.lock:
            self._driver.outgoing.clear()

    def close(self) -> None:
        """Stop, take a snapshot, release lock and subscription. May be called twice: the second call waits for the
        first, except in a callback, for which the first may be waiting."""
        with self._state:
            again, self._closed = self._closed, True
        if again:
            if threading.current_thread() is not self._last_worker:
                self._gone.wait(CLOSE_TIMEOUT_S)
            return
        try:
            self.stop()
            self._driver.close(sound=self._fault is None)
        finally:
            for stream in list(self._streams):
                stream.end()
            self._release()
            while self._on_release:
                self._on_release.pop()()
            self._gone.set()
            with self._settled:
                self._settled.notify_all()

    def on_release(self, action: Callable[[], None]) -> None:
        """Run ``action`` once after the channel is closed, to release what was created for it."""
        self._on_release.append(action)

    async def aclose(self) -> None:
        """:meth:`close` for asyncio."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def status(self) -> dict[str, Any]:
        """Counts for status output and ``--json``; never payloads."""
        driver = self._driver
        with driver.lock:
            return {
                **driver.machine.summary(),
                "started": self._started,
                "queued_envelopes": driver.outgoing.queued,
                "lost_envelopes": driver.arrivals.lost,
            }

    def _acknowledge(self) -> None:
        """Send the owed acknowledgement and wait until the node has accepted it. A fault is reported, and the channel
        stops."""
        owed = False
        with contextlib.suppress(Exception):  # _guarded has recorded and reported it
            owed = self._guarded(self._driver.acknowledge)
        if owed and self._threaded and threading.current_thread() is not self._worker:
            self._wake.set()
            self.flush(ACKNOWLEDGE_TIMEOUT_S)

    # ---- the worker ----------------------------------------------------------------------------------------------

    def step(self) -> int | None:
        """Run one cycle in this thread, for channels made with ``threaded=False``: received envelopes are processed and
        due timers run. Returns when (Unix ms) the next cycle is due, ``None`` when nothing is planned."""
        if not self._started:
            return None
        if not self._driver.retrieval.threaded:
            self._driver.retrieval.run_pending()
        return self._guarded(self._driver.step)

    def _run(self) -> None:
        me = threading.current_thread()
        while self._started and self._worker is me:
            self._wake.clear()
            try:
                due = self._driver.step()
            except Exception as error:  # whatever it is, a channel whose state is in doubt says so and stops
                self._fail(error)
                return
            with self._settled:
                self._settled.notify_all()
            wait_ms = 1_000 if due is None else due - self._driver.now()
            if wait_ms > 0 and self._started:
                self._wake.wait(min(wait_ms, 1_000) / 1_000)

    def report(self, event: ChannelEvent) -> None:
        """Report one event to all listeners."""
        self.message_events.emit(event)

    def _fail(self, error: Exception) -> None:
        """Stop the channel because its state could not be persisted, and report that once."""
        self._fault = error
        _log.error("channel %s stopped: %s", self.channel_id, type(error).__name__)
        detail = str(error) if isinstance(error, EnvironmentFault) else type(error).__name__
        event = ChannelProblem(channel_id=self.channel_id, at=self._driver.now(), kind="stopped", detail=detail)
        with contextlib.suppress(Exception):
            self.report(event)
        with self._settled:
            self._settled.notify_all()

    def _guarded(self, action: Callable[[], T]) -> T:
        if self._fault is not None:
            raise self._fault
        try:
            return action()
        except LocalError:
            raise
        except Exception as error:  # as in the worker; the caller's own mistakes have left above
            self._fail(error)
            raise

    def _check(self) -> None:
        if self._closed:
            raise ChannelClosedError(f"Channel {self.channel_id!r} is closed.", "Create it again.")
        if not self._started:
            raise ChannelNotStartedError(f"Channel {self.channel_id!r} is not started.", "Call start() first.")

    def _await_space(self) -> None:
        """Back-pressure, but never on the channel's own thread: a callback that sends must not wait for itself."""
        driver = self._driver
        if not self._threaded or threading.current_thread() is self._worker:
            return
        limit, timeout = driver.max_queued_bytes, driver.send_timeout_ms / 1_000
        with driver.space:
            room = driver.space.wait_for(
                lambda: driver.backlog() < limit or not self._started or self._fault is not None, timeout
            )
        if not room:
            raise SendBufferFull(
                f"{limit} bytes of channel {self.channel_id!r} wait for the node since {timeout:g} s.",
                "Wait for them to be sent, or raise max_queued_bytes.",
            )
        self._check()
