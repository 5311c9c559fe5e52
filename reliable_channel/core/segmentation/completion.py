"""Builds the results of a rebuilt send: its event, the record that stays in memory, and the false segments it reveals.

``genuine`` are the segments of the send by slot, without false segments and segments borrowed from another send.
"""

from __future__ import annotations

from reliable_channel.core.segmentation.events import MessageCompleted, PoisonedSegmentExcluded
from reliable_channel.core.segmentation.pending import (
    PARITY,
    CompletedSet,
    OpenSet,
    Shard,
    describe_segment,
    find_agreed_lamport,
    find_first_lamport,
)
from reliable_channel.core.segmentation.rebuild import Rebuilt, genuine_slots
from reliable_channel.core.segmentation.siblings import is_bound
from reliable_channel.core.segmentation.work import Work
from reliable_channel.core.wire.segment import Dialect


def exclude_poison(held: OpenSet, rebuilt: Rebuilt, genuine: dict[int, Shard]) -> list[PoisonedSegmentExcluded]:
    """Remove the false segments from ``genuine``; returns an event for each."""
    truth = genuine_slots(rebuilt, held)
    events: list[PoisonedSegmentExcluded] = []
    for slot, shard in (*held.slots.items(), *held.conflicts):
        if slot in truth and truth[slot] != shard[2]:
            events.append(PoisonedSegmentExcluded(*held.key, slot >= PARITY, slot % PARITY, shard[0]))
            if genuine.get(slot) is shard:
                del genuine[slot]
    return events


def make_completed(
    held: OpenSet, rebuilt: Rebuilt, genuine: dict[int, Shard], now: int, work: Work
) -> MessageCompleted:
    """Build the event of the completed send. ``now``: ms."""
    k = held.data_count or 1
    # v0.1 data does not contain the parity count, and a false segment may have supplied one.
    counted = held.dialect is not Dialect.V01 or max((*genuine, *rebuilt.choice)) >= PARITY
    parity_count = held.parity_count if counted else None
    scope, whole = held.key
    return MessageCompleted(
        scope=scope,
        entire_message_hash=whole,
        payload=rebuilt.payload,
        data_count=k,
        parity_count=parity_count,
        received=tuple(describe_segment(slot, shard[0], shard[1]) for slot, shard in sorted(genuine.items())),
        rebuilt_indices=tuple(index for index in range(k) if index not in genuine),
        shard_length=rebuilt.shard_length,
        dialect=held.dialect,
        codec=held.codec,
        original_length=held.original_length,
        first_lamport=find_first_lamport(genuine, k),
        first_seen=held.first_seen,
        completed_at=now,
        send=held.send,
        one_send=find_agreed_lamport(genuine, k) is not None
        or (k == 1 and not parity_count)  # it is the only segment
        or (parity_count != 0 and is_bound(held, work)),
    )


def memory_of(completed: MessageCompleted, genuine: dict[int, Shard]) -> CompletedSet:
    """Build the record that a Reassembler keeps of a completed send."""
    return CompletedSet(
        (completed.scope, completed.entire_message_hash),
        completed.send,
        completed.data_count,
        completed.parity_count,
        completed.first_lamport if completed.one_send else None,
        completed.completed_at,
        {slot: shard[0] for slot, shard in genuine.items()},
    )


def record_of_lost(held: OpenSet, now: int, work: Work) -> CompletedSet:
    """Build the record that a Reassembler keeps of a send that it gave up at ``now`` (ms). It lists the segments only
    if no origin distinguishes them from those of another send, because strangers can cause many such records."""
    origin = find_agreed_lamport(held.slots, held.data_count)
    if origin is None and len(held.origins()) == 1 and is_bound(held, work):
        origin = held.first(held.data_count)
    k = held.data_count
    slots = {slot: shard[0] for slot, shard in held.slots.items()} if origin is None else {}
    # v0.1 parity alone does not tell the origin; with the data count of a later segment it does.
    stamps = {} if k is not None else {slot: shard[1] for slot, shard in held.slots.items() if shard[1] is not None}
    return CompletedSet(held.key, held.send, k, held.parity_count, origin, now, slots, stamps, lost=True)
