"""Own sends and what became of them: which segments were dispatched, which event was told (protocol.md §7)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_FINISHED = 1_000
"""Finished sends that are remembered, so that an acknowledgement after an error still finds its send."""


class SendState(StrEnum):
    """Where a send stands."""

    SENDING = "sending"
    SENT = "sent"
    DELIVERED = "delivered"
    FAILED = "failed"


@dataclass(slots=True)
class Send:
    """One send. ``sds_ids``: its segments, data then parity; ``required``: how many a recipient needs."""

    send_id: str
    message_id: str
    sds_ids: tuple[str, ...]
    required: int
    dispatched: set[int] = field(default_factory=set)
    sent: bool = False
    delivered: bool = False
    failed: bool = False

    @property
    def state(self) -> SendState:
        if self.delivered:
            return SendState.DELIVERED
        if self.failed:
            return SendState.FAILED
        return SendState.SENT if self.sent else SendState.SENDING

    @property
    def finished(self) -> bool:
        return (self.delivered and self.sent) or self.failed


class Sends:
    """All sends that are not finished, and the last :data:`MAX_FINISHED` that are."""

    def __init__(self) -> None:
        self._sends: dict[str, Send] = {}
        self._by_segment: dict[str, tuple[Send, int]] = {}
        self._finished: OrderedDict[str, None] = OrderedDict()

    def add(self, send_id: str, message_id: str, sds_ids: Sequence[str], required: int) -> Send:
        send = Send(send_id, message_id, tuple(sds_ids), required)
        self.restore(send)
        return send

    def restore(self, send: Send) -> None:
        """Take a send as it was."""
        self._sends[send.send_id] = send
        for index, sds_id in enumerate(send.sds_ids):
            self._by_segment[sds_id] = (send, index)
        self.settle(send)

    def get(self, send_id: str) -> Send | None:
        return self._sends.get(send_id)

    def of(self, sds_id: str) -> tuple[Send, int] | None:
        """The send a segment belongs to, and which one it is."""
        return self._by_segment.get(sds_id)

    def settle(self, send: Send) -> None:
        """Note that a send may have finished; the oldest finished ones are forgotten."""
        if not send.finished or send.send_id in self._finished:
            return
        self._finished[send.send_id] = None
        while len(self._finished) > MAX_FINISHED:
            oldest, _ = self._finished.popitem(last=False)
            for sds_id in self._sends.pop(oldest).sds_ids:
                self._by_segment.pop(sds_id, None)

    def __iter__(self) -> Iterator[Send]:
        return iter(self._sends.values())

    def __len__(self) -> int:
        return len(self._sends)
