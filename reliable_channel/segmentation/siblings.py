"""What the open sends of one hash may give each other once a false segment is among them.

A false segment that comes first takes an honest one's place, and the honest one opens a second send; or it states a
false count, and parity joins it. So when a set cannot be rebuilt from its own segments its siblings are asked.
"""

from __future__ import annotations

from reliable_channel.segmentation.codecs import get_codec
from reliable_channel.segmentation.events import HeldSegment
from reliable_channel.segmentation.pending import PARITY, OpenSet, Shard, held_segment
from reliable_channel.wire.segment import MAX_TOTAL_SEGMENTS


def rivals_of(held: OpenSet, siblings: list[OpenSet]) -> list[tuple[int, Shard]]:
    """Other payloads for the set's slots: conflicts, and what open siblings of the same hash hold. A false segment
    that came first makes the honest one open a second send, so siblings must be asked."""
    rivals = list(held.conflicts)
    for sibling in siblings:
        if not sibling.fits_but_for_count(held):
            continue
        same = sibling.data_count in (None, held.data_count)
        for slot, shard in (*sibling.slots.items(), *sibling.conflicts):
            own = held.slots.get(slot)
            if (same or slot >= PARITY) and (own is None or own[2] != shard[2]):
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
        and sibling.fits_but_for_count(held)
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
