"""The way out: segment → SDS → encrypt → rate limit → dispatch (protocol.md §1), as one pipeline.

The first two stages belong to the state machine, which keeps what must survive; the other three are here and keep
nothing: after a crash the machine hands in again whatever is unacknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from reliable_channel.channel.effects import Dispatch
from reliable_channel.channel.encryption import Encryption
from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    ChunkInfo,
    EphemeralMessageDropped,
    MessageDelayed,
    RateLimitApproached,
    SendingMessage,
)
from reliable_channel.channel.inputs import DispatchFailed
from reliable_channel.channel.limits import NodeRateLimit, Sealed, Ticket, Told
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.errors import LocalError
from reliable_channel.rate_limit import Delayed, EphemeralDropped, Traffic
from reliable_channel.transport.base import Node, NodeStoppedError, RequestId, SendBufferFull
from reliable_channel.wire.waku import RELIABLE_CHANNEL_META, WakuMessage

STAGES = ("segment", "sds", "encrypt", "rate limit", "dispatch")

BLOCKED_RETRY_MS = 250
"""How long a node that takes nothing is left alone: it is back-pressure, not a fault to be retried."""


@dataclass(slots=True)
class Results:
    """What the stages report: events for the application, and inputs for the state machine."""

    events: list[ChannelEvent]
    inputs: list[DispatchFailed]


class OutgoingPipeline:
    """One channel's way out; the stages are its methods, in order: :meth:`encrypt`, :meth:`limit`,
    :meth:`dispatch`. Used by one thread at a time; ``wake`` tells the channel that another one's turn gave it work."""

    def __init__(
        self,
        machine: ChannelMachine,
        node: Node,
        pubsub_topic: str,
        encryption: Encryption | None,
        limit: NodeRateLimit,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._machine = machine
        self._node = node
        self._pubsub_topic = pubsub_topic
        self._encryption = encryption
        self._limit = limit
        self._wake = wake
        self._ready: deque[Sealed] = deque()
        self._told: deque[Told] = deque()
        self._waiting: dict[str, None] = {}
        self._blocked_until: int | None = None
        self.queued = 0
        """Envelopes that wait for the rate limit or the node."""
        self.queued_bytes = 0
        self.in_flight: dict[RequestId, Dispatch] = {}

    # ---- 3 encrypt, 4 rate limit ---------------------------------------------------------------------------------

    def push(self, dispatch: Dispatch, now: int) -> Results:
        """Send one wrapped message through the remaining stages, as far as it gets now."""
        results = Results([], [])
        sealed = self.encrypt(dispatch, now, results)
        if sealed is not None:
            self.limit(sealed, now)
        return results

    def encrypt(self, dispatch: Dispatch, now: int, results: Results) -> Sealed | None:
        """Encrypt one SDS message. A failing hook fails the send, not the channel."""
        if self._encryption is None:
            return Sealed(dispatch, dispatch.outgoing.data)
        try:
            return Sealed(dispatch, self._encryption.encrypt(dispatch.outgoing.data))
        except Exception as error:
            # Only the type: a careless hook may have put a key or plaintext into the text.
            self._refuse(dispatch, "encryption_failed", f"the encryption raised {type(error).__name__}", now, results)
            return None

    def limit(self, sealed: Sealed, now: int) -> None:
        """Ask the rate limit; an admitted message goes on to :meth:`dispatch`."""
        dispatch = sealed.wanted
        message = f"{self._machine.sender_id}/{self._machine.channel_id}/{dispatch.send_id}"
        self.queued += 1
        self.queued_bytes += len(sealed.payload)
        self._waiting[message] = None
        self._limit.submit(Ticket(self, sealed, message), _traffic(dispatch), now)

    def admitted(self, sealed: Sealed) -> None:
        """The rate limit's yes."""
        self._ready.append(sealed)
        self._wake()

    def told(self, event: Told) -> None:
        """The rate limit's other words."""
        if isinstance(event, EphemeralDropped):
            self.queued -= 1
            self.queued_bytes -= len(event.item.sealed.payload)
        self._told.append(event)
        self._wake()

    # ---- 5 dispatch ----------------------------------------------------------------------------------------------

    def pump(self, now: int) -> Results:
        """Dispatch everything that the rate limit and the node take now."""
        results = Results([], [])
        self._limit.tick(now, self)
        while self._told:
            self._tell(self._told.popleft(), now, results)
        if self._blocked_until is not None and now < self._blocked_until:
            return results
        self._blocked_until = None
        while self._ready and self._blocked_until is None:
            self.dispatch(self._ready[0], now, results)
        if not self.queued:
            self._waiting.clear()
        return results

    def dispatch(self, sealed: Sealed, now: int, results: Results) -> None:
        """Hand one envelope to the node, which stamps it at the moment it goes out."""
        dispatch = sealed.wanted
        message = WakuMessage(
            payload=sealed.payload,
            content_topic=self._machine.content_topic,
            version=0,
            meta=RELIABLE_CHANNEL_META,
            ephemeral=True if dispatch.ephemeral else None,
        )
        try:
            # Never waits: the channel's lock is held, and a full node is asked again soon enough.
            request_id = self._node.send(message, self._pubsub_topic, max_wait_s=0)
        except (SendBufferFull, NodeStoppedError):
            self._blocked_until = now + BLOCKED_RETRY_MS
            return
        except LocalError as error:
            self._pop()
            self._refuse(dispatch, "dispatch_failed", str(error), now, results)
            return
        self._pop()
        self.in_flight[request_id] = dispatch
        if dispatch.send_id is not None:
            results.events.append(
                SendingMessage(
                    channel_id=self._machine.channel_id,
                    at=now,
                    request_id=dispatch.send_id,
                    message_id=dispatch.message_id,
                    sds_id=dispatch.sds_id,
                    chunk_info=ChunkInfo(dispatch.outgoing.index, dispatch.total),
                    node_request_id=request_id,
                    attempt=dispatch.outgoing.attempt,
                )
            )

    # ---- the rest ------------------------------------------------------------------------------------------------

    def next_due(self, now: int) -> int | None:
        """When (ms) ``pump`` next has something to do."""
        if self._ready:
            return self._blocked_until if self._blocked_until is not None else now
        return self._limit.next_due() if self.queued else None

    def clear(self) -> None:
        """Forget what waits; the state machine still knows it."""
        for message in self._waiting:
            self._limit.withdraw(message)
        self._waiting.clear()
        self._ready.clear()
        self._told.clear()
        self.in_flight.clear()
        self.queued = self.queued_bytes = 0
        self._blocked_until = None

    def _pop(self) -> None:
        self.queued -= 1
        self.queued_bytes -= len(self._ready.popleft().payload)

    def _tell(self, event: Told, now: int, results: Results) -> None:
        channel = self._machine.channel_id
        match event:
            case EphemeralDropped(ticket, used, limit):
                message_id = ticket.sealed.wanted.message_id
                results.events.append(
                    EphemeralMessageDropped(channel_id=channel, at=now, message_id=message_id, utilization=used / limit)
                )
            case Delayed(ticket, until):
                wanted = ticket.sealed.wanted
                if wanted.counts and wanted.send_id is not None:
                    results.events.append(
                        MessageDelayed(channel_id=channel, at=now, request_id=wanted.send_id, until=until)
                    )
            case _:
                results.events.append(
                    RateLimitApproached(
                        channel_id=channel, at=now, used=event.used, limit=event.limit, until=event.until
                    )
                )

    def _refuse(self, dispatch: Dispatch, kind: str, detail: str, now: int, results: Results) -> None:
        results.events.append(
            ChannelProblem(
                channel_id=self._machine.channel_id, at=now, kind=kind, detail=detail[:300], sds_id=dispatch.sds_id
            )
        )
        if dispatch.send_id is not None and not dispatch.ephemeral:
            results.inputs.append(DispatchFailed(now, dispatch.sds_id, True, detail[:300]))


def _traffic(dispatch: Dispatch) -> Traffic:
    if dispatch.ephemeral:
        return Traffic.EPHEMERAL
    if dispatch.counts:
        return Traffic.FIRST_SEGMENT
    first_dispatch = dispatch.send_id is not None and dispatch.outgoing.attempt == 0
    return Traffic.FURTHER_SEGMENT if first_dispatch else Traffic.CONTROL
