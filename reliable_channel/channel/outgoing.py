"""Encrypts, rate limits and dispatches a channel's SDS messages, and turns the node's reports on them into events of
the application and inputs of the state machine.

Dispatch has stages 3 to 5 of *Outgoing message processing* in RELIABLE-CHANNEL-API. The state machine runs the first
two, segmentation and SDS, while it applies a send: they are pure, so a replayed journal makes the same SDS messages.
The stages here run after the input was persisted. They store nothing: after a crash the machine submits all
unacknowledged messages again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress

from reliable_channel.channel.encryption import ChannelEncryption
from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    EphemeralMessageDropped,
    MessageDelayed,
    MessageSent,
    RateLimitApproached,
    SegmentQueued,
    SegmentSent,
    SendingMessage,
)
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.persistence import ChannelKey
from reliable_channel.channel.steps import DispatchDone, DispatchFailed, SdsDispatch
from reliable_channel.core.errors import LocalError, ReliableChannelError
from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.sds import Outgoing, OutgoingReason
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage
from reliable_channel.transport.base import (
    FailureReason,
    Node,
    NodeStoppedError,
    Queued,
    RateLimitNear,
    RequestId,
    SendBufferFull,
    SendDelayed,
    SendFailed,
    Sent,
)

DispatchReport = Queued | SendDelayed | Sent | SendFailed

BLOCKED_RETRY_MS = 250
"""How long to wait for a node that accepts nothing: this is back-pressure, not a fault to be retried."""


class OutgoingQueue:
    """The envelopes of the channel ``key`` that wait for the node or are in flight. ``machine`` knows the sends they
    belong to; ``emit`` takes events that no restart reports again. Guarded by the channel's lock."""

    def __init__(
        self,
        key: ChannelKey,
        node: Node,
        machine: ChannelMachine,
        encryption: ChannelEncryption | None,
        emit: Callable[[ChannelEvent], None],
    ) -> None:
        self._key = key
        self._node = node
        self._machine = machine
        self._encryption = encryption
        self._emit = emit
        self._queue: deque[tuple[SdsDispatch, bytes]] = deque()
        """With the payload of the envelope, which is encrypted."""
        self._blocked_until: int | None = None
        self._is_sending = False
        self.queued_bytes = 0
        """Payload bytes of envelopes that wait for the node."""
        self.in_flight: dict[RequestId, SdsDispatch] = {}
        self.delayed: OrderedDict[RequestId, Outgoing] = OrderedDict()
        """Retransmissions and sync messages in flight that wait for the rate limit."""
        self.labels: dict[str, dict[int, RequestId]] = {}
        """ReliableSendId → segment number → RequestId, until the send is reported as sent."""
        self._envelopes_per_epoch = 0
        """0 while the node has not reported it."""
        self._reported_backlog = 0

    def push(self, dispatch: SdsDispatch, now: int) -> list[DispatchFailed]:
        """Encrypt one SDS message (stage 3) and queue it for the node. A failing hook fails the send, not the channel:
        returns what the state machine must learn of that."""
        data = dispatch.outgoing.data
        try:
            payload = data if self._encryption is None else self._encryption.protect(dispatch.outgoing.message, data)
        except Exception as error:
            # Only the type: a careless hook may have put a key or plaintext into the text.
            detail = error.cause if isinstance(error, LocalError) else f"the encryption raised {type(error).__name__}"
            return self._refuse(dispatch, "encryption_failed", detail, now)
        self.queued_bytes += len(payload)
        self._queue.append((dispatch, payload))
        return []

    def pump(self, now: int) -> list[DispatchFailed]:
        """Dispatch queued envelopes in order, as far as the node accepts them now; returns those that it refuses."""
        # A longer wait: the clock was set back.
        if self._blocked_until is not None and 0 < self._blocked_until - now <= BLOCKED_RETRY_MS:
            return []
        self._blocked_until = None
        refused: list[DispatchFailed] = []
        while self._queue:
            dispatch, payload = self._queue[0]
            try:
                self._dispatch(dispatch, payload, now)
            except (SendBufferFull, NodeStoppedError):
                self._blocked_until = now + BLOCKED_RETRY_MS
                break
            except LocalError as error:
                refused += self._refuse(dispatch, "dispatch_failed", str(error), now)
            self.queued_bytes -= len(payload)
            self._queue.popleft()
        return refused

    def _dispatch(self, dispatch: SdsDispatch, payload: bytes, now: int) -> None:
        """Pass one envelope to the node (stage 5), which sets its timestamp as it sends it. Raises as ``Node.send``."""
        message = WakuMessage(
            payload=payload,
            content_topic=self._key.content_topic,
            version=0,  # 14/WAKU2-MESSAGE: not encrypted by Waku
            meta=RELIABLE_CHANNEL_META,
            ephemeral=True if dispatch.ephemeral else None,
        )
        self._is_sending = True
        try:
            # Never waits: the channel's lock is held, and a full node is tried again soon enough.
            request_id = self._node.send(message, self._key.pubsub_topic, max_wait_s=0, traffic=_classify(dispatch))
            self.in_flight[request_id] = dispatch
        finally:
            self._is_sending = False
        if dispatch.send_id is not None:
            segment = dispatch.describe(self._key.channel_id, now)
            self._emit(SendingMessage(**segment, node_request_id=request_id, attempt=dispatch.outgoing.attempt))

    def may_await(self, request_id: RequestId) -> bool:
        """Whether a report with this id may be on an envelope of this channel. Called from any thread: a report may
        come before the node's ``send`` has returned the id."""
        return self._is_sending or request_id in self.in_flight

    @property
    def queued(self) -> int:
        """How many envelopes wait for the node."""
        return len(self._queue)

    def next_due(self, now: int) -> int | None:
        """When (ms) :meth:`pump` must run next."""
        if self._queue:
            return now if self._blocked_until is None else self._blocked_until
        return None

    def withdraw_segments(self) -> None:
        """Take the segments of own sends back from the node, as far as they wait there."""
        for request_id, dispatch in self.in_flight.items():
            if dispatch.send_id is not None and not dispatch.ephemeral:
                with suppress(ReliableChannelError):  # a node that was closed: it sends nothing any more
                    self._node.withdraw(request_id)

    def clear(self) -> None:
        """Forget queued and in-flight envelopes; the state machine still knows them."""
        self._queue.clear()
        self.in_flight.clear()
        self.delayed.clear()
        self.queued_bytes = 0
        self._blocked_until = None

    def _refuse(self, dispatch: SdsDispatch, kind: str, detail: str, now: int) -> list[DispatchFailed]:
        detail = detail[:300]
        self._emit_problem(kind, detail, now, dispatch.sds_id)
        return [] if dispatch.ephemeral else [DispatchFailed(now, dispatch.sds_id, True, detail)]

    # ---- what the node reports ---------------------------------------------------------------------------------------

    def approach_limit(self, report: RateLimitNear, now: int) -> None:
        """Report that the rate limit is nearly reached."""
        self._envelopes_per_epoch = report.limit
        self._emit(
            RateLimitApproached(
                channel_id=self._key.channel_id, at=now, used=report.used, limit=report.limit, until=report.until_ms
            )
        )

    def take_report(self, result: DispatchReport, now: int) -> DispatchDone | DispatchFailed | None:
        """Emit the events of a report; returns the input for the state machine, if any."""
        if isinstance(result, Queued | SendDelayed):
            self._note_queued(result, now)
            return None
        dispatch = self.in_flight.pop(result.request_id, None)
        self.delayed.pop(result.request_id, None)
        if len(self.in_flight) <= self._envelopes_per_epoch:
            self._reported_backlog = 0  # what waits after this is another backlog
        if dispatch is None:
            return None
        own = dispatch.send_id is not None and not dispatch.ephemeral
        if isinstance(result, Sent):
            return self._note_sent(dispatch, result, own, now)
        if result.reason is FailureReason.DROPPED:
            self._emit(
                EphemeralMessageDropped(
                    channel_id=self._key.channel_id,
                    at=now,
                    message_id=dispatch.payload_hash,
                    utilization=result.utilization,
                )
            )
            return None
        if result.reason is FailureReason.STOPPED:
            # It waits as if the node had refused it: until the node is started again, or the channel opened again.
            return next(iter(self.push(dispatch, now)), None)
        if not own:
            self._emit_problem("dispatch_failed", f"{result.reason}: {result.detail}", now)
            if dispatch.ephemeral:
                return None
        # One retry layer per fault. A node that retries has done so; one that does not leaves it to SDS.
        final = not result.retriable or bool(getattr(self._node, "retries_sends", False))
        return DispatchFailed(now, dispatch.sds_id, final, f"{result.reason}: {result.detail}"[:300])

    def _note_queued(self, result: Queued | SendDelayed, now: int) -> None:
        """Note that a segment waits outside this process."""
        dispatch = self.in_flight.get(result.request_id)
        if dispatch is None:
            return
        if isinstance(result, SendDelayed) and dispatch.outgoing.reason is not OutgoingReason.CONTENT:
            self.delayed[result.request_id] = dispatch.outgoing
        if dispatch.send_id is None:
            return
        send = self._machine.sends.get(dispatch.send_id)
        if send is not None:
            send.queued.add(dispatch.outgoing.index)
        segment = dispatch.describe(self._key.channel_id, now)
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
        waiting, limit = len(self.in_flight), self._envelopes_per_epoch
        if not limit or waiting <= max(limit, 2 * self._reported_backlog):
            return
        self._reported_backlog = waiting
        detail = (
            f"{waiting} envelopes wait and {limit} may leave in an epoch: the last waits {-(-waiting // limit)} epochs"
        )
        self._emit_problem("slow_rate_limit", detail, now)

    def _note_sent(self, dispatch: SdsDispatch, result: Sent, own: bool, now: int) -> DispatchDone | None:
        if dispatch.send_id is not None:
            self._label(dispatch, result.request_id)
            segment = dispatch.describe(self._key.channel_id, now)
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
            channel_id=self._key.channel_id, at=now, request_id=send_id, message_id=payload_hash, request_ids=named
        )

    def _emit_problem(self, kind: str, detail: str, now: int, sds_id: str = "") -> None:
        self._emit(ChannelProblem(channel_id=self._key.channel_id, at=now, kind=kind, detail=detail, sds_id=sds_id))


def _classify(dispatch: SdsDispatch) -> Traffic:
    """Classify a dispatch for the rate limit (stage 4). The dispatcher applies it (the node, or the bridge if Kafka is
    used), because all participants behind one RLN membership share its limit."""
    if dispatch.ephemeral:
        return Traffic.EPHEMERAL
    if dispatch.counts:
        return Traffic.FIRST_SEGMENT
    first_dispatch = dispatch.send_id is not None and dispatch.outgoing.attempt == 0
    return Traffic.FURTHER_SEGMENT if first_dispatch else Traffic.CONTROL
