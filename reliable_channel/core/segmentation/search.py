"""Searches for a combination of held segments that matches the payload's hash, after the obvious combination failed.

A slot may have several candidates: its own shard, rivals under the same SDS id, and the shards of other open sends of
the same hash. A choice takes one candidate for as many slots as the message has data segments. Choices are tried once
each, likely ones first, within the work of this input; the rest are tried with the next input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations, product

from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.core.segmentation.identity import id_verifies, verification_cost
from reliable_channel.core.segmentation.pending import OpenSet, Shard
from reliable_channel.core.segmentation.rebuild import Choice, Rebuilt, Unfinished, attempt
from reliable_channel.core.segmentation.work import Work

Options = dict[int, list[Shard]]
"""Slot → its candidates, preferred one first."""

Edit = tuple[dict[int, Shard], frozenset[int]]
"""A choice, as its changes to the preferred candidates of all slots: replaced slots, and slots left out."""

_64_BITS = (1 << 64) - 1  # keys of tried choices are stored as 64-bit numbers


def search(held: OpenSet, rivals: list[tuple[int, Shard]], config: SegmentationConfig, work: Work) -> Rebuilt | None:
    """Try choices that were not tried before. Sets ``held.unfinished`` if some remain."""
    held.unfinished = False
    options = candidates(held, rivals, work)
    preferred = {slot: shards[0] for slot, shards in sorted(options.items())}
    marks = {slot: _mark(shard) for slot, shard in preferred.items()}
    total = sum(marks.values())
    for replaced, left_out in choices(options, held.data_count or 0):
        changed = sum(_mark(shard) - marks[slot] for slot, shard in replaced.items())
        key = (total + changed - sum(marks[slot] for slot in left_out)) & _64_BITS
        if key in held.tried:  # a search continues with the next input, and starts over
            continue
        if held.attempts >= config.max_rebuild_attempts:
            return None
        choice: Choice = {slot: replaced.get(slot, shard) for slot, shard in preferred.items() if slot not in left_out}
        outcome = attempt(held, choice, key, work)
        if isinstance(outcome, Unfinished):
            held.unfinished = True
            return None
        held.attempts += 1
        held.tried |= {key}
        if outcome is not None:
            return outcome
    return None


def key_of(choice: Choice) -> int:
    """The key under which a tried choice is remembered."""
    return sum(map(_mark, choice.values())) & _64_BITS


def candidates(held: OpenSet, rivals: Iterable[tuple[int, Shard]], work: Work) -> Options:
    """The different payloads of each slot. In a contested slot, candidates whose SDS id can be recomputed come first;
    then the slot's own shard, then the others in order of arrival."""
    by_slot: dict[int, dict[bytes, Shard]] = {slot: {shard[2]: shard} for slot, shard in held.slots.items()}
    for slot, shard in rivals:
        by_slot.setdefault(slot, {}).setdefault(shard[2], shard)
    options: Options = {}
    may_spend = work.left // 4  # the rest is for attempts, which decide
    for slot, by_payload in sorted(by_slot.items()):
        shards = [*by_payload.values()]
        if len(shards) > 1:
            cost = sum(verification_cost(shard[2]) for shard in shards)
            # Other bytes cannot have an id that is recomputed: such a candidate is right, if its sender's name is.
            if cost <= may_spend:
                may_spend -= cost
                work.spend(cost)
                shards.sort(key=lambda shard, slot=slot: not id_verifies(held, slot, shard))  # type: ignore[misc]
        options[slot] = shards
    return options


def choices(options: Options, k: int) -> Iterator[Edit]:
    """Yield every choice worth trying, likely ones first; some occur twice.

    First the preferred candidates; then without the contested slots if parity allows it; then every contested slot's
    second candidate, third and so on; then alternately: changes of few contested slots before many, and the preferred
    candidates without the surplus slots."""
    order = sorted(options)
    if len(order) < k:
        return
    yield {}, frozenset(order[k:])
    contested = [slot for slot in order if len(options[slot]) > 1]
    sure = [slot for slot in order if len(options[slot]) == 1]
    if contested:
        used = {*sure[:k], *contested[: max(k - len(sure), 0)]}
        left_out = frozenset(slot for slot in order if slot not in used)
        yield {}, left_out
        inside = [slot for slot in contested if slot in used] or contested
        everywhere = frozenset(order[k:])
        for index in range(1, max(len(options[slot]) for slot in contested)):
            yield _all_at(options, [slot for slot in contested if slot not in everywhere], index), everywhere
            yield _all_at(options, [slot for slot in inside if slot not in left_out], index), left_out
        changed = _change_slots(options, [slot for slot in inside if slot not in left_out], left_out)
    else:
        changed = iter(())
    yield from _take_turns(changed, _leave_out(order, len(order) - k))


def _all_at(options: Options, slots: list[int], index: int) -> dict[int, Shard]:
    return {slot: options[slot][min(index, len(options[slot]) - 1)] for slot in slots}


def _change_slots(options: Options, slots: list[int], left_out: frozenset[int]) -> Iterator[Edit]:
    for count in range(1, len(slots) + 1):
        for some in combinations(slots, count):
            for others in product(*(options[slot][1:] for slot in some)):
                yield dict(zip(some, others, strict=True)), left_out


def _leave_out(order: list[int], spare: int) -> Iterator[Edit]:
    """Leave out groups of neighbours, then every combination."""
    if spare < 1:
        return
    # One false segment among n is left out after n / spare attempts; every combination would take far more.
    for start in range(0, len(order) - spare + 1, spare):
        yield {}, frozenset(order[start : start + spare])
    yield {}, frozenset(order[len(order) - spare :])
    for some in combinations(order, spare):
        yield {}, frozenset(some)


def _take_turns(*sources: Iterator[Edit]) -> Iterator[Edit]:
    waiting = [*sources]
    while waiting:
        for source in [*waiting]:
            edit = next(source, None)
            if edit is None:
                waiting.remove(source)
            else:
                yield edit


def _mark(shard: Shard) -> int:
    """Return a number for a shard such that sums hardly ever collide (the finalizer of SplitMix64)."""
    mixed = (shard[3] + 1) * 0x9E3779B97F4A7C15 & _64_BITS
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _64_BITS
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _64_BITS
    return mixed ^ mixed >> 31
