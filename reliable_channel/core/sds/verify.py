"""Tells whether an SDS id is recomputed from its message. The participant and the ingest job use this one function, so
they judge a message alike."""

from __future__ import annotations

import re
from collections.abc import Iterator

from reliable_channel.core.wire.hashing import IdScheme, js_message_id
from reliable_channel.core.wire.sds import SdsMessage, WireFamily
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS, Dialect, Segment, decode_segment

_LAYOUTS = (frozenset({Dialect.V01, Dialect.LIP243}), frozenset({Dialect.LIP243_LENGTH}))
"""Which dialect a sender writes is not known here; a wrong guess costs a hash, a right one proves the id."""

_FORM = re.compile("[0-9a-f]{64}")
"""An id that any of the schemes makes: 32 bytes in hex."""

_USUAL_DATA_PER_PARITY = 8
"""Data segments for each parity segment at the default parity rate, 0.125."""

MAX_HASHED_BYTES = 2 * 1024 * 1024
"""A parity segment of dialect v0.1 does not say how many data segments precede it. The search for that number hashes at
most this many bytes, about 5 ms, so that nobody can keep a receiver busy."""
_BYTES_PER_CALL = 2_000
"""A hash costs at least what so many bytes cost."""


def id_verified(message: SdsMessage, family: WireFamily) -> bool | None:
    """Whether the id of a message is recomputed from it; ``None`` when nobody can tell.

    ``False`` means that the id has the form that every known sender of the wire family makes of a content, and not of
    this one; a sync message has none. In the nim family the application chooses the ids, so that says nothing there."""
    found = _recomputed(message)
    return None if found is False and family is WireFamily.NIM else found


def id_is_recomputed(message: SdsMessage) -> bool:
    """Whether the id is the one that this project's sender or js-waku gives to this content. The former binds the
    sender id and the Lamport timestamp as well."""
    return _recomputed(message) is True


def _recomputed(message: SdsMessage) -> bool | None:
    """Whether the id is recomputed; ``None`` for an id of another form or of the joined one, a message without
    timestamp, and when the search had to end."""
    content, lamport = message.content, message.lamport_timestamp
    if lamport is None or not _FORM.fullmatch(message.message_id):
        return None
    if not content:
        return False
    if message.message_id == js_message_id(content):
        return True
    budget = MAX_HASHED_BYTES
    cost = 2 * max(len(content), _BYTES_PER_CALL)
    for ordinal in dict.fromkeys(_ordinals(content)):
        if ordinal > lamport:
            continue
        if budget < 0:
            return None
        budget -= cost
        first = lamport - ordinal
        for scheme in (IdScheme.KECCAK, IdScheme.KECCAK_JOINED):
            if scheme.message_id(message.sender_id, first, content) == message.message_id:
                # Digits at the seams of the joined form may belong to either field: other messages have that id, too.
                return True if scheme is IdScheme.KECCAK else None
    return False


def _ordinals(content: bytes) -> Iterator[int]:
    """The possible positions of a content in its send, likely ones first: the position that the segment states, and 0
    when it is bare."""
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
