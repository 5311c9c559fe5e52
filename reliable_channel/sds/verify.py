"""Whether an SDS id can be recomputed from its message (protocol.md §4 and §5 *Bounds*): who wins a conflict."""

from __future__ import annotations

from collections.abc import Iterator

from reliable_channel.wire.hashing import js_message_id, sds_message_id
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.sds import SdsMessage
from reliable_channel.wire.segment import MAX_TOTAL_SEGMENTS, Dialect, Segment, decode_segment

_LAYOUTS = (frozenset({Dialect.V01, Dialect.LIP243}), frozenset({Dialect.LIP243_LENGTH}))
"""Which dialect a sender writes is not known here; a wrong guess costs a hash, a right one proves the id."""

MAX_HASHED_BYTES = 8 * 1024 * 1024
"""A parity segment of dialect v0.1 does not say how many data segments precede it; trying all counts is bounded by
this, so that a conflict cannot be used to keep a receiver busy."""


def id_is_recomputed(message: SdsMessage) -> bool:
    """Whether the id is one that this project's sender or js-waku gives to just this content and sender."""
    if not message.content or message.lamport_timestamp is None:
        return False
    if message.message_id == js_message_id(message.content):
        return True
    budget = MAX_HASHED_BYTES
    for ordinal in _ordinals(message.content):
        if ordinal > message.lamport_timestamp or budget < 0:
            return False
        budget -= len(message.content)
        if (
            sds_message_id(message.sender_id, message.lamport_timestamp - ordinal, message.content)
            == message.message_id
        ):
            return True
    return False


def _ordinals(content: bytes) -> Iterator[int]:
    """The places in its send that a content may have: 0 when bare, else what the segment says."""
    yield 0
    for dialects in _LAYOUTS:
        segment = decode_segment(content, dialects)
        if not isinstance(segment, Malformed):
            yield from _segment_ordinals(segment)


def _segment_ordinals(segment: Segment) -> Iterator[int]:
    if not segment.is_parity:
        yield segment.index
    elif segment.data_count is not None:
        yield segment.data_count + segment.index
    else:
        yield from range(1 + segment.index, MAX_TOTAL_SEGMENTS)
