"""Shards into a payload that carries the right hash (protocol.md §3 *Receiving* and *Parity*): concatenate or decode,
cut the padding off, verify; after a mismatch try other subsets, within a bound."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations

from Crypto.Hash import keccak

from reliable_channel.segmentation.codecs import get_codec
from reliable_channel.segmentation.config import SegmentationConfig
from reliable_channel.segmentation.pending import PARITY, OpenSet, Shard
from reliable_channel.segmentation.split import padded_shards
from reliable_channel.wire.hashing import keccak256

Choice = dict[int, Shard]
"""One shard for each of the slots a rebuild uses."""


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A verified payload, the shards it was made of, and the payload bytes of a full segment (``None``: only one)."""

    payload: bytes
    choice: Choice
    shard_length: int | None


def ready(held: OpenSet) -> bool:
    """Whether as many segments are held as the message has data segments, and they can be used."""
    k = held.data_count
    if k is None or len(held.slots) < k:
        return False
    if held.slots.keys() >= set(range(k)):
        return True
    return held.parity_count is not None and get_codec(held.codec).supports(k, held.parity_count)


def rebuild(held: OpenSet, config: SegmentationConfig) -> Rebuilt | None:
    """Try the obvious subset once: data first, as much parity as is needed. Counts as one attempt."""
    return _attempt(held, _first(held.slots, held.data_count or 0), config)


def rescue(
    held: OpenSet, rivals: list[tuple[int, Shard]], config: SegmentationConfig, new: Shard | None
) -> Rebuilt | None:
    """After a mismatch: other subsets, as long as ``max_rebuild_attempts`` of this set allow. ``rivals`` are other
    payloads for its slots; with ``new`` only subsets that hold it are tried, the others have been."""
    for choice in _subsets(held, rivals, new):
        if held.attempts >= config.max_rebuild_attempts:
            return None
        rebuilt = _attempt(held, choice, config)
        if rebuilt is not None:
            return rebuilt
    return None


def genuine_slots(rebuilt: Rebuilt, held: OpenSet) -> dict[int, bytes]:
    """What every slot of the message truly holds: data at its true length, and parity where the count is known."""
    k, length = held.data_count or 1, rebuilt.shard_length or len(rebuilt.payload)
    truth = {index: rebuilt.payload[index * length : (index + 1) * length] for index in range(k)}
    codec = get_codec(held.codec)
    if held.parity_count and length % codec.alignment == 0 and codec.supports(k, held.parity_count):
        parity = codec.encode(padded_shards(rebuilt.payload, length, k), held.parity_count)
        truth.update({PARITY + index: shard for index, shard in enumerate(parity)})
    return truth


def _first(slots: Mapping[int, Shard], data_count: int) -> Choice:
    return {slot: slots[slot] for slot in sorted(slots)[:data_count]}


def _subsets(held: OpenSet, rivals: list[tuple[int, Shard]], new: Shard | None) -> Iterator[Choice]:
    """Rivals first, each in its slot and then one in each; then leave out as many segments as are too many: neighbours
    together, which finds one false segment among n in n / spare attempts, then every combination. Subsets without
    ``new`` are not even generated: skipping them one by one could take forever."""
    k, slots = held.data_count or 0, held.slots
    swaps = [{slot: rival} for slot, rival in rivals if new is None or rival is new or slots.get(slot) is not new]
    if len(swaps) > 1:
        swaps.append(dict(rivals))
    for swap in swaps:
        swapped = {**slots, **swap}
        needed = {*swap, *(slot for slot, shard in slots.items() if shard is new and slot not in swap)}
        kept = [*sorted(needed), *(slot for slot in sorted(slots) if slot not in needed)][:k]
        choice = {slot: swapped[slot] for slot in sorted(kept)}
        if len(kept) == k and (new is None or any(shard is new for shard in choice.values())):
            yield choice
    order = sorted(slots)
    spare = len(order) - k
    if spare < 1 or (new is not None and not any(shard is new for shard in slots.values())):
        return
    removable = [slot for slot in order if slots[slot] is not new]
    windows = [frozenset(removable[start : start + spare]) for start in range(0, len(removable) - spare + 1, spare)]
    for left_out in windows:
        yield {slot: slots[slot] for slot in order if slot not in left_out}
    tried = set(windows)
    for combination in combinations(removable, spare):
        if frozenset(combination) not in tried:
            yield {slot: slots[slot] for slot in order if slot not in combination}


def _attempt(held: OpenSet, choice: Choice, config: SegmentationConfig) -> Rebuilt | None:
    held.attempts += 1
    k = held.data_count or 0
    if max(choice) < PARITY:
        parts = [choice[index][2] for index in range(k)]
        payload = _verified(held, parts, True, len(parts[0]), config)
        return None if payload is None else Rebuilt(payload, choice, len(parts[0]) if k > 1 else None)
    length = _shard_length(choice, k)
    decoded = _decode(held, choice, k, length)
    if decoded is None:
        return None
    payload = _verified(held, decoded, k - 1 in choice, length, config)
    return None if payload is None else Rebuilt(payload, choice, length)


def _shard_length(choice: Choice, data_count: int) -> int:
    """The payload bytes of a full segment, which all but the last data segment have: the commonest length, as one of
    them may be false. There is a parity segment among them, so there is one."""
    lengths = Counter(len(shard[2]) for slot, shard in choice.items() if slot != data_count - 1)
    return lengths.most_common(1)[0][0]


def _decode(held: OpenSet, choice: Choice, k: int, length: int) -> list[bytes] | None:
    """The data shards by parity, the last one at its true length where it was received, else padded."""
    m = held.parity_count or 0
    codec = get_codec(held.codec)
    if length == 0 or length % codec.alignment or not codec.supports(k, m):
        return None
    shards: list[bytes | None] = [None] * (k + m)
    for slot, (_, _, payload) in choice.items():
        if slot == k - 1 and 0 < len(payload) <= length:
            shards[slot] = payload.ljust(length, b"\0")
        elif len(payload) == length:
            shards[slot if slot < PARITY else slot - PARITY + k] = payload
        else:
            return None
    decoded = codec.decode(shards, k)
    if k - 1 in choice:
        decoded[k - 1] = choice[k - 1][2]
    return decoded


def _verified(
    held: OpenSet, parts: list[bytes], last_is_true: bool, length: int, config: SegmentationConfig
) -> bytes | None:
    """The payload whose Keccak-256 is the set's hash, or ``None``. Where the last segment was rebuilt and no length is
    told, the true one is searched: all trailing zeros off, then back one at a time."""
    payload, stated = b"".join(parts), held.original_length
    told = stated is not None and stated <= len(payload) and (last_is_true or len(payload) - stated < length)
    if told or last_is_true:
        payload = payload[:stated] if told else payload
        return payload if keccak256(payload) == held.key[1] else None
    return _padding_cut(held, parts, config)


def _padding_cut(held: OpenSet, parts: list[bytes], config: SegmentationConfig) -> bytes | None:
    digest = keccak.new(digest_bits=256, data=b"".join(parts[:-1]), update_after_digest=True)
    last = parts[-1]
    cut = max(len(last.rstrip(b"\0")), 1)
    digest.update(last[:cut])
    while True:
        if held.padding_attempts >= config.max_padding_attempts:
            return None
        held.padding_attempts += 1
        if digest.digest() == held.key[1]:
            return b"".join([*parts[:-1], last[:cut]])
        if cut == len(last):
            return None
        digest.update(b"\0")
        cut += 1
