"""Rebuilds the usual message without a Reassembler: its data segments arrive once each and in order, and nothing else
of its hash does."""

from __future__ import annotations

from collections.abc import Iterable

from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.core.segmentation.events import HeldSegment, MessageCompleted, Scope
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.segment import Dialect, Segment

Arrival = tuple[Segment | Malformed, int, str, int | None]
"""A segment, when it arrived (ms), and the id and Lamport timestamp of the SDS message that carried it."""


def complete_at_once(
    scope: Scope, arrivals: Iterable[Arrival], count: int, config: SegmentationConfig
) -> MessageCompleted | None:
    """The message of ``count`` segments of one hash, if a new :class:`~.reassembler.Reassembler` would report it and
    nothing else, and hold nothing afterwards. ``None`` if that is not certain; then not all arrivals may be read."""
    held: list[HeldSegment] = []
    payloads: list[bytes] = []
    most = min(config.max_message_bytes, config.max_buffered_bytes, config.max_buffered_bytes_per_sender)
    whole, first_lamport, began, now = b"", 0, 0, 0
    for index, (segment, at, sds_id, lamport) in enumerate(arrivals):
        if isinstance(segment, Malformed) or lamport is None:
            return None
        if not index:
            whole, first_lamport, began, now = segment.entire_message_hash, lamport, at, at
        size = len(segment.payload)
        if (
            segment.entire_message_hash != whole
            or (segment.index, segment.data_count, lamport - first_lamport) != (index, count, index)
            or segment.dialect is not Dialect.V01
            or segment.original_length is not None
            or at < now
            or size * count > most  # so that neither a bound of the message nor one of the memory is reached
        ):
            return None
        now = at
        held.append(HeldSegment(False, index, sds_id, lamport))
        payloads.append(segment.payload)
    payload = b"".join(payloads)
    in_time = now - began < min(config.set_timeout_ms, config.max_set_lifetime_ms)
    if len(held) != count or not in_time or keccak256(payload) != whole:
        return None
    return MessageCompleted(
        scope=scope,
        entire_message_hash=whole,
        payload=payload,
        data_count=count,
        parity_count=None,
        received=tuple(held),
        rebuilt_indices=(),
        shard_length=len(payloads[0]),
        dialect=Dialect.V01,
        codec=config.codec,
        original_length=None,
        first_lamport=first_lamport,
        first_seen=began,
        completed_at=now,
        one_send=True,
    )
