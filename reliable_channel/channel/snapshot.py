"""A channel's state as bytes: versioned protobuf (``proto/channel_state.proto``). The configuration is not in it."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.inbox import Note, Pending
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outbox import Telling, tellings_of, untold_states
from reliable_channel.channel.sends import Send
from reliable_channel.errors import LocalError
from reliable_channel.sds import SdsChannel
from reliable_channel.segmentation import Reassembler
from reliable_channel.wire._pb import channel_state_pb2 as pb

VERSION = 1


def write_snapshot(machine: ChannelMachine, untold: Iterable[Telling] = ()) -> bytes:
    """The machine's state, and what the application is still to be told. Drops the machine's spare parts first, so that
    it goes on exactly as the one restored from this."""
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
            message_id=send.message_id,
            sds_ids=send.sds_ids,
            required=send.required,
            dispatched=sorted(send.dispatched),
            sent=send.sent,
            delivered=send.delivered,
            failed=send.failed,
        )
    for pending in machine.inbox.pending.values():
        state.pending.add(
            key=pending.key,
            sender_id=pending.sender_id,
            payload=pending.payload,
            sds_ids=pending.sds_ids,
            required=pending.required,
            lamport_timestamp=pending.lamport_timestamp,
        )
    for sds_id, note in machine.inbox.notes.items():
        state.notes.add(
            sds_id=sds_id,
            history=note.history,
            delivered=note.delivered,
            late=note.late,
            lost=note.lost,
            at=note.at,
        )
    state.untold.extend(untold_states(untold))
    return state.SerializeToString()


def restore_snapshot(machine: ChannelMachine, data: bytes) -> list[Telling]:
    """Give a fresh machine the state of a snapshot; what the application was not told then. Raises
    :class:`DamagedStore`."""
    try:
        state = pb.ChannelState.FromString(data)
        if state.version != VERSION:
            raise DamagedStore(
                f"The channel snapshot has version {state.version}, this program knows {VERSION}.",
                "Use the program that wrote it.",
            )
        machine.sds = SdsChannel.from_bytes(state.sds, machine.sds_config)
        machine.inbox.reassembler = Reassembler.from_bytes(state.reassembler, machine.segmentation)
        if machine.inbox.gate is not None and state.chunk_gate:
            machine.inbox.gate.restore(state.chunk_gate)
    except (DecodeError, LocalError) as error:
        raise DamagedStore(
            "The channel snapshot cannot be read.", "Restore the database, or begin a new one."
        ) from error
    machine.now, machine.last_active = state.now, state.last_active
    for send in state.sends:
        machine.sends.restore(
            Send(
                send.send_id,
                send.message_id,
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
            tuple(note.history), note.at, note.delivered, note.late, tuple(note.lost)
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
            )
        )
    return list(tellings_of(state.untold, machine.channel_id, machine.content_topic))
