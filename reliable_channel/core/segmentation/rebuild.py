"""Rebuilds a payload from shards: concatenates or decodes, cuts the padding off, and verifies the hash (Segmentation
0.1, *Receiving* and *Reed–Solomon*)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from Crypto.Hash import keccak

from reliable_channel.core.segmentation.codecs import get_codec
from reliable_channel.core.segmentation.pending import PARITY, OpenSet, Shard
from reliable_channel.core.segmentation.splitting import cut_shards
from reliable_channel.core.segmentation.work import HASH, SEGMENT, Work
from reliable_channel.core.wire.hashing import keccak256

Choice = dict[int, Shard]
"""One shard for each of the slots a rebuild uses."""

NEAR = 1_024
"""The number of lengths from the shortest that are tried first; then the multiples of 64, those of 8, and all."""


@dataclass(slots=True, unsafe_hash=True)
class Rebuilt:
    """A verified payload, the shards it was rebuilt from, and the payload bytes of a full segment (``None``: only
    one)."""

    payload: bytes
    choice: Choice
    shard_length: int | None


class Unfinished:
    """The work of this input does not suffice for the whole attempt."""


def ready(held: OpenSet, max_work: int) -> bool:
    """Whether a rebuild can be tried: as many segments are held as the message has data segments, the code exists for
    these counts, and decoding the lost ones costs at most ``max_work``. Else the set waits for more data segments."""
    k = held.data_count
    return k is not None and len(held.slots) >= k and decodable(held.slots, k, held.parity_count, held.codec, max_work)


def decodable(shards: Choice, data_count: int, parity_count: int | None, codec_name: str, max_work: int) -> bool:
    """Whether ``data_count`` or more shards suffice for the message: they are all its data, or the code exists for
    these counts and decoding the lost ones costs at most ``max_work``."""
    lost = sum(index not in shards for index in range(data_count))
    if not lost:
        return True
    codec = get_codec(codec_name)
    if parity_count is None or not codec.supports(data_count, parity_count):
        return False
    length = max(len(shard[2]) for slot, shard in shards.items() if slot >= PARITY)
    return codec.decoding_work(data_count, parity_count, lost, length) <= max_work


def obvious(held: OpenSet) -> Choice:
    """Return the obvious choice: all data, and as much parity as needed."""
    return {slot: held.slots[slot] for slot in sorted(held.slots)[: held.data_count or 0]}


def genuine_slots(rebuilt: Rebuilt, held: OpenSet) -> dict[int, bytes]:
    """Return the true content of every slot: data at its true length, and parity if its count is known."""
    k, length = held.data_count or 1, rebuilt.shard_length or len(rebuilt.payload)
    truth = {index: rebuilt.payload[index * length : (index + 1) * length] for index in range(k)}
    codec = get_codec(held.codec)
    if held.parity_count and length % codec.alignment == 0 and codec.supports(k, held.parity_count):
        parity = codec.encode(cut_shards(rebuilt.payload, length, k), held.parity_count)
        truth.update({PARITY + index: shard for index, shard in enumerate(parity)})
    return truth


def attempt(held: OpenSet, choice: Choice, key: int, work: Work) -> Rebuilt | Unfinished | None:
    """Rebuild from one choice of shards, in the order of their slots; ``None`` if the hash does not match. ``key``
    identifies the choice, so that a search for its true length continues where it stopped."""
    k = held.data_count or 0
    parts = [shard[2] for shard in choice.values()]
    cost = sum(map(len, parts)) + SEGMENT * k + HASH
    if max(choice) < PARITY:
        if not work.begin(cost):
            return Unfinished()
        payload = _cut_to_length(held, parts, True, len(parts[0]))
        return None if payload is None else Rebuilt(payload, choice, len(parts[0]) if k > 1 else None)
    length = _find_shard_length(choice, k)
    if not work.begin(cost + _count_decoding_work(held, choice, k, length)):
        return Unfinished()
    decoded = _decode(held, choice, k, length)
    if decoded is None:
        return None
    last_is_true = k - 1 in choice
    if last_is_true or _find_possible_length(held, decoded, last_is_true, length) is not None:
        payload = _cut_to_length(held, decoded, last_is_true, length)
    else:
        searched = _search_payload(held, decoded, key, work)
        if isinstance(searched, Unfinished):
            return searched
        payload = searched
    return None if payload is None else Rebuilt(payload, choice, length)


def _count_decoding_work(held: OpenSet, choice: Choice, k: int, length: int) -> int:
    lost = sum(index not in choice for index in range(k))
    return get_codec(held.codec).decoding_work(k, held.parity_count or 0, lost, length)


def _find_shard_length(choice: Choice, data_count: int) -> int:
    """The payload bytes of a full segment, which all data segments except the last have. The choice contains a parity
    segment, so a full segment exists."""
    # The most common length, because one segment may be false.
    lengths = Counter(len(shard[2]) for slot, shard in choice.items() if slot != data_count - 1)
    return lengths.most_common(1)[0][0]


def _decode(held: OpenSet, choice: Choice, k: int, length: int) -> list[bytes] | None:
    """Decode the data shards with parity; the last one has its true length if it was received, else it is padded."""
    m = held.parity_count or 0
    codec = get_codec(held.codec)
    if length == 0 or length % codec.alignment or not codec.supports(k, m):
        return None
    shards: list[bytes | None] = [None] * (k + m)
    for slot, (_, _, payload, _) in choice.items():
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


def _find_possible_length(held: OpenSet, parts: list[bytes], last_is_true: bool, length: int) -> int | None:
    """The payload's length as the segments state it, if it is possible."""
    stated, whole = held.original_length, sum(map(len, parts))
    possible = stated is not None and stated <= whole and (last_is_true or whole - stated < length)
    return stated if possible else None


def _cut_to_length(held: OpenSet, parts: list[bytes], last_is_true: bool, length: int) -> bytes | None:
    """Return the payload at its known length, if its Keccak-256 is the set's hash."""
    payload = b"".join(parts)
    if held.original_length is not None:
        payload = payload[: _find_possible_length(held, parts, last_is_true, length)]
    return payload if keccak256(payload) == held.key[1] else None


def _search_payload(held: OpenSet, parts: list[bytes], key: int, work: Work) -> bytes | Unfinished | None:
    """Search for the payload if the last segment was rebuilt and no length is stated: strip all trailing zeros, then
    restore some of them, until the Keccak-256 is the set's hash."""
    whole, last = b"".join(parts), len(parts[-1])
    base = len(whole) - last
    shortest, longest = base + max(len(parts[-1].rstrip(b"\0")), 1), len(whole)
    begin = held.lengths_tried if held.lengths_key == key else 0  # where the work of an earlier input ended
    held.lengths_key, held.lengths_tried = key, begin
    allowed = work.lengths()
    for lengths in _list_lengths(base, shortest, longest):
        rest = lengths[begin:]
        begin = max(begin - len(lengths), 0)
        if not rest:
            continue
        now = rest[:allowed]
        if not now:
            return Unfinished()
        work.spend(now[0] + HASH * len(now))
        # One digest for the range, which grows from length to length: 2.6 µs each instead of a hash of the whole. Of
        # pycryptodome, because tiny-keccak only hashes a whole value (docs/decisions.md).
        digest = keccak.new(digest_bits=256, data=memoryview(whole)[: now[0]], update_after_digest=True)
        step = bytes(now.step)
        for length in now:
            if length != now[0]:
                digest.update(step)
            if digest.digest() == held.key[1]:
                return whole[:length]
        held.lengths_tried += len(now)
        allowed -= len(now)
        if len(now) < len(rest):
            return Unfinished()
    return None


def _list_lengths(base: int, shortest: int, longest: int) -> list[range]:
    """The possible payload lengths in order: near the shortest, the multiples of 64, those of 8, all."""
    # Few payloads end with many zeros; of those that do, many have a round length (docs/segmentation.md, *Work*).
    ranges = [range(shortest, min(shortest + NEAR, longest + 1))]
    after = shortest + NEAR
    for step in (64, 8):  # from the next length on that is a multiple of it, counted from the last segment's begin
        ranges.append(range(after + -(after - base) % step, longest + 1, step))
    return [*ranges, range(after, longest + 1)]
