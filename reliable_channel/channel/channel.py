"""An open reliable channel (RELIABLE-CHANNEL-API): the handle of the application, and the thread that works for it.

The thread, or a test by :meth:`ReliableChannel.step`, runs one cycle of the channel after the other
(:mod:`reliable_channel.channel.cycle`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NewType, Self, TypeVar, overload
from weakref import WeakSet, finalize

from reliable_channel.channel.cycle import ChannelCycle
from reliable_channel.channel.errors import ChannelClosedError, ChannelNotStartedError
from reliable_channel.channel.event_stream import DEFAULT_QUEUE_EVENTS, EventStream
from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    MessageSent,
)
from reliable_channel.channel.persistence import LabelledSend
from reliable_channel.channel.sends import SendState
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.clock import now_ms
from reliable_channel.transport.dispatcher import Listener
from reliable_channel.transport.threads import OwnerProcess, TurnLock, join

_log = logging.getLogger(__name__)

T = TypeVar("T")
E = TypeVar("E", bound=ChannelEvent)

ACKNOWLEDGE_TIMEOUT_S = 2.0
"""How long ``stop`` and ``close`` wait for the node to take the last acknowledgement."""

CLOSE_TIMEOUT_S = 60.0
"""How long a second ``close`` waits for the first."""

MAX_REST_MS = 10_000
"""The longest wait for something to do, because machines are suspended, and the wait with them. A process with a
thousand channels that each ran a cycle every second took a sixth of a core for doing nothing."""

ReliableSendId = NewType("ReliableSendId", str)
"""One ``send``: it groups the RequestIds of its segments, labels ``<id>:1`` to ``<id>:N``. It is the SDS id of the
send's first segment, so it is the same after a restart."""


def _check_send(message: bytes, label: str | None = None) -> bytes:
    """The bytes of a message. Raises ``LocalError``, because a caller's mistake must not stop the channel."""
    try:
        payload = memoryview(message).tobytes()
    except TypeError:
        raise LocalError(f"A message is bytes, not {type(message).__name__}.", "Encode it: text.encode().") from None
    try:
        if label is not None:
            label.encode()
    except (AttributeError, UnicodeEncodeError):
        raise LocalError("The label of a send is not Unicode text.", "Give a text that UTF-8 can write.") from None
    return payload


class ReliableChannel:
    """An open channel. Made by ``create_reliable_channel``; usable from any thread, and from asyncio.

    Sending returns when the message is segmented, wrapped and stored; everything later is an event. A context manager,
    with ``with`` or ``async with``: leaving it closes.
    """

    def __init__(
        self,
        cycle: ChannelCycle,
        *,
        subscribe: Callable[[], None],
        unsubscribe: Callable[[], None],
        releases: contextlib.ExitStack,
    ) -> None:
        self.channel_id = cycle.key.channel_id
        self.pubsub_topic = cycle.key.pubsub_topic
        self.content_topic = cycle.key.content_topic
        self.sender_id = cycle.key.sender_id
        self.message_events = cycle.message_events
        self._cycle = cycle
        self._config = cycle.config
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._threaded = cycle.threaded
        # The life of the handle, guarded by ``_state``.
        self._turns = TurnLock()
        self._state = threading.RLock()
        self._worker: threading.Thread | None = None
        self._last_worker: threading.Thread | None = None
        """Also after ``stop`` has let go of it: a callback that it still runs may call ``close``."""
        self._at_exit: finalize[..., ReliableChannel] | None = None
        """Called when the process ends, while the channel is started."""
        self._started = False
        self._owner = OwnerProcess()
        self._closed = False
        self._gone = threading.Event()
        self._fault: Exception | None = None
        self._settled = threading.Condition()
        self._streams: WeakSet[EventStream[Any]] = WeakSet()
        self._releases = releases

    # ---- sending -----------------------------------------------------------------------------------------------------

    def send(self, message: bytes, *, label: str | None = None) -> ReliableSendId:
        """Send a message reliably. When this returns, the message is stored and survives the process.

        ``label``, such as the id of a table's row, names the send permanently: the same label, in this process or a
        later one, is the same message. It is not sent twice, unless the send failed: then the same bytes are sent
        once more, without retransmissions and another error; *delivered* follows if they are acknowledged.

        Raises ``LocalError`` for what is not bytes, ``EmptyMessage``, ``MessageTooLarge`` (both sizes in its text),
        ``ChannelNotStartedError``, ``ChannelClosedError``, and ``SendBufferFull`` when ``max_queued_bytes`` wait for
        ``send_timeout_ms``."""
        self._check()
        payload = _check_send(message, label)
        self._await_space()
        return self._submit(lambda: self._cycle.submit(payload, label))

    def send_ephemeral(self, message: bytes) -> ReliableSendId:
        """Send an untracked message of one segment at most. It is dropped near the rate limit, with an event. Raises as
        :meth:`send`."""
        self._check()
        payload = _check_send(message)
        self._await_space()
        return self._submit(lambda: self._cycle.submit_ephemeral(payload))

    async def asend(self, message: bytes, *, label: str | None = None) -> ReliableSendId:
        """:meth:`send` for asyncio: the event loop keeps running while this waits for space. Cancelled, it may have
        sent the message; with a ``label`` it can be called again."""
        return await asyncio.to_thread(self.send, message, label=label)

    def send_state(self, request_id: str) -> SendState | None:
        """The state of a send, also of an earlier process; ``None`` when it is unknown or long finished."""
        self._owner.refuse_fork()
        with self._cycle.lock:
            send = self._cycle.machine.sends.get(request_id)
            return send.state if send is not None else None

    def forget_label(self, label: str) -> None:
        """Forget a label, once the caller has stored its send elsewhere. Used again, it names a new message."""
        self._owner.refuse_fork()
        with self._cycle.lock:
            self._cycle.journal.forget_label(label)

    def find_send(self, label: str) -> LabelledSend | None:
        """The send of a label, with the bytes of its SDS messages; ``None`` if none has that label."""
        self._owner.refuse_fork()
        return self._cycle.journal.find_send(label)

    @property
    def wire_family(self) -> WireFamily:
        """The SDS family that this channel speaks."""
        return self._cycle.machine.sds_config.wire_family

    def segment_ids(self, request_id: str) -> tuple[str, ...]:
        """The SDS ids of a send's segments, data then parity; empty when the send is unknown or long finished."""
        self._owner.refuse_fork()
        with self._cycle.lock:
            send = self._cycle.machine.sends.get(request_id)
            return send.sds_ids if send is not None else ()

    def request_ids(self, request_id: str) -> dict[str, str]:
        """The node's RequestIds of a send that is being dispatched, by label ``<request_id>:1`` to ``:N``."""
        self._owner.refuse_fork()
        with self._cycle.lock:
            labels = self._cycle.outgoing.labels.get(request_id, {})
            return {f"{request_id}:{index + 1}": str(node_id) for index, node_id in sorted(labels.items())}

    def wait(
        self,
        request_ids: Iterable[str],
        *,
        delivered: bool = False,
        queued: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """Wait until these sends are sent (or ``delivered``, or at least ``queued``), or have ended otherwise;
        ``False`` after the time-out, and if the channel stops or is closed before. Raises ``LocalError`` for one id in
        place of a collection, and in a callback."""
        if isinstance(request_ids, str):  # an iterable of texts as well, none of which is the id of a send
            raise LocalError("wait takes a collection of ids, not one.", "Give [request_id].")
        open_sends = list(dict.fromkeys(request_ids))
        enough = {SendState.DELIVERED, SendState.UNACKNOWLEDGED, SendState.FAILED, None}
        if not delivered:
            enough.add(SendState.SENT)
        if queued:
            enough.add(SendState.QUEUED)

        def is_over() -> bool:
            # What is done stays done: every send is looked at until it is, and then no more.
            while open_sends and self.send_state(open_sends[-1]) in enough:
                open_sends.pop()
            return not open_sends or not self._is_running

        self._wait_for(is_over, timeout_s)
        return not open_sends

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has reported on all pending dispatches, ephemeral messages included; ``False`` after the
        time-out, and if the channel stops before. Raises ``LocalError`` in a callback."""
        self._owner.refuse_fork()

        def is_over() -> bool:
            with self._cycle.lock:
                return not self._is_running or not (self._cycle.backlog or self._cycle.outgoing.in_flight)

        return self._wait_for(is_over, timeout_s) and self._is_running

    def _wait_for(self, is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        with self._settled:  # another lock than the cycle's, which must go on meanwhile
            if threading.current_thread() is self._worker and not is_over():
                raise LocalError(
                    "A callback cannot wait for its channel, which waits for it.",
                    "Wait in another thread, or listen to events.",
                )
            return self._settled.wait_for(is_over, timeout_s)

    def _submit(self, submit: Callable[[], str]) -> ReliableSendId:
        """Give a message to the cycle; returns its id."""

        def check_and_submit() -> str:
            with self._cycle.lock:
                self._check()  # again: it may have been closed meanwhile
                return submit()

        return ReliableSendId(self._guard(check_and_submit))

    def _check(self) -> None:
        self._owner.refuse_fork()
        if self._closed:
            raise ChannelClosedError(f"Channel {self.channel_id!r} is closed.", "Create it again.")
        if not self._started:
            raise ChannelNotStartedError(f"Channel {self.channel_id!r} is not started.", "Call start() first.")

    def _await_space(self) -> None:
        """Back-pressure, but never on the channel's own thread: a callback that sends must not wait for itself."""
        if not self._threaded or threading.current_thread() is self._worker:
            return
        limit, timeout = self._config.max_queued_bytes, self._config.send_timeout_ms / 1_000
        with self._cycle.space:
            room = self._cycle.space.wait_for(lambda: self._cycle.backlog < limit or not self._is_running, timeout)
        if not room:
            raise SendBufferFull(
                f"{limit} bytes of channel {self.channel_id!r} wait for the node since {timeout:g} s.",
                "Wait for them to be sent. A program may also set a larger max_queued_bytes.",
            )
        self._check()

    # ---- events ------------------------------------------------------------------------------------------------------

    def on(self, event: str | type[ChannelEvent], callback: Listener) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of that name or class; returns a function that ends it. Callbacks
        run one at a time on the channel's thread; one that raises affects no other. Raises ``LocalError`` for an
        unknown name or class and for a coroutine function, which nobody would await."""
        self._owner.refuse_fork()
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
        """A send could not be dispatched."""
        return self.on(MessageSendError, callback)

    def on_message_delivery_error(self, callback: Callable[[MessageDeliveryError], object]) -> Callable[[], None]:
        """A send was dispatched and not acknowledged."""
        return self.on(MessageDeliveryError, callback)

    @overload
    def events(self, *, limit: int = DEFAULT_QUEUE_EVENTS) -> EventStream[ChannelEvent]: ...

    @overload
    def events(self, *kinds: type[E], limit: int = DEFAULT_QUEUE_EVENTS) -> EventStream[E]: ...

    @overload
    def events(
        self, *kinds: str | type[ChannelEvent], limit: int = DEFAULT_QUEUE_EVENTS
    ) -> EventStream[ChannelEvent]: ...

    def events(self, *kinds: str | type[ChannelEvent], limit: int = DEFAULT_QUEUE_EVENTS) -> EventStream[Any]:
        """``async for event in channel.events(MessageReceived)``: from now until the channel closes; all events when no
        kind is named. A reader more than ``limit`` events behind loses the oldest. Raises ``LocalError`` for an unknown
        name or class, and a ``limit`` below 1."""
        self._owner.refuse_fork()
        stream: EventStream[Any] = EventStream(self.message_events, kinds, limit)
        with self._state:
            if self._closed:
                stream.end()
            else:
                self._streams.add(stream)
        return stream

    def __aiter__(self) -> AsyncIterator[ChannelEvent]:
        return self.events()

    # ---- life --------------------------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether the handle was closed."""
        return self._closed

    @property
    def _is_running(self) -> bool:
        """Whether the channel is started, and neither a fault nor the end of the handle has stopped it."""
        return self._started and self._fault is None and not self._gone.is_set()

    def start(self) -> None:
        """Subscribe, resend unacknowledged messages, query a store for missed ones, run the timers. Starting twice does
        nothing; a channel that a fault has stopped raises that fault. In a process that was forked from the one that
        opened the channel, this and every other call but ``close``, which does nothing there, raises
        ``ForkedError``."""
        self._owner.refuse_fork()
        with self._turns.take() as mine, self._state:
            if self._closed:
                raise ChannelClosedError(f"Channel {self.channel_id!r} is closed.", "Create it again.")
            self._refuse_fault()
            if mine and not self._started:
                self._start()

    def _start(self) -> None:
        self._cycle.retrieval.start()
        try:
            self._subscribe()
        except BaseException:
            self._cycle.retrieval.stop()
            raise
        self._started = True
        try:
            self._guard(self._cycle.open)
            if self._threaded:
                self._start_worker()
        except BaseException:
            self._stop()
            raise

    def _start_worker(self) -> None:
        self._worker = threading.Thread(target=self._run, name=f"reliable-channel-{self.channel_id}", daemon=True)
        self._last_worker = self._worker
        self._worker.start()
        self._at_exit = finalize(self, _warn_of_unsent, self._cycle, self._owner)

    def stop(self) -> None:
        """Acknowledge received messages, then end timers and subscription.

        Unacknowledged messages are kept and sent again at the next start. Waits up to ``ACKNOWLEDGE_TIMEOUT_S`` for the
        node to accept the acknowledgement. Stopping twice does nothing; from a callback, also one that a callback of
        this channel waits for, the thread ends when the callback returns."""
        self._owner.refuse_fork()
        with self._turns.take() as mine:
            if mine and self._started:
                self._stop()

    def _stop(self) -> None:
        try:
            if self._fault is None:
                self._acknowledge()
        finally:  # Ctrl-C ends the wait for the node, and leaves no thread behind
            with self._state:
                self._started = False
                if self._at_exit is not None:
                    self._at_exit.detach()
                self._unsubscribe()
                worker, self._worker = self._worker, None
                self._cycle.work.set()
            with self._settled:
                self._settled.notify_all()  # who waits for sends waits in vain from now on
            self._cycle.retrieval.stop()
            if worker is not None:
                join(worker)
        with contextlib.suppress(Exception):  # _guard has recorded and reported it
            self._guard(self._cycle.stop)

    def close(self) -> None:
        """Stop, take a snapshot, release lock and subscription. May be called twice: the second call waits for the
        first, except in a callback, for which the first may be waiting."""
        if not self._owner.is_current:
            return  # a fork leaves the channel to its process
        with self._state:
            again, self._closed = self._closed, True
        if again:
            if threading.current_thread() is not self._last_worker:
                self._gone.wait(CLOSE_TIMEOUT_S)
            return
        try:
            with self._releases:  # all of them, also where one raises
                try:
                    self.stop()
                finally:
                    self._cycle.finish(sound=self._fault is None)
        finally:
            for stream in list(self._streams):
                stream.end()
            self._gone.set()
            with self._settled:
                self._settled.notify_all()

    def on_release(self, action: Callable[[], None]) -> None:
        """Run ``action`` once after the channel is closed, to release what was created for it; the last one first."""
        self._releases.callback(action)

    async def aclose(self) -> None:
        """:meth:`close` for asyncio."""
        # Not on asyncio's own threads: all of them may wait in ``asend`` for space, until the channel is closed.
        pool = ThreadPoolExecutor(1, "reliable-channel-close")
        closing = asyncio.get_running_loop().run_in_executor(pool, self.close)
        pool.shutdown(wait=False)
        await closing

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
        self._owner.refuse_fork()
        with self._cycle.lock:
            return {
                **self._cycle.machine.summary(),
                "started": self._is_running,
                "queued_envelopes": self._cycle.outgoing.queued,
                "lost_envelopes": self._cycle.arrivals.lost,
            }

    def _acknowledge(self) -> None:
        """Send the owed acknowledgement and wait until the node has accepted it. A fault is reported, and the channel
        stops."""
        owed = False
        with contextlib.suppress(Exception):  # _guard has recorded and reported it
            owed = self._guard(self._cycle.acknowledge)
        if owed and self._threaded:
            if threading.current_thread() is self._worker:
                self._cycle.await_reports(ACKNOWLEDGE_TIMEOUT_S)
            else:
                self._cycle.work.set()
                self.flush(ACKNOWLEDGE_TIMEOUT_S)

    # ---- the worker --------------------------------------------------------------------------------------------------

    def step(self) -> int | None:
        """Run one cycle in this thread, for channels made with ``threaded=False``: received envelopes are processed and
        due timers run. Returns when (Unix ms) the next cycle is due, ``None`` when nothing is planned."""
        self._owner.refuse_fork()
        if not self._started:
            return None
        return self._guard(self._cycle.run)

    def _run(self) -> None:
        me = threading.current_thread()
        while self._started and self._worker is me and self._fault is None:
            self._cycle.work.clear()
            try:
                due = self._cycle.run()
            except BaseException as error:  # whatever it is, a channel whose state is in doubt says so and stops
                self._fail(error)
                return
            with self._settled:
                self._settled.notify_all()
            wait_ms = MAX_REST_MS if due is None else due - now_ms(self._cycle.clock)
            if wait_ms > 0 and self._started:
                self._cycle.work.wait(min(wait_ms, MAX_REST_MS) / 1_000)

    def _fail(self, error: BaseException) -> None:
        """Stop the channel because its state could not be persisted, or a step did not end, and report that once."""
        if not isinstance(error, Exception):  # Ctrl-C in a send, sys.exit() in a callback: later calls must not exit
            error = EnvironmentFault(
                f"{type(error).__name__} interrupted channel {self.channel_id!r}.", "Close it, and create it again."
            )
        self._fault = error
        self._cycle.work.set()  # its thread ends
        _log.error("channel %s stopped: %s", self.channel_id, type(error).__name__)
        detail = str(error) if isinstance(error, EnvironmentFault) else type(error).__name__
        event = ChannelProblem(channel_id=self.channel_id, at=now_ms(self._cycle.clock), kind="stopped", detail=detail)
        with contextlib.suppress(Exception):
            self.message_events.emit(event)
        with self._settled:
            self._settled.notify_all()

    def _refuse_fault(self) -> None:
        if self._fault is not None:
            raise self._fault.with_traceback(None)  # or it would keep the frames of every call, messages included

    def _guard(self, action: Callable[[], T]) -> T:
        self._refuse_fault()
        try:
            return action()
        except LocalError:
            raise
        except BaseException as error:  # as in the worker; the caller's own mistakes have left above
            self._fail(error)
            raise


def _warn_of_unsent(cycle: ChannelCycle, owner: OwnerProcess) -> None:
    """Log that the process ends with sends that have not left, because nobody closed their channel."""
    if not owner.is_current:
        return
    with cycle.lock:
        unsent = sum(send.state is SendState.SENDING for send in cycle.machine.sends)
    if unsent:
        fate = "the next start sends them" if cycle.journal.keeps else "they are lost, as its state is in memory only"
        _log.warning(
            "channel %s was not closed when its process ended, and sends have not left (%d); %s."
            " Wait for them (flush, wait), then close it.",
            *(cycle.key.channel_id, unsent, fate),
        )
