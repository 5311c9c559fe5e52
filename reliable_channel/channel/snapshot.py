"""Encodes and restores a channel's state as versioned protobuf (``proto/channel_state.proto``).

The configuration is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError, Message

from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.events import (
    ChannelEvent,
    MessageDelivered,
    MessageDeliveryError,
    MessageLost,
    MessageReceived,
    MessageSendError,
    MessageSent,
)
from reliable_channel.channel.evicted import EvictedSet, Stage
from reliable_channel.channel.inbox import Note, Pending, owner_of
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.sends import SendProgress
from reliable_channel.channel.steps import Report
from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.segmentation import HeldSegment, IncompleteSet, Reassembler
from reliable_channel.core.wire._pb import channel_state_pb2 as pb
from reliable_channel.core.wire._pb.reassembler_state_pb2 import ChunkGateState, ReassemblerState
from reliable_channel.core.wire._pb.sds_state_pb2 import SdsState
from reliable_channel.core.wire.hashing import keccak256

VERSION = 1

M = TypeVar("M", bound=Message)
T = TypeVar("T")


def write_snapshot(machine: ChannelMachine, unreported: Iterable[Report] = ()) -> bytes:
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
        state.sends.append(_encode(pb.SendState, send, dispatched=sorted(send.dispatched)))
    state.pending.extend(_encode(pb.PendingState, pending) for _, pending in machine.inbox.pending.items())
    for sds_id, note in machine.inbox.notes.items():
        state.notes.append(_encode(pb.SegmentNoteState, note, sds_id=sds_id))
    state.evicted.extend(map(_encode_evicted, machine.inbox.evicted))
    state.unreported.extend(encode_events(unreported))
    return state.SerializeToString()


def restore_snapshot(machine: ChannelMachine, data: bytes) -> list[Report]:
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
        machine.sends.restore(_decode(SendProgress, send, dispatched=set(send.dispatched)))
    for note in state.notes:
        machine.inbox.notes[note.sds_id] = _decode(Note, note)
    for pending in state.pending:
        owner = owner_of(pending.sender_id, keccak256(pending.payload))
        machine.inbox.wait(_decode(Pending, pending, sds_ids=list(pending.sds_ids), owner=owner))
    for evicted in state.evicted:
        machine.inbox.evicted.restore(_decode_evicted(evicted))
    return list(restore_events(state.unreported, machine.channel_id, machine.content_topic))


_TIMES = frozenset(
    {
        *("now", "last_active", "at", "first_seen", "last_seen", "since_ms", "since", "until", "due", "search_due"),
        *("ask_due", "completed_at", "received_at", "lost_at", "queued_at", "tracked_since", "repair_answers_since"),
        *("sync_due", "sync_owed_due", "sync_waiting_since", "spared_until"),
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
    return _encode(
        pb.EvictedSetState,
        evicted.incomplete,
        sender_id=evicted.incomplete.scope[0],
        held=[_encode(pb.SegmentState, held) for held in evicted.incomplete.held],
        reason=evicted.reason,
        since_ms=evicted.since_ms,
        due=evicted.due,
        stage=evicted.stage,
    )


def _decode_evicted(state: pb.EvictedSetState) -> EvictedSet:
    held = tuple(_decode(HeldSegment, each) for each in state.held)
    known = _decode(IncompleteSet, state, scope=(state.sender_id,), held=held)
    return EvictedSet(known, state.reason, state.since_ms, state.due, Stage(state.stage))


_UNREPORTED: dict[str, type[ChannelEvent]] = {
    "received": MessageReceived,
    "sent": MessageSent,
    "delivered": MessageDelivered,
    "error": MessageSendError,
    "lost": MessageLost,
    "delivery_error": MessageDeliveryError,
}
"""The events that a snapshot holds, by their field in ``UnreportedEvent``."""


def encode_events(reports: Iterable[Report]) -> Iterator[pb.UnreportedEvent]:
    """Encode the reports that have a key. The ``chunks`` of a received message are not kept."""
    for report in reports:
        event = report.event
        field = next((field for field, kind in _UNREPORTED.items() if isinstance(event, kind)), None)
        if not report.key or field is None:
            continue
        state = pb.UnreportedEvent(report_key=report.key, at=event.at)
        part = getattr(state, field)
        part.CopyFrom(_encode(type(part), event))
        part.SetInParent()
        if isinstance(event, MessageReceived):
            part.payload = event.message
        yield state


def restore_events(states: Iterable[pb.UnreportedEvent], channel_id: str, content_topic: str) -> Iterator[Report]:
    """Decode the reports of a snapshot; received messages are not numbered yet."""
    for state in states:
        field = state.WhichOneof("event")
        if field is None:
            continue
        more: dict[str, Any] = {"channel_id": channel_id, "at": state.at}
        message_key = ""
        if field == "received":
            payload = state.received.payload
            message_id = keccak256(payload).hex()
            _, _, message_key = state.report_key.partition(" ")  # behind the event's name
            more |= {"message": payload, "message_id": message_id, "content_topic": content_topic, "sequence": 0}
        elif field == "sent":
            more["request_ids"] = ()
        yield Report(_decode(_UNREPORTED[field], getattr(state, field), **more), message_key)


def _encode(kind: type[M], source: Any, /, **more: Any) -> M:
    """A protobuf message of the fields that ``source`` has under the same names, and of ``more``."""
    shared = _list_shared_fields(source.__class__, kind.DESCRIPTOR)
    return kind(**{**{name: getattr(source, name) for name, _, _ in shared}, **more})


def _decode(kind: Callable[..., T], message: Message, /, **more: Any) -> T:
    """A dataclass of the fields that ``message`` has under the same names, and of ``more``. Repeated ones become
    tuples, absent optional ones ``None``."""
    values: dict[str, Any] = {}
    for name, is_repeated, is_optional in _list_shared_fields(kind, message.DESCRIPTOR):
        value = getattr(message, name)
        values[name] = tuple(value) if is_repeated else value
        if is_optional and not message.HasField(name):
            values[name] = None
    return kind(**{**values, **more})


@cache
def _list_shared_fields(kind: Any, message: Descriptor) -> tuple[tuple[str, bool, bool], ...]:
    """The fields of both: name, whether it is repeated, and whether it may be absent."""
    names = {field.name for field in fields(kind)}
    return tuple((field.name, field.is_repeated, field.has_presence) for field in message.fields if field.name in names)
