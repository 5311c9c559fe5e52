"""What a completed message never received, encoded again (protocol.md §4; design.md *Verified repair*)."""

from __future__ import annotations

from reliable_channel.segmentation.codecs import get_codec
from reliable_channel.segmentation.events import MessageCompleted, MissingSegment
from reliable_channel.segmentation.split import data_segments, parity_segments
from reliable_channel.wire.segment import Segment, encode_segment


def missing_segments(completed: MessageCompleted, parity_count: int | None = None) -> list[MissingSegment]:
    """Every segment of the message that was not received, data then parity, with the SDS content its sender wrote.

    Costs an encoding, so it is not part of the event. ``parity_count`` is what to assume where no segment told it
    (``SegmentationConfig.parity_count``): a wrong guess gives contents whose SDS id nobody misses, so it does no harm.
    """
    count = completed.parity_count if completed.parity_count is not None else (parity_count or 0)
    held = {(segment.is_parity, segment.index) for segment in completed.received}
    data = [index for index in range(completed.data_count) if (False, index) not in held]
    parity = [index for index in range(count) if (True, index) not in held]
    if not data and not parity:
        return []
    chunk = completed.shard_length or len(completed.payload)
    everything: list[Segment] = data_segments(
        completed.payload,
        completed.entire_message_hash,
        chunk,
        completed.data_count,
        count,
        completed.dialect,
        completed.original_length,
    )
    missing = [_missing(completed, everything[index]) for index in data]
    codec = get_codec(completed.codec)
    if parity and chunk % codec.alignment == 0 and codec.supports(completed.data_count, count):
        again = parity_segments(everything, chunk, count, completed.codec)
        missing.extend(_missing(completed, again[index]) for index in parity)
    return missing


def _missing(completed: MessageCompleted, segment: Segment) -> MissingSegment:
    ordinal = segment.index + (completed.data_count if segment.is_parity else 0)
    lamport = None if completed.first_lamport is None else completed.first_lamport + ordinal
    return MissingSegment(segment.is_parity, segment.index, encode_segment(segment), lamport)
