"""Drives the state machine of a channel: applies inputs from node, store and application, persists them, and carries
out their effects, in an order that survives a crash.

One cycle: take received envelopes → apply → persist the inputs in one transaction → dispatch → call the application,
and record the reported events (:mod:`reliable_channel.channel.persistence.base` explains the order). ``step`` runs one
cycle; a worker thread, or a test, calls it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    ChunkInfo,
    EphemeralMessageDropped,
    MessageDelayed,
    MessageSendError,
    MessageSent,
    RateLimitApproached,
    SegmentQueued,
    SegmentSent,
)
from reliable_channel.channel.incoming import Arrivals, IncomingPipeline
from reliable_channel.channel.journal import Journal, apply_input, is_failure
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outgoing import OutgoingPipeline, StageReport
from reliable_channel.channel.persistence import ChannelKey, LabelledSend
from reliable_channel.channel.reports import ReportQueue
from reliable_channel.channel.retrieval import StoreEnvelopes, StoreFailure, StoreResult, StoreRetrieval, TimeRange
from reliable_channel.channel.sends import SendState
from reliable_channel.channel.steps import (
    Closing,
    Deliver,
    DispatchDone,
    DispatchFailed,
    Effect,
    Emit,
    Fetch,
    FetchRange,
    Input,
    Opened,
    SdsDispatch,
    SendRequested,
    StepResult,
    Ticked,
)
from reliable_channel.core.sds import Outgoing, OutgoingReason
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.transport.base import (
    FailureReason,
    HealthChanged,
    Node,
    NodeEvent,
    Queued,
    RateLimitNear,
    Received,
    RecordsGone,
    RequestId,
    SendDelayed,
    SendFailed,
    Sent,
)
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.store.model import is_message_hash

_log = logging.getLogger(__name__)

Result = Queued | SendDelayed | RateLimitNear | Sent | SendFailed | HealthChanged | RecordsGone | StoreFailure
"""A report of the node or a store other than an envelope."""

MAX_INPUTS_PER_CYCLE = 256
FAILED_TIMERS_WAIT_MS = 60_000
"""The wait after timers on which the machine failed, because they are still due."""
WITHOUT_HINT_RANGE_MS = 3_600_000
ATTEMPTS_NEARBY = 2
"""Queries of that range for a missing message; then it may be older, as under a rate limit, and all is asked for."""
RANGE_PAUSE_MS = 10_000
RANGE_PAUSE_SHARE = 0.1
"""The pause after a store query for the segments of overdue sets, as a share of the time it covered."""
CATCH_UP_MARGIN_MS = 60_000
"""A message may have been stored a little before the last one that was heard."""


class ChannelDriver:
    """One channel's cycle. All state is guarded by ``lock``. While it is held, the driver waits for the database only,
    never for the node, the store or the application."""

    def __init__(
        self,
        machine: ChannelMachine,
        key: ChannelKey,
        config: ReliableChannelConfig,
        node: Node,
        outgoing: OutgoingPipeline,
        incoming: IncomingPipeline,
        retrieval: StoreRetrieval,
        journal: Journal,
        clock: Clock,
        listeners: Dispatcher[ChannelEvent],
        wake: Callable[[], None],
    ) -> None:
        self.machine = machine
        self.outgoing = outgoing
        self.retrieval = retrieval
        self.lock = threading.RLock()
        self.space = threading.Condition(self.lock)
        self.labels: dict[str, dict[int, RequestId]] = {}
        self._key = key
        self._config = config
        self._node = node
        self._incoming = incoming
        self._journal = journal
        self._clock = clock
        self._wake = wake
        self._results: deque[Result] = deque()
        self.arrivals = Arrivals()
        self._effects: deque[Effect] = deque()
        self._planned_bytes = 0
        self._last_processing = 0
        self._draining = False
        self._last_range_without_hint = 0
        self._wanted_since: int | None = None
        self._range_pause_until = 0
        self.max_queued_bytes = config.max_queued_bytes
        self.send_timeout_ms = config.send_timeout_ms
        self._no_timers_until = 0
        self._rewound = False
        self._envelopes_per_epoch = 0
        """0 while the node has not said it."""
        self._warned_of_the_limit = False
        self.closed = False
        self.events = ReportQueue(journal, listeners, self.lock, wake)

    def now(self) -> int:
        """Unix ms."""
        return now_ms(self._clock)

    # ---- restoring -----------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Bring the machine to the state in which the last process left it, and report again the events that it had not
        recorded as reported. Raises ``ChangedConfigurationError`` and ``DamagedStore``."""
        self.events.restore(self._journal.restore())

    # ---- inputs, from any thread ---------------------------------------------------------------------------------

    def on_node_event(self, event: NodeEvent) -> None:
        """The node's listener: never blocks. A channel that falls behind drops envelopes; stores have them."""
        match event:
            case Received(envelope):
                if envelope.message.content_topic != self._key.content_topic:
                    return
                if not self.arrivals.offer(envelope):
                    return
            case _:
                self._results.append(event)
        self._wake()

    def on_store_result(self, result: StoreResult) -> None:
        """Take the envelopes that a store returned, or its failure."""
        if isinstance(result, StoreEnvelopes):
            with self.space:
                # A store may hold a day of a busy channel: its thread waits for this one, nothing is dropped.
                while self.retrieval.threaded and not self.retrieval.ended and self.arrivals.crowded:
                    self.space.wait(0.1)
            self.arrivals.put(result.envelopes)
        else:
            self._results.append(result)
        self._wake()

    def send(self, payload: bytes, label: str | None = None) -> str:
        """Segment the payload, apply SDS and persist the send (the machine runs the first two stages of
        :class:`OutgoingPipeline`). The worker encrypts and dispatches. Returns the ReliableSendId."""
        with self.lock:
            known = self._journal.labelled(label) if label is not None else None
            if known is not None:
                return self._send_again(known)
            outcome = apply_input(self.machine, SendRequested(self.now(), payload), self._journal.rewind)
            self._journal.commit([outcome], label)
            self._plan(outcome.effects)
        self._wake()
        return outcome.send_id

    def labelled(self, label: str) -> LabelledSend | None:
        return self._journal.labelled(label)

    def forget_label(self, label: str) -> None:
        with self.lock:
            self._journal.forget_label(label)

    def _send_again(self, known: LabelledSend) -> str:
        """Handle a label that was sent before: dispatch the same bytes again if the send failed, else do nothing."""
        send = self.machine.sends.get(known.send_id)
        if send is None or send.state is SendState.FAILED:
            for index, data in enumerate(known.segments):
                message = decode_sds_message(data, self.machine.sds_config.wire_family)
                if not isinstance(message, Malformed):
                    outgoing = Outgoing(data, message, OutgoingReason.RESEND, known.send_id, index, 1)
                    payload_hash = send.payload_hash if send is not None else ""
                    self._plan([SdsDispatch(outgoing, known.send_id, payload_hash, len(known.segments))])
            self._wake()
        return known.send_id

    def send_ephemeral(self, payload: bytes) -> str:
        with self.lock:
            dispatch = self.machine.send_ephemeral(payload, self.now())
            self._plan([dispatch])
        self._wake()
        return dispatch.sds_id

    def open(self) -> None:
        """Start: dispatch unacknowledged segments again, and query a store for what was missed."""
        with self.lock:
            now = self.now()
            last_active = self.machine.last_active
            self._take([Opened(now)])
            self._catch_up(last_active, now)
        self._wake()

    def _catch_up(self, last_active: int, now: int) -> None:
        if self._config.query_on_connect:
            start = max(last_active - CATCH_UP_MARGIN_MS, now - self._config.query_window_ms)
            self.retrieval.ask_range(TimeRange(start, now))

    # ---- one cycle -----------------------------------------------------------------------------------------------

    def step(self) -> int | None:
        """Run one cycle; returns when (Unix ms) the next one is due, ``None`` when nothing is planned."""
        with self.lock:
            now = self.now()
            outcomes = self._gather(now)
            self._journal.commit(outcomes)
            for outcome in outcomes:
                self._plan(outcome.effects)
            self._perform(now)
        self.events.dispatch()
        with self.lock:
            if self.closed:  # a callback closed the channel
                return None
            if self._rewound or self._journal.snapshot_due():
                self._rewound = False
                self.compact()
            return self._next_due(now)

    def _gather(self, now: int) -> list[StepResult]:
        """Apply timers, then dispatch results, then envelopes: a wait that just began must not look overdue."""
        outcomes: list[StepResult] = []
        due = self.machine.next_due()
        ticks = due is not None and max(due, self._no_timers_until) <= now
        if ticks and not self._apply(Ticked(now), outcomes):
            self._no_timers_until = now + FAILED_TIMERS_WAIT_MS
        for _ in range(min(len(self._results), MAX_INPUTS_PER_CYCLE)):
            given = self._result(self._results.popleft(), now)
            if given is not None:
                self._apply(given, outcomes)
        if self.arrivals and (self._draining or self._pause_over(now)):
            for _ in range(min(len(self.arrivals), MAX_INPUTS_PER_CYCLE)):
                heard = self._incoming.decrypt(self.arrivals.take(), now)
                if isinstance(heard, ChannelProblem):
                    self.events.emit(heard)
                elif heard is not None and not self._apply(heard, outcomes):
                    break  # one journal is read again in a cycle, not many
            self._draining = bool(self.arrivals)
            self._last_processing = now
        return outcomes

    def _apply(self, given: Input, outcomes: list[StepResult]) -> bool:
        """Apply an input and append its result; returns whether the machine could take it. If not, ``outcomes`` are
        persisted first, and the machine is rewound to the state after them."""

        def rewind() -> None:
            self._journal.commit(outcomes)
            outcomes[:] = [replace(outcome, keep=False) for outcome in outcomes]
            self._journal.rewind()
            self._rewound = True

        outcomes.append(apply_input(self.machine, given, rewind))
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

    def _pause_over(self, now: int) -> bool:
        return not 0 <= now - self._last_processing < self._config.process_task_min_elapse_ms

    def _note(self, news: StoreFailure | RecordsGone | HealthChanged | RateLimitNear, now: int) -> None:
        """Process what concerns no single dispatch."""
        match news:
            case StoreFailure():
                self.events.emit(self._problem("store_failed", news.detail, now))
            case RecordsGone():
                self.events.emit(self._problem("records_gone", str(news), now))
            case HealthChanged() if news.health.state is not HealthState.UNHEALTHY:
                self._catch_up(self.machine.last_active, now)
            case RateLimitNear(used, limit, until_ms):
                self._envelopes_per_epoch = limit
                self.events.emit(
                    RateLimitApproached(channel_id=self._key.channel_id, at=now, used=used, limit=limit, until=until_ms)
                )

    def _result(self, result: Result, now: int) -> Input | None:
        if isinstance(result, StoreFailure | RecordsGone | HealthChanged | RateLimitNear):
            self._note(result, now)
            return None
        if isinstance(result, Queued | SendDelayed):
            self._queued(result, now)
            return None
        dispatch = self.outgoing.in_flight.pop(result.request_id, None)
        if dispatch is None:
            return None
        own = dispatch.send_id is not None and not dispatch.ephemeral
        if isinstance(result, Sent):
            return self._sent(dispatch, result, own, now)
        if result.reason is FailureReason.DROPPED:
            self.events.emit(
                EphemeralMessageDropped(
                    channel_id=self._key.channel_id,
                    at=now,
                    message_id=dispatch.payload_hash,
                    utilization=result.utilization,
                )
            )
            return None
        if not own:
            if result.reason is FailureReason.STOPPED:
                return None
            self.events.emit(self._problem("dispatch_failed", f"{result.reason}: {result.detail}", now))
            if dispatch.ephemeral:
                return None
        elif result.reason is FailureReason.STOPPED:
            return None  # nothing went out: the segment stays in the outgoing buffer until the channel is opened again
        # One retry layer per fault. A node that retries has done so; one that does not leaves it to SDS.
        final = not result.retriable or bool(getattr(self._node, "retries_sends", False))
        return DispatchFailed(now, dispatch.sds_id, final, f"{result.reason}: {result.detail}"[:300])

    def _queued(self, result: Queued | SendDelayed, now: int) -> None:
        """Note that a segment waits outside this process."""
        dispatch = self.outgoing.in_flight.get(result.request_id)
        if dispatch is None or dispatch.send_id is None:
            return
        channel_id, index = self._key.channel_id, dispatch.outgoing.index
        send = self.machine.sends.get(dispatch.send_id)
        if send is not None:
            send.queued.add(index)
        if isinstance(result, Queued):
            self.events.emit(
                SegmentQueued(
                    channel_id=channel_id,
                    at=now,
                    request_id=dispatch.send_id,
                    message_id=dispatch.payload_hash,
                    sds_id=dispatch.sds_id,
                    chunk_info=ChunkInfo(index, dispatch.total),
                    node_request_id=result.request_id,
                )
            )
        elif dispatch.counts:
            self.events.emit(
                MessageDelayed(channel_id=channel_id, at=now, request_id=dispatch.send_id, until=result.until_ms)
            )
        if isinstance(result, SendDelayed):
            self._warn_of_a_slow_limit(now)

    def _warn_of_a_slow_limit(self, now: int) -> None:
        """Say once with numbers that what is sent takes epochs to leave."""
        waiting, limit = len(self.outgoing.in_flight), self._envelopes_per_epoch
        if self._warned_of_the_limit or not 0 < limit < waiting:
            return
        self._warned_of_the_limit = True
        detail = (
            f"{waiting} envelopes wait and {limit} may leave in an epoch: the last waits {-(-waiting // limit)} epochs"
        )
        self.events.emit(self._problem("slow_rate_limit", detail, now))

    def _sent(self, dispatch: SdsDispatch, result: Sent, own: bool, now: int) -> Input | None:
        if dispatch.send_id is not None:
            self._label(dispatch, result.request_id)
            self.events.emit(
                SegmentSent(
                    channel_id=self._key.channel_id,
                    at=now,
                    request_id=dispatch.send_id,
                    message_id=dispatch.payload_hash,
                    sds_id=dispatch.sds_id,
                    chunk_info=ChunkInfo(dispatch.outgoing.index, dispatch.total),
                    node_request_id=result.request_id,
                    message_hash=result.message_hash,
                )
            )
        if dispatch.ephemeral:
            self.events.emit(self._whole_sent(dispatch.sds_id, dispatch.payload_hash, now))
            return None
        return DispatchDone(now, dispatch.sds_id, result.message_hash, own)

    def _label(self, dispatch: SdsDispatch, request_id: RequestId) -> None:
        """Remember a segment's RequestId until its send is reported as sent; later retransmissions have no label."""
        send = self.machine.sends.get(dispatch.send_id or "")
        if dispatch.send_id is not None and (dispatch.ephemeral or (send is not None and not send.sent)):
            self.labels.setdefault(dispatch.send_id, {}).setdefault(dispatch.outgoing.index, request_id)

    def _whole_sent(self, send_id: str, payload_hash: str, now: int) -> MessageSent:
        labels = self.labels.pop(send_id, {})
        named = tuple((f"{send_id}:{index + 1}", str(request)) for index, request in sorted(labels.items()))
        return MessageSent(
            channel_id=self._key.channel_id, at=now, request_id=send_id, message_id=payload_hash, request_ids=named
        )

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
                        self._absorb(self.outgoing.push(effect, now))
                    case Emit(MessageSent() as sent):
                        self.events.enqueue(Emit(self._whole_sent(sent.request_id, sent.message_id, sent.at)))
                    case Deliver() | Emit():
                        if isinstance(effect, Emit) and isinstance(effect.event, MessageSendError):
                            self.labels.pop(effect.event.request_id, None)
                        self.events.enqueue(effect)
                    case Fetch():
                        self._fetch(effect, now)
                    case FetchRange():
                        self._want_range(effect)
            self._absorb(self.outgoing.pump(now))
            if not self._effects:
                self._ask_wanted_range(now)
                self.space.notify_all()
                return

    def _absorb(self, report: StageReport) -> None:
        """Emit the events of the stages, and apply the inputs that they report to the machine."""
        for event in report.events:
            self.events.emit(event)
        self._take(report.inputs)

    def _fetch(self, fetch: Fetch, now: int) -> None:
        if fetch.retrieval_hint is not None and is_message_hash(fetch.retrieval_hint):
            self.retrieval.ask_hash(fetch.retrieval_hint)
        elif now - self._last_range_without_hint >= self._config.sds.retrieve_frequency_ms:
            self._last_range_without_hint = now
            self.retrieval.ask_range(TimeRange(now - WITHOUT_HINT_RANGE_MS, now))
        if fetch.retrieval_hint is None and fetch.attempt > ATTEMPTS_NEARBY:
            self._want_range(FetchRange(now - self._config.query_window_ms))

    def _want_range(self, wanted: FetchRange) -> None:
        start = wanted.start_ms - CATCH_UP_MARGIN_MS
        self._wanted_since = start if self._wanted_since is None else min(start, self._wanted_since)

    def _ask_wanted_range(self, now: int) -> None:
        """Query the store for the time that overdue sets need, in one query for all. Anybody can open such sets: the
        pause after a query grows with the time it covered, so that all queries together cost ``1 / RANGE_PAUSE_SHARE``
        times the traffic of the channel at most."""
        if self._wanted_since is None or now < self._range_pause_until:
            return
        start = max(self._wanted_since, now - self._config.query_window_ms)
        self._wanted_since = None
        self._range_pause_until = now + max(RANGE_PAUSE_MS, round((now - start) * RANGE_PAUSE_SHARE))
        self.retrieval.ask_range(TimeRange(start, now))

    def acknowledge(self) -> bool:
        """Send the owed acknowledgement before the channel stops; returns whether there was one."""
        with self.lock:
            now = self.now()
            (outcome,) = self._take([Closing(now)])
            self._perform(now)
        return any(isinstance(effect, SdsDispatch) for effect in outcome.effects)

    def compact(self) -> None:
        """Replace the journal by a snapshot."""
        with self.lock:
            if not any(effect.report_key for effect in self._effects if isinstance(effect, Deliver | Emit)):
                self._journal.compact(self.events.unreported())

    def close(self, *, sound: bool) -> None:
        """Record what was reported and, when the state is ``sound``, take a snapshot. Nothing is stored after that."""
        with self.lock:
            self.events.close(sound=sound)
            if sound:
                self.compact()
            self.closed = True

    # ---- the rest ------------------------------------------------------------------------------------------------

    def _next_due(self, now: int) -> int | None:
        timers = self.machine.next_due()
        due = [None if timers is None else max(timers, self._no_timers_until), self.outgoing.next_due(now)]
        if self.arrivals:
            due.append(now if self._draining else self._last_processing + self._config.process_task_min_elapse_ms)
        if self._effects or self._results:
            due.append(now)
        if self._wanted_since is not None:
            due.append(self._range_pause_until)
        return min((at for at in due if at is not None), default=None)

    def backlog(self) -> int:
        """Bytes of sends that are kept and not yet given to the node."""
        return self.outgoing.queued_bytes + self._planned_bytes

    def _problem(self, kind: str, detail: str, now: int) -> ChannelProblem:
        return ChannelProblem(channel_id=self._key.channel_id, at=now, kind=kind, detail=detail)
