"""Schedules sends (MESSAGING-API, *Send*): chooses the next request, and applies the result of each attempt.

A pure state machine over request ids: time (Unix ms) is the argument ``now``, the caller of :meth:`SendService.take`
makes the attempts, records are stored elsewhere. :data:`TRANSITIONS` has the states and transitions.

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

from reliable_channel.messaging.outcome import RETRY_DELAYS_MS, AttemptResult, RetryDecision, decide
from reliable_channel.transport.base import RequestId


class RequestState(StrEnum):
    """The state of a request. The last three are final."""

    FRESH = "fresh"
    IN_FLIGHT = "in_flight"
    QUEUED = "queued"
    """Passed on, and not accepted by a node yet: it waits in Kafka for a bridge, or for the rate limit. No time-out."""
    WAITING = "waiting"
    """A retry is scheduled."""
    HALTED = "halted"
    """A retry is scheduled, and the node is unhealthy."""
    SENT = "sent"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Input(StrEnum):
    """An event that changes a request's state."""

    TAKE = "take"
    QUEUED = "queued"
    SENT = "sent"
    RETRY = "retry"
    FAILED = "failed"
    CANCEL = "cancel"
    UNHEALTHY = "unhealthy"
    HEALTHY = "healthy"
    RESCHEDULE = "reschedule"
    """A finished request is to be sent once more: ``retry(request_id)``, or not found in the store."""


TRANSITIONS: dict[tuple[RequestState, Input], RequestState] = {
    (RequestState.FRESH, Input.TAKE): RequestState.IN_FLIGHT,
    (RequestState.WAITING, Input.TAKE): RequestState.IN_FLIGHT,
    (RequestState.IN_FLIGHT, Input.SENT): RequestState.SENT,
    (RequestState.IN_FLIGHT, Input.RETRY): RequestState.WAITING,
    (RequestState.IN_FLIGHT, Input.FAILED): RequestState.FAILED,
    (RequestState.IN_FLIGHT, Input.QUEUED): RequestState.QUEUED,
    (RequestState.QUEUED, Input.SENT): RequestState.SENT,
    (RequestState.QUEUED, Input.RETRY): RequestState.WAITING,
    (RequestState.QUEUED, Input.FAILED): RequestState.FAILED,
    (RequestState.QUEUED, Input.CANCEL): RequestState.CANCELLED,
    (RequestState.WAITING, Input.UNHEALTHY): RequestState.HALTED,
    (RequestState.HALTED, Input.HEALTHY): RequestState.WAITING,
    (RequestState.FRESH, Input.CANCEL): RequestState.CANCELLED,
    (RequestState.IN_FLIGHT, Input.CANCEL): RequestState.CANCELLED,
    (RequestState.WAITING, Input.CANCEL): RequestState.CANCELLED,
    (RequestState.HALTED, Input.CANCEL): RequestState.CANCELLED,
    (RequestState.SENT, Input.RESCHEDULE): RequestState.WAITING,
    (RequestState.FAILED, Input.RESCHEDULE): RequestState.WAITING,
    (RequestState.CANCELLED, Input.RESCHEDULE): RequestState.WAITING,
}
"""The transitions; every other pair leaves the state unchanged."""


SLEPT_MS = 90_000
"""A longer time (ms) without a look at the time-outs was a sleep of the process or its machine. A transport's ``send``,
which may wait 60 s for room, takes less."""


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

    def reschedule(self, request_id: str, now: int, retries: int = -1, in_doubt: bool = False) -> RequestState:
        """Put a finished request, or one that an earlier process left pending, among the retries, due at once.

        ``retries=-1`` begins a new round: one attempt and three retries. Ignored when the request is pending.
        """
        if request_id in self._requests:
            return self._requests[request_id].state
        request = RequestProgress(request_id, RequestState.WAITING, retries=retries, in_doubt=in_doubt)
        self._requests[request_id] = request
        self._schedule(request, now)
        return request.state

    def cancel(self, request_id: str) -> bool:
        """Cancel a request; returns whether it was pending. The answer to an attempt in flight is then ignored."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._move(request, Input.CANCEL)
        return True

    def set_usable(self, usable: bool) -> list[str]:
        """Note a change from or to *unhealthy*; returns the ids whose retries paused or resumed."""
        if usable == self._usable:
            return []
        self._usable = usable
        return [
            request.request_id
            for request in self._requests.values()
            if self._move(request, Input.HEALTHY if usable else Input.UNHEALTHY)
        ]

    def take(self, now: int) -> RequestProgress | None:
        """The request to attempt next, now in flight, or None."""
        if len(self._in_flight) >= self._max_in_flight:
            return None
        request = self._next_fresh() or (self._next_retry(now) if self._usable else None)
        if request is None:
            return None
        if request.state is RequestState.WAITING:
            request.retries += 1
        request.deadline_ms = now + self._attempt_timeout_ms
        self._move(request, Input.TAKE)
        return request

    def begin_attempt(self, request: RequestProgress, now: int) -> None:
        """Note that the attempt is passed to the transport now: its time-out begins."""
        request.deadline_ms = now + self._attempt_timeout_ms

    def note_queued(self, request_id: str) -> bool:
        """Note that the attempt in flight waits outside this node; returns whether that is new."""
        request = self._requests.get(request_id)
        return request is not None and self._move(request, Input.QUEUED)

    def outcome(self, request_id: str, outcome: AttemptResult, now: int) -> RetryDecision | None:
        """Apply an attempt's result to its request; None when the request is neither in flight nor queued (cancelled,
        or answered twice)."""
        request = self._requests.get(request_id)
        if request is None or request.state not in (RequestState.IN_FLIGHT, RequestState.QUEUED):
            return None
        if now < request.deadline_ms:  # else it is a time-out, not an answer
            self._renew_behind(request, now)
        verdict = decide(outcome.reason, max(request.retries, 0), request.in_doubt)
        request.in_doubt = request.in_doubt or outcome.in_doubt
        if verdict is RetryDecision.RETRY:
            self._move(request, Input.RETRY)
            delay_ms = RETRY_DELAYS_MS[min(max(request.retries, 0), len(RETRY_DELAYS_MS) - 1)]
            self._schedule(request, now + delay_ms)
        else:
            self._move(request, Input(verdict.value))
            del self._requests[request_id]
        return verdict

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
        if not self._usable:
            self._move(request, Input.UNHEALTHY)

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

    def _move(self, request: RequestProgress, given: Input) -> bool:
        """Apply :data:`TRANSITIONS`; whether the state changed."""
        before = request.state
        request.state = TRANSITIONS.get((before, given), before)
        if request.state is RequestState.IN_FLIGHT:
            self._in_flight[request.request_id] = request
        elif before is RequestState.IN_FLIGHT:
            self._in_flight.pop(request.request_id, None)
        return request.state is not before
