"""Verifies an SDS id by recomputing it from its message. The participant and the ingest job share this code, so they
get the same result."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain, product
from typing import NamedTuple

from reliable_channel.core.wire.hashing import IdScheme, js_message_id, sds_message_id
from reliable_channel.core.wire.sds import SdsMessage, WireFamily
from reliable_channel.core.wire.segment import MAX_TOTAL_SEGMENTS, Dialect, Segment, decode_segment

_LAYOUTS = (frozenset({Dialect.V01, Dialect.LIP243}), frozenset({Dialect.LIP243_LENGTH}))
"""The sender's dialect is not known here; a wrong guess costs a hash, a right one proves the id."""

_FORM = re.compile("[0-9a-f]{64}")
"""The form of the ids of all schemes: 32 bytes in hex."""

_SEGMENT_START = b"\x0a\x20"
"""The first bytes of a segment whose sender writes the fields in order: a hash of 32 bytes. Most contents that begin
otherwise are bare."""

_DEFAULT_DATA_PER_PARITY = 8
_USUAL_DATA_PER_PARITY = (4, 2, 10, 5)
"""Data segments per parity segment at the default parity rate, 0.125, and at other usual ones."""

MAX_HASHED_BYTES = 3 * 1024 * 1024
"""A parity segment of dialect v0.1 does not state how many data segments precede it. The search for that number hashes
at most this many bytes, about 12 ms, so that no sender can keep a receiver busy."""
_BYTES_PER_CALL = 2_000
"""The minimum bytes that each hash counts."""

SEARCHED_BYTES = MAX_HASHED_BYTES // (2 * MAX_TOTAL_SEGMENTS + 1)
"""For a content of at most this many bytes, all possibilities are tried."""


class IdCheck(NamedTuple):
    """What recomputing an id gave. ``verified``: as :func:`id_verified`; ``scheme``: the one that gives the id."""

    verified: bool | None
    scheme: IdScheme | None = None


def id_verified(
    message: SdsMessage, family: WireFamily, plaintext: bytes | None = None, participant_id: str | None = None
) -> bool | None:
    """Whether the id of a message can be recomputed from it; ``None`` if that cannot be decided. ``plaintext``: of a
    content that is a ciphertext; ids are those of the ciphertext, and the plaintext names the position in the send.
    ``participant_id``: the receiver's own sender id. Under it only an id that binds the sender is verified: other ids
    are of the content alone, so a stranger could repeat anybody's message under that name.

    ``False`` means that the id has the form that every known sender of the wire family derives from a content, but not
    from this content; a sync message has no content. In the nim family the application chooses the ids, so the form
    proves nothing."""
    check = check_id(message, family, plaintext)
    return check.scheme is IdScheme.KECCAK if message.sender_id == participant_id else check.verified


def check_id(
    message: SdsMessage, family: WireFamily, plaintext: bytes | None = None, digest: bytes | None = None
) -> IdCheck:
    """:func:`id_verified`, with the scheme. ``digest``: the SHA-256 of the content, if the caller has it."""
    check = _recompute(message, plaintext, digest)
    return _UNDECIDED if check.verified is False and family is WireFamily.NIM else check


def id_is_recomputed(message: SdsMessage) -> bool:
    """Whether the id is the one that this project's sender, js-waku or LIP-173 computes for this content. The first
    also binds the sender id and the Lamport timestamp."""
    return _recompute(message).verified is True


SYNC_SEARCH = 100
"""How many Lamport timestamps below that of the naming message are tried for a sync message."""


def is_sync_id(message_id: str, sender_id: str, below: int) -> bool:
    """Whether an id is that of a sync message of this project's sender ``sender_id``, made at one of the
    :data:`SYNC_SEARCH` Lamport timestamps ``below`` that of a message that names it."""
    if not _FORM.fullmatch(message_id):
        return False
    tried = range(below - 1, max(0, below - SYNC_SEARCH) - 1, -1)
    return any(sds_message_id(sender_id, lamport, b"") == message_id for lamport in tried)


_UNDECIDED = IdCheck(None)
_REFUTED = IdCheck(False)


def _recompute(message: SdsMessage, plaintext: bytes | None = None, digest: bytes | None = None) -> IdCheck:
    """Whether the id is recomputed, and how; undecided for an id of another form or of the joined form, and for a
    message without timestamp."""
    content, lamport = message.content, message.lamport_timestamp
    if lamport is None or not _FORM.fullmatch(message.message_id):
        return _UNDECIDED
    if not content:
        return _REFUTED
    if message.message_id == (js_message_id(content) if digest is None else digest.hex()):
        return IdCheck(True, IdScheme.SHA256)
    # An id that this search does not find counts as not recomputed: who sends content that takes long to search could
    # otherwise claim any id.
    left = MAX_HASHED_BYTES
    cost = max(len(content), _BYTES_PER_CALL)
    tried = set()
    for scheme, ordinal in _list_tries(content if plaintext is None else plaintext):
        if ordinal > lamport or (scheme, ordinal) in tried:
            continue
        tried.add((scheme, ordinal))
        if (left := left - cost) < 0:
            break
        if scheme.message_id(message.sender_id, lamport - ordinal, content) == message.message_id:
            # Digits at the seams of the joined form may belong to either field: other messages have that id, too.
            return IdCheck(None if scheme is IdScheme.KECCAK_JOINED else True, scheme)
    return _REFUTED


def _list_tries(content: bytes) -> Iterator[tuple[IdScheme, int]]:
    """The possible schemes and positions of a content in its send, likely ones first: the position that the segment
    states, and 0 if it is bare. Some occur twice. An id of LIP-173 has no position."""
    if not content.startswith(_SEGMENT_START):
        yield IdScheme.KECCAK, 0
    stated, unstated = [], []
    for dialects in _LAYOUTS:
        segment = decode_segment(content, dialects)
        if not isinstance(segment, Segment):
            continue
        if not segment.is_parity:
            stated.append(segment.index)
        elif segment.data_count is not None:
            stated.append(segment.data_count + segment.index)
        else:
            unstated.append(segment)
            continue
        yield IdScheme.KECCAK, stated[-1]  # tried before another layout, because nearly always it is this one
    yield IdScheme.KECCAK_CONTENT, 0
    yield from _combine_with_schemes([*stated, 0])
    for segment in unstated:
        index, parity_count = segment.index, segment.parity_count or 1
        first = _DEFAULT_DATA_PER_PARITY * parity_count
        # The default rate also gives one parity segment for fewer data segments.
        default = range(first if parity_count > 1 else 2, first + _DEFAULT_DATA_PER_PARITY)
        yield from _combine_with_schemes([index + data_count for data_count in default])
        usual = [range(rate * parity_count, rate * (parity_count + 1)) for rate in _USUAL_DATA_PER_PARITY]
        others = chain(*usual, range(1, MAX_TOTAL_SEGMENTS - parity_count + 1))
        yield from _combine_with_schemes([index + data_count for data_count in others])


def _combine_with_schemes(ordinals: list[int]) -> Iterator[tuple[IdScheme, int]]:
    return product((IdScheme.KECCAK, IdScheme.KECCAK_JOINED), ordinals)
