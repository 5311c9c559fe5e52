"""The channel's own sends: which segments were dispatched, and which events were reported.

Implements *sent*, *delivered*, *send-error* and *delivery-error* of RELIABLE-CHANNEL-API and the per-segment events of
its first revision.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from reliable_channel.core.sds import DeliveryError

MAX_FINISHED = 1_000
"""Finished sends that are remembered, so that an acknowledgement after an error still finds its send."""


class SendState(StrEnum):
    """The state of a send."""

    SENDING = "sending"
    QUEUED = "queued"
    """Every segment waits outside this process: in Kafka for a bridge, or for the rate limit."""
    SENT = "sent"
    DELIVERED = "delivered"
    UNACKNOWLEDGED = "unacknowledged"
    """Sent; too few segments were acknowledged until the retransmissions were exhausted."""
    FAILED = "failed"
    """Never dispatched as a whole."""


@dataclass(slots=True)
class SendProgress:
    """One send. ``sds_ids``: its segments, data then parity."""

    send_id: str
    payload_hash: str
    sds_ids: tuple[str, ...]
    dispatched: set[int] = field(default_factory=set)
    sent: bool = False
    delivered: bool = False
    failed: bool = False
    queued: set[int] = field(default_factory=set)
    """Segments that have left this process and that no node has accepted yet; not kept over a restart."""

    @property
    def state(self) -> SendState:
        if self.delivered:
            return SendState.DELIVERED
        if self.failed:
            return SendState.UNACKNOWLEDGED if self.sent else SendState.FAILED
        if self.sent:
            return SendState.SENT
        return SendState.QUEUED if len(self.queued | self.dispatched) == len(self.sds_ids) else SendState.SENDING

    @property
    def is_finished(self) -> bool:
        return (self.delivered and self.sent) or self.failed


class Sends:
    """All sends that are not finished, and the last :data:`MAX_FINISHED` that are."""

    def __init__(self) -> None:
        self._sends: dict[str, SendProgress] = {}
        self._by_segment: dict[str, tuple[SendProgress, int]] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def add(self, send_id: str, payload_hash: str, sds_ids: Sequence[str]) -> SendProgress:
        send = SendProgress(send_id, payload_hash, tuple(sds_ids))
        self.restore(send)
        return send

    def restore(self, send: SendProgress) -> None:
        """Restore a stored send."""
        self._sends[send.send_id] = send
        for index, sds_id in enumerate(send.sds_ids):
            self._by_segment[sds_id] = (send, index)
        self.settle(send)

    def get(self, send_id: str) -> SendProgress | None:
        return self._sends.get(send_id)

    def find(self, sds_id: str) -> tuple[SendProgress, int] | None:
        """The send a segment belongs to, and which one it is."""
        return self._by_segment.get(sds_id)

    def settle(self, send: SendProgress) -> None:
        """Note that a send may have finished; the oldest finished ones are forgotten."""
        if not send.is_finished or send.send_id in self._finished:
            return
        self._finished[send.send_id] = None
        while len(self._finished) > MAX_FINISHED:
            oldest, _ = self._finished.popitem(last=False)
            for sds_id in self._sends.pop(oldest).sds_ids:
                self._by_segment.pop(sds_id, None)

    def __iter__(self) -> Iterator[SendProgress]:
        return iter(self._sends.values())


def describe_exhaustion(event: DeliveryError) -> str:
    """The error text of a send whose retransmissions are exhausted."""
    lacking = event.required - len(event.acknowledged)
    return (
        f"retransmissions exhausted: {len(event.acknowledged)} of {event.total} segments acknowledged, "
        f"{lacking} more are needed"
    )
