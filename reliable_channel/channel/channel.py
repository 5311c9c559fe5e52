"""An open reliable channel (RELIABLE-CHANNEL-API): the handle of the application, and the cycle that drives the state
machine.

One cycle: take received envelopes → apply → persist the inputs in one transaction → dispatch → call the application,
and record the reported events, in an order that survives a crash (:mod:`reliable_channel.channel.persistence.base`).
A worker thread, or a test by :meth:`ReliableChannel.step`, runs one cycle after the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, NewType, Self, TypeVar
from weakref import WeakSet

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.dispatch_reports import DispatchReport, DispatchReports
from reliable_channel.channel.encryption import ChannelEncryption
from reliable_channel.channel.errors import ChannelClosedError, ChannelNotStartedError
from reliable_channel.channel.event_stream import DEFAULT_QUEUE_EVENTS, EventStream
from reliable_channel.channel.events import (
    EVENT_NAMES,
    ChannelEvent,
    ChannelProblem,
    MessageDelivered,
    MessageDeliveryError,
    MessageReceived,
    MessageSendError,
    MessageSent,
)
from reliable_channel.channel.incoming import Arrivals, EnvelopeReader
from reliable_channel.channel.journal import Journal, apply_input, is_failure
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outgoing import OutgoingQueue
from reliable_channel.channel.persistence import ChannelKey, LabelledSend, Persistence
from reliable_channel.channel.reports import ReportQueue
from reliable_channel.channel.retrieval import (
    StoredHashes,
    StoreEnvelopes,
    StoreFailure,
    StoreQueries,
    StoreResult,
    StoreRetrieval,
)
from reliable_channel.channel.sends import SendState
from reliable_channel.channel.steps import (
    Closing,
    Effect,
    Fetch,
    FetchRange,
    Input,
    Opened,
    Report,
    SdsDispatch,
    SendRequested,
    StepResult,
    SyncWithdrawn,
    Ticked,
)
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.sds import Outgoing, OutgoingReason
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_sds_message
from reliable_channel.transport.base import (
    HealthChanged,
    Node,
    NodeEvent,
    Queued,
    RateLimitNear,
    Received,
    ReceivedEnvelope,
    RecordsGone,
    SendBufferFull,
    SendDelayed,
    SendFailed,
    Sent,
)
from reliable_channel.transport.clock import Clock, earliest, has_passed, now_ms
from reliable_channel.transport.dispatcher import Dispatcher, Listener
from reliable_channel.transport.forking import OwnerProcess
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.threads import join

_log = logging.getLogger(__name__)

T = TypeVar("T")

Result = DispatchReport | RateLimitNear | HealthChanged | RecordsGone | StoredHashes | StoreFailure
"""A report of the node or a store other than an envelope."""

MAX_INPUTS_PER_CYCLE = 256
FAILED_TIMERS_WAIT_MS = 60_000
"""The wait after timers on which the machine failed, because they are still due."""

ACKNOWLEDGE_TIMEOUT_S = 2.0
"""How long ``stop`` and ``close`` wait for the node to take the last acknowledgement."""

CLOSE_TIMEOUT_S = 60.0
"""How long a second ``close`` waits for the first."""

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
        node: Node,
        key: ChannelKey,
        config: ReliableChannelConfig,
        machine: ChannelMachine,
        persistence: Persistence,
        encryption: ChannelEncryption | None,
        *,
        clock: Clock,
        subscribe: Callable[[], None],
        unsubscribe: Callable[[], None],
        release: Callable[[], None],
        threaded: bool,
    ) -> None:
        self.channel_id = key.channel_id
        self.pubsub_topic = key.pubsub_topic
        self.content_topic = key.content_topic
        self.sender_id = key.sender_id
        self.message_events: Dispatcher[ChannelEvent] = Dispatcher("channel")
        self._node = node
        self._key = key
        self._config = config
        self._clock = clock
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._release = release
        self._threaded = threaded
        # ``_lock`` guards the state of the channel. While it is held, only the database is waited for, never the node,
        # the store or the application.
        self._lock = threading.RLock()
        self._space = threading.Condition(self._lock)
        self._work = threading.Event()
        self._machine = machine
        self._journal = Journal(machine, key, config, persistence)
        self._envelope_reader = EnvelopeReader(machine, key.pubsub_topic, encryption)
        self._arrivals = Arrivals()
        self._retrieval = StoreRetrieval(node, key.pubsub_topic, key.content_topic, threaded=threaded)
        self._retrieval.answered = self._on_store_result
        self._queries = StoreQueries(self._retrieval, config)
        self._report_queue = ReportQueue(self._journal, self.message_events, self._lock, self._work.set)
        self._outgoing = OutgoingQueue(key, node, encryption, self._report_queue.emit)
        self._dispatch_reports = DispatchReports(
            machine,
            self._outgoing,
            self._report_queue.emit,
            node_retries=lambda: bool(getattr(node, "retries_sends", False)),
        )
        self._results: deque[Result] = deque()
        self._effects: deque[Effect] = deque()
        self._planned_bytes = 0
        self._last_processing = 0
        self._draining = False
        self._no_timers_until = 0
        self._rewound = False
        # The life of the handle, guarded by ``_state``.
        self._state = threading.RLock()
        self._worker: threading.Thread | None = None
        self._last_worker: threading.Thread | None = None
        self._started = False
        self._owner = OwnerProcess()
        self._closed = False
        self._closing = False
        self._finished = False
        self._gone = threading.Event()
        self._fault: Exception | None = None
        self._settled = threading.Condition()
        self._streams: WeakSet[EventStream] = WeakSet()
        self._on_release: list[Callable[[], None]] = []
        # The state in which the last process left the channel, and the events that it had not recorded as reported.
        self._report_queue.restore(self._journal.restore())

    # ---- sending -----------------------------------------------------------------------------------------------------

    def send(self, message: bytes, *, label: str | None = None) -> ReliableSendId:
        """Send a message reliably. When this returns, the message is stored and survives the process.

        ``label``, such as the id of a table's row, names the send permanently: the same label, in this process or a
        later one, is the same message. It is not sent twice, unless the send failed: then the same bytes are sent
        again.

        Raises ``LocalError`` for what is not bytes, ``EmptyMessage``, ``MessageTooLarge`` (both sizes in its text),
        ``ChannelNotStartedError``, ``ChannelClosedError``, and ``SendBufferFull`` when ``max_queued_bytes`` wait for
        ``send_timeout_ms``."""
        self._check()
        payload = _check_send(message, label)
        self._await_space()
        return ReliableSendId(self._guard(lambda: self._submit(payload, label)))

    def send_ephemeral(self, message: bytes) -> ReliableSendId:
        """Send an untracked message of one segment at most. It is dropped near the rate limit, with an event. Raises as
        :meth:`send`."""
        self._check()
        payload = _check_send(message)
        return ReliableSendId(self._guard(lambda: self._submit_ephemeral(payload)))

    async def asend(self, message: bytes) -> ReliableSendId:
        """:meth:`send` for asyncio: the event loop keeps running while this waits for space."""
        return await asyncio.to_thread(self.send, message)

    def send_state(self, request_id: str) -> SendState | None:
        """The state of a send, also of an earlier process; ``None`` when it is unknown or long finished."""
        self._owner.refuse_fork()
        with self._lock:
            send = self._machine.sends.get(request_id)
            return send.state if send is not None else None

    def forget_label(self, label: str) -> None:
        """Forget a label, once the caller has stored its send elsewhere. Used again, it names a new message."""
        self._owner.refuse_fork()
        with self._lock:
            self._journal.forget_label(label)

    def find_send(self, label: str) -> LabelledSend | None:
        """The send of a label, with its segments as they are on the wire."""
        self._owner.refuse_fork()
        return self._journal.find_send(label)

    @property
    def wire_family(self) -> WireFamily:
        """The SDS family that this channel speaks."""
        return self._machine.sds_config.wire_family

    def request_ids(self, request_id: str) -> dict[str, str]:
        """The node's RequestIds of a send that is being dispatched, by label ``<request_id>:1`` to ``:N``."""
        self._owner.refuse_fork()
        with self._lock:
            labels = self._dispatch_reports.labels.get(request_id, {})
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
        ``False`` after the time-out, and if the channel stops or is closed before."""
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
            return not open_sends or self._fault is not None or self._gone.is_set()

        with self._settled:
            self._settled.wait_for(is_over, timeout_s)
        return not open_sends

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the node has reported on all pending dispatches, ephemeral messages included; ``False`` after the
        time-out, and if the channel stops before."""
        self._owner.refuse_fork()

        def is_over() -> bool:
            with self._lock:
                return self._fault is not None or not (self._count_backlog() or self._outgoing.in_flight)

        with self._settled:
            return self._settled.wait_for(is_over, timeout_s) and self._fault is None

    def _submit(self, payload: bytes, label: str | None) -> str:
        """Segment the payload, apply SDS and persist the send; the worker encrypts and dispatches. Returns the
        ReliableSendId."""
        with self._lock:
            self._check()  # again: it may have been closed meanwhile
            known = self._journal.find_send(label) if label is not None else None
            if known is not None:
                return self._send_again(known)
            outcome = apply_input(self._machine, SendRequested(self._now(), payload), self._journal.rewind)
            self._journal.commit([outcome], label)
            self._plan(outcome.effects)
        self._work.set()
        return outcome.send_id

    def _submit_ephemeral(self, payload: bytes) -> str:
        """Plan an untracked message; returns its SDS id."""
        with self._lock:
            self._check()
            dispatch = self._machine.send_ephemeral(payload, self._now())
            self._plan([dispatch])
        self._work.set()
        return dispatch.sds_id

    def _send_again(self, known: LabelledSend) -> str:
        """Handle a label that was sent before: dispatch the same bytes again if the send failed, else do nothing."""
        send = self._machine.sends.get(known.send_id)
        if not known.delivered and (send is None or send.failed):
            for index, data in enumerate(known.segments):
                message = decode_sds_message(data, self._machine.sds_config.wire_family)
                if not isinstance(message, Malformed):
                    outgoing = Outgoing(data, message, OutgoingReason.RESEND, known.send_id, index, 1)
                    payload_hash = send.payload_hash if send is not None else ""
                    self._plan([SdsDispatch(outgoing, known.send_id, payload_hash, len(known.segments))])
            self._work.set()
        return known.send_id

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
        with self._space:
            room = self._space.wait_for(
                lambda: self._count_backlog() < limit or not self._started or self._fault is not None, timeout
            )
        if not room:
            raise SendBufferFull(
                f"{limit} bytes of channel {self.channel_id!r} wait for the node since {timeout:g} s.",
                "Wait for them to be sent, or raise max_queued_bytes.",
            )
        self._check()

    def _count_backlog(self) -> int:
        """Bytes of sends that are kept and not yet given to the node."""
        return self._outgoing.queued_bytes + self._planned_bytes

    # ---- events ------------------------------------------------------------------------------------------------------

    def on(self, event: str | type[ChannelEvent], callback: Listener) -> Callable[[], None]:
        """Call ``callback(event)`` for every event of that name or class; returns a function that ends it. Callbacks
        run one at a time on the channel's thread; one that raises affects no other."""
        self._owner.refuse_fork()
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
        """A send could not be dispatched."""
        return self.on(MessageSendError, callback)

    def on_message_delivery_error(self, callback: Callable[[MessageDeliveryError], object]) -> Callable[[], None]:
        """A send was dispatched and not acknowledged."""
        return self.on(MessageDeliveryError, callback)

    def events(self, *kinds: str | type[ChannelEvent], limit: int = DEFAULT_QUEUE_EVENTS) -> EventStream:
        """``async for event in channel.events(MessageReceived)``: from now until the channel closes; all events when no
        kind is named. A reader more than ``limit`` events behind loses the oldest."""
        self._owner.refuse_fork()
        stream = EventStream(self.message_events, kinds, limit)
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

    def start(self) -> None:
        """Subscribe, resend unacknowledged messages, query a store for missed ones, run the timers. Starting twice does
        nothing. In a process that was forked from the one that opened the channel, this and every other call but
        ``close``, which does nothing there, raises ``ForkedError``."""
        self._owner.refuse_fork()
        with self._state:
            if self._closed:
                raise ChannelClosedError(f"Channel {self.channel_id!r} is closed.", "Create it again.")
            if self._started:
                return
            self._retrieval.start()
            self._node.add_listener(self._on_node_event)
            try:
                self._subscribe()
            except BaseException:
                self._node.remove_listener(self._on_node_event)
                self._retrieval.stop()
                raise
            self._started = True
            self._guard(self._open)
            if self._threaded:
                self._worker = threading.Thread(
                    target=self._run, name=f"reliable-channel-{self.channel_id}", daemon=True
                )
                self._last_worker = self._worker
                self._worker.start()

    def _open(self) -> None:
        """Start: dispatch unacknowledged segments again, and query a store for what was missed."""
        with self._lock:
            now = self._now()
            last_active = self._machine.last_active
            self._take([Opened(now)])
            self._queries.catch_up(last_active, now)
        self._work.set()

    def stop(self) -> None:
        """Acknowledge received messages, then end timers and subscription.

        Unacknowledged messages are kept and sent again at the next start. Waits up to ``ACKNOWLEDGE_TIMEOUT_S`` for the
        node to accept the acknowledgement. Stopping twice does nothing; from a callback, also one that a callback of
        this channel waits for, the thread ends when the callback returns."""
        self._owner.refuse_fork()
        if self._started and not self._closing and self._fault is None:
            self._closing = True
            self._acknowledge()
        with self._state:
            self._closing = False
            if not self._started:
                return
            self._started = False
            self._unsubscribe()
            self._node.remove_listener(self._on_node_event)
            worker, self._worker = self._worker, None
            self._work.set()
        self._retrieval.stop()
        if worker is not None:
            join(worker)
        with contextlib.suppress(Exception):  # _guard has recorded and reported it
            self._guard(self._keep_arrivals)
        with self._lock:
            self._outgoing.clear()

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
            self.stop()
            self._finish(sound=self._fault is None)
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
        self._owner.refuse_fork()
        with self._lock:
            return {
                **self._machine.summary(),
                "started": self._started,
                "queued_envelopes": self._outgoing.queued,
                "lost_envelopes": self._arrivals.lost,
            }

    def _acknowledge(self) -> None:
        """Send the owed acknowledgement and wait until the node has accepted it. A fault is reported, and the channel
        stops."""
        owed = False
        with contextlib.suppress(Exception):  # _guard has recorded and reported it
            owed = self._guard(self._send_acknowledgement)
        if owed and self._threaded and threading.current_thread() is not self._worker:
            self._work.set()
            self.flush(ACKNOWLEDGE_TIMEOUT_S)

    def _send_acknowledgement(self) -> bool:
        """Send the owed acknowledgement before the channel stops; returns whether there was one."""
        with self._lock:
            now = self._now()
            (outcome,) = self._take([Closing(now)])
            self._perform(now)
        return any(isinstance(effect, SdsDispatch) for effect in outcome.effects)

    def _keep_arrivals(self) -> None:
        """Apply and store what has arrived: the node will not bring it again. The application hears of it after the
        next start."""
        with self._lock:
            while self._arrivals and self._journal.keeps and not self._finished:
                self._draining = True
                self._apply_arrived(self._now())

    @staticmethod
    def _release_holds(envelopes: Iterable[ReceivedEnvelope]) -> None:
        """Let the node commit the offsets of envelopes that are stored, or will never be."""
        for envelope in envelopes:
            if envelope.hold is not None:
                envelope.hold.release()

    def _finish(self, *, sound: bool) -> None:
        """Record what was reported and, when the state is ``sound``, take a snapshot. Nothing is stored after that.
        What a channel with a fault holds is read again by the next process."""
        with self._lock:
            if sound:
                self._keep_arrivals()  # where another thread is stopping the channel
            self._report_queue.close(sound=sound)
            if sound:
                self._compact()
                while self._arrivals:  # of a channel without a journal
                    self._release_holds([self._arrivals.take()])
            self._finished = True

    # ---- the worker --------------------------------------------------------------------------------------------------

    def step(self) -> int | None:
        """Run one cycle in this thread, for channels made with ``threaded=False``: received envelopes are processed and
        due timers run. Returns when (Unix ms) the next cycle is due, ``None`` when nothing is planned."""
        self._owner.refuse_fork()
        if not self._started:
            return None
        if not self._retrieval.threaded:
            self._retrieval.run_pending()
        return self._guard(self._run_cycle)

    def _run(self) -> None:
        me = threading.current_thread()
        while self._started and self._worker is me:
            self._work.clear()
            try:
                due = self._run_cycle()
            except Exception as error:  # whatever it is, a channel whose state is in doubt says so and stops
                self._fail(error)
                return
            except BaseException as error:  # sys.exit() in a callback would end this thread without a word
                self._fail(RuntimeError(f"A callback raised {type(error).__name__}."))
                return
            with self._settled:
                self._settled.notify_all()
            wait_ms = 1_000 if due is None else due - self._now()
            if wait_ms > 0 and self._started:
                self._work.wait(min(wait_ms, 1_000) / 1_000)

    def _fail(self, error: Exception) -> None:
        """Stop the channel because its state could not be persisted, and report that once."""
        self._fault = error
        _log.error("channel %s stopped: %s", self.channel_id, type(error).__name__)
        detail = str(error) if isinstance(error, EnvironmentFault) else type(error).__name__
        event = ChannelProblem(channel_id=self.channel_id, at=self._now(), kind="stopped", detail=detail)
        with contextlib.suppress(Exception):
            self.message_events.emit(event)
        with self._settled:
            self._settled.notify_all()

    def _guard(self, action: Callable[[], T]) -> T:
        if self._fault is not None:
            raise self._fault.with_traceback(None)  # or it would keep the frames of every call, messages included
        try:
            return action()
        except LocalError:
            raise
        except Exception as error:  # as in the worker; the caller's own mistakes have left above
            self._fail(error)
            raise

    def _now(self) -> int:
        """Unix ms."""
        return now_ms(self._clock)

    # ---- what node and store report, from any thread -----------------------------------------------------------------

    def _on_node_event(self, event: NodeEvent) -> None:
        """The node's listener: never blocks. A channel that falls behind drops envelopes; stores have them."""
        match event:
            case Received(envelope):
                if envelope.message.content_topic != self._key.content_topic:
                    return
                if envelope.hold is not None:
                    envelope.hold.take()
                if not self._arrivals.offer(envelope):
                    self._release_holds([envelope])
                    return
            # Every channel of a node hears of every envelope. With hundreds of channels, waking all of them for each
            # took minutes of CPU.
            case Sent(message=message):
                if message.content_topic != self._key.content_topic:  # those of this topic may also be in a store
                    return
                self._results.append(replace(event, message=replace(message, payload=b"")))
                if not self._outgoing.may_await(event.request_id):
                    return
            case Queued() | SendDelayed() | SendFailed() if not self._outgoing.may_await(event.request_id):
                return
            case _:
                self._results.append(event)
        self._work.set()

    def _on_store_result(self, result: StoreResult) -> None:
        """Take the envelopes that a store returned, or its failure."""
        if isinstance(result, StoreEnvelopes):
            with self._space:
                # A store may hold a day of a busy channel: its thread waits for this one, nothing is dropped.
                while self._retrieval.threaded and not self._retrieval.ended and self._arrivals.is_crowded:
                    self._space.wait(0.1)
            self._arrivals.put(result.envelopes)
        else:
            self._results.append(result)
        self._work.set()

    # ---- one cycle ---------------------------------------------------------------------------------------------------

    def _run_cycle(self) -> int | None:
        """Run one cycle; returns when (Unix ms) the next one is due, ``None`` when nothing is planned."""
        with self._lock:
            if self._finished:  # a thread that another one waits for in vain
                return None
            now = self._now()
            self._apply_arrived(now)
            self._withdraw_outdated(now)
        self._report_queue.dispatch()
        with self._lock:
            if self._finished:  # a callback closed the channel
                return None
            if self._rewound or self._journal.snapshot_due():
                self._rewound = False
                self._compact()
            return self._next_due(now)

    def _apply_arrived(self, now: int) -> None:
        """Apply what is due and what has arrived, store it, and carry the effects out."""
        taken: list[ReceivedEnvelope] = []
        outcomes = self._gather(now, taken)
        self._journal.commit(outcomes)
        self._release_holds(taken)
        for outcome in outcomes:
            self._plan(outcome.effects)
        self._perform(now)

    def _gather(self, now: int, taken: list[ReceivedEnvelope]) -> list[StepResult]:
        """Apply timers, then dispatch results, then envelopes, which are appended to ``taken``: a wait that just began
        must not look overdue."""
        outcomes: list[StepResult] = []
        due = self._machine.next_due()
        if is_set_back := self._machine.is_ahead_of(now):
            self._no_timers_until = 0
            self._queries.follow_clock(now)
        ticks = is_set_back or (due is not None and max(due, self._no_timers_until) <= now)
        if ticks and not self._apply(Ticked(now), outcomes):
            self._no_timers_until = now + FAILED_TIMERS_WAIT_MS
        for _ in range(min(len(self._results), MAX_INPUTS_PER_CYCLE)):
            given = self._read_result(self._results.popleft(), now)
            if given is not None:
                self._apply(given, outcomes)
        if self._arrivals and (self._draining or self._is_pause_over(now)):
            for _ in range(min(len(self._arrivals), MAX_INPUTS_PER_CYCLE)):
                envelope = self._arrivals.take()
                taken.append(envelope)
                self._queries.note_hash(envelope.message_hash, now)
                received = self._envelope_reader.decrypt(envelope, now)
                if isinstance(received, ChannelProblem):
                    self._report_queue.emit(received)
                elif received is not None and not self._apply(received, outcomes):
                    break  # one journal is read again in a cycle, not many
            self._draining = bool(self._arrivals)
            self._last_processing = now
        return outcomes

    def _read_result(self, result: Result, now: int) -> Input | None:
        """Emit the events of a report; returns the input for the state machine, if any."""
        match result:
            case StoredHashes():
                self._queries.fetch_unknown(result)
            case StoreFailure():
                self._report_queue.emit(self._problem("store_failed", result.detail, now))
            case RecordsGone():
                self._report_queue.emit(self._problem("records_gone", str(result), now))
            case HealthChanged():
                if result.health.state is not HealthState.UNHEALTHY:
                    self._queries.catch_up(self._machine.last_active, now)
            case RateLimitNear():
                self._dispatch_reports.approach_limit(result, now)
            case _:
                if isinstance(result, Sent):
                    self._queries.note_hash(result.message_hash, now)
                return self._dispatch_reports.apply(result, now)
        return None

    def _apply(self, given: Input, outcomes: list[StepResult]) -> bool:
        """Apply an input and append its result; returns whether the machine could take it. If not, ``outcomes`` are
        persisted first, and the machine is rewound to the state after them."""

        def rewind() -> None:
            self._journal.commit(outcomes)
            outcomes[:] = [replace(outcome, keep=False) for outcome in outcomes]
            self._journal.rewind()
            self._rewound = True

        outcomes.append(apply_input(self._machine, given, rewind))
        return not is_failure(outcomes[-1])

    def _take(self, inputs: Iterable[Input]) -> list[StepResult]:
        """Apply inputs, persist them, and plan their effects."""
        outcomes: list[StepResult] = []
        for given in inputs:
            self._apply(given, outcomes)
        self._journal.commit(outcomes)
        for outcome in outcomes:
            self._plan(outcome.effects)
        return outcomes

    def _is_pause_over(self, now: int) -> bool:
        return has_passed(self._config.process_task_min_elapse_ms, self._last_processing, now)

    def _plan(self, effects: Iterable[Effect]) -> None:
        """Queue effects for this cycle or the next."""
        for effect in effects:
            self._effects.append(effect)
            if isinstance(effect, SdsDispatch):
                self._planned_bytes += len(effect.outgoing.data)

    def _perform(self, now: int) -> None:
        while True:
            while self._effects:
                effect = self._effects.popleft()
                match effect:
                    case SdsDispatch():
                        self._planned_bytes -= len(effect.outgoing.data)
                        self._take(self._outgoing.push(effect, now))
                    case Report(MessageSent() as sent):
                        self._report_queue.enqueue(
                            Report(self._dispatch_reports.complete(sent.request_id, sent.message_id, sent.at))
                        )
                    case Report(event):
                        if isinstance(event, MessageSendError):
                            self._dispatch_reports.labels.pop(event.request_id, None)
                        self._report_queue.enqueue(effect)
                    case Fetch():
                        self._queries.fetch(effect, now)
                    case FetchRange():
                        self._queries.want_range(effect.start_ms)
            self._take(self._outgoing.pump(now))
            if not self._effects:
                self._queries.run_due(now)
                self._space.notify_all()
                return

    def _withdraw_outdated(self, now: int) -> None:
        """Take back retransmissions and sync messages that wait for the rate limit and would say nothing new when it is
        their turn."""
        delayed = self._outgoing.delayed
        for request_id, outgoing in list(delayed.items()):
            is_sync = outgoing.reason is OutgoingReason.SYNC
            if is_sync and len(delayed) > 1:
                continue  # a new one would go to the end of the queue
            if self._machine.sds.is_outdated(outgoing, now) and self._node.withdraw(request_id):
                del delayed[request_id]
                self._outgoing.in_flight.pop(request_id, None)
                if is_sync:
                    self._take([SyncWithdrawn(now)])
                    self._perform(now)

    def _compact(self) -> None:
        """Replace the journal by a snapshot."""
        with self._lock:
            if not any(effect.key for effect in self._effects if isinstance(effect, Report)):
                self._journal.compact(self._report_queue.list_unreported())

    def _next_due(self, now: int) -> int | None:
        timers = self._machine.next_due()
        due = [
            None if timers is None else max(timers, self._no_timers_until),
            self._outgoing.next_due(now),
            self._queries.next_due(),
        ]
        if self._arrivals:
            due.append(now if self._draining else self._last_processing + self._config.process_task_min_elapse_ms)
        if self._effects or self._results:
            due.append(now)
        return earliest(*due)

    def _problem(self, kind: str, detail: str, now: int) -> ChannelProblem:
        return ChannelProblem(channel_id=self._key.channel_id, at=now, kind=kind, detail=detail)
