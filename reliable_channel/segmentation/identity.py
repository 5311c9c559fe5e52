"""Whether a segment's SDS id is that of its own bytes: a stranger can invent ids, but no second payload for one."""

from __future__ import annotations

from reliable_channel.segmentation.pending import PARITY, OpenSet, Shard, ordinal
from reliable_channel.segmentation.split import stated_parity_count
from reliable_channel.wire.hashing import js_message_id, sds_message_id
from reliable_channel.wire.segment import Dialect, Segment, encode_segment


def id_verifies(held: OpenSet, slot: int, shard: Shard) -> bool:
    """Whether the id can be recomputed from sender, Lamport timestamp and content, as this project's sender or js-waku
    makes it. The scope's last name is the sender. Costs two digests of the shard."""
    sds_id, lamport, payload, _ = shard
    place, scope = ordinal(slot, held.data_count), held.key[0]
    if not scope or not sds_id:
        return False
    content = encode_segment(_segment(held, slot, payload))
    if sds_id == js_message_id(content):
        return True
    if lamport is None or place is None or lamport < place:
        return False
    return sds_id == sds_message_id(scope[-1], lamport - place, content)


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
