"""Checks whether a segment's SDS id was computed from the segment's own bytes. A stranger can invent ids, but cannot
find a second payload for an existing one."""

from __future__ import annotations

from reliable_channel.core.segmentation.pending import PARITY, OpenSet, Shard, first_of
from reliable_channel.core.segmentation.splitting import parity_count_to_state
from reliable_channel.core.segmentation.work import HASH, Work
from reliable_channel.core.wire.hashing import IdScheme
from reliable_channel.core.wire.segment import Dialect, Segment, encode_segment

ID_LENGTH = 64
"""Characters of an id that binds its send: a digest of 32 bytes in hex."""


def proof_cost(payload: bytes) -> int:
    """The work of :func:`binds_send`: two digests of the segment."""
    return 2 * (len(payload) + HASH)


def verification_cost(payload: bytes) -> int:
    """The work of :func:`id_verifies`: four digests of the segment, which is encoded again."""
    return 4 * (len(payload) + 2 * HASH)


_BINDING = (IdScheme.KECCAK, IdScheme.KECCAK_JOINED)


def id_verifies(held: OpenSet, slot: int, shard: Shard) -> bool:
    """Whether any scheme gives the id for sender, Lamport timestamp and content. The last element of the scope is the
    sender. Costs :func:`verification_cost`."""
    sds_id, lamport, _, _ = shard
    scope = held.key[0]
    if not scope or not sds_id:
        return False
    content = encode_segment(segment_of(held, slot, shard))
    first = first_of(slot, lamport, held.data_count)
    first = None if first is None or first < 0 else first
    return any(scheme.message_id(scope[-1], first, content) == sds_id for scheme in IdScheme)


def binds_send(sender: str, segment: Segment, sds_id: str, first: int | None, work: Work) -> bool:
    """Whether the SDS id proves that the segment belongs to the send whose first Lamport timestamp (ms) is ``first``:
    then it is a digest of sender, that timestamp and content, so no other send has it. False if ``work`` does not
    suffice."""
    cost = proof_cost(segment.payload)
    if first is None or first < 0 or len(sds_id) != ID_LENGTH or work.left < cost:
        return False
    work.spend(cost)
    content = encode_segment(segment)
    return any(scheme.message_id(sender, first, content) == sds_id for scheme in _BINDING)


def shard_binds(held: OpenSet, slot: int, shard: Shard, data_count: int | None, work: Work) -> bool:
    """:func:`binds_send` for a held segment, in a message of ``data_count`` data segments."""
    scope, segment = held.key[0], segment_of(held, slot, shard)
    return bool(scope) and binds_send(scope[-1], segment, shard[0], first_of(slot, shard[1], data_count), work)


def segment_of(held: OpenSet, slot: int, shard: Shard) -> Segment:
    """Return the segment that contained a shard of a set."""
    is_parity = slot >= PARITY
    v01_parity = is_parity and held.dialect is Dialect.V01
    return Segment(
        held.key[1],
        slot % PARITY,
        None if v01_parity else held.data_count,
        held.parity_count if is_parity else parity_count_to_state(held.dialect, held.parity_count or 0),
        is_parity,
        shard[2],
        held.original_length,
        held.dialect,
    )
