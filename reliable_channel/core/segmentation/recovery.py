"""Encodes the segments that a completed message never received, for verified repair (docs/spec/sds-messages.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from reliable_channel.core.segmentation.codecs import get_codec
from reliable_channel.core.segmentation.events import HeldSegment, MessageCompleted, MissingSegment
from reliable_channel.core.segmentation.splitting import data_segments, parity_segments
from reliable_channel.core.wire.hashing import IdScheme
from reliable_channel.core.wire.segment import Segment, encode_segment


def missing_segments(completed: MessageCompleted, parity_count: int | None = None) -> list[MissingSegment]:
    """Encode every segment of the message that was not received, data then parity, with the SDS content its sender
    wrote.

    Costs an encoding, so it is not part of the event. ``parity_count`` is the assumption if no segment contained it
    (``SegmentationConfig.parity_count``): a wrong guess gives contents whose SDS ids are not missing, so it does no
    harm.
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
    missing = [_describe_missing(completed, everything[index]) for index in data]
    codec = get_codec(completed.codec)
    if parity and chunk % codec.alignment == 0 and codec.supports(completed.data_count, count):
        shards = parity_segments(everything, chunk, count, completed.codec)
        missing.extend(_describe_missing(completed, shards[index]) for index in parity)
    return missing


class RepairedSegment(NamedTuple):
    """A segment that was never received, with the SDS id that its content has under one scheme."""

    sds_id: str
    scheme: IdScheme
    segment: MissingSegment


def find_repaired(
    completed: MessageCompleted, parity_count: int | None, schemes: Iterable[IdScheme]
) -> Iterator[RepairedSegment]:
    """Yield every missing segment with every id it can have by ``schemes``. The last element of the scope is the
    sender.

    An id that equals a missing one verifies the repair: nobody can find other bytes with that id."""
    tried = tuple(schemes)
    for segment in missing_segments(completed, parity_count) if tried else ():
        for scheme in tried:
            sds_id = scheme.message_id(completed.scope[-1], completed.first_lamport, segment.content)
            if sds_id is not None:
                yield RepairedSegment(sds_id, scheme, segment)


def id_scheme_of(completed: MessageCompleted) -> IdScheme | None:
    """Find the sender's id scheme by one received segment; ``None`` if no scheme gives that segment's id."""
    known = next((s for s in completed.received if not s.is_parity), completed.received[0])
    parity = tuple(HeldSegment(True, index, "") for index in range(completed.parity_count or 0))  # nothing to encode
    others = tuple(s for s in completed.received if not s.is_parity and s != known)
    encoded = missing_segments(replace(completed, received=others + (() if known.is_parity else parity)))
    content = next((s.content for s in encoded if (s.is_parity, s.index) == (known.is_parity, known.index)), None)
    if content is None:
        return None
    ids = ((scheme, scheme.message_id(completed.scope[-1], completed.first_lamport, content)) for scheme in IdScheme)
    return next((scheme for scheme, sds_id in ids if sds_id == known.sds_id), None)


def _describe_missing(completed: MessageCompleted, segment: Segment) -> MissingSegment:
    ordinal = segment.index + (completed.data_count if segment.is_parity else 0)
    lamport = None if completed.first_lamport is None else completed.first_lamport + ordinal
    return MissingSegment(segment.is_parity, segment.index, encode_segment(segment), lamport)
