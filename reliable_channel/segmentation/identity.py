"""Whether a segment's SDS id is that of its own bytes: a stranger can invent ids, but no second payload for one."""

from __future__ import annotations

from reliable_channel.segmentation.pending import PARITY, OpenSet, Shard, ordinal
from reliable_channel.segmentation.split import stated_parity_count
from reliable_channel.wire.hashing import IdScheme
from reliable_channel.wire.segment import Dialect, Segment, encode_segment


def id_verifies(held: OpenSet, slot: int, shard: Shard) -> bool:
    """Whether the id can be recomputed from sender, Lamport timestamp and content in any scheme. The scope's last name
    is the sender. Costs three digests of the shard."""
    sds_id, lamport, payload, _ = shard
    place, scope = ordinal(slot, held.data_count), held.key[0]
    if not scope or not sds_id:
        return False
    content = encode_segment(_segment(held, slot, payload))
    first = lamport - place if lamport is not None and place is not None and lamport >= place else None
    return any(scheme.message_id(scope[-1], first, content) == sds_id for scheme in IdScheme)


def _segment(held: OpenSet, slot: int, payload: bytes) -> Segment:
    is_parity = slot >= PARITY
    v01_parity = is_parity and held.dialect is Dialect.V01
    return Segment(
        held.key[1],
        slot % PARITY,
        None if v01_parity else held.data_count,
        held.parity_count if is_parity else stated_parity_count(held.dialect, held.parity_count or 0),
        is_parity,
        payload,
        held.original_length,
        held.dialect,
    )
