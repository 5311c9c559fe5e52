"""Sends messages: connects the send service, the records and the transport (MESSAGING-API, *Send*).

An attempt is passed to the transport without holding a lock; its result arrives as an event, on another thread or at
once. Retries of one round keep the bytes, so that a peer can answer *duplicate*. A timestamp set by this node is
renewed only if no attempt is in doubt: stores refuse timestamps more than 20 s off, and gossip forgets equal bytes
after two minutes (14/WAKU2-MESSAGE).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from reliable_channel.core.errors import (
    EmptyMessage,
    LocalError,
    MessageTooLarge,
    ReliableChannelError,
)
from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, message_hash
from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.messaging.idempotency import IdempotencyKey
from reliable_channel.messaging.ledger import Ledger
from reliable_channel.messaging.pipeline_feed import Feed
from reliable_channel.messaging.records import NOT_STORED, MessageRecord, shorten
from reliable_channel.messaging.requests import PENDING, StoredRequest
from reliable_channel.messaging.send_service import (
    ACCEPTED,
    RETRY_DELAYS_MS,
    AttemptResult,
    RequestProgress,
    RequestState,
    SendService,
    result_of,
)
from reliable_channel.messaging.sender_events import SenderEventKind, make_sender_event
from reliable_channel.transport.base import (
    FailureReason,
    Node,
    NodeEvent,
    Queued,
    RequestId,
    SendBufferFull,
    SendDelayed,
    SendFailed,
    Sent,
)
from reliable_channel.transport.clock import Clock, Timestamps
from reliable_channel.transport.envelopes import check_envelope
from reliable_channel.transport.node import new_request_id

STALE_MS = 10_000
"""Half of what stores tolerate: older stamps are renewed before an attempt when nothing is in doubt."""

GOSSIP_MEMORY_MS = 120_000
"""After this time equal bytes are no longer recognised as duplicates, so keeping them has no use."""

EARLY_BYTES = 16 * 1024 * 1024
"""The bytes of the reports that wait until the transport has returned from ``send``; the oldest go first."""

RESENDS = len(RETRY_DELAYS_MS)
"""How often a message that no store has is sent again, a store query apart (MESSAGING-API, *Retry*: three retries, also
where the acknowledgement is what is missing)."""

Announce: TypeAlias = Callable[[NodeEvent], None]

End: TypeAlias = Sent | SendFailed


class PendingLimitError(SendBufferFull):
    """As many requests, or bytes of them, are pending as the configuration allows: the network does not accept them as
    fast as they are made."""


class MessageSender:
    """The requests of one node. ``announce`` passes their events to the port's listeners: ``Queued``, ``SendDelayed``,
    ``Sent`` and ``SendFailed``."""

    def __init__(
        self,
        config: MessagingConfig,
        ledger: Ledger,
        transport: Node,
        clock: Clock,
        feed: Feed,
        announce: Announce,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._transport = transport
        self._timestamps = Timestamps(clock)
        self._feed = feed
        self._announce = announce
        self._service = SendService(config.max_in_flight, config.attempt_timeout_ms)
        self._attempts: dict[str, str] = {}
        """The transport's ids of the attempts under way → the request ids of this node."""
        self._early: deque[Queued | SendDelayed | End] = deque()
        """Reports that arrived while the transport's ``send`` ran, of which one may have returned their ids."""
        self._early_bytes = 0
        self._handing_over = 0
        """How many threads are in the transport's ``send``."""
        self._traffic: dict[str, Traffic] = {}
        """Of pending requests, where it is not the usual one; a restart forgets it."""
        self._attempts_lock = threading.Lock()
        self._taken: deque[tuple[RequestProgress, MessageRecord]] = deque()
        """Attempts that are recorded and not yet handed to the transport."""
        self.dispatching = False
        """Whether a worker calls :meth:`dispatch_due`; only then is a new request attempted at once."""
        self._restore()

    # -- what callers do ----------------------------------------------------------------------------------------

    def submit(
        self,
        message: WakuMessage,
        pubsub_topic: str,
        key: IdempotencyKey | None = None,
        traffic: Traffic = Traffic.FIRST_SEGMENT,
        drain: bool = True,
    ) -> RequestId:
        """Record and schedule one envelope, and its first attempt where there is room, in one transaction.

        With a ``key`` that was used before, it does nothing and returns the earlier request id. A timestamp of 0 counts
        as none. ``drain``: see ``Ledger.step``. Raises as ``check_envelope``, ``EmptyMessage``,
        :class:`PendingLimitError`, and ``KeyReusedError``."""
        check_envelope(message, pubsub_topic)
        if not message.payload:
            raise EmptyMessage("The payload is empty.", "Nodes refuse envelopes without a payload.")
        own_stamp = not message.timestamp
        if own_stamp:
            message = replace(message, timestamp=self._timestamps.next_ns())
        request_id = new_request_id()
        with self._ledger.step(drain=drain):
            known = self._ledger.keys.find(key, self._ledger.now()) if key is not None else None
            if known is not None:
                return RequestId(known)
            if len(self._service) >= self._config.max_pending_requests:
                raise PendingLimitError(
                    f"{self._config.max_pending_requests} send requests are pending.", "Try again later."
                )
            record = self._ledger.add(
                MessageRecord(
                    message,
                    sending=True,
                    request_id=request_id,
                    message_hash=message_hash(pubsub_topic, message),
                    pubsub_topic=pubsub_topic,
                )
            )
            if self._ledger.records.is_full and len(self._service):
                raise PendingLimitError(
                    f"{self._config.max_record_bytes} bytes of send requests are pending.", "Try again later."
                )
            stored = StoredRequest(request_id, record.record_id, own_stamp=own_stamp)
            self._ledger.requests.add(stored, bool(message.ephemeral))
            if key is not None:
                self._ledger.keys.keep(key, request_id, self._ledger.now())
            self._report(SenderEventKind.QUEUED, record)
            self._service.submit(request_id)
            self._ledger.run_if_lost(lambda: self._service.cancel(request_id))
            if traffic is not Traffic.FIRST_SEGMENT:
                self._traffic[request_id] = traffic
            due = self._take_due() if self.dispatching else []
        self._taken.extend(due)
        return request_id

    def cancel(self, request_id: str, *, announced: bool = True) -> bool:
        """Cancel a pending request, and announce its end; False when there is none."""
        with self._ledger.step(drain=announced):
            request = self._service.find(request_id)
            if request is None:
                return False
            self._service.cancel(request_id)
            self._ledger.run_if_lost(lambda: self._schedule_again(request, in_doubt=True))
            self._ledger.requests.update(request_id, state=RequestState.CANCELLED.value)
            self._traffic.pop(request_id, None)
            record = self._ledger.records.by_request_id(request_id)
            if record is not None:
                record = self._ledger.update(record, sending=False, queued=False)
                self._report(SenderEventKind.DROPPED, record, "cancelled")
                failed = SendFailed(
                    RequestId(request_id), FailureReason.REFUSED, "cancelled", self._ledger.now(), record.message_hash
                )
                if announced:
                    self._ledger.run_after(lambda: self._announce(failed))
        return True

    def withdraw(self, request_id: str) -> bool:
        """Cancel a request that waits here or for the transport's rate limit, without an event; False for one that has
        ended, or waits in Kafka for a bridge."""
        with self._ledger.hold_lock():
            request = self._service.find(request_id)
        if request is None:
            return False
        inner = request.attempt
        if inner is not None and self._transport.withdraw(inner):
            with self._attempts_lock:
                self._attempts.pop(inner, None)
        elif request.state is RequestState.QUEUED:
            return False
        return self.cancel(request_id, announced=False)

    def retry(self, request_id: str) -> bool:
        """Send a failed or cancelled request again, a whole round; False for any other."""
        with self._ledger.step():
            stored = self._ledger.requests.find(request_id)
            if stored is None or stored.state not in (RequestState.FAILED, RequestState.CANCELLED):
                return False
            return self._resume(stored)

    def resend(self, request_id: str) -> None:
        """Send a message again that the queried store does not have. After :data:`RESENDS` times its record gets an
        error instead."""
        with self._ledger.step():
            stored = self._ledger.requests.find(request_id)
            record = self._ledger.records.by_request_id(request_id)
            if stored is None or record is None or stored.state != RequestState.SENT or stored.resent > RESENDS:
                return
            self._ledger.requests.update(request_id, resent=stored.resent + 1)
            if stored.resent == RESENDS:
                error = f"{NOT_STORED}: no store has it after it was sent {RESENDS + 1} times"
                record = self._ledger.update(record, error=error, failed=True)
                self._report(SenderEventKind.NOT_STORED, record, error)
                return
            self._report(SenderEventKind.RESENT, record, "not found in the store")
            self._resume(stored)

    def pending(self) -> list[RequestId]:
        """The ids of all pending requests."""
        with self._ledger.hold_lock():
            return [RequestId(request_id) for request_id in self._service.pending()]

    # -- what time and health do --------------------------------------------------------------------------------

    def set_usable(self, usable: bool) -> None:
        """Note a change from or to *unhealthy*: retries resume or pause, and ``sending`` shows it."""
        with self._ledger.step():
            self._ledger.run_if_lost(lambda: self._service.set_usable(not usable))
            for request_id in self._service.set_usable(usable):
                record = self._ledger.records.by_request_id(request_id)
                if record is not None and record.sending != usable:
                    self._ledger.update(record, sending=usable)

    def dispatch_due(self) -> None:
        """Attempt all due requests."""
        self._hand_over_taken()
        late = "unreachable: the transport did not answer in time"
        for request_id in self._list_overdue():
            self._finish(request_id, AttemptResult(FailureReason.UNREACHABLE, late, in_doubt=True))
        while self._is_due():
            with self._ledger.step():
                due = self._take_due()
            if not due:
                break
            self._taken.extend(due)
            self._hand_over_taken()

    def next_due(self) -> int | None:
        """When to call :meth:`dispatch_due` next, in Unix ms; 0 is at once, None is after the next event."""
        with self._ledger.hold_lock():
            return 0 if self._taken else self._service.next_due()

    def on_transport(self, event: Queued | SendDelayed | End) -> None:
        """Process the transport's report of an attempt, finally its result. A report that arrives before ``send`` has
        returned the id waits for it."""
        with self._attempts_lock:
            request_id = self._attempts.get(event.request_id)
            if request_id is None:
                if self._handing_over:
                    self._early.append(event)
                    self._early_bytes += _count_bytes(event)
                    while self._early_bytes > EARLY_BYTES:
                        self._early_bytes -= _count_bytes(self._early.popleft())
                return
            if isinstance(event, End):
                del self._attempts[event.request_id]
        self._take(request_id, event)

    def _take(self, request_id: str, event: Queued | SendDelayed | End) -> None:
        match event:
            case Sent():
                self._finish(request_id, ACCEPTED, event.message)
            case SendFailed():
                self._finish(request_id, result_of(event))
            case _:
                self._wait(request_id, event)

    # -- one attempt --------------------------------------------------------------------------------------------

    def _list_overdue(self) -> list[str]:
        with self._ledger.hold_lock():
            late = self._service.list_overdue(self._ledger.now())
        if late:
            # Their answers, should they still come, belong to no attempt.
            with self._attempts_lock:
                self._attempts = {inner: own for inner, own in self._attempts.items() if own not in late}
        return late

    def _is_due(self) -> bool:
        with self._ledger.hold_lock():
            due = self._service.next_due()
            return due is not None and due <= self._ledger.now()

    def _take_due(self) -> list[tuple[RequestProgress, MessageRecord]]:
        """Note everything that may be attempted now as in flight; within a step."""
        due = []
        while (request := self._service.take(self._ledger.now())) is not None:
            record = self._ledger.records.by_request_id(request.request_id)
            stored = self._ledger.requests.find(request.request_id)
            if record is None or stored is None:
                self._service.cancel(request.request_id)
                continue
            self._ledger.run_if_lost(partial(self._schedule_again, request, in_doubt=request.in_doubt))
            record = self._stamp(record, request, stored)
            self._ledger.requests.update(request.request_id, retries=max(request.retries, 0), in_doubt=request.in_doubt)
            due.append((request, record))
        return due

    def _hand_over_taken(self) -> None:
        while self._taken:
            request, record = self._taken.popleft()
            with self._ledger.hold_lock():
                if self._service.find(request.request_id) is not request:
                    continue  # cancelled meanwhile
                self._service.begin_attempt(request, self._ledger.now())
            self._hand_over(request, record)

    def _stamp(self, record: MessageRecord, request: RequestProgress, stored: StoredRequest) -> MessageRecord:
        """The record with the envelope as it is to be dispatched now."""
        age_ms = self._ledger.now() - (record.message.timestamp or 0) // 1_000_000
        # Of the future: the clock was set back.
        if not stored.own_stamp or abs(age_ms) < (GOSSIP_MEMORY_MS if request.in_doubt else STALE_MS):
            return record
        message = replace(record.message, timestamp=self._timestamps.next_ns())
        request.in_doubt = False  # no attempt has sent these bytes
        return self._ledger.update(record, message=message, message_hash=message_hash(record.pubsub_topic, message))

    def _hand_over(self, request: RequestProgress, record: MessageRecord) -> None:
        request_id = request.request_id
        inner: RequestId | None = None
        early: list[Queued | SendDelayed | End] = []
        with self._attempts_lock:
            self._handing_over += 1
        try:
            # Without a lock: `send` may wait for room, and its result may come on another thread before it returns.
            traffic = self._traffic.get(request_id, Traffic.FIRST_SEGMENT)
            inner = request.attempt = self._transport.send(record.message, record.pubsub_topic, traffic=traffic)
        except MessageTooLarge as error:
            self._finish(request_id, AttemptResult(FailureReason.TOO_LARGE, f"too_large: {error.cause}"))
        except LocalError as error:
            self._finish(request_id, AttemptResult(FailureReason.UNREACHABLE, f"not sent: {error.cause}"))
        except (ReliableChannelError, OSError) as error:
            self._finish(request_id, AttemptResult(FailureReason.UNREACHABLE, f"not sent: {shorten(str(error))}"))
        finally:
            with self._attempts_lock:
                self._handing_over -= 1
                early += (event for event in self._early if event.request_id == inner)
                if inner is not None and not any(isinstance(event, End) for event in early):
                    self._attempts[inner] = request_id
                if not self._handing_over:
                    self._early.clear()
                    self._early_bytes = 0
        for event in early:
            self._take(request_id, event)

    def _wait(self, request_id: str, event: Queued | SendDelayed) -> None:
        """Note that an attempt waits outside this node, without a time-out."""
        with self._ledger.step():
            record = self._ledger.records.by_request_id(request_id)
            news = self._service.note_queued(request_id)
            if record is None:
                return
            if news:
                self._ledger.update(record, queued=True)
            if isinstance(event, SendDelayed):
                until = f"held back until {event.until_ms} ms"
                self._report(SenderEventKind.RATE_LIMITED, record, until)
            own_event = replace(event, request_id=RequestId(request_id))
            self._ledger.run_after(lambda: self._announce(own_event))

    def _finish(self, request_id: str, outcome: AttemptResult, dispatched: WakuMessage | None = None) -> None:
        now = self._ledger.now()
        with self._ledger.step():
            verdict = self._service.outcome(request_id, outcome, now)
            if verdict in (RequestState.SENT, RequestState.FAILED):
                # Nothing records the end then. Another attempt has an end as well, if only that of a duplicate.
                self._ledger.run_if_lost(lambda: self._service.reschedule(request_id, now, in_doubt=True))
            self._store_outcome(request_id, outcome, verdict, dispatched, now)

    def _store_outcome(
        self,
        request_id: str,
        outcome: AttemptResult,
        verdict: RequestState | None,
        dispatched: WakuMessage | None,
        now: int,
    ) -> None:
        record = self._ledger.records.by_request_id(request_id)
        if record is None:
            return
        if dispatched is not None and dispatched != record.message:
            # A bridge stamps anew what has waited: the record, and store queries, follow what went out.
            dispatched_hash = message_hash(record.pubsub_topic, dispatched)
            record = self._ledger.update(record, message=dispatched, message_hash=dispatched_hash)
        if verdict is not RequestState.WAITING:
            self._traffic.pop(request_id, None)
        if verdict is None:
            if outcome.reason is None and not record.sent and not record.sending:
                self._note_sent(record, now)  # cancelled, and too late
        elif verdict is RequestState.SENT:
            self._note_sent(record, now)
        elif verdict is RequestState.WAITING:
            self._note_delayed(record, outcome)
        else:
            self._note_failed(record, outcome, now)

    def _note_sent(self, record: MessageRecord, now: int) -> None:
        first = not record.sent
        record = self._ledger.update(record, sending=False, queued=False, sent=True, error=None)
        request_id = RequestId(str(record.request_id))
        self._ledger.requests.update(request_id, state=RequestState.SENT.value, sent_ms=now)
        self._report(SenderEventKind.SENT, record)
        if first:
            event = Sent(request_id, record.message, record.pubsub_topic, record.message_hash, now)
            self._ledger.run_after(lambda: self._announce(event))

    def _note_delayed(self, record: MessageRecord, outcome: AttemptResult) -> None:
        request = self._service.find(str(record.request_id))
        if request is None:
            return
        self._ledger.requests.update(request.request_id, retries=max(request.retries, 0), in_doubt=request.in_doubt)
        record = self._ledger.update(
            record,
            sending=not self._service.is_halted(request.request_id),
            queued=False,
            error=outcome.error,
            failed=True,
        )
        limited = outcome.reason is FailureReason.RATE_LIMITED
        self._report(SenderEventKind.RATE_LIMITED if limited else SenderEventKind.DELAYED, record, outcome.error)

    def _note_failed(self, record: MessageRecord, outcome: AttemptResult, now: int) -> None:
        record = self._ledger.update(record, sending=False, queued=False, error=outcome.error, failed=True)
        request_id = RequestId(str(record.request_id))
        # A message that was sent before, and failed only when it was sent once more, has been sent.
        state = RequestState.SENT if record.sent else RequestState.FAILED
        self._ledger.requests.update(request_id, state=state.value)
        self._report(SenderEventKind.NOT_STORED if record.sent else SenderEventKind.FAILED, record, outcome.error)
        if not record.sent:
            reason = outcome.reason or FailureReason.UNREACHABLE
            event = SendFailed(request_id, reason, outcome.error, now, record.message_hash, outcome.utilization)
            self._ledger.run_after(lambda: self._announce(event))

    # -- helpers ------------------------------------------------------------------------------------------------

    def _resume(self, stored: StoredRequest) -> bool:
        record = self._ledger.records.by_request_id(stored.request_id)
        if record is None:
            return False
        self._ledger.requests.update(stored.request_id, state=PENDING, retries=0, in_doubt=False)
        self._service.reschedule(stored.request_id, self._ledger.now())
        self._ledger.run_if_lost(lambda: self._service.cancel(stored.request_id))
        self._ledger.update(record, sending=not self._service.is_halted(stored.request_id))
        return True

    def _schedule_again(self, request: RequestProgress, *, in_doubt: bool) -> None:
        """Schedule the attempt of a request whose change was not stored."""
        self._service.cancel(request.request_id)
        self._service.reschedule(request.request_id, self._ledger.now(), request.retries - 1, in_doubt)

    def _restore(self) -> None:
        """Continue the requests of an earlier process, except those of channels, which send their segments again
        themselves; requests that were in flight then may have been sent."""
        with self._ledger.step():
            for stored in self._ledger.requests.pending():
                record = self._ledger.records.by_request_id(stored.request_id)
                if record is not None and record.message.meta == RELIABLE_CHANNEL_META:
                    self._ledger.requests.update(stored.request_id, state=RequestState.CANCELLED.value)
                    self._ledger.update(record, sending=False, queued=False)
                    continue
                if stored.retries < 0:
                    self._service.submit(stored.request_id)
                    continue
                self._service.reschedule(stored.request_id, self._ledger.now(), stored.retries - 1, in_doubt=True)
                sending = not self._service.is_halted(stored.request_id)
                if record is not None and (record.queued or record.sending != sending):
                    self._ledger.update(record, sending=sending, queued=False)

    def _report(self, kind: SenderEventKind, record: MessageRecord, detail: str = "") -> None:
        event = make_sender_event(kind, self._ledger.now(), record, shorten(detail))
        self._ledger.run_after(lambda: self._feed.record(event))


def _count_bytes(event: Queued | SendDelayed | End) -> int:
    """Bytes of an event in memory, nearly."""
    return 500 + (event.message.size if isinstance(event, Sent) else 0)
