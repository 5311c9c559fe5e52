"""Tells whether an SDS id can be recomputed from its message. The participant and the ingest job use this one function,
so they judge two messages with one id alike."""

from __future__ import annotations

from collections.abc import Iterator

from reliable_channel.wire.hashing import IdScheme, js_message_id
from reliable_channel.wire.sds import SdsMessage
from reliable_channel.wire.segment import MAX_TOTAL_SEGMENTS, Dialect, Segment, decode_segment

_LAYOUTS = (frozenset({Dialect.V01, Dialect.LIP243}), frozenset({Dialect.LIP243_LENGTH}))
"""Which dialect a sender writes is not known here; a wrong guess costs a hash, a right one proves the id."""

_ID_LENGTH = 64
"""Characters of an id that any of the schemes makes: 32 bytes in hex."""

_USUAL_DATA_PER_PARITY = 8
"""Data segments for each parity segment at the default parity rate, 0.125."""

MAX_HASHED_BYTES = 2 * 1024 * 1024
"""A parity segment of dialect v0.1 does not say how many data segments precede it. The search for that number hashes at
most this many bytes, about 5 ms, so that nobody can keep a receiver busy."""
_BYTES_PER_CALL = 2_000
"""A hash costs at least what so many bytes cost."""


def id_is_recomputed(message: SdsMessage) -> bool:
    """Whether the id is one that this project's sender, an earlier version of it, or js-waku gives to this content. The
    two former bind the sender id and the Lamport timestamp as well."""
    content, lamport = message.content, message.lamport_timestamp
    if not content or lamport is None or len(message.message_id) != _ID_LENGTH:
        return False
    if message.message_id == js_message_id(content):
        return True
    budget = MAX_HASHED_BYTES
    cost = 2 * max(len(content), _BYTES_PER_CALL)
    for ordinal in dict.fromkeys(_ordinals(content)):
        if ordinal > lamport:
            continue
        if budget < 0:
            return False
        budget -= cost
        first = lamport - ordinal
        for scheme in (IdScheme.KECCAK, IdScheme.KECCAK_JOINED):
            if scheme.message_id(message.sender_id, first, content) == message.message_id:
                return True
    return False


def _ordinals(content: bytes) -> Iterator[int]:
    """The places in its send that a content may have, likely ones first: what the segment says, and 0 when bare."""
    segments = [segment for dialects in _LAYOUTS if isinstance(segment := decode_segment(content, dialects), Segment)]
    for segment in segments:
        if not segment.is_parity:
            yield segment.index
        elif segment.data_count is not None:
            yield segment.data_count + segment.index
    yield 0
    for segment in segments:
        if segment.is_parity and segment.data_count is None:
            parity_count = segment.parity_count or 1
            usual = _USUAL_DATA_PER_PARITY * parity_count
            for data_count in range(usual, usual + _USUAL_DATA_PER_PARITY):
                yield data_count + segment.index
            for data_count in range(1, MAX_TOTAL_SEGMENTS):
                yield data_count + segment.index
