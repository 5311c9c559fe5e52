"""Turns received SDS messages into application messages: reassembly, verified repair, and the decision to deliver.

Segments enter reassembly when SDS *accepts* them, including those that wait for a dependency: in causal order, a lost
segment would hold back exactly the segments whose parity can rebuild it. :mod:`reliable_channel.core.delivery` decides
when a message is delivered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from reliable_channel.channel.events import ChannelProblem, MessageLost, MessageReceived
from reliable_channel.channel.evicted import EvictedSet, EvictedSets, Stage
from reliable_channel.channel.steps import AskForSegments, Effect, Report
from reliable_channel.core.delivery import AwaitedMessages, keep_newest
from reliable_channel.core.sds import Delivered
from reliable_channel.core.sds.keys import SendKey, sds_id_of_text, text_of
from reliable_channel.core.segmentation import (
    ChunkDiscarded,
    ChunkGate,
    Dialect,
    HashMismatch,
    HeldSegment,
    IncompleteSet,
    MessageChunk,
    MessageCompleted,
    Reassembler,
    ReceivedChunk,
    SegmentationConfig,
    SegmentationEvent,
    SegmentDuplicate,
    SegmentRefused,
    SetEvicted,
    SetExpired,
    SetOverdue,
    find_repaired,
)
from reliable_channel.core.segmentation.parking import SegmentStore
from reliable_channel.core.wire.hashing import IdScheme, keccak256, sha256
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import SdsKind, SdsMessage
from reliable_channel.core.wire.segment import decode_segment, lookalike, open_ephemeral
from reliable_channel.transport.clock import earliest

MAX_REBUILT = 192
MAX_RECENT = 64
MAX_RECENT_BYTES = 16 * 1024 * 1024
"""Complete messages that are kept in case a message refers to one of their segments that never arrived, and such
segments of them. What is forgotten is asked for, as any missing segment."""


@dataclass(slots=True)
class Note:
    """The record of a segment until its message is delivered. ``history`` and ``lost`` are cut to their newest
    (:func:`~reliable_channel.core.delivery.keep_newest`). ``owner``: that of the message (:func:`owner_of`). A
    stranger may have used the id for a segment of another message."""

    history: tuple[str, ...]
    owner: bytes
    delivered: bool = False
    late: bool = False
    lost: tuple[str, ...] = ()


def owner_of(sender_id: str, entire_message_hash: bytes) -> bytes:
    """Names a message by its sender and its hash, in 16 bytes."""
    return sha256(entire_message_hash + sender_id.encode("utf-8", "surrogatepass"))[:16]


@dataclass(slots=True)
class Pending:
    """A complete message that waits until SDS has delivered ``required`` of ``sds_ids``."""

    key: str
    sender_id: str
    payload: bytes
    sds_ids: list[str]
    required: int
    lamport_timestamp: int | None
    owner: bytes
    chunks: tuple[MessageChunk, ...] = ()
    request_id: str | None = None
    """The SDS id of its first segment, if that arrived."""


def _make_segment_key(message_id: str, sender_id: str, lamport: int | None, repeat: bool) -> str:
    """The text under which a segment is kept here; a further send of an id is not kept under the id."""
    return text_of(SendKey(message_id, sender_id, lamport or 0) if repeat else message_id)


class Inbox:
    """The receiving half of a channel above SDS."""

    def __init__(
        self,
        channel_id: str,
        content_topic: str,
        config: SegmentationConfig,
        *,
        verify_chunk_chain: bool = False,
        clock_unit_ms: int = 1,
        store: SegmentStore | None = None,
    ) -> None:
        self.channel_id = channel_id
        self.content_topic = content_topic
        self.config = config
        self.reassembler = Reassembler(config, store)
        self.overdue: list[AskForSegments] = []
        """The questions of the last :meth:`accept` or :meth:`expire`, for the owner to take."""
        self.evicted = EvictedSets(config)
        self._clock_unit_ms = clock_unit_ms
        self.notes: dict[str, Note] = {}
        self.pending: AwaitedMessages[str, str, Pending, Note] = AwaitedMessages(self._find_delivered)
        self.gate = ChunkGate(config.max_set_lifetime_ms) if verify_chunk_chain else None
        self._recent: OrderedDict[str, MessageCompleted] = OrderedDict()
        self._rebuilt: dict[str, SdsMessage] = {}

    def decline(self, message: SdsMessage, now: int) -> list[Effect] | None:
        """Return ``None`` if the content of a message can be used. Otherwise it must not be acknowledged: it belongs to
        a message that was given up or is too large, or no configured dialect reads it. Returns what to report then."""
        if message.kind is not SdsKind.CONTENT:
            return None
        key = text_of(message.message_id)
        segment = decode_segment(message.content or b"", self.config.accepted_dialects)
        if isinstance(segment, Malformed):
            if Dialect.V01 in self.config.accepted_dialects:
                return None
            return [self._make_problem(now, "malformed", "no segment of the configured dialects", key)]
        chunk = ReceivedChunk(segment, key, (), (message.sender_id,), message.lamport_timestamp)
        evicted = self.evicted.get(chunk.scope, segment.entire_message_hash)
        if (evicted is not None and evicted.stage is Stage.LOST) or self.reassembler.is_lost(
            segment, scope=chunk.scope, sds_id=chunk.sds_id, lamport=chunk.lamport
        ):
            return []
        return self._give_up(chunk, "over_message_limit", now) if self.reassembler.exceeds_limit(segment) else None

    def accept(self, message: SdsMessage, now: int, *, replaces: bool = False, repeat: bool = False) -> list[Effect]:
        """Process the content of a message that SDS accepted, delivered or not yet. ``repeat``: it is a further send of
        an id, so the id does not identify it."""
        key = _make_segment_key(message.message_id, message.sender_id, message.lamport_timestamp, repeat)
        content = message.content or b""
        segment = decode_segment(content, self.config.accepted_dialects)
        if isinstance(segment, Malformed):
            return self._accept_bare(message, key, segment, now, replaces)
        sds_id, history = key, tuple(entry.message_id for entry in message.causal_history)
        self._note(sds_id, history, owner_of(message.sender_id, segment.entire_message_hash))
        chunk = ReceivedChunk(segment, sds_id, history, (message.sender_id,), message.lamport_timestamp)
        if self.gate is None:
            return self._add(chunk, now)
        effects: list[Effect] = []
        for let in self.gate.add(chunk, now):
            effects += self._report_discarded(let, now) if isinstance(let, ChunkDiscarded) else self._add(let, now)
        return effects

    def accept_again(self, message: SdsMessage, now: int) -> list[Effect]:
        """Process a copy of a message that SDS delivered before, if its segment made room and is wanted again."""
        if not self.evicted:
            return []
        segment = decode_segment(message.content or b"", self.config.accepted_dialects)
        if isinstance(segment, Malformed):
            return []
        evicted = self.evicted.get((message.sender_id,), segment.entire_message_hash)
        if evicted is None or evicted.stage not in (Stage.REQUESTED, Stage.REOPENED):
            return []
        held = {segment.sds_id for segment in evicted.incomplete.held}
        for repeat in (False, True):
            key = _make_segment_key(message.message_id, message.sender_id, message.lamport_timestamp, repeat)
            if key in held:
                effects = self.accept(message, now, repeat=repeat)
                if (note := self.notes.get(key)) is not None:
                    note.delivered = True
                return effects + [
                    self._deliver(pending, notes, now) for _, pending, notes in self.pending.take_with(key)
                ]
        return []

    def _add(self, chunk: ReceivedChunk, now: int) -> list[Effect]:
        events = self.reassembler.add(chunk.segment, now, scope=chunk.scope, sds_id=chunk.sds_id, lamport=chunk.lamport)
        evicted = self.evicted.get(chunk.scope, chunk.segment.entire_message_hash)
        if evicted is not None and evicted.stage is Stage.REQUESTED:
            evicted.stage = Stage.REOPENED
        return self._follow(events, now)

    def _report_discarded(self, discarded: ChunkDiscarded, now: int) -> list[Effect]:
        sds_id = discarded.chunk.sds_id
        self._drop((sds_id,), owner_of(discarded.chunk.scope[0], discarded.chunk.segment.entire_message_hash))
        why = "was not verified in time" if discarded.expired else "was not verified, and too many chunks wait"
        problem = self._make_problem(now, "unverified_chain", f"its link to the segment before it {why}", sds_id)
        return [problem, *self._give_up(discarded.chunk, "unverified_chain", now)]

    def _give_up(self, chunk: ReceivedChunk, reason: str, now: int) -> list[Effect]:
        """Give up the message of a segment that cannot be used, unless it is finished."""
        lost = self.reassembler.lose(chunk.segment, now, scope=chunk.scope, sds_id=chunk.sds_id, lamport=chunk.lamport)
        return [] if lost is None else [self._report_lost(lost, reason, now)]

    def _accept_bare(
        self, message: SdsMessage, sds_id: str, malformed: Malformed, now: int, replaces: bool
    ) -> list[Effect]:
        content = message.content or b""
        digest = keccak256(content)
        owner = owner_of(message.sender_id, digest)
        self._note(sds_id, (), owner)
        # One that replaces another under its id is another message, and must not pass for reported already.
        key = f"{sds_id}+{digest.hex()[:16]}" if replaces else sds_id
        send_id, lamport = message.message_id, message.lamport_timestamp
        chunk = MessageChunk(send_id, "", 0, 0, send_id, verified=True)
        self.wait(Pending(key, message.sender_id, content, [sds_id], 1, lamport, owner, (chunk,), send_id))
        why = lookalike(content, malformed)
        if why is None:
            return []
        return [
            self._make_problem(now, "lookalike", f"probably meant as a segment: {why.detail or why.reason}", sds_id)
        ]

    def accept_delivery(self, event: Delivered) -> list[Effect]:
        """Process the delivery of a segment by SDS; it may be the last one that a complete message waited for."""
        sds_id = _make_segment_key(event.message_id, event.sender_id, event.lamport_timestamp, event.repeat)
        note = self.notes.get(sds_id)
        if note is not None:
            note.delivered, note.late, note.lost = True, event.late, keep_newest(event.lost_dependencies)
        return [self._deliver(pending, notes, event.at) for _, pending, notes in self.pending.take_with(sds_id)]

    def deliver_ephemeral(self, message_id: str, sender_id: str, content: bytes, now: int) -> Effect:
        """Deliver an ephemeral message at once, or report why not; it has exactly one segment."""
        key, payload = text_of(message_id), open_ephemeral(content, self.config.accepted_dialects)
        if isinstance(payload, Malformed):
            return self._make_problem(now, _EPHEMERAL_PROBLEMS.get(payload.reason, "malformed"), payload.detail, key)
        return Report(self._make_event(payload, sender_id, key, now, ephemeral=True))

    def take_repairs(self, missing: tuple[str, ...]) -> list[SdsMessage]:
        """The missing segments that complete messages can supply, in the order in which they were sent: encoded again,
        with a recomputed id that equals the missing one (LIP-109)."""
        if not missing:
            return []
        while self._recent:
            _, event = self._recent.popitem(last=False)
            self._rebuild(event)
        repaired = [self._rebuilt.pop(sds_id) for sds_id in missing if sds_id in self._rebuilt]
        # They have no history: the last of a message, if it came first, would release what follows the whole message.
        return sorted(repaired, key=lambda message: message.lamport_timestamp or 0)

    def expire(self, now: int) -> list[Effect]:
        """Ask for the segments of overdue sets, and for evicted sets for which there is room; give up sets and
        unverified chains whose time is up."""
        effects = self._follow(self.reassembler.expire(now), now)
        if now < self.reassembler.spared_until:
            return effects
        again, lost = self.evicted.take_due(now, self.reassembler.has_room_for)
        for evicted in again:
            self.reassembler.revive(*evicted.key)
            self.overdue.append(AskForSegments(evicted.incomplete.scope[0], (), evicted.since_ms))
        effects += [self._report_lost(each.incomplete, each.reason, now) for each in lost]
        if self.gate is not None:
            for discarded in self.gate.expire(now):
                effects += self._report_discarded(discarded, now)
        return effects

    def next_due(self) -> int | None:
        gate = self.gate.next_due() if self.gate is not None else None
        others = earliest(self.evicted.next_due(), gate)
        spared = None if others is None else max(others, self.reassembler.spared_until)
        return earliest(self.reassembler.next_due(), spared)

    def forget_spare(self) -> None:
        """Drop everything that a snapshot does not contain, so that this object continues exactly as one restored from
        it."""
        self._recent.clear()
        self._rebuilt.clear()

    # ---- reassembly ----------------------------------------------------------------------------------------------

    def _follow(self, events: list[SegmentationEvent], now: int) -> list[Effect]:
        effects: list[Effect] = []
        for event in events:
            match event:
                case MessageCompleted():
                    effects += self._complete(event, now)
                case HashMismatch():
                    detail = f"{len(event.held)} segments do not hash to {event.entire_message_hash.hex()}"
                    effects.append(self._make_problem(now, "hash_mismatch", detail))
                case SegmentRefused():
                    self._drop((event.sds_id,), owner_of(event.scope[0], event.entire_message_hash))
                    effects.append(self._make_problem(now, "refused", f"segment: {event.reason}", event.sds_id))
                case SegmentDuplicate() if event.late:
                    self._drop((event.sds_id,), owner_of(event.scope[0], event.entire_message_hash))
                case SetOverdue():
                    self.overdue.append(self._make_question(event.incomplete))
                case SetExpired(incomplete):
                    self.evicted.forget(incomplete.scope, incomplete.entire_message_hash)
                    effects.append(
                        self._report_lost(incomplete, "hash_mismatch" if incomplete.mismatch else "expired", now)
                    )
                case SetEvicted(incomplete, reason):
                    effects += self._evict(incomplete, reason.value, now)
        return effects

    def _evict(self, incomplete: IncompleteSet, reason: str, now: int) -> list[Effect]:
        evicted = EvictedSet(incomplete, reason, self._make_question(incomplete).since_ms, now)
        given_up = self.evicted.add(evicted, now)
        effects: list[Effect] = [self._report_lost(each.incomplete, each.reason, now) for each in given_up]
        if evicted not in given_up:
            self._drop(
                (segment.sds_id for segment in incomplete.held),
                owner_of(incomplete.scope[0], incomplete.entire_message_hash),
            )
            detail = f"{incomplete.buffered_bytes} bytes of a message ({reason}); asked for again when there is room"
            effects.append(self._make_problem(now, "set_evicted", detail))
        return effects

    def _make_question(self, incomplete: IncompleteSet) -> AskForSegments:
        """Name what is missing of a set: its segments' histories name the segment before each of them. Lamport
        timestamps follow the senders' clocks, and tell when the first segment was sent."""
        numbers = {_number(segment, incomplete.data_count): segment for segment in incomplete.held}
        named: dict[str, str] = {}
        since = incomplete.first_seen
        for number, segment in numbers.items():
            note = self.notes.get(segment.sds_id)
            if number and number - 1 not in numbers and note is not None and note.history:
                # Histories are in log order, and nothing was sent between two segments of a message.
                named[note.history[-1]] = sds_id_of_text(segment.sds_id)
            if segment.lamport is not None:
                since = min(since, (segment.lamport - (number or 0)) * self._clock_unit_ms)
        return AskForSegments(incomplete.scope[0], tuple(named.items()), since)

    def _report_lost(self, incomplete: IncompleteSet, reason: str, now: int) -> Report:
        sender_id, whole = incomplete.scope[0], incomplete.entire_message_hash
        ids = tuple(segment.sds_id for segment in incomplete.held)
        self._drop(ids, owner_of(sender_id, whole))
        numbers = (_number(segment, incomplete.data_count) for segment in incomplete.held)
        return Report(
            MessageLost(
                channel_id=self.channel_id,
                at=now,
                message_id=whole.hex(),
                sender_id=sender_id,
                reason=reason,
                held=tuple(number for number in numbers if number is not None),
                missing=incomplete.missing_data,
                data_count=incomplete.data_count,
                parity_count=incomplete.parity_count,
                lacking=incomplete.lacking,
                held_bytes=incomplete.buffered_bytes if ids else 0,
                sds_ids=tuple(map(sds_id_of_text, ids)),
                first_seen=incomplete.first_seen,
                last_seen=incomplete.last_seen,
            )
        )

    def _complete(self, event: MessageCompleted, now: int) -> list[Effect]:
        sender = event.scope[0]
        self.evicted.forget(event.scope, event.entire_message_hash)
        received = [segment.sds_id for segment in event.received]
        first = [segment.sds_id for segment in event.received if not segment.is_parity and segment.index == 0]
        send_id = sds_id_of_text(first[0]) if first else None
        pending = Pending(
            key=received[0],
            sender_id=sender,
            payload=event.payload,
            sds_ids=received,
            required=min(event.data_count, len(received)),
            lamport_timestamp=event.received[-1].lamport,
            owner=owner_of(sender, event.entire_message_hash),
            chunks=self._list_chunks(event, send_id),
            request_id=send_id,
        )
        self.wait(pending)
        if event.first_lamport is not None:
            recent = self._recent
            recent[pending.key] = event
            while len(recent) > MAX_RECENT or sum(len(e.payload) for e in recent.values()) > MAX_RECENT_BYTES:
                recent.popitem(last=False)
        notes = self.pending.take(pending.key)
        return [] if notes is None else [self._deliver(pending, notes, now)]

    def _rebuild(self, event: MessageCompleted) -> None:
        """Encode the segments that never arrived again, under their possible ids."""
        count = self.config.parity_count(event.data_count)
        for sds_id, _, segment in find_repaired(event, count, IdScheme):
            self._rebuilt[sds_id] = SdsMessage(
                event.scope[-1], sds_id, self.channel_id, segment.lamport, content=segment.content
            )
        if len(self._rebuilt) > MAX_REBUILT:
            for sds_id in list(self._rebuilt)[: len(self._rebuilt) - MAX_REBUILT]:
                del self._rebuilt[sds_id]

    def _list_chunks(self, event: MessageCompleted, send_id: str | None) -> tuple[MessageChunk, ...]:
        by_ordinal = {
            segment.index + (event.data_count if segment.is_parity else 0): segment.sds_id for segment in event.received
        }
        last = event.data_count + (event.parity_count or 0) - 1
        chunks = []
        for ordinal, sds_id in sorted(by_ordinal.items()):
            previous = "" if ordinal == 0 else by_ordinal.get(ordinal - 1)
            note = self.notes.get(sds_id)
            previous = None if previous is None else sds_id_of_text(previous)
            verified = ordinal == 0 or (note is not None and previous is not None and previous in note.history)
            chunks.append(MessageChunk(sds_id_of_text(sds_id), previous, ordinal, last, send_id, verified))
        return tuple(chunks)

    # ---- delivery ------------------------------------------------------------------------------------------------

    def _note(self, sds_id: str, history: tuple[str, ...], owner: bytes) -> None:
        """Record a segment that SDS accepted. If it replaces another message's segment under its id, that message can
        no longer be delivered."""
        note = self.notes.get(sds_id)
        if note is not None and note.owner == owner:
            return
        self.notes[sds_id] = Note(keep_newest(history), owner)
        for key in self.pending.find_by_part(sds_id):
            if self.pending[key].owner != owner:
                other = self.pending.remove(key)
                self._drop(other.sds_ids, other.owner)

    def wait(self, pending: Pending) -> None:
        """Keep a complete message until SDS has delivered enough of its segments."""
        self.pending.add(pending.key, pending, pending.sds_ids, pending.required)

    def _find_delivered(self, sds_id: str, pending: Pending) -> Note | None:
        note = self.notes.get(sds_id)
        return note if note is not None and note.delivered and note.owner == pending.owner else None

    def _deliver(self, pending: Pending, notes: list[Note], now: int) -> Effect:
        own = set(pending.sds_ids)
        self._drop(pending.sds_ids, pending.owner)
        message = self._make_event(
            pending.payload,
            pending.sender_id,
            pending.sds_ids[-1],
            now,
            lamport_timestamp=pending.lamport_timestamp,
            late=any(note.late for note in notes),
            lost_dependencies=tuple(dict.fromkeys(lost for note in notes for lost in note.lost if lost not in own)),
            chunks=pending.chunks,
            request_id=pending.request_id,
        )
        return Report(message, pending.key)

    def _drop(self, sds_ids: Iterable[str], owner: bytes) -> None:
        """Forget segments of one message that no complete message awaits."""
        for sds_id in sds_ids:
            note = self.notes.get(sds_id)
            if note is not None and note.owner == owner and not self.pending.awaits(sds_id):
                del self.notes[sds_id]

    def _make_event(self, payload: bytes, sender_id: str, sds_id: str, now: int, **more: Any) -> MessageReceived:
        return MessageReceived(
            channel_id=self.channel_id,
            at=now,
            message=payload,
            message_id=keccak256(payload).hex(),
            sender_id=sender_id,
            content_topic=self.content_topic,
            sequence=0,
            sds_id=sds_id_of_text(sds_id),
            **more,
        )

    def _make_problem(self, now: int, kind: str, detail: str, sds_id: str = "") -> Report:
        return Report(
            ChannelProblem(channel_id=self.channel_id, at=now, kind=kind, detail=detail, sds_id=sds_id_of_text(sds_id))
        )


_EPHEMERAL_PROBLEMS = {Reason.SEGMENT_COUNT: "refused", Reason.SEGMENT_HASH_MISMATCH: "hash_mismatch"}


def _number(segment: HeldSegment, data_count: int | None) -> int | None:
    """The number of a segment in its message, data first, then parity; ``None`` while the data count is unknown."""
    if not segment.is_parity:
        return segment.index
    return None if data_count is None else data_count + segment.index
