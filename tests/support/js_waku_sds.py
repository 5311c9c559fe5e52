"""Simulates js-waku as a participant: a small SDS implementation that shares no rule with ours, only the wire formats
and the value types, so that interoperability is tested independently of our core.

Ids are the hash of the content, histories have 200 ids, and a message whose dependencies are only waiting in the
incoming buffer is delivered and named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from reliable_channel.core.sds import Outgoing, OutgoingReason, SdsStep
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.hashing import js_message_id
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, encode_sds_message
from tests.support.sds_inside import has_id

FILTER = FilterFormat()
HISTORY = 200
SYNC_MS, SWEEP_MS, RETRY_MS, ATTEMPTS = 30_000, 5_000, 30_000, 10


@dataclass(slots=True)
class _Unacknowledged:
    outgoing: Outgoing
    due: int
    attempts: int = 0
    possible: set[str] = field(default_factory=set)


class JsWakuSds:
    """One js-waku participant of one channel, which asks for no repairs. It has the methods of our
    :class:`~reliable_channel.core.sds.SdsChannel` that a simulated participant uses. Times are Unix ms."""

    def __init__(self, channel_id: str, name: str) -> None:
        self._channel_id = channel_id
        self._name = name
        self._clock: int | None = None
        self._log: dict[str, int] = {}
        self._filter = bytearray(FILTER.byte_count)
        self._waiting: dict[str, SdsMessage] = {}
        self._unacknowledged: dict[str, _Unacknowledged] = {}
        self._sync_due: int | None = None
        self._sweep_due: int | None = None
        self._sent = 0

    # ---- sending -------------------------------------------------------------------------------------------------

    def send(self, contents: Sequence[bytes], now: int, required: int | None = None) -> SdsStep:
        """Wrap every content in a separate message."""
        del required  # js-waku knows of no parity
        made = []
        for content in contents:
            message = self._message(content, now)
            outgoing = self._outgoing(message, OutgoingReason.CONTENT)
            self._log[message.message_id] = self._clock or 0
            FILTER.insert(self._filter, [message.message_id])
            self._unacknowledged[message.message_id] = _Unacknowledged(outgoing, now + RETRY_MS)
            made.append(outgoing)
        self._sync_due = now + SYNC_MS
        return SdsStep(tuple(made))

    def send_ephemeral(self, content: bytes, now: int) -> SdsStep:
        """Wrap one content without clock, history and filter."""
        del now
        self._sent += 1
        message = SdsMessage(self._name, self._id(content), self._channel_id, content=content)
        return SdsStep((self._outgoing(message, OutgoingReason.EPHEMERAL),))

    def record_sent(self, message_id: str, now: int, retrieval_hint: bytes | None = None) -> None:
        """Does nothing: dispatches are not recorded."""

    def _message(self, content: bytes, now: int) -> SdsMessage:
        self._clock = now if self._clock is None else max(now, self._clock + 1)
        self._sent += 1
        ordered = sorted(self._log, key=lambda sds_id: (self._log[sds_id], sds_id))
        return SdsMessage(
            self._name,
            self._id(content),
            self._channel_id,
            self._clock,
            tuple(HistoryEntry(sds_id) for sds_id in ordered[-HISTORY:]),
            FILTER.encode(self._filter),
            (),
            content or None,
        )

    def _id(self, content: bytes) -> str:
        if content:
            return js_message_id(content)
        return js_message_id(f"{self._name} {self._sent} ".encode() + content)

    def _outgoing(self, message: SdsMessage, reason: OutgoingReason) -> Outgoing:
        return Outgoing(encode_sds_message(message, WireFamily.SPEC), message, reason)

    # ---- receiving -----------------------------------------------------------------------------------------------

    def receive(
        self,
        message: SdsMessage,
        now: int,
        retrieval_hint: bytes | None = None,
        data: bytes | None = None,
        id_verified: bool | None = None,
    ) -> SdsStep:
        """Receive another participant's message; js-waku does not recompute its id."""
        if message.sender_id == self._name or message.lamport_timestamp is None:
            return SdsStep()
        self._review(message)
        if not message.content or message.message_id in self._log:
            return SdsStep()
        FILTER.insert(self._filter, [message.message_id])
        if self._is_met(message):
            self._deliver(message)
        else:
            self._waiting[message.message_id] = message
            self._sweep_due = self._sweep_due or now + SWEEP_MS
        self._sync_due = self._sync_due or now + SYNC_MS
        return SdsStep()

    def _is_met(self, message: SdsMessage) -> bool:
        """A dependency that itself waits counts as met."""
        return all(each.message_id in self._log or each.message_id in self._waiting for each in message.causal_history)

    def _deliver(self, message: SdsMessage) -> None:
        lamport = message.lamport_timestamp or 0
        self._clock = max(self._clock or 0, lamport)
        self._log[message.message_id] = lamport

    def _review(self, message: SdsMessage) -> None:
        """Review acknowledgements: an id in a history is acknowledged, and so is one that two filters hold."""
        for entry in message.causal_history:
            self._unacknowledged.pop(entry.message_id, None)
        words = FILTER.decode(message.bloom_filter or b"")
        for sds_id, own in list(self._unacknowledged.items()):
            if not isinstance(words, Malformed) and has_id(FILTER, words, sds_id):
                own.possible.add(message.message_id)
                if len(own.possible) >= 2:
                    del self._unacknowledged[sds_id]

    # ---- time ----------------------------------------------------------------------------------------------------

    def tick(self, now: int) -> SdsStep:
        """Run the due timers: resend, sync, and sweep of the incoming buffer."""
        out = []
        for sds_id, own in list(self._unacknowledged.items()):
            if own.due <= now:
                own.attempts += 1
                own.due = now + RETRY_MS
                out.append(Outgoing(own.outgoing.data, own.outgoing.message, OutgoingReason.RESEND))
                if own.attempts >= ATTEMPTS:
                    del self._unacknowledged[sds_id]
        if self._sync_due is not None and self._sync_due <= now:
            self._sync_due = now + SYNC_MS
            if self._log:
                sync = self._message(b"", now)
                out.append(self._outgoing(sync, OutgoingReason.SYNC))
        if self._sweep_due is not None and self._sweep_due <= now:
            self._sweep()
            self._sweep_due = now + SWEEP_MS if self._waiting else None
        return SdsStep(tuple(out))

    def _sweep(self) -> None:
        for message in sorted(self._waiting.values(), key=lambda m: (m.lamport_timestamp or 0, m.message_id)):
            if self._is_met_by_log(message):
                del self._waiting[message.message_id]
                self._deliver(message)

    def _is_met_by_log(self, message: SdsMessage) -> bool:
        return all(entry.message_id in self._log for entry in message.causal_history)

    def next_due(self) -> int | None:
        """When the next timer is due."""
        dues = [own.due for own in self._unacknowledged.values()]
        return min([*dues, *(due for due in (self._sync_due, self._sweep_due) if due is not None)], default=None)
