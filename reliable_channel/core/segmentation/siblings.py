"""Lends segments between the open sends of one hash, whose bytes are the same.

Overlapping sends complete each other this way. It also helps against false segments: a false one that arrives first
takes an honest one's slot, so the honest one opens a second send; or it states a false count, and parity joins it. So a
set that cannot be rebuilt from its own segments borrows from its siblings.
"""

from __future__ import annotations

from collections.abc import Iterator

from reliable_channel.core.segmentation.codecs import get_codec
from reliable_channel.core.segmentation.events import HeldSegment
from reliable_channel.core.segmentation.identity import proof_cost, shard_binds
from reliable_channel.core.segmentation.pending import PARITY, OpenSet, Shard, describe_segment, first_of
from reliable_channel.core.segmentation.rebuild import Choice, decodable, ready
from reliable_channel.core.segmentation.work import Work
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS


def find_loans(held: OpenSet, siblings: list[OpenSet], max_work: int) -> Iterator[tuple[Choice, int | None]]:
    """Yield choices that include segments of other sends, each with its parity count; none if they do not suffice, or
    decoding costs more than ``max_work``."""
    k = held.data_count
    if k is None:
        return
    own_fails = held.mismatch or (len(held.slots) >= k and not ready(held, max_work))
    if len(held.slots) >= k and not own_fails:
        return
    lenders = [each for each in siblings if each.data_count in (None, k) and each.fits_but_for_counts(held)]
    # The own parity count may be from a stranger (docs/segmentation.md, *False segments*): the siblings' come after it,
    # also if the set has enough segments and its own count did not lead to the payload.
    stated_counts = [each.parity_count for each in (held, *lenders) if each.parity_count is not None]
    for m in dict.fromkeys(stated_counts) or (None,):
        if own_fails and m == held.parity_count:
            continue  # all choices with its own count are the search's
        pool: Choice = {}
        for send in (held, *lenders):
            lends_parity = send.parity_count == m
            for slot, shard in send.slots.items():
                if slot < PARITY or lends_parity:
                    pool.setdefault(slot, shard)
        if len(pool) >= k:
            choice = {slot: pool[slot] for slot in sorted(pool)[:k]}
            if decodable(choice, k, m, held.codec, max_work):
                yield choice, m


def is_bound(held: OpenSet, work: Work) -> bool:
    """Whether a set is certainly a separate send, proven by the id of a segment."""
    if held.bound is None:
        # The first received segment decides; if that is parity, which a stranger may have sent, the first data segment.
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
    """Whether a segment's id proves that it belongs to another send."""
    k = held.data_count
    if held.slots.get(slot) is shard or first_of(slot, shard[1], k) == held.first(k):
        return False
    return shard_binds(held, slot, shard, k, work)


def find_unproven_parity(held: OpenSet, used: Choice, genuine: Choice, work: Work) -> list[int]:
    """The slots of unneeded parity that may be false: the ids of the segments used for the message prove their send,
    but the parity's id does not. Its parity count may be from a stranger."""
    k, spare = held.data_count, [slot for slot in genuine if slot >= PARITY and slot not in used]
    slot, shard = next(iter(used.items()))
    if not spare or not shard_binds(held, slot, shard, k, work):
        return []
    return [slot for slot in spare if not shard_binds(held, slot, genuine[slot], k, work)]


def rivals_of(held: OpenSet, siblings: list[OpenSet]) -> list[tuple[int, Shard]]:
    """Other payloads for the set's slots: conflicts, and the shards of open siblings of the same hash."""
    rivals = list(held.conflicts)
    # A false segment that arrived first made the honest one open a second send.
    for sibling in siblings:
        if not sibling.fits_but_for_counts(held):
            continue
        data, parity = sibling.data_count in (None, held.data_count), sibling.agrees_on_parity(held)
        for slot, shard in (*sibling.slots.items(), *sibling.conflicts):
            own = held.slots.get(slot)
            if (data if slot < PARITY else parity) and (own is None or own[2] != shard[2]):
                rivals.append((slot, shard))
    return rivals


def find_contested(held: OpenSet, rivals: list[tuple[int, Shard]]) -> tuple[HeldSegment, ...]:
    """The segments of every slot with differing payloads, in the order of slots."""
    slots = {slot for slot, _ in rivals if slot in held.slots}
    claims = [(slot, held.slots[slot]) for slot in slots] + [(slot, shard) for slot, shard in rivals if slot in slots]
    return tuple(
        describe_segment(slot, shard[0], shard[1]) for slot, shard in sorted(claims, key=lambda c: (c[0], c[1][3]))
    )


def can_complete_by_loans(held: OpenSet, siblings: list[OpenSet]) -> bool:
    """Whether ``held`` would be ready with parity from its siblings; it then adopts the parity count."""
    # v0.1 parity states no data count, so it may have joined a sibling that a false count opened.
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
