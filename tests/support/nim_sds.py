"""Simulates one nim-sds participant of one channel, which shares no rule with our core, only the wire formats and the
value types: the rules of ``ReliabilityManager`` as read at nim-sds 07491b2.

``tests/unit/simulation/test_nim_sds.py`` replays recorded runs of the real library against it. What differs from this
project's rules, and what a test of interoperability must therefore show:

* The Lamport clock starts in seconds and counts one for every message sent **and** every message received.
* Sync messages are ordinary messages of empty content: they are logged, named, repaired and delivered.
* A repair request is made once. Each further request for the same id sets the time of the answer anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from reliable_channel.core.sds import Outgoing, OutgoingReason, SdsStep
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.farmhash import fingerprint64
from reliable_channel.core.wire.hashing import js_message_id
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, encode_sds_message
from tests.support.sds_inside import has_id

FILTER = FilterFormat(FilterFamily.NIM)
CAPACITY_FLEX = 0.2
HISTORY, MAX_HISTORY = 10, 1_000
REPAIR_T_MIN_MS, REPAIR_T_MAX_MS, REPAIRS_A_MESSAGE = 30_000, 300_000, 3
REPAIR_SWEEP_MS = 5_000
SYNC_MS = 30_000
"""The interval of ``onPeriodicSync``; nim-sds leaves it to the application what to send then."""
RESEND_MS, RESENDS = 30_000, 10
"""nim-sds never sends anything again by itself. This is what an application does with what is not acknowledged."""


def nim_hash(text: str) -> int:
    """Nim's ``hash(string)`` since Nim 2.2: FarmHash64 as a signed number."""
    value = fingerprint64(text.encode())
    return value - (1 << 64) if value >> 63 else value


def request_wait_ms(me: str, message_id: str) -> int:
    """T_req − now (ms)."""
    return REPAIR_T_MIN_MS + abs(nim_hash(me + message_id)) % (REPAIR_T_MAX_MS - REPAIR_T_MIN_MS)


def answer_wait_ms(me: str, sender_id: str, message_id: str) -> int:
    """T_resp − now (ms); 0 for the sender itself."""
    distance = abs(nim_hash(me) ^ nim_hash(sender_id))
    return (distance % REPAIR_T_MAX_MS) * (abs(nim_hash(message_id)) % REPAIR_T_MAX_MS) % REPAIR_T_MAX_MS


@dataclass(slots=True)
class NimEvents:
    """The callbacks of one call: ids that became ready (delivered), ids acknowledged (``sent``), and ids that wait with
    their missing dependencies."""

    ready: list[str] = field(default_factory=list)
    sent: list[str] = field(default_factory=list)
    missing: list[tuple[str, tuple[HistoryEntry, ...]]] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    message: SdsMessage
    missing: set[str]


@dataclass(slots=True)
class _Resent:
    outgoing: Outgoing
    due: int
    attempts: int = 0


class NimSds:
    """One participant. It has the methods of our :class:`~reliable_channel.core.sds.SdsChannel` that a simulated
    participant uses; times are Unix ms."""

    def __init__(self, channel_id: str, name: str) -> None:
        self._channel_id = channel_id
        self._name = name
        self.lamport = 0
        self.history: dict[str, SdsMessage] = {}
        """Delivered messages, in the order of delivery."""
        self.incoming: dict[str, _Held] = {}
        self._slots = 64
        """Slots of the Nim table behind ``incoming``: its order decides the order of a cascade."""
        self.outgoing: list[str] = []
        self.requests: dict[str, tuple[int, HistoryEntry]] = {}
        """Missing id → T_req, and the entry that named it."""
        self.answers: dict[str, tuple[int, SdsMessage]] = {}
        """Requested id → T_resp, and the message."""
        self._filter = bytearray(FILTER.byte_count)
        self._inserted: list[str] = []
        self._unacknowledged: dict[str, _Resent] = {}
        self._sync_due: int | None = None
        self._sweep_due: int | None = None
        self._sent = 0
        self.events = NimEvents()

    # ---- the library ---------------------------------------------------------------------------------------------

    def wrap(self, content: bytes, message_id: str, now: int) -> SdsMessage:
        """``wrapOutgoingMessage``."""
        self.lamport = max(now // 1_000, self.lamport) + 1
        due = sorted((each for each in self.requests.items() if now >= each[1][0]), key=lambda each: each[1][0])[
            :REPAIRS_A_MESSAGE
        ]
        for requested, _ in due:
            del self.requests[requested]
        message = SdsMessage(
            sender_id=self._name,
            message_id=message_id,
            channel_id=self._channel_id,
            lamport_timestamp=self.lamport,
            causal_history=tuple(
                HistoryEntry(each.message_id, None, each.sender_id or None)
                for each in list(self.history.values())[-HISTORY:]
            ),
            bloom_filter=FILTER.encode(self._filter),
            repair_request=tuple(entry for _, (_, entry) in due),
            content=content,
        )
        self.outgoing.append(message_id)
        self._insert(message_id)
        self._log(message)
        return message

    def unwrap(self, message: SdsMessage, now: int) -> tuple[HistoryEntry, ...]:
        """``unwrapReceivedMessage``: returns the missing dependencies."""
        message_id = message.message_id
        self.requests.pop(message_id, None)
        self.answers.pop(message_id, None)
        if message_id in self.history:
            return ()
        self._insert(message_id)
        self.lamport = max(message.lamport_timestamp or 0, self.lamport) + 1
        self._review(message)
        for entry in message.repair_request:
            self.requests.pop(entry.message_id, None)
            kept = self.history.get(entry.message_id)
            if kept is not None and entry.sender_id:
                due = now + answer_wait_ms(self._name, entry.sender_id, entry.message_id)
                self.answers[entry.message_id] = (due, kept)
        missing = tuple(entry for entry in message.causal_history if entry.message_id not in self.history)
        if missing:
            self._hold(message, {entry.message_id for entry in missing})
            self.events.missing.append((message_id, missing))
            for entry in missing:
                if entry.message_id not in self.requests:
                    self.requests[entry.message_id] = (now + request_wait_ms(self._name, entry.message_id), entry)
        elif any(entry.message_id in self.incoming for entry in message.causal_history):
            self._hold(message, set())
        else:
            self._log(message)
            for held in self.incoming.values():
                held.missing.discard(message_id)
            self._cascade()
            self.events.ready.append(message_id)
        return missing

    def sweep_repairs(self, now: int) -> list[SdsMessage]:
        """``runRepairSweep``: returns the messages to broadcast again."""
        due = [message_id for message_id, (at, _) in self.answers.items() if now >= at]
        answers = [self.answers.pop(message_id)[1] for message_id in due]
        for message_id in [each for each, (at, _) in self.requests.items() if now - at > REPAIR_T_MAX_MS]:
            del self.requests[message_id]
        return answers

    def restart(self) -> None:
        """Continue in a new process over the same persistence: the filter is rebuilt from the history."""
        self._inserted = []
        self._filter = bytearray(FILTER.byte_count)
        for message_id in self.history:
            self._insert(message_id)
        held, self.incoming, self._slots = self.incoming, {}, 64
        for each in held.values():
            self._hold(each.message, each.missing)

    def _log(self, message: SdsMessage) -> None:
        self.history[message.message_id] = message
        while len(self.history) > MAX_HISTORY:
            del self.history[next(iter(self.history))]

    def _hold(self, message: SdsMessage, missing: set[str]) -> None:
        count = len(self.incoming)
        if message.message_id not in self.incoming and (self._slots < count + count // 2 or self._slots - count < 4):
            self.incoming = dict(self._walk_held())  # a Nim table that grows is filled anew in the order of its slots
            self._slots *= 2
        self.incoming[message.message_id] = _Held(message, missing)

    def _walk_held(self) -> Iterator[tuple[str, _Held]]:
        """A Nim table is walked by slot: the hash of the key modulo the number of slots, or the next one that was free.
        After a deletion it is as if what was deleted had never been there."""
        slots: dict[int, str] = {}
        for message_id in self.incoming:
            slot = nim_hash(message_id) % self._slots
            while slot in slots:
                slot = (slot + 1) % self._slots
            slots[slot] = message_id
        return iter([(slots[slot], self.incoming[slots[slot]]) for slot in sorted(slots)])

    def _cascade(self) -> None:
        ready = [message_id for message_id, held in self._walk_held() if not held.missing]
        done: set[str] = set()
        while ready:
            message_id = ready.pop()
            if message_id in done:
                continue
            self._log(self.incoming[message_id].message)
            self.events.ready.append(message_id)
            done.add(message_id)
            for other, held in self._walk_held():
                if other not in done and message_id in held.missing:
                    held.missing.discard(message_id)
                    if not held.missing:
                        ready.append(other)
        for message_id in done:
            del self.incoming[message_id]

    def _review(self, message: SdsMessage) -> None:
        named = {entry.message_id for entry in message.causal_history}
        words = FILTER.decode(message.bloom_filter) if message.bloom_filter else None
        is_held: Callable[[str], bool] = lambda each: False  # noqa: E731
        if words is not None and not isinstance(words, Malformed):
            is_held = lambda each: has_id(FILTER, words, each)  # noqa: E731
        for sent in [each for each in self.outgoing if each in named or is_held(each)]:
            self.outgoing.remove(sent)
            self._unacknowledged.pop(sent, None)
            self.events.sent.append(sent)

    def _insert(self, message_id: str) -> None:
        FILTER.insert(self._filter, [message_id])
        self._inserted.append(message_id)
        if len(self._inserted) > FILTER.capacity * (1 + CAPACITY_FLEX):
            self._inserted = self._inserted[-int(FILTER.capacity * (1 - CAPACITY_FLEX)) :]
            self._filter = bytearray(FILTER.byte_count)
            FILTER.insert(self._filter, self._inserted)

    # ---- as a simulated participant -------------------------------------------------------------------------------

    def send(self, contents: Sequence[bytes], now: int, required: int | None = None) -> SdsStep:
        """Wrap every content in a message of its own; the application repeats it until it is acknowledged."""
        del required  # nim-sds knows of no parity
        sent = []
        for content in contents:
            outgoing = self._wrap(content, now, OutgoingReason.CONTENT)
            self._unacknowledged[outgoing.message.message_id] = _Resent(outgoing, now + RESEND_MS)
            sent.append(outgoing)
        return SdsStep(tuple(sent))

    def send_ephemeral(self, content: bytes, now: int) -> SdsStep:
        """Wrap one content without clock, history and filter."""
        del now
        message = SdsMessage(self._name, self._next_id(content), self._channel_id, content=content)
        return SdsStep((Outgoing(encode_sds_message(message, WireFamily.NIM), message, OutgoingReason.EPHEMERAL),))

    def record_sent(self, message_id: str, now: int, retrieval_hint: bytes | None = None) -> None:
        """Does nothing: a simulated application keeps no retrieval hints."""

    def receive(
        self,
        message: SdsMessage,
        now: int,
        retrieval_hint: bytes | None = None,
        data: bytes | None = None,
        id_verified: bool | None = None,
    ) -> SdsStep:
        """Receive another participant's message; ids are never recomputed."""
        del retrieval_hint, data, id_verified
        if message.sender_id != self._name and message.lamport_timestamp is not None:
            self.unwrap(message, now)
            self._sync_due = self._sync_due or now + SYNC_MS
            self._sweep_due = self._sweep_due or now + REPAIR_SWEEP_MS
        return SdsStep()

    def tick(self, now: int) -> SdsStep:
        """Run the due timers: the application's resends and syncs, and the sweep of repair answers."""
        out = []
        for sent in [each for each in self._unacknowledged.values() if each.due <= now]:
            sent.attempts, sent.due = sent.attempts + 1, now + RESEND_MS
            out.append(Outgoing(sent.outgoing.data, sent.outgoing.message, OutgoingReason.RESEND))
            if sent.attempts >= RESENDS:
                del self._unacknowledged[sent.outgoing.message.message_id]
        if self._sweep_due is not None and self._sweep_due <= now:
            for message in self.sweep_repairs(now):
                data = encode_sds_message(message, WireFamily.NIM)
                out.append(Outgoing(data, message, OutgoingReason.REPAIR))
            self._sweep_due = now + REPAIR_SWEEP_MS if self.answers or self.requests else None
        if self._sync_due is not None and self._sync_due <= now:
            self._sync_due = None
            out.append(self._wrap(b"", now, OutgoingReason.SYNC))
        return SdsStep(tuple(out))

    def next_due(self) -> int | None:
        """When the next timer is due."""
        dues = [sent.due for sent in self._unacknowledged.values()]
        return min([*dues, *(due for due in (self._sync_due, self._sweep_due) if due is not None)], default=None)

    def _wrap(self, content: bytes, now: int, reason: OutgoingReason) -> Outgoing:
        message = self.wrap(content, self._next_id(content), now)
        return Outgoing(encode_sds_message(message, WireFamily.NIM), message, reason)

    def _next_id(self, content: bytes) -> str:
        """nim-sds leaves ids to the application; an application here counts its messages."""
        self._sent += 1
        return js_message_id(f"{self._name} {self._sent} ".encode() + content)
