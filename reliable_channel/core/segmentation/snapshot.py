"""Encodes and restores a Reassembler as versioned protobuf. The tests contain a stored blob."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation.held import HeldSets
from reliable_channel.core.segmentation.pending import CompletedSet, OpenSet, SetKey, Shard
from reliable_channel.core.wire._pb import reassembler_state_pb2 as pb
from reliable_channel.core.wire.segment import Dialect

VERSION = 2


def write_snapshot(sets: HeldSets, now: int, next_number: int, spared_until: int) -> bytes:
    """Encode everything that is held and remembered; equal states give equal bytes."""
    state = pb.ReassemblerState(
        version=VERSION,
        now=now,
        open=map(_write_open, sets.all_open),
        completed=map(_write_completed, (*sets.completed, *sets.lost)),
        next_number=next_number,
        spared_until=spared_until,
    )
    for key, sends in sets.by_key.items():
        if sets.next_send(key) != max(send.send for send in sends) + 1:
            state.next_send.add(scope=key[0], entire_message_hash=key[1], send=sets.next_send(key))
    return state.SerializeToString(deterministic=True)


def read_snapshot(data: bytes, max_finished: int) -> tuple[HeldSets, int, int, int]:
    """Decode the sets (:class:`HeldSets` has ``max_finished``), the largest time seen (ms), the number of the next
    segment, and until when (ms) no set is given up. Raises :class:`LocalError` for bytes that are not such a
    snapshot."""
    try:
        state = pb.ReassemblerState.FromString(data)
        if state.version != VERSION:
            raise ValueError(f"version {state.version}")
        sets = HeldSets(max_finished)
        for opened in state.open:
            held = _read_open(opened)
            sets.open(held)
            rivals = (shard for _, shard in held.conflicts)
            size = sum(len(shard[2]) for shard in (*held.slots.values(), *rivals))
            sets.grow(held, opened.parked_bytes if held.parked else size)
        for completed in state.completed:
            sets.remember(_read_completed(completed))
    except (DecodeError, ValueError) as error:
        raise LocalError(
            f"A stored reassembly state cannot be read ({error}).",
            f"It is not a snapshot of version {VERSION}; delete the state and reprocess.",
        ) from error
    sets.order_sends({_read_key(each): each.send for each in state.next_send})
    return sets, state.now, state.next_number, state.spared_until


def _write_open(held: OpenSet) -> pb.OpenSetState:
    return pb.OpenSetState(
        scope=held.key[0],
        entire_message_hash=held.key[1],
        send=held.send,
        dialect=held.dialect.value,
        codec=held.codec,
        data_count=held.data_count,
        parity_count=held.parity_count,
        original_length=held.original_length,
        first_seen=held.first_seen,
        last_seen=held.last_seen,
        shards=[_write_shard(slot, shard) for slot, shard in held.slots.items()],
        conflicts=[_write_shard(slot, shard) for slot, shard in held.conflicts],
        attempts=held.attempts,
        mismatch=held.mismatch,
        tried=sorted(held.tried),
        lengths_key=held.lengths_key,
        lengths_tried=held.lengths_tried,
        credit=held.credit,
        unfinished=held.unfinished,
        search_due=held.search_due,
        asks=held.asks,
        ask_due=held.ask_due,
        parked_bytes=held.buffered_bytes if held.parked else None,
    )


def _read_open(state: pb.OpenSetState) -> OpenSet:
    return OpenSet(
        key=_read_key(state),
        send=state.send,
        dialect=Dialect(state.dialect),
        codec=state.codec,
        data_count=state.data_count if state.HasField("data_count") else None,
        parity_count=state.parity_count if state.HasField("parity_count") else None,
        original_length=state.original_length if state.HasField("original_length") else None,
        first_seen=state.first_seen,
        last_seen=state.last_seen,
        slots={shard.slot: _read_shard(shard) for shard in state.shards},
        conflicts=[(shard.slot, _read_shard(shard)) for shard in state.conflicts],
        attempts=state.attempts,
        mismatch=state.mismatch,
        tried=frozenset(state.tried),
        lengths_key=state.lengths_key,
        lengths_tried=state.lengths_tried,
        credit=state.credit,
        unfinished=state.unfinished,
        search_due=state.search_due if state.HasField("search_due") else None,
        asks=state.asks,
        ask_due=state.ask_due,
        parked=state.HasField("parked_bytes"),
    )


def _write_completed(completed: CompletedSet) -> pb.CompletedSetState:
    return pb.CompletedSetState(
        scope=completed.key[0],
        entire_message_hash=completed.key[1],
        send=completed.send,
        data_count=completed.data_count or 0,
        parity_count=completed.parity_count,
        origin=completed.origin,
        completed_at=completed.completed_at,
        slots=completed.slots.keys(),
        sds_ids=completed.slots.values(),
        strange_slots=completed.strange.keys(),
        strange_lamports=completed.strange.values(),
        lost=completed.lost,
    )


def _read_completed(state: pb.CompletedSetState) -> CompletedSet:
    return CompletedSet(
        key=_read_key(state),
        send=state.send,
        data_count=state.data_count or None,
        parity_count=state.parity_count if state.HasField("parity_count") else None,
        origin=state.origin if state.HasField("origin") else None,
        completed_at=state.completed_at,
        slots=dict(zip(state.slots, state.sds_ids, strict=True)),
        strange=dict(zip(state.strange_slots, state.strange_lamports, strict=True)),
        lost=state.lost,
    )


def _read_key(state: pb.OpenSetState | pb.CompletedSetState | pb.NextSend) -> SetKey:
    return tuple(state.scope), state.entire_message_hash


def _write_shard(slot: int, shard: Shard) -> pb.ShardState:
    return pb.ShardState(slot=slot, sds_id=shard[0], lamport=shard[1], payload=shard[2], number=shard[3])


def _read_shard(state: pb.ShardState) -> Shard:
    return state.sds_id, state.lamport if state.HasField("lamport") else None, state.payload, state.number
