"""Defines the public interface of the SDS core: one channel as one participant or observer sees it (LIP-109)."""

from __future__ import annotations

from collections.abc import Sequence

from reliable_channel.core.sds.causal_order import CausalOrder
from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.conflicts import find_id_owner, find_known
from reliable_channel.core.sds.events import (
    Outgoing,
    OutgoingReason,
    RepairCancelled,
    RepairSent,
    SdsEvent,
    SdsStep,
)
from reliable_channel.core.sds.incoming import CATCH_UP_MS
from reliable_channel.core.sds.log import LogEntry
from reliable_channel.core.sds.receiving import DIGEST_BYTES, IncomingMessage, SdsReceiver
from reliable_channel.core.sds.sending import SdsSender
from reliable_channel.core.sds.snapshot import read_snapshot, write_snapshot
from reliable_channel.core.sds.state import ChannelState
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, decode_sds_message

_NOTHING = SdsStep()


class SdsChannel:
    """The SDS state machine of one channel, for a participant or (``participant_id`` ``None``) an observer.

    Every method takes ``now`` in ms, which must never decrease, and returns a :class:`SdsStep`. Timers run only in
    :meth:`tick`: ``tick(now)`` runs every timer due up to ``now`` one by one, each at its own due time, so that one
    late tick equals many punctual ones. A participant has observed the channel since its first call: call ``tick(now)``
    once on opening.
    """

    def __init__(self, channel_id: str, participant_id: str | None, config: SdsParameters | None = None) -> None:
        self._use(ChannelState(channel_id, participant_id, config or SdsParameters()))

    def _use(self, state: ChannelState) -> None:
        self._state = state
        self._sender = SdsSender(state)
        self._order = CausalOrder(state)
        self._receiver = SdsReceiver(state, self._order)

    @property
    def channel_id(self) -> str:
        """The SDS channel id."""
        return self._state.channel_id

    @property
    def participant_id(self) -> str | None:
        """The local participant, ``None`` for an observer."""
        return self._state.participant_id

    @property
    def config(self) -> SdsParameters:
        """The settings."""
        return self._state.config

    @property
    def clock(self) -> int | None:
        """The Lamport clock, ``None`` before the first call."""
        return self._state.clock

    # ---- sending -------------------------------------------------------------------------------------------------

    def send(self, contents: bytes | Sequence[bytes], now: int, *, required: int | None = None) -> SdsStep:
        """Wrap the segments of one send in one step, with consecutive Lamport timestamps (data, then parity).

        ``required``: how many of them a recipient needs (k of k + m); all by default. Raises ``EmptyMessage`` for an
        empty content and ``LocalError`` for an observer or two equal contents."""
        outgoing: list[Outgoing] = []
        events: list[SdsEvent] = []
        segments = [bytes(contents)] if isinstance(contents, bytes | bytearray | memoryview) else list(contents)
        self._sender.send(segments, required, now, outgoing, events)
        for sent in outgoing:
            self._order.settle([sent.message.message_id], now, events)
        return SdsStep(tuple(outgoing), tuple(events))

    def send_ephemeral(self, content: bytes, now: int) -> SdsStep:
        """Wrap one ephemeral message, which has no timestamp, history or filter and is not remembered."""
        return SdsStep((self._sender.ephemeral(content, now),))

    def send_sync(self, now: int) -> SdsStep:
        """Send a sync message now instead of waiting for the timer, unless there is nothing to report."""
        outgoing: list[Outgoing] = []
        events: list[SdsEvent] = []
        self._state.open(now)
        self._sender.sync(now, outgoing, events)
        return SdsStep(tuple(outgoing), tuple(events))

    def send_owed(self, now: int) -> SdsStep:
        """Acknowledge received content that nobody has named yet, now instead of when its sync message is due. For a
        participant that leaves. Does nothing if no acknowledgement is owed."""
        return self.send_sync(now) if self._sender.owes() else SdsStep()

    def record_sent(self, message_id: str, now: int, *, retrieval_hint: bytes | None = None) -> SdsStep:
        """Record that an own message was dispatched, or that its dispatch failed: the wait for its acknowledgement
        starts now, and the next sync message may be made."""
        if self._state.sync is not None:
            self._state.sync.record_sent(message_id, now)
        segment = self._state.outgoing.segments.get(message_id)
        if segment is not None:
            self._state.outgoing.record_sent(segment, now)
        if retrieval_hint is not None:
            self.set_retrieval_hint(message_id, retrieval_hint)
        return SdsStep()

    def reopen(self, now: int) -> None:
        """Continue in a new process. The sync message that waited to be dispatched is withdrawn, and all other messages
        that must be dispatched wait since ``now``."""
        self.withdraw_sync()
        outgoing = self._state.outgoing
        outgoing.restart_queue(now, [segment.message_id for segment in outgoing.open_segments()])

    def record_queued(self, message_id: str, now: int) -> None:
        """Record that a retransmission waits to be dispatched since ``now``, if later than its timer was due."""
        self._state.outgoing.restart_queue(now, [message_id])

    def withdraw_sync(self) -> None:
        """Forget the sync message that waits to be dispatched: it was withdrawn, or the process that made it ended."""
        if self._state.sync is not None:
            self._state.sync.withdraw_unsent()

    def is_outdated(self, message: Outgoing, now: int) -> bool:
        """Whether an own message that waits to be dispatched has lost its purpose: a retransmission that need not be
        acknowledged any more, or a sync message when a newer one could acknowledge more."""
        if message.reason is OutgoingReason.RESEND:
            return not self._state.outgoing.is_queued(message.message.message_id)
        sync = self._state.sync
        if message.reason is not OutgoingReason.SYNC or sync is None or message.message.message_id != sync.unsent:
            return False
        return sync.owed_due is not None and sync.owed_due <= now

    def set_retrieval_hint(self, message_id: str, retrieval_hint: bytes) -> None:
        """Remember the hash (32 bytes) of the newest envelope of a message; later histories carry it."""
        entry = find_known(self._state, message_id)
        if entry is not None:
            entry.set_hint(retrieval_hint)

    def unacknowledged(self) -> tuple[Outgoing, ...]:
        """The content of the outgoing buffer, oldest first. A restarted participant dispatches it again."""
        outgoing = self._state.outgoing
        return tuple(outgoing.outgoing(segment, OutgoingReason.RESEND) for segment in outgoing.open_segments())

    def count_unacknowledged(self) -> int:
        """How many messages the outgoing buffer holds."""
        return sum(1 for _ in self._state.outgoing.open_segments())

    def count_unacknowledged_bytes(self) -> int:
        """The encoded size (bytes) of all messages in the outgoing buffer, which is most of a sender's snapshot."""
        return sum(len(segment.data) for segment in self._state.outgoing.open_segments())

    def observe_sent(
        self,
        message: SdsMessage,
        now: int,
        *,
        retrieval_hint: bytes | None = None,
        content_digest: bytes | None = None,
        id_verified: bool | None = None,
        content_bytes: int | None = None,
    ) -> SdsStep:
        """Process an own message that a pipeline with a participant id saw on the wire: it enters log, filter and
        outgoing buffer and is not delivered, but messages that waited for it are. Seen again, it is a retransmission
        (``DuplicateSeen``): hint and wait are renewed. ``id_verified`` and ``content_bytes`` as in :meth:`receive`. A
        message whose id is not verified is refused, except that one too long to search for its id is unproven at
        first."""
        digest = None if content_digest is None else content_digest[:DIGEST_BYTES]
        arrival = IncomingMessage(
            message, now, retrieval_hint, digest=digest, id_verified=id_verified, content_bytes=content_bytes
        )
        if self._sender.observe_sent(arrival):
            self._order.settle([message.message_id], now, arrival.events)
        while (surplus := self._state.unproven.surplus()) is not None:
            self._receiver.end_doubt(surplus, now, arrival.events)
        return SdsStep((), tuple(arrival.events))

    # ---- receiving -----------------------------------------------------------------------------------------------

    def receive(
        self,
        message: SdsMessage,
        now: int,
        *,
        retrieval_hint: bytes | None = None,
        repaired: bool = False,
        data: bytes | None = None,
        content_digest: bytes | None = None,
        id_verified: bool | None = None,
        content_bytes: int | None = None,
        declined: bool = False,
    ) -> SdsStep:
        """Process one decoded message.

        ``retrieval_hint``: the hash (32 bytes) of its envelope. ``repaired``: it was rebuilt, not received, and its id
        recomputed. ``data``: its bytes on the wire, for a later rebroadcast; without them it is encoded again.
        ``content_digest``: SHA-256 of the content, if the caller stores contents elsewhere and ``message.content`` is
        ``None``; ``content_bytes`` is then the length. ``id_verified``: the result of
        :func:`~reliable_channel.core.sds.verify.id_verified`. If it is false, the message is unproven at first
        (:mod:`~reliable_channel.core.sds.unproven`). ``None``: the id cannot be checked, or the content is here and
        decides in a conflict. ``declined``: the caller cannot use its content. Unless it was accepted before, it is not
        acknowledged and never delivered, and no message waits for it.
        """
        digest = None if content_digest is None else content_digest[:DIGEST_BYTES]
        arrival = IncomingMessage(
            message, now, retrieval_hint, repaired, data, digest, id_verified, content_bytes, declined
        )
        return SdsStep((), tuple(self._receiver.receive(arrival)))

    def ask_for(self, message_ids: Sequence[str], sender_id: str, via: str, now: int) -> SdsStep:
        """Request messages that ``via``, a message of ``sender_id``, names, also those from before observation. ``via``
        does not wait for them; later messages do. Ids that are known here are ignored."""
        events: list[SdsEvent] = []
        self._receiver.ask_for(message_ids, sender_id, via, now, events)
        return SdsStep((), tuple(events))

    # ---- timers --------------------------------------------------------------------------------------------------

    def tick(self, now: int, late_ms: int = CATCH_UP_MS) -> SdsStep:
        """Run every timer due up to ``now``, in the order of their due times, each at its own due time.

        A participant of which one is over ``late_ms`` late slept: nothing was received meanwhile, so no send has failed
        and nothing was lost by its time."""
        state = self._state
        if state.sync is not None:
            state.open(now)
            due = self.next_due()  # also of a sync message that is skipped
            state.sync.skip_to(now)
            if due is not None and due < now - late_ms:
                state.outgoing.wake(now, now - due)
                state.incoming.wake(now, now - due)
                state.unproven.wake(now - due)
        due = self.next_due()
        if due is None or due > now:
            return _NOTHING
        outgoing: list[Outgoing] = []
        events: list[SdsEvent] = []
        while due is not None and due <= now:
            self._run(due, outgoing, events)
            if state.sync is not None:  # a timer of long ago may have started the interval anew, in the past
                state.sync.skip_to(now)
            due = self.next_due()
        return SdsStep(tuple(outgoing), tuple(events))

    def follow_clock_back(self, now: int) -> None:
        """After the machine's clock was set back to ``now``: lower a Lamport clock that no peer would accept. Messages
        that were sent under it are refused by everybody, and later ones must not be."""
        state = self._state
        state.observed_since = min(state.observed_since, state.clock_time(now))
        if state.clock is not None and not state.accepts_time(state.clock, now):
            accepted = [lamport for lamport, _ in state.log.positions() if state.accepts_time(lamport, now)]
            state.clock = max([state.clock_time(now), *accepted[-1:]])

    def has_reached(self, lamport: int, now: int) -> bool:
        """Whether this participant may have sent a message with this Lamport timestamp: its clock is as far. So it was
        before a clock that was wrong was set back, if nobody accepts the timestamp at ``now`` (ms)."""
        state = self._state
        clock = state.clock_time(now) if state.clock is None else state.clock
        return lamport <= clock or not state.accepts_time(lamport, now)

    def next_due(self) -> int | None:
        """The earliest time at which :meth:`tick` would do something, or ``None``."""
        state = self._state
        due = [state.incoming.next_due(), state.outgoing.next_due(), state.unproven.next_due()]
        if state.repair is not None:
            due.append(state.repair.next_due())
        if state.sync is not None:
            due.append(state.sync.due)
        return min((at for at in due if at is not None), default=None)

    def _run(self, now: int, outgoing: list[Outgoing], events: list[SdsEvent]) -> None:
        state = self._state
        # In a fixed order, so that a replay gives the same events (docs/sds.md, *Time and timers*).
        self._receiver.end_doubts(now, events)
        if state.incoming.next_due() == now:
            self._order.give_up(state.incoming.sweep(now, events), now, events)
        state.outgoing.run(now, outgoing, events)
        if state.repair is not None:
            for message_id, data in state.repair.run(now):
                if data is None:
                    events.append(RepairCancelled(now, message_id, "dropped"))
                    continue
                message = decode_sds_message(data, state.config.wire_family)
                if not isinstance(message, Malformed):
                    outgoing.append(Outgoing(data, message, OutgoingReason.REPAIR))
                    events.append(RepairSent(now, message_id))
        if state.sync is not None and state.sync.due == now:
            if state.sync.interval_due == now or self._sender.owes():
                self._sender.sync(now, outgoing, events)
            else:  # another participant has named it meanwhile
                state.sync.owed_due = None

    # ---- inspection ----------------------------------------------------------------------------------------------

    def seniors(self) -> frozenset[str]:
        """The senders that have been in the log longest, which no number of newer ones displaces."""
        return self._state.log.seniors()

    def missing_ids(self) -> tuple[str, ...]:
        """The missing ids, in the order in which they were reported."""
        return tuple(self._state.incoming.missing)

    def is_past(self, message_id: str, lamport: int, sender_id: str | None = None) -> bool:
        """Whether a message with this id, Lamport timestamp (ms) and sender was delivered here, or can no longer be.
        ``None``: any sender."""
        return message_id in self._state.log or self.is_forgotten(message_id, lamport, sender_id)

    def is_forgotten(self, message_id: str, lamport: int, sender_id: str | None = None) -> bool:
        """Whether a message with this id, Lamport timestamp (ms) and sender would be refused as older than the log."""
        return self._state.log.may_have_forgotten((lamport, message_id), sender_id)

    def has_delivered(self, message_id: str, lamport: int, sender_id: str) -> bool:
        """Whether exactly this send was delivered here, or may have been: equal contents can have one id."""
        state = self._state
        entry = state.log.get(message_id)
        return (
            (entry is not None and (entry.lamport, entry.sender_id) == (lamport, sender_id))
            or (lamport, message_id, sender_id) in state.repeats
            or state.repeats.may_have_forgotten((lamport, message_id, sender_id))
            or self.is_forgotten(message_id, lamport, sender_id)
        )

    def sender_of(self, message_id: str) -> str | None:
        """The sender of the message that owns an id here, in the log or in the incoming buffer; ``None`` if there is
        none."""
        known = find_id_owner(self._state, message_id)
        return None if known is None else known.sender_id

    def forget(self) -> None:
        """Make a channel dormant: drop its state except its horizon. Messages that are not later than the last message
        of the log are refused as older than the log, so nothing is delivered twice. Observation starts over."""
        state = self._state
        for _, doubt in state.unproven.items():
            if isinstance(doubt.record, LogEntry):  # delivered, so the horizon must cover it
                state.log.add(doubt.record, state.clock or 0)
        state.log.forget()
        dormant = ChannelState(state.channel_id, state.participant_id, state.config)
        dormant.sequence, dormant.ephemeral_counter = state.sequence, state.ephemeral_counter
        dormant.log.horizons = state.log.horizons
        self._use(dormant)

    # ---- snapshot ------------------------------------------------------------------------------------------------

    def to_bytes(self, *, with_kept: bool = True) -> bytes:
        """Encode a versioned, bounded protobuf snapshot (``proto/sds_state.proto``), without the configuration.

        ``with_kept=False`` omits the original bytes of messages (``max_kept_bytes``) that serve only to answer repair
        requests."""
        return write_snapshot(self._state, with_kept=with_kept)

    @classmethod
    def from_bytes(cls, data: bytes, config: SdsParameters | None = None) -> SdsChannel:
        """Restore a snapshot; the channel continues identically. Raises ``LocalError`` for bytes that are not a
        snapshot."""
        channel = cls.__new__(cls)
        channel._use(read_snapshot(data, config or SdsParameters()))
        return channel
