"""Implements a participant on one channel as a deterministic state machine: inputs in, effects out. It uses no clock,
thread, network or disk.

``ChannelMachine.apply`` is its only entry point for inputs. The same inputs in the same order give the same state and
effects, so a journal of inputs is enough to survive a crash (LIP-109; RELIABLE-CHANNEL-API).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.encryption import Encryption
from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.events import (
    ChannelProblem,
    ChunkInfo,
    IrretrievableMessage,
    MessageAcknowledged,
    MessageDelivered,
    MessageDeliveryError,
    MessagePossiblyAcknowledged,
    MessageSendError,
    MessageSent,
    MissingMessage,
)
from reliable_channel.channel.inbox import Inbox
from reliable_channel.channel.sends import (
    SendProgress,
    Sends,
    SendState,
    describe_exhaustion,
)
from reliable_channel.channel.steps import (
    Closing,
    DispatchDone,
    DispatchFailed,
    Effect,
    EnvelopeReceived,
    Fetch,
    FetchRange,
    Input,
    Opened,
    Report,
    SdsDispatch,
    SendRequested,
    StepResult,
    SyncWithdrawn,
    Ticked,
)
from reliable_channel.core.errors import LocalError, MessageTooLarge
from reliable_channel.core.sds import (
    Buffered,
    Conflict,
    Delivered,
    DeliveryError,
    DependencyLost,
    EphemeralReceived,
    Evicted,
    MessageRefused,
    MissingDependency,
    Outgoing,
    OutgoingReason,
    PossiblyAcknowledged,
    RefetchDue,
    SaturatedFilter,
    SdsChannel,
    SdsEvent,
    SdsStep,
    SegmentAcknowledged,
    SendDelivered,
)
from reliable_channel.core.sds.verify import id_verified
from reliable_channel.core.segmentation import SegmentationConfig, split
from reliable_channel.core.segmentation.parking import SegmentStore
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsKind, SdsMessage, decode_sds_message
from reliable_channel.core.wire.segment import encode_segment
from reliable_channel.transport.clock import earliest

SET_BACK_MS = 2_000
"""How far back (ms) a clock must go to count as set back. After a smaller step the machine's time stands still until
the clock has caught up."""


SLEPT_MS = 20_000
"""A timer that runs later than this shows that the process slept, or was busy: what others sent meanwhile, such as
acknowledgements, is not processed yet."""


@dataclass(frozen=True, slots=True)
class SegmentedPayload:
    """A payload as the contents of SDS messages, data then parity. ``required`` of them rebuild it; ``payload_hash`` is
    its Keccak-256 in hex."""

    contents: list[bytes]
    required: int
    payload_hash: str


def segment_payload(payload: bytes, config: SegmentationConfig) -> SegmentedPayload:
    """Split a payload into segments. Raises ``EmptyMessage`` and ``MessageTooLarge``."""
    segments = split(payload, config)
    return SegmentedPayload(
        [encode_segment(segment) for segment in segments],
        sum(not segment.is_parity for segment in segments),
        segments[0].entire_message_hash.hex(),
    )


class ChannelMachine:
    """``segmentation`` is the configuration with the segment size that fits an envelope; ``store`` keeps the payloads
    of overdue sets, which are part of the state. ``inside``: encrypts each segment before SDS wraps it. Not safe for
    threads."""

    def __init__(
        self,
        channel_id: str,
        sender_id: str,
        content_topic: str,
        config: ReliableChannelConfig,
        segmentation: SegmentationConfig,
        store: SegmentStore | None = None,
        inside: Encryption | None = None,
    ) -> None:
        self.channel_id = channel_id
        self.sender_id = sender_id
        self.content_topic = content_topic
        self.config = config
        self.segmentation = segmentation
        self.store = store
        self._inside = inside
        self._is_sender_id_shared = False
        """Whether another sender under this one's id was seen; reported once, and not part of the state."""
        self.sds_config = replace(config.sds, wait_for_sent=True)
        self.begin()

    def begin(self) -> None:
        """Reset to the state of a channel that was never used."""
        self.sds = SdsChannel(self.channel_id, self.sender_id, self.sds_config)
        self.inbox = Inbox(
            self.channel_id,
            self.content_topic,
            self.segmentation,
            verify_chunk_chain=self.config.verify_chunk_chain,
            clock_unit_ms=self.sds_config.clock_unit_ms,
            store=self.store,
        )
        self.sends = Sends()
        self.now = 0
        self.last_active = 0

    # ---- the state machine ---------------------------------------------------------------------------------------

    def apply(self, given: Input) -> StepResult:
        """Apply one input. For a send raises ``EmptyMessage``, ``MessageTooLarge``, and ``LocalError`` if it cannot be
        encrypted inside SDS, before anything changes."""
        if self.is_ahead_of(given.now):
            self._set_back(given.now)
        now = self.now = max(self.now, given.now)
        if isinstance(given, (EnvelopeReceived, DispatchDone)):  # a send alone needs no node
            self.last_active = now
        match given:
            case SendRequested():
                return self._send(given, now)
            case EnvelopeReceived():
                return self._receive(given, now)
            case DispatchDone():
                return StepResult(given, tuple(self._finish_dispatch(given, now)))
            case DispatchFailed():
                return StepResult(given, tuple(self._fail_dispatch(given, now)))
            case Ticked():
                return StepResult(given, tuple(self._tick(now)))
            case Opened():
                return StepResult(given, tuple(self._open(now)))
            case SyncWithdrawn():
                self.sds.withdraw_sync()
                return StepResult(given, tuple(self._tick(now)))
            case Closing():
                effects = self._make_dispatches(self.sds.send_owed(now).outgoing, now)
                return StepResult(given, tuple(effects), keep=bool(effects))

    def send_ephemeral(self, payload: bytes, now: int) -> SdsDispatch:
        """Wrap one ephemeral message; does not change the state. Raises as a send does, and ``MessageTooLarge`` for
        more than one segment."""
        segmented = segment_payload(payload, replace(self.segmentation, enable_reed_solomon=False))
        if len(segmented.contents) > 1:
            raise MessageTooLarge(
                f"An ephemeral message of {len(payload)} bytes needs {len(segmented.contents)} segments; one of "
                f"{self.segmentation.bare_size()} bytes is allowed.",
                "Send less, or send it reliably.",
            )
        (content,) = self._encrypt_inside(segmented.contents) or segmented.contents
        (outgoing,) = self.sds.send_ephemeral(content, max(self.now, now)).outgoing
        sds_id = outgoing.message.message_id
        return SdsDispatch(outgoing, sds_id, segmented.payload_hash, counts=True, ephemeral=True)

    def is_ahead_of(self, now: int) -> bool:
        """Whether the machine's time is so far ahead of ``now`` (Unix ms) that the clock must have been set back."""
        return now < self.now - SET_BACK_MS

    def _set_back(self, now: int) -> None:
        """Continue at an earlier time: all timers keep their distance. Otherwise none would be due, and nothing
        retransmitted or acknowledged, until the clock is as late again."""
        from reliable_channel.channel.snapshot import move_back  # which imports this module

        queued = {send.send_id: send.queued for send in self.sends}  # not in snapshots, by which this goes back
        move_back(self, self.now - now)
        for send in self.sends:
            send.queued = queued[send.send_id]
        self.sds.follow_clock_back(now)

    def next_due(self) -> int | None:
        """When (ms) the next timer is due for a :class:`Ticked`, or ``None``."""
        return earliest(self.sds.next_due(), self.inbox.next_due())

    def summary(self) -> dict[str, Any]:
        """Counts that describe the state, for status output and ``--json``. Contains no payload."""
        states = [send.state for send in self.sends]
        return {
            "channel_id": self.channel_id,
            "content_topic": self.content_topic,
            "sender_id": self.sender_id,
            "sends": {state.value: states.count(state) for state in SendState},
            "unacknowledged_segments": self.sds.count_unacknowledged(),
            "missing_segments": len(self.sds.missing_ids()),
            "lamport_clock": self.sds.clock,
        }

    # ---- sending -------------------------------------------------------------------------------------------------

    def _send(self, given: SendRequested, now: int) -> StepResult:
        segmented = segment_payload(given.payload, self.segmentation)
        is_replay = given.send_id != ""
        ciphertexts = given.ciphertexts if is_replay else self._encrypt_inside(segmented.contents)
        contents = ciphertexts or segmented.contents
        step = self.sds.send(contents, now, required=segmented.required)
        ids = [outgoing.message.message_id for outgoing in step.outgoing]
        send_id = ids[0]
        if given.send_id not in ("", send_id):
            raise DamagedStore(
                f"The journal of channel {self.channel_id!r} does not replay to the sends it recorded.",
                "Run the version of this program that wrote it once, to a clean stop; or begin a new database.",
            )
        send = self.sends.add(send_id, segmented.payload_hash, ids)
        effects: list[Effect] = [self._make_dispatch(send, outgoing, outgoing.index == 0) for outgoing in step.outgoing]
        effects += self._follow(step.events, None, now)
        kept = replace(given, send_id=send_id, ciphertexts=ciphertexts)
        return StepResult(kept, tuple(effects), send_id=send_id, required=segmented.required)

    def _encrypt_inside(self, contents: list[bytes]) -> tuple[bytes, ...]:
        """The ciphertexts of the segments of a send; nothing if the channel does not encrypt inside SDS. All are
        encrypted before SDS wraps one, so a failing hook leaves nothing behind."""
        if self._inside is None:
            return ()
        try:
            return tuple(self._inside.encrypt(content) for content in contents)
        except LocalError:
            raise
        except Exception as error:
            # Only the type: a careless hook may have put a key or plaintext into the text.
            raise LocalError(f"The encryption raised {type(error).__name__}.", "Nothing was sent.") from None

    def _make_dispatch(self, send: SendProgress, outgoing: Outgoing, counts: bool) -> SdsDispatch:
        return SdsDispatch(outgoing, send.send_id, send.payload_hash, len(send.sds_ids), counts)

    def _open(self, now: int) -> list[Effect]:
        """Run the due timers, then dispatch every unacknowledged segment that they did not dispatch."""
        self.sds.reopen(now)
        effects = self._tick(now)
        going = {effect.sds_id for effect in effects if isinstance(effect, SdsDispatch)}
        for outgoing in self.sds.unacknowledged():
            sds_id = outgoing.message.message_id
            position = self.sends.find(sds_id)
            if sds_id in going or position is None:
                continue
            send, index = position
            if send.failed:  # it goes out as an answer to a repair request only, which one that is queued does not
                self.sds.record_sent(sds_id, now)
                continue
            counts = index == 0 and not send.dispatched
            effects.append(self._make_dispatch(send, replace(outgoing, index=index), counts))
        return effects

    def _finish_dispatch(self, given: DispatchDone, now: int) -> list[Effect]:
        if not given.own and self.sends.find(given.sds_id) is not None:  # an own segment that a repair request named
            self.sds.set_retrieval_hint(given.sds_id, given.message_hash)
            return []
        self.sds.record_sent(given.sds_id, now, retrieval_hint=given.message_hash)
        position = self.sends.find(given.sds_id)
        if position is None:
            return []
        send, index = position
        send.dispatched.add(index)
        return self._complete_send(send, now) if len(send.dispatched) == len(send.sds_ids) else []

    def _complete_send(self, send: SendProgress, now: int) -> list[Effect]:
        if send.sent:
            return []
        send.sent = True
        self.sends.settle(send)
        return [Report(MessageSent(**self._describe(send, now), request_ids=()))]

    def _fail_dispatch(self, given: DispatchFailed, now: int) -> list[Effect]:
        position = self.sends.find(given.sds_id)
        self.sds.record_sent(given.sds_id, now)
        if position is None:
            return []
        send, index = position
        effects: list[Effect] = [self._make_problem(now, "dispatch_failed", given.detail, given.sds_id)]
        if given.final and index not in send.dispatched:
            effects += self._fail(send, f"segment {index + 1} of {len(send.sds_ids)}: {given.detail}", now)
        return effects

    def _fail(self, send: SendProgress, error: str, now: int) -> list[Effect]:
        if send.failed or send.delivered:
            return []
        send.failed = True
        self.sends.settle(send)
        about = self._describe(send, now)
        if send.sent and self.config.delivery_error_event:
            return [Report(MessageDeliveryError(**about, error=error))]
        return [Report(MessageSendError(**about, error=error, dispatched=send.sent))]

    def _describe(self, send: SendProgress, now: int) -> dict[str, Any]:
        """The fields of an event about an own send."""
        return {
            "channel_id": self.channel_id,
            "at": now,
            "request_id": send.send_id,
            "message_id": send.payload_hash,
        }

    # ---- receiving -----------------------------------------------------------------------------------------------

    def _receive(self, given: EnvelopeReceived, now: int) -> StepResult:
        message = decode_sds_message(given.data, self.sds_config.wire_family)
        if isinstance(message, Malformed):
            return StepResult(
                given, (self._make_problem(now, "malformed", f"{message.reason}: {message.detail}"),), keep=False
            )
        if message.channel_id != self.channel_id:
            return StepResult(given, (), keep=False)
        if message.sender_id == self.sender_id and message.message_id not in self.sds.missing_ids():
            return StepResult(given, self._check_own(message, now), keep=False)
        verified = id_verified(message, self.sds_config.wire_family, given.content, self.sender_id)
        if given.content is not None:
            message = replace(message, content=given.content)
        reports = self.inbox.decline(message, now)
        step = self.sds.receive(
            self._drop_unknown_own(message),
            now,
            retrieval_hint=given.retrieval_hint,
            data=given.data,
            id_verified=verified,
            declined=reports is not None,
        )
        effects = [*(reports or ()), *self._absorb(step, message, now)]
        # A repetition changes the state as well: later histories carry the hash of its newer envelope.
        keep = message.kind is not SdsKind.EPHEMERAL
        return StepResult(given, tuple(effects), keep)

    def _drop_unknown_own(self, message: SdsMessage) -> SdsMessage:
        """The message without references to own messages that are not known here: a process sent them whose state was
        not kept. SDS ignores them when they come, so a message that waits for one would wait until it counts as
        lost."""
        kept = tuple(
            entry
            for entry in message.causal_history
            if entry.sender_id != self.sender_id or self._knows(entry.message_id)
        )
        return message if len(kept) == len(message.causal_history) else replace(message, causal_history=kept)

    def _knows(self, sds_id: str) -> bool:
        """Whether an own message is in the state of the channel."""
        return self.sends.find(sds_id) is not None or self.sds.sender_of(sds_id) is not None

    def _check_own(self, message: SdsMessage, now: int) -> tuple[Effect, ...]:
        """SDS ignores messages of one's own sender id. Report the first one that this participant did not send: its
        Lamport clock was never behind what it sent, unless it was set back, and that it may still know."""
        lamport = message.lamport_timestamp
        if self._is_sender_id_shared or lamport is None or self.sds.has_reached(lamport, now):
            return ()
        if self._knows(message.message_id):
            return ()
        self._is_sender_id_shared = True
        detail = (
            f"another device, or an earlier process whose state was not kept, sends as {self.sender_id!r}; such "
            "messages are ignored here, and this participant's there. Give each device a sender id of its own"
        )
        return (self._make_problem(now, "shared_sender_id", detail, message.message_id),)

    def _absorb(self, step: SdsStep, message: SdsMessage, now: int) -> list[Effect]:
        """Process the SDS events about one received message, then its content, then the segments that parity can repair
        now."""
        effects: list[Effect] = []
        for event in step.events:
            if _is_about(event, message):
                replaces = isinstance(event, Delivered) and event.replaces
                effects += self.inbox.accept(message, now, replaces=replaces, repeat=event.repeat)
                break
        else:
            if self.sds.is_past(message.message_id, message.lamport_timestamp or 0, message.sender_id):
                effects += self.inbox.accept_again(message, now)
        effects += self._make_dispatches(step.outgoing, now)
        effects += self._follow(step.events, message, now)
        effects += self._repair(now)
        return effects + self._ask(now)

    def _ask(self, now: int) -> list[Effect]:
        """Ask for the missing segments of overdue sets: by their ids, which starts SDS-R and store queries, and a store
        by time for those whose ids nobody names."""
        effects: list[Effect] = []
        for question in self.inbox.overdue:
            for sds_id, via in question.named:
                effects += self._follow(self.sds.ask_for([sds_id], question.sender_id, via, now).events, None, now)
            effects.append(FetchRange(question.since_ms))
        self.inbox.overdue.clear()
        return effects

    def _repair(self, now: int) -> list[Effect]:
        """Verified repair: rebuilt segments whose recomputed ids are missed count as received (LIP-109)."""
        effects: list[Effect] = []
        while rebuilt := self.inbox.take_repairs(self.sds.missing_ids()):
            for message in rebuilt:
                step = self.sds.receive(message, now, repaired=True, id_verified=True)
                effects += self._follow(step.events, None, now)
        return effects

    # ---- timers --------------------------------------------------------------------------------------------------

    def _tick(self, now: int) -> list[Effect]:
        due = self.next_due()
        # Once for each: a process that is late again and again gives up sets all the same.
        if due is not None and self.inbox.reassembler.spared_until < due < now - SLEPT_MS:
            self.inbox.reassembler.wake(now)
        step = self.sds.tick(now, SLEPT_MS)
        effects = self._make_dispatches(step.outgoing, now)
        effects += self._follow(step.events, None, now)
        effects += self.inbox.expire(now)
        return effects + self._ask(now)

    def _make_dispatches(self, outgoing: tuple[Outgoing, ...], now: int) -> list[Effect]:
        effects: list[Effect] = []
        for one in outgoing:
            position = self.sends.find(one.message.message_id) if one.reason is OutgoingReason.RESEND else None
            if position is None:
                effects.append(SdsDispatch(one))
                continue
            send, index = position
            if send.failed:
                # Its failure was reported, so it is not dispatched; SDS counts its attempts to the end and forgets it.
                self.sds.record_sent(one.message.message_id, now)
            else:
                self.sds.record_queued(one.message.message_id, now)  # its timer may have been due while nothing ran
                effects.append(self._make_dispatch(send, replace(one, index=index), counts=False))
        return effects

    # ---- events --------------------------------------------------------------------------------------------------

    def _follow(self, events: tuple[SdsEvent, ...], message: SdsMessage | None, now: int) -> list[Effect]:
        return [effect for event in events for effect in self._effects_of(event, message, now)]

    def _effects_of(self, event: SdsEvent, message: SdsMessage | None, now: int) -> list[Effect]:
        match event:
            case Delivered():
                return self.inbox.accept_delivery(event)
            case EphemeralReceived():
                return [self.inbox.deliver_ephemeral(event.message_id, event.sender_id, event.content or b"", now)]
            case RefetchDue():
                return [Fetch(event.retrieval_hint, event.attempt)]
            case MissingDependency():
                missing = MissingMessage(
                    channel_id=self.channel_id, at=now, sds_id=event.message_id, sender_id=event.sender_id
                )
                return [Report(missing)]
            case DependencyLost():
                lost = IrretrievableMessage(
                    channel_id=self.channel_id,
                    at=now,
                    sds_id=event.message_id,
                    sender_id=event.sender_id,
                    missing_since=event.missing_since,
                    refetches=event.refetches,
                )
                return [Report(lost)]
            case Conflict():
                return [
                    self._make_problem(now, "conflict", f"{event.why}; the {event.winner} stands", event.message_id)
                ]
            case MessageRefused():
                return [self._make_problem(now, "refused", f"{event.reason}: {event.detail}", event.message_id)]
            case Evicted():
                detail = f"{event.sender_id!r} gave up {event.count} of its {event.memory} entries"
                return [self._make_problem(now, "evicted", detail)]
            case SaturatedFilter():
                detail = f"{event.saturation:.0%} of the bits of {event.sender_id!r} are set"
                return [self._make_problem(now, "saturated_filter", detail, event.message_id)]
        return self._effects_on_sends(event, now)

    def _effects_on_sends(self, event: SdsEvent, now: int) -> list[Effect]:
        match event:
            case PossiblyAcknowledged() | SegmentAcknowledged():
                position = self.sends.find(event.message_id)
                if position is None:
                    return []
                send, index = position
                segment = self._describe(send, now)
                segment |= {"sds_id": event.message_id, "chunk_info": ChunkInfo(index, len(send.sds_ids))}
                if isinstance(event, PossiblyAcknowledged):
                    return [Report(MessagePossiblyAcknowledged(**segment, by=event.by, count=event.count))]
                acknowledged = MessageAcknowledged(
                    **segment,
                    chunks_acknowledged=event.acknowledged,
                    total_chunks=event.total,
                    evidence=event.evidence.value,
                )
                return [Report(acknowledged)]
            case SendDelivered():
                return self._report_delivery(event, now)
            case DeliveryError():
                failed = self.sends.get(event.send_id)
                if failed is None:
                    return []
                return self._fail(failed, describe_exhaustion(event), now)
        return []

    def _report_delivery(self, event: SendDelivered, now: int) -> list[Effect]:
        send = self.sends.get(event.send_id)
        if send is None or send.delivered:
            return []
        # What is acknowledged was sent, whoever died before the node said so: *delivered* follows *sent*
        # (RELIABLE-CHANNEL-API).
        sent = [] if send.failed else self._complete_send(send, now)
        send.delivered = True
        self.sends.settle(send)
        return [*sent, Report(MessageDelivered(**self._describe(send, now), after_error=send.failed))]

    def _make_problem(self, now: int, kind: str, detail: str, sds_id: str = "") -> Report:
        return Report(ChannelProblem(channel_id=self.channel_id, at=now, kind=kind, detail=detail, sds_id=sds_id))


def _is_about(event: SdsEvent, message: SdsMessage) -> TypeGuard[Delivered | Buffered]:
    """Whether SDS accepted exactly this send of a message with this event. Messages that it released have other ids,
    senders or Lamport timestamps."""
    if isinstance(event, Buffered):
        return (event.message_id, event.sender_id) == (message.message_id, message.sender_id)
    return isinstance(event, Delivered) and (event.message_id, event.sender_id, event.lamport_timestamp) == (
        message.message_id,
        message.sender_id,
        message.lamport_timestamp,
    )
