"""Keeps own segments until they are acknowledged, schedules their retransmissions, and decides the outcome of each send
(LIP-109, *Periodic outgoing buffer sweep*).

The life of an own segment is one table, :data:`LIFECYCLE`; everything here moves along it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from reliable_channel.core.sds.config import MAX_STRETCHED_WAIT_MS, SdsParameters
from reliable_channel.core.sds.events import (
    DeliveryError,
    Evidence,
    Outgoing,
    OutgoingReason,
    RecipientAcknowledged,
    SdsEvent,
    SegmentAcknowledged,
    SendDelivered,
)
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message


class SegmentState(StrEnum):
    """The states of an own segment."""

    UNSENT = "unsent"
    """To be dispatched, for the first time or again. Without ``wait_for_sent`` it counts as dispatched at once."""
    WAITING = "waiting"
    """Dispatched; the wait for an acknowledgement runs."""
    ACKNOWLEDGED = "acknowledged"
    EXHAUSTED = "exhausted"
    """Every retransmission went unacknowledged, or its send failed."""
    RELEASED = "released"
    """Dispatched and unacknowledged, but its send was delivered without it."""


class SegmentInput(StrEnum):
    """The inputs to an own segment's state machine."""

    SENT = "sent"
    POSSIBLE = "possible"
    ACKNOWLEDGE = "acknowledge"
    TIMEOUT = "timeout"
    TIMEOUT_LAST = "timeout_last"
    GIVE_UP = "give_up"
    RELEASE = "release"


_S, _I = SegmentState, SegmentInput

LIFECYCLE: dict[tuple[SegmentState, SegmentInput], SegmentState] = {
    (_S.UNSENT, _I.SENT): _S.WAITING,
    (_S.UNSENT, _I.POSSIBLE): _S.UNSENT,
    (_S.UNSENT, _I.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.UNSENT, _I.GIVE_UP): _S.EXHAUSTED,
    (_S.UNSENT, _I.RELEASE): _S.RELEASED,
    (_S.WAITING, _I.SENT): _S.WAITING,
    (_S.WAITING, _I.POSSIBLE): _S.WAITING,
    (_S.WAITING, _I.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.WAITING, _I.TIMEOUT): _S.UNSENT,
    (_S.WAITING, _I.TIMEOUT_LAST): _S.EXHAUSTED,
    (_S.WAITING, _I.GIVE_UP): _S.EXHAUSTED,
    (_S.WAITING, _I.RELEASE): _S.RELEASED,
    (_S.ACKNOWLEDGED, _I.SENT): _S.ACKNOWLEDGED,
    (_S.ACKNOWLEDGED, _I.POSSIBLE): _S.ACKNOWLEDGED,
    (_S.ACKNOWLEDGED, _I.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.EXHAUSTED, _I.SENT): _S.EXHAUSTED,
    (_S.EXHAUSTED, _I.POSSIBLE): _S.EXHAUSTED,
    (_S.EXHAUSTED, _I.ACKNOWLEDGE): _S.ACKNOWLEDGED,
    (_S.RELEASED, _I.SENT): _S.RELEASED,
    (_S.RELEASED, _I.POSSIBLE): _S.RELEASED,
    (_S.RELEASED, _I.ACKNOWLEDGE): _S.ACKNOWLEDGED,
}
"""(state, input) → next state. Other pairs cannot occur: only a waiting segment has a timer, and a send that fails or
is delivered changes only segments that are still in the buffer."""

OPEN_STATES = frozenset({_S.UNSENT, _S.WAITING})
"""In the outgoing buffer."""


@dataclass(slots=True, eq=False, repr=False)
class OwnSegment:
    """One own segment. ``data``: its bytes on the wire, dropped when it leaves the buffer."""

    message_id: str
    index: int
    data: bytes
    wait: int
    attempts: int = 0
    due: int | None = None
    state: SegmentState = SegmentState.UNSENT
    number: int = 0
    """Its number in the order of sending: timers due at the same time run in this order."""
    queued_at: int | None = None
    """Since when (ms) it waits to be dispatched."""
    send: OwnSend = field(init=False)

    @property
    def has_left(self) -> bool:
        """Whether others may have it: it does not wait for its first dispatch, or one has acknowledged it."""
        return self.queued_at is None or self.attempts > 0 or self.state is SegmentState.ACKNOWLEDGED

    def move(self, event: SegmentInput) -> SegmentState:
        """Take one step of :data:`LIFECYCLE`; returns the previous state."""
        before = self.state
        self.state = LIFECYCLE[before, event]
        if self.state not in OPEN_STATES:
            self.due = None
            if before in OPEN_STATES:
                self.data = b""
                self.send.open -= 1
        return before


@dataclass(slots=True, eq=False, repr=False)
class OwnSend:
    """The segments of one ``send``; a recipient needs ``required`` of them."""

    send_id: str
    required: int
    segments: list[OwnSegment]
    delivered: bool = False
    failed: bool = False
    complete_for: dict[str, None] = field(default_factory=dict)
    """Participants that have acknowledged ``required`` segments."""
    by_count: dict[str, int] = field(default_factory=dict)
    """Participant → the number of segments it has acknowledged."""
    open: int = field(init=False)

    def __post_init__(self) -> None:
        self.open = len(self.segments)
        for segment in self.segments:
            segment.send = self

    def indices(self, state: SegmentState) -> tuple[int, ...]:
        """The indices of the segments in a state."""
        return tuple(segment.index for segment in self.segments if segment.state is state)


class OutgoingBuffer:
    """All unfinished sends, and finished ones that more participants can still acknowledge."""

    def __init__(self, config: SdsParameters) -> None:
        self._config = config
        self.sends: dict[str, OwnSend] = {}
        self.segments: dict[str, OwnSegment] = {}
        self.finished: dict[str, None] = {}
        """Sends with no segment in the buffer, kept for a while for the acknowledgements of more participants."""
        # A heap, in which ended timers stay until they come up (:meth:`next_due`).
        self._timers: list[tuple[int, int, str]] = []
        self._counter = 0

    def add(self, send: OwnSend, now: int) -> None:
        """Add a new send; its waits start now, unless ``record_sent()`` reports the dispatch."""
        self.sends[send.send_id] = send
        for segment in send.segments:
            self._counter += 1
            segment.number = self._counter
            self.segments[segment.message_id] = segment
            self._queue(segment, now)

    def restore(self, send: OwnSend) -> None:
        """Restore a send from a snapshot, with the states of its segments."""
        self.sends[send.send_id] = send
        send.open = sum(segment.state in OPEN_STATES for segment in send.segments)
        for segment in send.segments:
            self._counter += 1
            segment.number = self._counter
            self.segments[segment.message_id] = segment
            self._arm(segment)

    def record_sent(self, segment: OwnSegment, now: int) -> None:
        """Record a dispatch: the wait starts, or starts again. An adaptive one is twice as long as the dispatch took,
        up to :data:`MAX_STRETCHED_WAIT_MS`, if that is more."""
        # Where a rate limit delays a segment, it delays its acknowledgement too.
        if segment.queued_at is not None and self._config.is_adaptive:
            segment.wait = max(segment.wait, min(2 * (now - segment.queued_at), MAX_STRETCHED_WAIT_MS))
        segment.queued_at = None
        segment.move(SegmentInput.SENT)
        if segment.send.complete_for:
            self._release(segment.send)
        self._restart(segment, now)

    def possibly(self, segment: OwnSegment, now: int) -> None:
        """Record a possible acknowledgement, which restarts the wait."""
        segment.move(SegmentInput.POSSIBLE)
        self._restart(segment, now)

    def has_left(self, message_id: str) -> bool:
        """Whether others may have this message: it is no own segment that waits for its first dispatch."""
        segment = self.segments.get(message_id)
        return segment is None or segment.has_left

    def is_queued(self, message_id: str) -> bool:
        """Whether this is an own segment that waits to be dispatched."""
        segment = self.segments.get(message_id)
        return segment is not None and segment.state is SegmentState.UNSENT

    def restart_queue(self, now: int, message_ids: Iterable[str]) -> None:
        """Note that these segments wait to be dispatched since ``now``."""
        # Before that, the process did not run: its absence is no sign of a slow dispatch.
        for message_id in message_ids:
            segment = self.segments[message_id]
            if segment.queued_at is not None:
                segment.queued_at = now

    def wake(self, now: int, slept_ms: int) -> None:
        """After a sleep, let the last waits that ended in it begin anew, once: nobody ran, so nobody heard an
        acknowledgement. Nor is it a time that a dispatch took."""
        for segment in self.open_segments():
            if segment.queued_at is not None:
                segment.queued_at = min(now, segment.queued_at + slept_ms)
            if segment.attempts == self._config.max_retransmissions and segment.due is not None and segment.due < now:
                segment.attempts += 1
                self._restart(segment, now)

    def open_segments(self) -> Iterator[OwnSegment]:
        """The segments in the outgoing buffer, oldest first."""
        return (segment for segment in self.segments.values() if segment.state in OPEN_STATES)

    def acknowledge(self, segment: OwnSegment, evidence: Evidence, now: int, events: list[SdsEvent]) -> None:
        """Record that a participant acknowledged a segment, possibly after its send failed."""
        if segment.move(SegmentInput.ACKNOWLEDGE) is SegmentState.ACKNOWLEDGED:
            return
        send = segment.send
        acknowledged = send.indices(SegmentState.ACKNOWLEDGED)
        total = len(send.segments)
        events.append(
            SegmentAcknowledged(now, segment.message_id, send.send_id, segment.index, evidence, acknowledged, total)
        )
        if len(acknowledged) >= send.required and not send.delivered:
            send.delivered = True
            events.append(SendDelivered(now, send.send_id, send.failed))
        self._finish(send)

    def complete(self, send: OwnSend, by: str, evidence: Evidence, now: int, events: list[SdsEvent]) -> None:
        """Record that a participant acknowledged enough segments to rebuild the message: the rest of the send needs no
        retransmission."""
        if by in send.complete_for:
            return
        send.complete_for[by] = None
        events.append(RecipientAcknowledged(now, send.send_id, by, send.required, len(send.segments), evidence))
        self._release(send)

    def _release(self, send: OwnSend) -> None:
        """End the retransmissions of a send: any k of k + m segments are the message (docs/spec/sds.md,
        *Acknowledgements*)."""
        for segment in send.segments:
            # One that has not left yet is named by later messages, so it must leave, by another process if need be.
            if segment.state in OPEN_STATES and segment.has_left:
                segment.move(SegmentInput.RELEASE)
        self._finish(send)

    def next_due(self) -> int | None:
        """When (ms) the next wait ends."""
        timers = self._timers
        while timers:
            due, _, message_id = timers[0]
            segment = self.segments.get(message_id)
            if segment is not None and segment.due == due:
                return due
            heapq.heappop(timers)
        return None

    def run(self, now: int, outgoing: list[Outgoing], events: list[SdsEvent]) -> None:
        """Handle every wait that ends at ``now``."""
        while self.next_due() == now:
            segment = self.segments[heapq.heappop(self._timers)[2]]
            if segment.attempts < self._config.max_retransmissions:
                self._retransmit(segment, now, outgoing)
            else:
                segment.move(SegmentInput.TIMEOUT_LAST)
                self._fail_if_hopeless(segment.send, now, events)

    def drop(self, send: OwnSend) -> None:
        """Forget a send."""
        del self.sends[send.send_id]
        self.finished.pop(send.send_id, None)
        for segment in send.segments:
            del self.segments[segment.message_id]

    def outgoing(self, segment: OwnSegment, reason: OutgoingReason) -> Outgoing:
        """Return a segment as a message to dispatch."""
        message = decode_sds_message(segment.data, self._config.wire_family)
        assert not isinstance(message, Malformed)  # noqa: S101 - our own bytes
        return Outgoing(segment.data, message, reason, segment.send.send_id, segment.index, segment.attempts)

    def _retransmit(self, segment: OwnSegment, now: int, outgoing: list[Outgoing]) -> None:
        segment.move(SegmentInput.TIMEOUT)
        segment.attempts += 1
        segment.wait = self._config.acknowledgement_wait_ms(segment.attempts)
        outgoing.append(self.outgoing(segment, OutgoingReason.RESEND))
        segment.due = None
        self._queue(segment, now)

    def _queue(self, segment: OwnSegment, now: int) -> None:
        """Note that a segment is to be dispatched; without ``wait_for_sent`` it counts as dispatched at once."""
        if self._config.wait_for_sent:
            segment.queued_at = now
        else:
            self.record_sent(segment, now)

    def _fail_if_hopeless(self, send: OwnSend, now: int, events: list[SdsEvent]) -> None:
        """End a send of which fewer segments than required can still be acknowledged, with an error."""
        exhausted = send.indices(SegmentState.EXHAUSTED)
        if send.failed or send.delivered or len(send.segments) - len(exhausted) >= send.required:
            self._finish(send)
            return
        # The segments that still wait cannot make up for those that are exhausted.
        send.failed = True
        for segment in send.segments:
            if segment.state in OPEN_STATES:
                segment.move(SegmentInput.GIVE_UP)
        events.append(
            DeliveryError(
                now,
                send.send_id,
                exhausted,
                send.indices(SegmentState.ACKNOWLEDGED),
                send.required,
                len(send.segments),
            )
        )
        self._finish(send)

    def _finish(self, send: OwnSend) -> None:
        if not send.open:
            self.finished[send.send_id] = None

    def _restart(self, segment: OwnSegment, now: int) -> None:
        if segment.state is SegmentState.WAITING:
            segment.due = now + segment.wait
            self._arm(segment)

    def _arm(self, segment: OwnSegment) -> None:
        if segment.due is not None:
            heapq.heappush(self._timers, (segment.due, segment.number, segment.message_id))
