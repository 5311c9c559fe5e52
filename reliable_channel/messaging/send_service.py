"""Schedules sends (MESSAGING-API, *Send*): chooses the next request, and applies the result of each attempt.

A pure state machine over request ids: time (Unix ms) is the argument ``now``, the caller of :meth:`SendService.take`
makes the attempts, records are stored elsewhere. What follows an attempt depends on the peer's answer, on whether an
earlier attempt is *in doubt* (a time-out or 5xx: the peer may have accepted it), and on how many retries are left
(MESSAGING-API, *Retry*); :data:`TRANSITIONS` has the states that may follow each other.

Order: fresh requests first, in the order of submission; then retries that are due, the most recently scheduled first.
Retries stop while the node is unhealthy; a fresh request still gets its initial attempt, whose response then explains
why it waits.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from itertools import dropwhile

from reliable_channel.transport.base import FailureReason, RequestId, SendFailed

RETRY_DELAYS_MS = (1_000, 2_000, 4_000)
"""Waits before the first, second and third retry."""

SLEPT_MS = 90_000
"""A longer time (ms) without a look at the time-outs was a sleep of the process or its machine. A transport's ``send``,
which may wait 60 s for room, takes less."""


class RequestState(StrEnum):
    """The state of a request. The last three are final."""

    FRESH = "fresh"
    IN_FLIGHT = "in_flight"
    QUEUED = "queued"
    """Passed on, and not accepted by a node yet: it waits in Kafka for a bridge, or for the rate limit. No time-out."""
    WAITING = "waiting"
    """A retry is scheduled. It is halted while the node is unhealthy."""
    SENT = "sent"
    FAILED = "failed"
    CANCELLED = "cancelled"


TRANSITIONS: dict[RequestState, frozenset[RequestState]] = {
    RequestState.FRESH: frozenset({RequestState.IN_FLIGHT, RequestState.CANCELLED}),
    RequestState.IN_FLIGHT: frozenset(
        {
            RequestState.QUEUED,
            RequestState.WAITING,
            RequestState.SENT,
            RequestState.FAILED,
            RequestState.CANCELLED,
        }
    ),
    RequestState.QUEUED: frozenset(
        {RequestState.WAITING, RequestState.SENT, RequestState.FAILED, RequestState.CANCELLED}
    ),
    RequestState.WAITING: frozenset({RequestState.IN_FLIGHT, RequestState.CANCELLED}),
    RequestState.SENT: frozenset(),
    RequestState.FAILED: frozenset(),
    RequestState.CANCELLED: frozenset(),
}
"""Each state, and those that may follow it; what would lead elsewhere is ignored. A request begins as fresh, or as
waiting where it is resumed."""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt. ``reason``: why it failed, ``None`` when it was accepted; ``error``: the same as a
    short text for the record. ``in_doubt``: there was no answer, or a fault while answering (time-out, 5xx), so that
    the message may be on the network all the same. ``utilization`` is that of ``SendFailed``."""

    reason: FailureReason | None = None
    error: str = ""
    in_doubt: bool = False
    utilization: float = 0.0


ACCEPTED = AttemptResult()

_FINAL = frozenset({FailureReason.REFUSED, FailureReason.TOO_LARGE, FailureReason.DROPPED})
"""The same bytes fail again (400, 413, 421 …)."""


def result_of(event: SendFailed) -> AttemptResult:
    """The result of an attempt that the transport reports as failed."""
    error = f"{event.reason}: {event.detail}" if event.detail else str(event.reason)
    return AttemptResult(event.reason, error, event.reason is FailureReason.UNREACHABLE, event.utilization)


def decide(reason: FailureReason | None, retries_made: int, in_doubt: bool) -> RequestState:
    """The next state of a request after an attempt with this result and ``retries_made`` retries (0 for the initial
    attempt). ``in_doubt``: whether an earlier attempt was."""
    if reason is None or (reason is FailureReason.DUPLICATE and in_doubt):
        return RequestState.SENT
    if reason is FailureReason.STOPPED:  # it never reached a peer: no retry was made
        return RequestState.WAITING
    if reason in _FINAL or retries_made >= len(RETRY_DELAYS_MS):
        return RequestState.FAILED
    return RequestState.WAITING


@dataclass(slots=True)
class RequestProgress:
    """One send operation. ``retries`` counts retries made in this round; ``in_doubt``: an attempt with the
    current bytes may have reached the network unacknowledged. ``attempt``: the transport's id of the latest one."""

    request_id: str
    state: RequestState
    retries: int = 0
    in_doubt: bool = False
    scheduled: int = 0
    deadline_ms: int = 0
    attempt: RequestId | None = None


class SendService:
    """The pending requests of one node. Not thread-safe: the node calls it under its lock."""

    def __init__(self, max_in_flight: int, attempt_timeout_ms: int) -> None:
        self._max_in_flight = max_in_flight
        self._attempt_timeout_ms = attempt_timeout_ms
        self._requests: dict[str, RequestProgress] = {}
        self._fresh: deque[str] = deque()
        self._timers: list[tuple[int, int, str]] = []
        """A heap of scheduled retries: when (ms), the number of the scheduling, the request. The latest number of a
        request counts, since a heap cannot remove."""
        self._due: list[tuple[int, str]] = []
        """A heap of those whose time has come, by negated number: the most recently scheduled first."""
        self._in_flight: dict[str, RequestProgress] = {}
        self._scheduled = 0
        self._now = 0
        self._usable = False

    def submit(self, request_id: str) -> None:
        """Schedule a new request."""
        self._requests[request_id] = RequestProgress(request_id, RequestState.FRESH)
        self._fresh.append(request_id)

    def reschedule(self, request_id: str, now: int, retries: int = -1, in_doubt: bool = False) -> None:
        """Put a finished request, or one that an earlier process left pending, among the retries, due at once.

        ``retries=-1`` begins a new round: one attempt and three retries. Ignored when the request is pending.
        """
        if request_id not in self._requests:
            request = RequestProgress(request_id, RequestState.WAITING, retries=retries, in_doubt=in_doubt)
            self._requests[request_id] = request
            self._schedule(request, now)

    def cancel(self, request_id: str) -> bool:
        """Cancel a request; returns whether it was pending. The answer to an attempt in flight is then ignored."""
        request = self._requests.get(request_id)
        return request is not None and self._move(request, RequestState.CANCELLED)

    def set_usable(self, usable: bool) -> list[str]:
        """Note a change from or to *unhealthy*; returns the ids whose retries paused or resumed."""
        if usable == self._usable:
            return []
        self._usable = usable
        return [one.request_id for one in self._requests.values() if one.state is RequestState.WAITING]

    def is_halted(self, request_id: str) -> bool:
        """Whether a request waits for a retry while the node is unhealthy."""
        request = self._requests.get(request_id)
        return request is not None and request.state is RequestState.WAITING and not self._usable

    def take(self, now: int) -> RequestProgress | None:
        """The request to attempt next, now in flight, or None."""
        if len(self._in_flight) >= self._max_in_flight:
            return None
        request = self._next_fresh() or (self._next_retry(now) if self._usable else None)
        if request is None:
            return None
        if request.state is RequestState.WAITING:
            request.retries += 1
        self.begin_attempt(request, now)
        self._move(request, RequestState.IN_FLIGHT)
        return request

    def begin_attempt(self, request: RequestProgress, now: int) -> None:
        """Note that the attempt is passed to the transport now: its time-out begins."""
        request.deadline_ms = now + self._attempt_timeout_ms

    def note_queued(self, request_id: str) -> bool:
        """Note that the attempt in flight waits outside this node; returns whether that is new."""
        request = self._requests.get(request_id)
        return request is not None and self._move(request, RequestState.QUEUED)

    def outcome(self, request_id: str, outcome: AttemptResult, now: int) -> RequestState | None:
        """Apply an attempt's result to its request; returns its new state, None when it is neither in flight nor queued
        (cancelled, or answered twice)."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        state = decide(outcome.reason, max(request.retries, 0), request.in_doubt)
        if now < request.deadline_ms:  # else it is a time-out, not an answer
            self._renew_behind(request, now)
        if not self._move(request, state):
            return None
        request.in_doubt = request.in_doubt or outcome.in_doubt
        if state is RequestState.WAITING:
            delay_ms = RETRY_DELAYS_MS[min(max(request.retries, 0), len(RETRY_DELAYS_MS) - 1)]
            self._schedule(request, now + delay_ms)
        return state

    def _move(self, request: RequestProgress, state: RequestState) -> bool:
        """Change a request's state if :data:`TRANSITIONS` allow that; returns whether they do."""
        if state not in TRANSITIONS[request.state]:
            return False
        request.state = state
        self._in_flight.pop(request.request_id, None)
        if state is RequestState.IN_FLIGHT:
            self._in_flight[request.request_id] = request
        elif not TRANSITIONS[state]:
            del self._requests[request.request_id]
        return True

    def _renew_behind(self, answered: RequestProgress, now: int) -> None:
        # A transport sends one after the other: what it got after an answered attempt had to wait for that one, and may
        # not be tried yet. What it got before is not renewed, because its answer may be lost.
        behind = dropwhile(lambda request: request is not answered, self._in_flight.values())
        for request in behind:
            request.deadline_ms = max(request.deadline_ms, now + self._attempt_timeout_ms)

    def list_overdue(self, now: int) -> list[str]:
        """Attempts that the transport has not answered within the attempt time-out. Call it regularly: it follows a
        clock that was set back, and a sleep does not count, in which no answer could be heard."""
        self._follow_clock(now)
        return [request.request_id for request in self._in_flight.values() if request.deadline_ms <= now]

    def find(self, request_id: str) -> RequestProgress | None:
        """A pending request."""
        return self._requests.get(request_id)

    def __len__(self) -> int:
        """The number of pending requests."""
        return len(self._requests)

    def pending(self) -> list[str]:
        """The ids of all pending requests, in the order in which they became pending."""
        return list(self._requests)

    def next_due(self) -> int | None:
        """When :meth:`take` or :meth:`list_overdue` may next return something, in ms; 0 for at once; None when idle."""
        free = len(self._in_flight) < self._max_in_flight
        if free and (self._fresh or (self._due and self._usable)):
            return 0
        times = [request.deadline_ms for request in self._in_flight.values()]
        if free and self._usable and self._timers:
            times.append(self._timers[0][0])
        return min(times, default=None)

    def _follow_clock(self, now: int) -> None:
        """Move all times with a clock that was set back: nothing would be due until it is as late again. After a sleep
        move the time-outs."""
        back, self._now = (self._now or now) - now, now
        if back > 0 or back < -SLEPT_MS:
            for request in self._requests.values():
                request.deadline_ms -= back
        if back > 0:
            self._timers = [(due - back, scheduled, request_id) for due, scheduled, request_id in self._timers]

    def _schedule(self, request: RequestProgress, due_ms: int) -> None:
        self._scheduled += 1
        request.scheduled = self._scheduled
        # Timers of requests that ended would stay until they are due.
        if len(self._timers) > 2 * len(self._requests) + 1_000:
            self._timers = [timer for timer in self._timers if timer[2] in self._requests]
            heapq.heapify(self._timers)
        heapq.heappush(self._timers, (due_ms, request.scheduled, request.request_id))

    def _next_fresh(self) -> RequestProgress | None:
        while self._fresh:
            request = self._requests.get(self._fresh.popleft())
            if request is not None and request.state is RequestState.FRESH:
                return request
        return None

    def _next_retry(self, now: int) -> RequestProgress | None:
        while self._timers and self._timers[0][0] <= now:
            _, scheduled, request_id = heapq.heappop(self._timers)
            heapq.heappush(self._due, (-scheduled, request_id))
        while self._due:
            scheduled, request_id = heapq.heappop(self._due)
            request = self._requests.get(request_id)
            if request is not None and request.scheduled == -scheduled and request.state is RequestState.WAITING:
                return request
        return None
