"""Encrypts, rate limits and dispatches a channel's SDS messages.

These are stages 3 to 5 of *Outgoing message processing* in RELIABLE-CHANNEL-API. The state machine runs the first two,
segmentation and SDS, while it applies a send: they are pure, so a replayed journal makes the same SDS messages. The
stages here run after the input was persisted. They store nothing: after a crash the machine submits all unacknowledged
messages again.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress

from reliable_channel.channel.encryption import ChannelEncryption
from reliable_channel.channel.events import ChannelEvent, ChannelProblem, SendingMessage
from reliable_channel.channel.persistence import ChannelKey
from reliable_channel.channel.steps import DispatchFailed, SdsDispatch
from reliable_channel.core.errors import LocalError, ReliableChannelError
from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.sds import Outgoing
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage
from reliable_channel.transport.base import Node, NodeStoppedError, RequestId, SendBufferFull

BLOCKED_RETRY_MS = 250
"""How long to wait for a node that accepts nothing: this is back-pressure, not a fault to be retried."""


class OutgoingQueue:
    """The envelopes of the channel ``key`` that wait for the node or are in flight. ``emit`` takes events that no
    restart reports again. Used by one thread at a time."""

    def __init__(
        self,
        key: ChannelKey,
        node: Node,
        encryption: ChannelEncryption | None,
        emit: Callable[[ChannelEvent], None],
    ) -> None:
        self._key = key
        self._node = node
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
        self._emit(
            ChannelProblem(channel_id=self._key.channel_id, at=now, kind=kind, detail=detail, sds_id=dispatch.sds_id)
        )
        return [] if dispatch.ephemeral else [DispatchFailed(now, dispatch.sds_id, True, detail)]


def _classify(dispatch: SdsDispatch) -> Traffic:
    """Classify a dispatch for the rate limit (stage 4). The dispatcher applies it (the node, or the bridge if Kafka is
    used), because all participants behind one RLN membership share its limit."""
    if dispatch.ephemeral:
        return Traffic.EPHEMERAL
    if dispatch.counts:
        return Traffic.FIRST_SEGMENT
    first_dispatch = dispatch.send_id is not None and dispatch.outgoing.attempt == 0
    return Traffic.FURTHER_SEGMENT if first_dispatch else Traffic.CONTROL
