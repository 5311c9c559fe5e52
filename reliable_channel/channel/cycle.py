"""Runs a channel's state machine: takes what has arrived, applies and stores it, and carries the effects out.

One cycle: take received envelopes → apply → persist the inputs in one transaction → dispatch → call the application,
and record the reported events, in an order that survives a crash (:mod:`reliable_channel.channel.persistence.base`).
Everything here is guarded by one lock. It has no thread of its own: the handle
(:mod:`reliable_channel.channel.channel`) runs one cycle after the other.
"""

from __future__ import annotations

import datetime as dt
import json
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from itertools import islice

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.encryption import ChannelEncryption
from reliable_channel.channel.events import EVENT_CLASSES, ChannelEvent, ChannelProblem, MessageSendError, MessageSent
from reliable_channel.channel.incoming import Arrivals, EnvelopeReader
from reliable_channel.channel.journal import Journal, apply_input, is_failure
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outgoing import DispatchReport, OutgoingQueue
from reliable_channel.channel.persistence import ChannelKey, LabelledSend, Persistence
from reliable_channel.channel.reports import ReportQueue
from reliable_channel.channel.retrieval import (
    LongAbsence,
    StoreCheck,
    StoreFailure,
    StoreQueries,
    StoreRetrieval,
)
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
from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds import Outgoing, OutgoingReason
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.transport.base import (
    Node,
    RateLimitNear,
    ReceivedEnvelope,
    RecordsGone,
)
from reliable_channel.transport.clock import Clock, earliest, has_passed, now_ms
from reliable_channel.transport.dispatcher import Dispatcher

Result = DispatchReport | RateLimitNear | RecordsGone | StoreFailure | LongAbsence
"""A report of the node or a store other than an envelope."""

MAX_INPUTS_PER_CYCLE = 256
"""Envelopes that one cycle takes. Further ones wait until the inputs of these are stored and their events reported."""
MAX_LOOKED_AT_PER_CYCLE = 100
"""Retransmissions that wait for the rate limit and are looked at in one cycle. After a restart all that waits is among
them, perhaps many thousands."""
FAILED_TIMERS_WAIT_MS = 60_000
"""The wait after timers on which the machine failed, because they are still due."""


class ChannelCycle:
    """The state of one channel and what drives it. ``message_events`` are called with its events; ``work`` is set when
    there is something for a cycle to do.

    ``lock`` guards everything. While it is held, only the database is waited for, never the node, the store or the
    application. ``space`` is notified when envelopes have left the queues."""

    def __init__(
        self,
        node: Node,
        key: ChannelKey,
        config: ReliableChannelConfig,
        machine: ChannelMachine,
        persistence: Persistence,
        encryption: ChannelEncryption | None,
        retrieval: StoreRetrieval,
        check: StoreCheck,
        *,
        clock: Clock,
        threaded: bool,
    ) -> None:
        self.node = node
        self.key = key
        self.config = config
        self.clock = clock
        self.message_events: Dispatcher[ChannelEvent] = Dispatcher("channel", EVENT_CLASSES)
        self.work = threading.Event()
        self.lock = threading.RLock()
        self.space = threading.Condition(self.lock)
        self.machine = machine
        self.plain_family = machine.sds_config.wire_family if encryption is None else None
        """The family in which the ids of the channel's messages can be read, ``None`` if it encrypts."""
        self.journal = Journal(machine, key, config, persistence)
        self._envelope_reader = EnvelopeReader(machine, key.pubsub_topic, encryption)
        self.arrivals = Arrivals()
        self.threaded = threaded
        self.listens = False
        """Whether the channel is started: it takes what a store has."""
        self.heard_at = 0
        """When (Unix ms) an envelope of another channel on the topic was heard: until then this one missed nothing."""
        self._persistence = persistence
        self._unsure_since_name = f"unsure_since {json.dumps(astuple(key))}"
        kept = persistence.get(self._unsure_since_name)
        self.unsure_since = self._kept_unsure_since = int(kept) if kept else None
        """Since when (Unix ms) something that a store has may have been missed before the channel stopped, or its
        process was killed."""
        self.retrieval = retrieval
        self._check = check
        self._queries = StoreQueries(retrieval, config)
        self._report_queue = ReportQueue(self.journal, self.message_events, self.lock, self.work.set)
        self.outgoing = OutgoingQueue(key, node, machine, encryption, self._report_queue.emit)
        self._results: deque[Result] = deque()
        self._effects: deque[Effect] = deque()
        self._planned_bytes = 0
        self._last_processing = 0
        self._draining = False
        """Whether more has arrived than one cycle takes, so that the next one follows without a pause."""
        self._no_timers_until = 0
        self._rewound = False
        """Whether a snapshot is due because the journal was replayed: the next fault would replay it again."""
        # The state in which the last process left the channel, and the events that it had not recorded as reported.
        self._report_queue.restore(self.journal.restore())

    # ---- what the handle asks for ------------------------------------------------------------------------------------

    def submit(self, payload: bytes, label: str | None) -> str:
        """Segment the payload, apply SDS and persist the send; the next cycle encrypts and dispatches. Returns the
        ReliableSendId."""
        with self._change_state():
            known = self.journal.find_send(label) if label is not None else None
            if known is not None:
                return self._send_again(known)
            outcome = apply_input(self.machine, SendRequested(self._now(), payload), self.journal.rewind)
            self.journal.commit([outcome], label)
            self._plan(outcome.effects)
        self.work.set()
        return outcome.send_id

    def submit_ephemeral(self, payload: bytes) -> str:
        """Plan an untracked message; returns its SDS id."""
        with self._change_state():
            dispatch = self.machine.send_ephemeral(payload, self._now())
            self._plan([dispatch])  # not journalled: it changes no state, and is not repeated after a crash
        self.work.set()
        return dispatch.sds_id

    @contextmanager
    def _change_state(self) -> Iterator[None]:
        """Hold the lock. If the block does not end, the state may hold what is stored nowhere, and no cycle runs on it
        any more; the caller's own mistakes change nothing."""
        with self.lock:
            try:
                yield
            except LocalError:
                raise
            except BaseException:
                self._report_queue.close(sound=False)
                raise

    def _send_again(self, known: LabelledSend) -> str:
        """Handle a label that was sent before: dispatch the same bytes again if the send failed, else do nothing."""
        send = self.machine.sends.get(known.send_id)
        if not known.delivered and (send is None or send.failed):
            for index, data in enumerate(known.segments):
                message = decode_sds_message(data, self.machine.sds_config.wire_family)
                if not isinstance(message, Malformed):
                    outgoing = Outgoing(data, message, OutgoingReason.RESEND, known.send_id, index, 1)
                    payload_hash = send.payload_hash if send is not None else ""
                    self._plan([SdsDispatch(outgoing, known.send_id, payload_hash, len(known.segments))])
            self.work.set()
        return known.send_id

    @property
    def backlog(self) -> int:
        """Bytes of sends that are kept and not yet given to the node."""
        return self.outgoing.queued_bytes + self._planned_bytes

    def open(self) -> None:
        """Start: dispatch unacknowledged segments again, and query a store for what was missed."""
        with self.lock:
            now = self._now()
            is_set_back = self.machine.is_ahead_of(now)
            self._take([Opened(now)])
        # By a clock that was set back nobody knows since when the channel was away.
        self.catch_up(0 if is_set_back else self.unsure_since)
        with self.lock:
            self._follow_check()
        self.work.set()

    def run(self) -> int | None:
        """Run one cycle; returns when (Unix ms) the next one is due, ``None`` when nothing is planned."""
        if not self.threaded:
            self.retrieval.run_pending()
        with self.lock:
            if self._report_queue.closed:  # a thread that another one waits for in vain
                return None
            now = self._now()
            self._follow_check()  # first: what arrives counts as a sign that nothing before it was missed
            self._apply_arrived(now)
            self._withdraw_outdated(now)
        # Without the lock: callbacks call this channel from other threads too, and take as long as they like.
        self._report_queue.dispatch()
        with self.lock:
            if self._report_queue.closed:  # a callback closed the channel
                return None
            if self._rewound or self.journal.snapshot_due():
                self._rewound = False
                self._compact()
            return self._next_due(now)

    def acknowledge(self) -> bool:
        """Send the owed acknowledgement before the channel stops; returns whether there was one."""
        with self._change_state():
            now = self._now()
            (outcome,) = self._take([Closing(now)])
            self._perform(now)
        return any(isinstance(effect, SdsDispatch) for effect in outcome.effects)

    def await_reports(self, timeout_s: float) -> None:
        """Wait until the node has reported on all that is in flight. For a callback, during which no cycle takes the
        reports: whoever closes its channel there may stop the node next, which then sends nothing more."""
        end = time.monotonic() + timeout_s
        while not self._is_all_reported() and (left := end - time.monotonic()) > 0:
            self.work.wait(left)
            self.work.clear()

    def _is_all_reported(self) -> bool:
        reported = {each.request_id for each in tuple(self._results) if isinstance(each, DispatchReport)}
        return self.outgoing.in_flight.keys() <= reported

    def stop(self) -> None:
        """Store what has arrived, and forget which envelopes wait or are in flight: the machine still knows them. With
        a durable backend the next start sends the segments among them again, so the node gives back what waits."""
        with self.lock:
            try:
                self._keep_arrivals()
                self.machine.last_active = max(self.machine.last_active, self.heard_at)
                self.heard_at = 0
                self._keep_unsure_since()
                if self.journal.keeps:
                    self.outgoing.withdraw_segments()
            finally:
                self.outgoing.clear()

    def finish(self, *, sound: bool) -> None:
        """Record what was reported and, when the state is ``sound``, take a snapshot. Nothing is stored after that.
        What a channel with a fault holds is read again by the next process."""
        with self.lock:
            if sound:
                self._keep_arrivals()  # where another thread is stopping the channel
            self._report_queue.close(sound=sound)
            if sound:
                self._compact()
                while self.arrivals:  # of a channel without a journal
                    self._release_holds([self.arrivals.take()])

    # ---- what node and store report, from any thread -----------------------------------------------------------------

    def offer(self, envelope: ReceivedEnvelope) -> bool:
        """Take an envelope of the node: never blocks. A channel that falls behind drops it, and returns ``False``:
        stores have it."""
        if envelope.hold is not None:
            envelope.hold.take()  # or Kafka's offset is committed past what only this process has
        accepted = self.arrivals.offer(envelope)
        if not accepted:
            self._release_holds([envelope])
        self.work.set()
        return accepted

    def put_stored(self, envelopes: list[ReceivedEnvelope]) -> bool:
        """Take envelopes of a store; ``False``: the channel is stopping. A store may hold a day of a busy channel: its
        thread waits for this one, and nothing is dropped."""
        with self.space:
            while self.threaded and self.listens and self.arrivals.is_crowded:
                self.space.wait(0.1)  # not for ever: nobody notifies when it stops listening
            if self.listens:
                self.arrivals.put(envelopes)
        self.work.set()
        return self.listens

    def catch_up(self, away_since: int | None = None) -> None:
        """Query a store for what was missed, if the configuration wants that: since the last activity, or since the
        node was away (Unix ms), if that is earlier."""
        now = self._now()
        last_active = max(self.machine.last_active, self.heard_at)
        since = last_active if away_since is None else min(last_active, away_since)
        absence = self._queries.catch_up(self._check, since, now)
        if absence is not None and (away_since is None or away_since < absence.start_ms):
            self.report(absence)  # else the node was there, and nobody sent anything

    def report(self, result: Result) -> None:
        """Take a report of the node or of a store, unless it is on an envelope of another channel: never blocks."""
        if isinstance(result, DispatchReport) and not self.outgoing.may_await(result.request_id):
            return
        self._results.append(result)
        self.work.set()

    # ---- inside a cycle ----------------------------------------------------------------------------------------------

    def _apply_arrived(self, now: int) -> None:
        """Apply what is due and what has arrived, store it, and carry the effects out."""
        taken: list[ReceivedEnvelope] = []
        outcomes = self._gather(now, taken)
        self._store(outcomes)
        self._release_holds(taken)
        self._perform(now)

    def _follow_check(self) -> None:
        """Take over since when something may have been missed."""
        since = self._check.unsure_since
        if self.listens:  # what came since it stopped listening was not taken
            self.unsure_since = since
            self._keep_unsure_since()

    def _keep_unsure_since(self) -> None:
        """Store ``unsure_since`` for the next start, also of a process that is killed."""
        since = self.unsure_since
        if self.journal.keeps and self.config.query_on_connect and since != self._kept_unsure_since:
            self._persistence.put(self._unsure_since_name, b"" if since is None else b"%d" % since)
            self._kept_unsure_since = since

    def _keep_arrivals(self) -> None:
        """Apply and store what has arrived: the node will not bring it again. The application hears of it after the
        next start."""
        while self.arrivals and self.journal.keeps and not self._report_queue.closed:
            self._draining = True
            self._apply_arrived(self._now())

    @staticmethod
    def _release_holds(envelopes: Iterable[ReceivedEnvelope]) -> None:
        """Let the node commit the offsets of envelopes that are stored, or will never be."""
        for envelope in envelopes:
            if envelope.hold is not None:
                envelope.hold.release()

    def _gather(self, now: int, taken: list[ReceivedEnvelope]) -> list[StepResult]:
        """Apply timers, then dispatch results, then envelopes, which are appended to ``taken``: a wait that just began
        must not look overdue."""
        outcomes: list[StepResult] = []
        due = self.machine.next_due()
        if is_set_back := self.machine.is_ahead_of(now):
            self._no_timers_until = 0
            self.heard_at = min(self.heard_at, now)
            self._queries.follow_clock(now)
            self._check.follow_clock(now)
        ticks = is_set_back or (due is not None and max(due, self._no_timers_until) <= now)
        if ticks and not self._apply(Ticked(now), outcomes):
            self._no_timers_until = now + FAILED_TIMERS_WAIT_MS
        for _ in range(min(len(self._results), MAX_INPUTS_PER_CYCLE)):
            given = self._read_result(self._results.popleft(), now)
            if given is not None:
                self._apply(given, outcomes)
        pause_ms = self.config.process_task_min_elapse_ms
        if self.arrivals and (self._draining or has_passed(pause_ms, self._last_processing, now)):
            for _ in range(min(len(self.arrivals), MAX_INPUTS_PER_CYCLE)):
                envelope = self.arrivals.take()
                taken.append(envelope)
                received = self._envelope_reader.decrypt(envelope, now)
                if isinstance(received, ChannelProblem):
                    self._report_queue.emit(received)
                elif received is not None and not self._apply(received, outcomes):
                    break  # one journal is read again in a cycle, not many
            self._draining = bool(self.arrivals)
            self._last_processing = now
        return outcomes

    def _read_result(self, result: Result, now: int) -> Input | None:
        """Emit the events of a report; returns the input for the state machine, if any."""
        match result:
            case StoreFailure():
                self._report_queue.emit(self._make_problem("store_failed", result.detail, now))
            case LongAbsence():
                self._report_queue.emit(self._make_problem("long_absence", _describe_absence(result), now))
            case RecordsGone():
                self._report_queue.emit(self._make_problem("records_gone", str(result), now))
            case RateLimitNear():
                self.outgoing.approach_limit(result, now)
            case _:
                return self.outgoing.take_report(result, now)
        return None

    def _apply(self, given: Input, outcomes: list[StepResult]) -> bool:
        """Apply an input and append its result; returns whether the machine could take it. If not, ``outcomes`` are
        persisted first, and the machine is rewound to the state after them."""

        def rewind() -> None:
            self.journal.commit(outcomes)
            outcomes[:] = [replace(outcome, keep=False) for outcome in outcomes]
            self.journal.rewind()
            self._rewound = True

        outcomes.append(apply_input(self.machine, given, rewind))
        return not is_failure(outcomes[-1])

    def _take(self, inputs: Iterable[Input]) -> list[StepResult]:
        """Apply inputs, persist them, and plan their effects."""
        outcomes: list[StepResult] = []
        for given in inputs:
            self._apply(given, outcomes)
        self._store(outcomes)
        return outcomes

    def _store(self, outcomes: list[StepResult]) -> None:
        """Persist inputs, and then plan their effects."""
        self.journal.commit(outcomes)
        for outcome in outcomes:
            self._plan(outcome.effects)

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
                        self._take(self.outgoing.push(effect, now))
                    case Report(MessageSent() as sent):
                        self._report_queue.enqueue(
                            Report(self.outgoing.complete(sent.request_id, sent.message_id, sent.at))
                        )
                    case Report(event):
                        if isinstance(event, MessageSendError):
                            self.outgoing.labels.pop(event.request_id, None)
                        self._report_queue.enqueue(effect)
                    case Fetch():
                        self._queries.fetch(effect, now)
                    case FetchRange():
                        self._queries.want_range(effect.start_ms)
            self._take(self.outgoing.pump(now))
            if not self._effects:
                self._queries.run_due(now)
                self._check.run_due(now)
                self.space.notify_all()
                return

    def _withdraw_outdated(self, now: int) -> None:
        """Take back retransmissions and sync messages that wait for the rate limit and would say nothing new when it is
        their turn."""
        delayed = self.outgoing.delayed
        for request_id, outgoing in list(islice(delayed.items(), MAX_LOOKED_AT_PER_CYCLE)):
            delayed.move_to_end(request_id)  # the others in the next cycles
            is_sync = outgoing.reason is OutgoingReason.SYNC
            if is_sync and len(delayed) > 1:
                continue  # a new one would go to the end of the queue
            if self.machine.sds.is_outdated(outgoing, now) and self.node.withdraw(request_id):
                del delayed[request_id]
                self.outgoing.in_flight.pop(request_id, None)
                if is_sync:
                    self._take([SyncWithdrawn(now)])
                    self._perform(now)

    def _compact(self) -> None:
        """Replace the journal by a snapshot, unless it would lack reports that no listener was given yet."""
        if not any(effect.key for effect in self._effects if isinstance(effect, Report)):
            self.journal.compact(self._report_queue.list_unreported())

    def _next_due(self, now: int) -> int | None:
        timers = self.machine.next_due()
        due = [
            None if timers is None else max(timers, self._no_timers_until),
            self.outgoing.next_due(now),
            self._queries.next_due(),
            self._check.due,
        ]
        if self.arrivals:
            due.append(now if self._draining else self._last_processing + self.config.process_task_min_elapse_ms)
        if self._effects or self._results:
            due.append(now)
        return earliest(*due)

    def _make_problem(self, kind: str, detail: str, now: int) -> ChannelProblem:
        return ChannelProblem(channel_id=self.key.channel_id, at=now, kind=kind, detail=detail)

    def _now(self) -> int:
        """Unix ms."""
        return now_ms(self.clock)


def _describe_absence(absence: LongAbsence) -> str:
    """What stores are not asked for, with times in UTC."""
    last_active, start = (
        dt.datetime.fromtimestamp(ms // 1000, dt.UTC).isoformat() for ms in (absence.last_active_ms, absence.start_ms)
    )
    return (
        f"the last envelope came or left at {last_active}; stores are asked for what was sent from {start} on"
        " (query_window_ms), and of what was sent before that only for what later messages name"
    )
