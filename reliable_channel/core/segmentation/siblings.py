"""Lends segments between the open sends of one hash, whose bytes are the same.

Overlapping sends complete each other this way. It also helps against false segments: one that comes first takes an
honest one's place, and the honest one opens a second send; or it states a false count, and parity joins it. So a set
that cannot be rebuilt from its own segments asks its siblings.
"""

from __future__ import annotations

from reliable_channel.core.segmentation.codecs import get_codec
from reliable_channel.core.segmentation.events import HeldSegment
from reliable_channel.core.segmentation.identity import proof_cost, shard_binds
from reliable_channel.core.segmentation.pending import PARITY, OpenSet, Shard, first_of, held_segment
from reliable_channel.core.segmentation.rebuild import Choice, decodable
from reliable_channel.core.segmentation.work import Work
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS


def borrow(held: OpenSet, siblings: list[OpenSet], max_work: int) -> tuple[Choice, int | None] | None:
    """What the payload can be rebuilt from with segments of other sends, and the parity count that goes with it;
    ``None`` where they do not suffice, or decoding takes more than ``max_work``. A stranger may have told the set's
    own parity count, so those of the others are tried after it."""
    k = held.data_count
    if k is None or len(held.slots) >= k:
        return None
    lenders = [each for each in siblings if each.data_count in (None, k) and each.fits_but_for_counts(held)]
    told = [each.parity_count for each in (held, *lenders) if each.parity_count is not None]
    for m in dict.fromkeys(told) or (None,):
        pool: Choice = {}
        for send in (held, *lenders):
            lends_parity = send.parity_count == m
            for slot, shard in send.slots.items():
                if slot < PARITY or lends_parity:
                    pool.setdefault(slot, shard)
        if len(pool) >= k:
            choice = {slot: pool[slot] for slot in sorted(pool)[:k]}
            if decodable(choice, k, m, held.codec, max_work):
                return choice, m
    return None


def is_bound(held: OpenSet, work: Work) -> bool:
    """Whether a set is surely one send of its own: the id of the segment that came first proves it, or that of the
    first data segment, where the first is parity, which a stranger may have sent."""
    if held.bound is None:
        slots = iter(held.slots)
        first = next(slots)
        data = next((slot for slot in slots if slot < PARITY), first) if first >= PARITY else first
        for slot in dict.fromkeys((first, data)):
            shard = held.slots[slot]
            if work.left < proof_cost(shard[2]):
                return False
            held.bound = shard_binds(held, slot, shard, held.data_count, work)
            if held.bound:
                break
    return bool(held.bound)


def is_borrowed(held: OpenSet, slot: int, shard: Shard, work: Work) -> bool:
    """Whether a segment's id proves that it is another send's."""
    k = held.data_count
    if held.slots.get(slot) is shard or first_of(slot, shard[1], k) == held.first(k):
        return False
    return shard_binds(held, slot, shard, k, work)


def unproven_parity(held: OpenSet, used: Choice, genuine: Choice, work: Work) -> list[int]:
    """The slots of parity that was not needed and need not be true: the ids of the segments that made up the message
    prove their send, and its id does not. A stranger may have told its parity count."""
    k, spare = held.data_count, [slot for slot in genuine if slot >= PARITY and slot not in used]
    slot, shard = next(iter(used.items()))
    if not spare or not shard_binds(held, slot, shard, k, work):
        return []
    return [slot for slot in spare if not shard_binds(held, slot, genuine[slot], k, work)]


def rivals_of(held: OpenSet, siblings: list[OpenSet]) -> list[tuple[int, Shard]]:
    """Other payloads for the set's slots: conflicts, and what open siblings of the same hash hold. A false segment
    that came first makes the honest one open a second send, so siblings must be asked."""
    rivals = list(held.conflicts)
    for sibling in siblings:
        if not sibling.fits_but_for_counts(held):
            continue
        data, parity = sibling.data_count in (None, held.data_count), sibling.agrees_on_parity(held)
        for slot, shard in (*sibling.slots.items(), *sibling.conflicts):
            own = held.slots.get(slot)
            if (data if slot < PARITY else parity) and (own is None or own[2] != shard[2]):
                rivals.append((slot, shard))
    return rivals


def contested_by(held: OpenSet, rivals: list[tuple[int, Shard]]) -> tuple[HeldSegment, ...]:
    """The segments of every slot for which there are different bytes, in the order of slots."""
    slots = {slot for slot, _ in rivals if slot in held.slots}
    claims = [(slot, held.slots[slot]) for slot in slots] + [(slot, shard) for slot, shard in rivals if slot in slots]
    return tuple(
        held_segment(slot, shard[0], shard[1]) for slot, shard in sorted(claims, key=lambda c: (c[0], c[1][3]))
    )


def completed_by_loans(held: OpenSet, siblings: list[OpenSet]) -> bool:
    """v0.1 parity does not say the data count, so it may lie in a sibling that a false count has opened. Whether
    ``held`` would be ready with it; it then takes over the parity count."""
    lenders = [
        sibling
        for sibling in siblings
        if sibling.data_count not in (None, held.data_count)
        and sibling.parity_count is not None
        and sibling.fits_but_for_counts(held)
        and sibling.agrees_on_parity(held)
    ]
    lent = {slot for lender in lenders for slot in lender.slots if slot >= PARITY}
    k = held.data_count or 0
    if not lent or len(held.slots.keys() | lent) < k:
        return False
    m = lenders[0].parity_count or 0
    if k + m > MAX_TOTAL_SEGMENTS or not get_codec(held.codec).supports(k, m):
        return False
    held.parity_count = m
    return True
