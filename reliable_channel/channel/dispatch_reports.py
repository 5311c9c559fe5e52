"""Turns a node's reports on dispatched envelopes into events of the application and inputs of the state machine."""

from __future__ import annotations

from collections.abc import Callable

from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    EphemeralMessageDropped,
    MessageDelayed,
    MessageSent,
    RateLimitApproached,
    SegmentQueued,
    SegmentSent,
)
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outgoing import OutgoingQueue
from reliable_channel.channel.steps import DispatchDone, DispatchFailed, SdsDispatch
from reliable_channel.core.sds import OutgoingReason
from reliable_channel.transport.base import (
    FailureReason,
    Queued,
    RateLimitNear,
    RequestId,
    SendDelayed,
    SendFailed,
    Sent,
)

DispatchReport = Queued | SendDelayed | Sent | SendFailed


class DispatchReports:
    """The reports on the envelopes in flight of ``outgoing``. ``emit`` takes events that no restart reports again;
    ``node_retries``: the node retries a failed send itself. Guarded by the channel's lock."""

    def __init__(
        self,
        machine: ChannelMachine,
        outgoing: OutgoingQueue,
        emit: Callable[[ChannelEvent], None],
        *,
        node_retries: Callable[[], bool],
    ) -> None:
        self._channel_id = machine.channel_id
        self._machine = machine
        self._outgoing = outgoing
        self._in_flight = outgoing.in_flight
        self._delayed = outgoing.delayed
        self._emit = emit
        self._node_retries = node_retries
        self.labels: dict[str, dict[int, RequestId]] = {}
        """ReliableSendId → segment number → RequestId, until the send is reported as sent."""
        self._envelopes_per_epoch = 0
        """0 while the node has not reported it."""
        self._reported_backlog = 0

    def approach_limit(self, report: RateLimitNear, now: int) -> None:
        """Report that the rate limit is nearly reached."""
        self._envelopes_per_epoch = report.limit
        self._emit(
            RateLimitApproached(
                channel_id=self._channel_id, at=now, used=report.used, limit=report.limit, until=report.until_ms
            )
        )

    def apply(self, result: DispatchReport, now: int) -> DispatchDone | DispatchFailed | None:
        """Emit the events of a report; returns the input for the state machine, if any."""
        if isinstance(result, Queued | SendDelayed):
            self._note_queued(result, now)
            return None
        dispatch = self._in_flight.pop(result.request_id, None)
        self._delayed.pop(result.request_id, None)
        if len(self._in_flight) <= self._envelopes_per_epoch:
            self._reported_backlog = 0  # what waits after this is another backlog
        if dispatch is None:
            return None
        own = dispatch.send_id is not None and not dispatch.ephemeral
        if isinstance(result, Sent):
            return self._note_sent(dispatch, result, own, now)
        if result.reason is FailureReason.DROPPED:
            self._emit(
                EphemeralMessageDropped(
                    channel_id=self._channel_id,
                    at=now,
                    message_id=dispatch.payload_hash,
                    utilization=result.utilization,
                )
            )
            return None
        if result.reason is FailureReason.STOPPED:
            # It waits as if the node had refused it: until the node is started again, or the channel opened again.
            return next(iter(self._outgoing.push(dispatch, now)), None)
        if not own:
            self._emit(self._make_problem("dispatch_failed", f"{result.reason}: {result.detail}", now))
            if dispatch.ephemeral:
                return None
        # One retry layer per fault. A node that retries has done so; one that does not leaves it to SDS.
        final = not result.retriable or self._node_retries()
        return DispatchFailed(now, dispatch.sds_id, final, f"{result.reason}: {result.detail}"[:300])

    def _note_queued(self, result: Queued | SendDelayed, now: int) -> None:
        """Note that a segment waits outside this process."""
        dispatch = self._in_flight.get(result.request_id)
        if dispatch is None:
            return
        if isinstance(result, SendDelayed) and dispatch.outgoing.reason is not OutgoingReason.CONTENT:
            self._delayed[result.request_id] = dispatch.outgoing
        if dispatch.send_id is None:
            return
        send = self._machine.sends.get(dispatch.send_id)
        if send is not None:
            send.queued.add(dispatch.outgoing.index)
        segment = dispatch.describe(self._channel_id, now)
        if isinstance(result, Queued):
            self._emit(SegmentQueued(**segment, node_request_id=result.request_id))
        elif dispatch.counts:
            of_send = {name: segment[name] for name in ("channel_id", "at", "request_id", "message_id")}
            self._emit(MessageDelayed(**of_send, until=result.until_ms))
        if isinstance(result, SendDelayed):
            self._warn_of_slow_limit(now)

    def _warn_of_slow_limit(self, now: int) -> None:
        """Report, with numbers, that the queue needs several epochs; again each time it has doubled, and when it needed
        only one in between."""
        waiting, limit = len(self._in_flight), self._envelopes_per_epoch
        if not limit or waiting <= max(limit, 2 * self._reported_backlog):
            return
        self._reported_backlog = waiting
        detail = (
            f"{waiting} envelopes wait and {limit} may leave in an epoch: the last waits {-(-waiting // limit)} epochs"
        )
        self._emit(self._make_problem("slow_rate_limit", detail, now))

    def _note_sent(self, dispatch: SdsDispatch, result: Sent, own: bool, now: int) -> DispatchDone | None:
        if dispatch.send_id is not None:
            self._label(dispatch, result.request_id)
            segment = dispatch.describe(self._channel_id, now)
            self._emit(SegmentSent(**segment, node_request_id=result.request_id, message_hash=result.message_hash))
        if dispatch.ephemeral:
            self._emit(self.complete(dispatch.sds_id, dispatch.payload_hash, now))
            return None
        return DispatchDone(now, dispatch.sds_id, result.message_hash, own)

    def _label(self, dispatch: SdsDispatch, request_id: RequestId) -> None:
        """Remember a segment's RequestId until its send is reported as sent; later retransmissions have no label."""
        send = self._machine.sends.get(dispatch.send_id or "")
        if dispatch.send_id is not None and (dispatch.ephemeral or (send is not None and not send.sent)):
            self.labels.setdefault(dispatch.send_id, {}).setdefault(dispatch.outgoing.index, request_id)

    def complete(self, send_id: str, payload_hash: str, now: int) -> MessageSent:
        """The event of a send whose segments are all sent, with their RequestIds, which are then forgotten."""
        labels = self.labels.pop(send_id, {})
        named = tuple((f"{send_id}:{index + 1}", str(request)) for index, request in sorted(labels.items()))
        return MessageSent(
            channel_id=self._channel_id, at=now, request_id=send_id, message_id=payload_hash, request_ids=named
        )

    def _make_problem(self, kind: str, detail: str, now: int) -> ChannelProblem:
        return ChannelProblem(channel_id=self._channel_id, at=now, kind=kind, detail=detail)
