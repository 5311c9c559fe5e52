"""Encodes and restores a channel's state as versioned protobuf (``proto/channel_state.proto``).

The configuration is not part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import DecodeError

from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.events import (
    ChannelEvent,
    MessageDelivered,
    MessageDeliveryError,
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
    SendEvent,
)
from reliable_channel.channel.evicted import EvictedSet, Stage
from reliable_channel.channel.inbox import Note, Pending, owner_of
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.sends import SendProgress
from reliable_channel.channel.steps import PendingEvent
from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.segmentation import HeldSegment, IncompleteSet, Reassembler
from reliable_channel.core.wire._pb import channel_state_pb2 as pb
from reliable_channel.core.wire._pb.reassembler_state_pb2 import ChunkGateState, ReassemblerState
from reliable_channel.core.wire._pb.sds_state_pb2 import SdsState
from reliable_channel.core.wire.hashing import keccak256

VERSION = 1


def write_snapshot(machine: ChannelMachine, unreported: Iterable[PendingEvent] = ()) -> bytes:
    """Encode the machine's state and the events that were not reported to the application yet.

    Drops the machine's spare segments first, so that it continues exactly as a machine restored from the snapshot."""
    machine.inbox.forget_spare()
    state = pb.ChannelState(
        version=VERSION,
        now=machine.now,
        last_active=machine.last_active,
        sds=machine.sds.to_bytes(),
        reassembler=machine.inbox.reassembler.to_bytes(),
    )
    if machine.inbox.gate is not None:
        state.chunk_gate = machine.inbox.gate.to_bytes()
    for send in machine.sends:
        state.sends.add(
            send_id=send.send_id,
            payload_hash=send.payload_hash,
            sds_ids=send.sds_ids,
            required=send.required,
            dispatched=sorted(send.dispatched),
            sent=send.sent,
            delivered=send.delivered,
            failed=send.failed,
        )
    for _, pending in machine.inbox.pending.items():
        state.pending.add(
            key=pending.key,
            sender_id=pending.sender_id,
            payload=pending.payload,
            sds_ids=pending.sds_ids,
            required=pending.required,
            lamport_timestamp=pending.lamport_timestamp,
            request_id=pending.request_id,
        )
    for sds_id, note in machine.inbox.notes.items():
        state.notes.add(
            sds_id=sds_id,
            history=note.history,
            delivered=note.delivered,
            late=note.late,
            lost=note.lost,
            at=note.at,
            owner=note.owner,
        )
    state.evicted.extend(map(_encode_evicted, machine.inbox.evicted))
    state.unreported.extend(event_states(unreported))
    return state.SerializeToString()


def restore_snapshot(machine: ChannelMachine, data: bytes) -> list[PendingEvent]:
    """Restore a fresh machine from a snapshot; returns the events that were not reported when it was taken. Raises
    :class:`DamagedStore`."""
    try:
        state = pb.ChannelState.FromString(data)
        if state.version != VERSION:
            raise DamagedStore(
                f"The channel snapshot has version {state.version}, this program knows {VERSION}.",
                "Use the program that wrote it.",
            )
        machine.sds = SdsChannel.from_bytes(state.sds, machine.sds_config)
        machine.inbox.reassembler = Reassembler.from_bytes(state.reassembler, machine.segmentation, machine.store)
        if machine.inbox.gate is not None and state.chunk_gate:
            machine.inbox.gate.restore(state.chunk_gate)
    except (DecodeError, LocalError) as error:
        raise DamagedStore(
            "The channel snapshot cannot be read.", "Restore the database, or begin a new one."
        ) from error
    machine.now, machine.last_active = state.now, state.last_active
    for send in state.sends:
        machine.sends.restore(
            SendProgress(
                send.send_id,
                send.payload_hash,
                tuple(send.sds_ids),
                send.required,
                set(send.dispatched),
                send.sent,
                send.delivered,
                send.failed,
            )
        )
    for note in state.notes:
        machine.inbox.notes[note.sds_id] = Note(
            tuple(note.history), note.at, note.delivered, note.late, tuple(note.lost), note.owner
        )
    for pending in state.pending:
        machine.inbox.restore(
            Pending(
                pending.key,
                pending.sender_id,
                pending.payload,
                list(pending.sds_ids),
                pending.required,
                pending.lamport_timestamp if pending.HasField("lamport_timestamp") else None,
                owner_of(pending.sender_id, keccak256(pending.payload)),
                request_id=pending.request_id if pending.HasField("request_id") else None,
            )
        )
    for evicted in state.evicted:
        machine.inbox.evicted.restore(_decode_evicted(evicted))
    return list(restore_events(state.unreported, machine.channel_id, machine.content_topic))


_TIMES = frozenset(
    {
        *("now", "last_active", "at", "first_seen", "last_seen", "since_ms", "since", "until", "due", "search_due"),
        *("ask_due", "completed_at", "received_at", "lost_at", "queued_at", "tracked_since", "repair_answers_since"),
        *("sync_due", "sync_owed_due", "sync_waiting_since"),
    }
)
"""The fields of a snapshot that hold a time of the machine's clock (ms)."""


def move_back(machine: ChannelMachine, ms: int) -> None:
    """Move all times of a machine back by ``ms``."""
    state = pb.ChannelState.FromString(write_snapshot(machine))
    for name, kind in (("sds", SdsState), ("reassembler", ReassemblerState), ("chunk_gate", ChunkGateState)):
        part = kind.FromString(getattr(state, name))
        _move_times(part, ms)
        setattr(state, name, part.SerializeToString())
    _move_times(state, ms)
    machine.begin()
    restore_snapshot(machine, state.SerializeToString())


def _move_times(message: Any, ms: int) -> None:
    for field, value in message.ListFields():
        if field.message_type is not None:
            for each in (value,) if hasattr(value, "ListFields") else value:
                _move_times(each, ms)
        elif field.name in _TIMES:
            if isinstance(value, int):
                setattr(message, field.name, max(0, value - ms))
            else:
                value[:] = [max(0, each - ms) for each in value]


def _encode_evicted(evicted: EvictedSet) -> pb.EvictedSetState:
    known = evicted.incomplete
    return pb.EvictedSetState(
        entire_message_hash=known.entire_message_hash,
        sender_id=known.scope[0],
        reason=evicted.reason,
        held=[
            pb.SegmentState(is_parity=held.is_parity, index=held.index, sds_id=held.sds_id, lamport=held.lamport)
            for held in known.held
        ],
        missing_data=known.missing_data,
        data_count=known.data_count,
        parity_count=known.parity_count,
        lacking=known.lacking,
        buffered_bytes=known.buffered_bytes,
        first_seen=known.first_seen,
        last_seen=known.last_seen,
        mismatch=known.mismatch,
        since_ms=evicted.since_ms,
        due=evicted.due,
        stage=evicted.stage,
    )


def _decode_evicted(state: pb.EvictedSetState) -> EvictedSet:
    known = IncompleteSet(
        scope=(state.sender_id,),
        entire_message_hash=state.entire_message_hash,
        data_count=state.data_count if state.HasField("data_count") else None,
        parity_count=state.parity_count if state.HasField("parity_count") else None,
        held=tuple(
            HeldSegment(held.is_parity, held.index, held.sds_id, held.lamport if held.HasField("lamport") else None)
            for held in state.held
        ),
        missing_data=tuple(state.missing_data),
        lacking=state.lacking if state.HasField("lacking") else None,
        buffered_bytes=state.buffered_bytes,
        first_seen=state.first_seen,
        last_seen=state.last_seen,
        mismatch=state.mismatch,
    )
    return EvictedSet(known, state.reason, state.since_ms, state.due, Stage(state.stage))


def event_states(pending: Iterable[PendingEvent]) -> Iterator[pb.UnreportedEvent]:
    """Encode the events that have a report key. The ``chunks`` of a received message are not kept."""
    for one in pending:
        event = one.event
        state = pb.UnreportedEvent(report_key=one.report_key, at=event.at)
        if isinstance(event, MessageReceived):
            state.received.payload = event.message
            state.received.sender_id = event.sender_id
            state.received.sds_id = event.sds_id
            state.received.late = event.late
            state.received.lost_dependencies.extend(event.lost_dependencies)
            if event.request_id is not None:
                state.received.request_id = event.request_id
            if event.lamport_timestamp is not None:
                state.received.lamport_timestamp = event.lamport_timestamp
        elif isinstance(event, MessageLost):
            state.lost.CopyFrom(_loss_state(event))
        elif isinstance(event, SendEvent):
            sent = pb.UnreportedSend(request_id=event.request_id, message_id=event.message_id)
            match event:
                case MessageDelivered():
                    sent.after_error = event.after_error
                    state.delivered.CopyFrom(sent)
                case MessageSendError():
                    sent.error, sent.dispatched = event.error, event.dispatched
                    state.error.CopyFrom(sent)
                case MessageDeliveryError():
                    sent.error = event.error
                    state.delivery_error.CopyFrom(sent)
                case _:
                    state.sent.CopyFrom(sent)
        if one.report_key and state.WhichOneof("event") is not None:
            yield state


def _loss_state(event: MessageLost) -> pb.UnreportedLoss:
    return pb.UnreportedLoss(
        message_id=event.message_id,
        sender_id=event.sender_id,
        reason=event.reason,
        held=event.held,
        missing=event.missing,
        data_count=event.data_count,
        parity_count=event.parity_count,
        lacking=event.lacking,
        held_bytes=event.held_bytes,
        sds_ids=event.sds_ids,
        first_seen=event.first_seen,
        last_seen=event.last_seen,
    )


def _loss(state: pb.UnreportedLoss, channel_id: str, at: int) -> MessageLost:
    return MessageLost(
        channel_id=channel_id,
        at=at,
        message_id=state.message_id,
        sender_id=state.sender_id,
        reason=state.reason,
        held=tuple(state.held),
        missing=tuple(state.missing),
        data_count=state.data_count if state.HasField("data_count") else None,
        parity_count=state.parity_count if state.HasField("parity_count") else None,
        lacking=state.lacking if state.HasField("lacking") else None,
        held_bytes=state.held_bytes,
        sds_ids=tuple(state.sds_ids),
        first_seen=state.first_seen,
        last_seen=state.last_seen,
    )


def restore_events(states: Iterable[pb.UnreportedEvent], channel_id: str, content_topic: str) -> Iterator[PendingEvent]:
    """Decode the events of a snapshot; received messages are not numbered yet."""
    for state in states:
        event = _event(state, channel_id, content_topic)
        if event is not None:
            yield PendingEvent(event, state.report_key)


def _event(state: pb.UnreportedEvent, channel_id: str, content_topic: str) -> ChannelEvent | None:
    at = state.at
    match state.WhichOneof("event"):
        case "received":
            kept = state.received
            return MessageReceived(
                channel_id=channel_id,
                at=at,
                message=kept.payload,
                message_id=keccak256(kept.payload).hex(),
                sender_id=kept.sender_id,
                content_topic=content_topic,
                sequence=0,
                request_id=kept.request_id if kept.HasField("request_id") else None,
                sds_id=kept.sds_id,
                lamport_timestamp=kept.lamport_timestamp if kept.HasField("lamport_timestamp") else None,
                late=kept.late,
                lost_dependencies=tuple(kept.lost_dependencies),
            )
        case "lost":
            return _loss(state.lost, channel_id, at)
        case "sent":
            ids = (state.sent.request_id, state.sent.message_id)
            return MessageSent(channel_id=channel_id, at=at, request_id=ids[0], message_id=ids[1], request_ids=())
        case "delivered":
            done = state.delivered
            return MessageDelivered(
                channel_id=channel_id,
                at=at,
                request_id=done.request_id,
                message_id=done.message_id,
                after_error=done.after_error,
            )
        case "error":
            failed = state.error
            return MessageSendError(
                channel_id=channel_id,
                at=at,
                request_id=failed.request_id,
                message_id=failed.message_id,
                error=failed.error,
                dispatched=failed.dispatched,
            )
        case "delivery_error":
            unacknowledged = state.delivery_error
            return MessageDeliveryError(
                channel_id=channel_id,
                at=at,
                request_id=unacknowledged.request_id,
                message_id=unacknowledged.message_id,
                error=unacknowledged.error,
            )
    return None
