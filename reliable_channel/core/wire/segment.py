"""Encodes, decodes and validates segments in three wire dialects, and distinguishes them from bare payloads
(Segmentation 0.1, *Wire Format*).

Segments are values. They are not ``frozen``, for the reason given in ``core/sds/events.py``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from google.protobuf.message import DecodeError

from reliable_channel.core.wire._pb import segment_pb2 as pb
from reliable_channel.core.wire.framing import field_unless_empty
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed, Reason

HASH_BYTES = 32
MAX_TOTAL_SEGMENTS = 256
"""Maximum number of data and parity segments together (Segmentation 0.1, *Configuration*, ``maxTotalSegments``)."""


class Dialect(StrEnum):
    """The layouts of a segment. ``V01`` and ``LIP243`` share field numbers and are distinguished by one decoder;
    ``LIP243_LENGTH`` is another layout. No honest segment of one layout validates as one of the other."""

    V01 = "v0.1"
    LIP243 = "lip243"
    LIP243_LENGTH = "lip243-length"


DEFAULT_DIALECTS = frozenset(Dialect)
"""A receiver reads all of them: a wrapped payload that it did not recognise would reach the application as the bytes of
its segment."""
_V01, _LIP243, _LIP243_LENGTH = Dialect


@dataclass(slots=True, unsafe_hash=True)
class Segment:
    """One segment, of any dialect.

    ``index`` counts data segments, or parity segments if ``is_parity``. ``data_count`` is ``None`` for a v0.1 parity
    segment, which does not contain it; ``parity_count`` is ``None`` if the segment does not contain it.
    ``original_length`` is the length (bytes) of the whole payload if the dialect contains it.
    """

    entire_message_hash: bytes
    index: int
    data_count: int | None
    parity_count: int | None
    is_parity: bool
    payload: bytes
    original_length: int | None = None
    dialect: Dialect = Dialect.V01

    @property
    def is_bare(self) -> bool:
        """Whether this is a small payload that v0.1 sends unmodified. ``split`` makes such segments; they are never on
        the wire."""
        return self.data_count == 1 and self.dialect is Dialect.V01


def encode_segment(segment: Segment) -> bytes:
    """Serialize a segment in its own dialect; a bare one is its payload, unmodified."""
    if segment.is_bare:
        return segment.payload
    if segment.dialect is Dialect.LIP243_LENGTH:
        rest = pb.LengthSegmentProto(
            original_payload_hash=segment.entire_message_hash,
            original_payload_length=segment.original_length or 0,
            index=segment.index,
            data_segment_count=segment.data_count or 0,
            parity_segment_count=segment.parity_count,
            is_parity=segment.is_parity,
        )
        return b"".join((rest.SerializeToString(), *field_unless_empty(7, segment.payload)))
    lip243 = segment.dialect is Dialect.LIP243
    states_parity = segment.is_parity or lip243
    head = pb.SegmentMessageProto(
        entire_message_hash=segment.entire_message_hash,
        index=0 if segment.is_parity else segment.index,
        segments_count=(segment.data_count or 0) if lip243 or not segment.is_parity else 0,
    )
    tail = pb.SegmentMessageProto(
        parity_segment_index=segment.index if segment.is_parity else 0,
        parity_segments_count=(segment.parity_count or 0) if states_parity else 0,
        is_parity_or_length=1 if lip243 and segment.is_parity else (segment.original_length or 0),
    )
    payload = field_unless_empty(4, segment.payload)
    return b"".join((head.SerializeToString(), *payload, tail.SerializeToString()))


def decode_segment(data: bytes, dialects: Collection[Dialect] = DEFAULT_DIALECTS) -> Segment | Malformed:
    """Parse and validate a segment of one of ``dialects``, or return why they are malformed, by exactly the rules of
    Segmentation 0.1, *Validation*.

    A :class:`Malformed` means *these bytes are not a segment*: with v0.1 the caller may treat them as a bare payload.
    """
    # The order decides nothing for honest senders: no segment of one layout validates in the other
    # (docs/spec/segmentation.md, *Dialects*).
    if _V01 in dialects or _LIP243 in dialects:
        decoded = _decode_numbered(data, dialects)
        if isinstance(decoded, Segment) or _LIP243_LENGTH not in dialects:
            return decoded
        if decoded.reason is Reason.MALFORMED_SEGMENT:  # no protobuf message at all, so none of another layout
            return decoded
        other = _decode_length(data)
        return other if isinstance(other, Segment) else decoded
    return _decode_length(data)


def open_ephemeral(content: bytes, dialects: Collection[Dialect]) -> bytes | Malformed:
    """Return the payload of an ephemeral message, which has exactly one segment (LIP-109), or why its content cannot be
    delivered. Bytes that are not a segment are the payload if ``dialects`` has v0.1."""
    segment = decode_segment(content, dialects)
    if isinstance(segment, Malformed):
        return content if _V01 in dialects else segment
    if segment.data_count != 1 or segment.is_parity:
        return Malformed(Reason.SEGMENT_COUNT, "a segment of several in an ephemeral message")
    if keccak256(segment.payload) != segment.entire_message_hash:
        return Malformed(Reason.SEGMENT_HASH_MISMATCH, "an ephemeral message whose payload has another hash")
    return segment.payload


def lookalike(content: bytes, malformed: Malformed) -> Malformed | None:
    """Return why bytes that :func:`decode_segment` refused were probably meant as a segment, or ``None`` for an honest
    bare payload.

    With v0.1 such bytes *are* a bare payload and are delivered as one. Participant and pipeline report them
    nevertheless.
    """
    if malformed.reason is Reason.MALFORMED_SEGMENT:
        return None
    try:
        proto = pb.SegmentMessageProto.FromString(content)
    except DecodeError:
        return None
    # Texts may parse as protobuf by chance. Fields in order, a hash and a payload hardly ever come by chance, and an
    # index of 9 among 3 is more likely a broken sender.
    canonical = proto.SerializeToString() == content
    counted = proto.segments_count or proto.parity_segments_count or proto.index
    hash_like = 16 <= len(proto.entire_message_hash) <= 64
    if canonical and hash_like and proto.payload and (counted or len(proto.entire_message_hash) == HASH_BYTES):
        return malformed
    return None


def _decode_numbered(data: bytes, dialects: Collection[Dialect]) -> Segment | Malformed:
    """Decode a segment of v0.1 or lip243, which share field numbers."""
    v01, lip243 = _V01 in dialects, _LIP243 in dialects
    try:
        proto = pb.SegmentMessageProto.FromString(data)
    except DecodeError as error:
        return Malformed(Reason.MALFORMED_SEGMENT, str(error)[:200])
    hash_bytes = len(proto.entire_message_hash)
    if hash_bytes != HASH_BYTES:
        return Malformed(Reason.SEGMENT_HASH_LENGTH, f"hash of {hash_bytes} bytes, not {HASH_BYTES}")
    if proto.segments_count == 0:
        return _decode_v01_parity(proto, dialects)
    if proto.is_parity_or_length == 1:
        return _decode_lip243_parity(proto, dialects)
    if lip243:
        # A data segment without parity counts has the same bytes in both dialects; it is then read as v0.1.
        says_lip243 = proto.segments_count == 1 or proto.parity_segments_count > 0
        as_lip243 = _decode_data(proto, _LIP243) if says_lip243 or not v01 else None
        if as_lip243 is not None and (not v01 or isinstance(as_lip243, Segment)):
            return as_lip243
    return _decode_data(proto, _V01)


def _decode_data(proto: pb.SegmentMessageProto, dialect: Dialect) -> Segment | Malformed:
    """Decode a data segment. In lip243 it contains parity counts; in v0.1 it must not (Segmentation 0.1, *Validation*:
    no other combinations)."""
    # Every access to a field of a protobuf message creates a new object, and every access to an enumeration is a call.
    count, index, lip243 = proto.segments_count, proto.index, dialect is _LIP243
    least = 1 if lip243 else 2
    if count < least:
        return Malformed(Reason.SEGMENT_COUNT, f"segments_count {count}, at least {least} are needed")
    if count + (proto.parity_segments_count if lip243 else 0) > MAX_TOTAL_SEGMENTS:
        return Malformed(Reason.SEGMENT_COUNT, f"more than {MAX_TOTAL_SEGMENTS} segments in all")
    if index >= count:
        return Malformed(Reason.SEGMENT_INDEX, f"index {index} of {count} segments")
    if not lip243 and (proto.parity_segments_count or proto.parity_segment_index):
        return Malformed(Reason.SEGMENT_COUNT, "a data segment with parity fields")
    return Segment(
        entire_message_hash=proto.entire_message_hash,
        index=index,
        data_count=count,
        parity_count=proto.parity_segments_count if lip243 else None,
        is_parity=False,
        payload=proto.payload,
        original_length=proto.is_parity_or_length or None,
        dialect=dialect,
    )


def _decode_v01_parity(proto: pb.SegmentMessageProto, dialects: Collection[Dialect]) -> Segment | Malformed:
    if Dialect.V01 not in dialects or proto.parity_segments_count == 0:
        return Malformed(Reason.SEGMENT_COUNT, "neither data segments nor parity segments are counted")
    if proto.parity_segments_count + 2 > MAX_TOTAL_SEGMENTS:  # a v0.1 message has two data segments at least
        return Malformed(Reason.SEGMENT_COUNT, f"more than {MAX_TOTAL_SEGMENTS} segments in all")
    if proto.index:
        return Malformed(Reason.SEGMENT_INDEX, f"a parity segment with the data index {proto.index}")
    malformed = _check_parity_index(proto)
    return malformed or Segment(
        entire_message_hash=proto.entire_message_hash,
        index=proto.parity_segment_index,
        data_count=None,
        parity_count=proto.parity_segments_count,
        is_parity=True,
        payload=proto.payload,
        original_length=proto.is_parity_or_length if proto.is_parity_or_length > 1 else None,
        dialect=Dialect.V01,
    )


def _decode_lip243_parity(proto: pb.SegmentMessageProto, dialects: Collection[Dialect]) -> Segment | Malformed:
    if Dialect.LIP243 not in dialects:
        return Malformed(Reason.SEGMENT_COUNT, "a lip243 parity segment, and that dialect is not configured")
    if proto.segments_count + proto.parity_segments_count > MAX_TOTAL_SEGMENTS:
        return Malformed(Reason.SEGMENT_COUNT, f"more than {MAX_TOTAL_SEGMENTS} segments in all")
    malformed = _check_parity_index(proto)
    return malformed or Segment(
        entire_message_hash=proto.entire_message_hash,
        index=proto.parity_segment_index,
        data_count=proto.segments_count,
        parity_count=proto.parity_segments_count,
        is_parity=True,
        payload=proto.payload,
        dialect=Dialect.LIP243,
    )


def _check_parity_index(proto: pb.SegmentMessageProto) -> Malformed | None:
    if proto.parity_segment_index < proto.parity_segments_count:
        return None
    return Malformed(
        Reason.SEGMENT_INDEX, f"index {proto.parity_segment_index} of {proto.parity_segments_count} parity segments"
    )


def _decode_length(data: bytes) -> Segment | Malformed:
    try:
        proto = pb.LengthSegmentProto.FromString(data)
    except DecodeError as error:
        return Malformed(Reason.MALFORMED_SEGMENT, str(error)[:200])
    if len(proto.original_payload_hash) != HASH_BYTES:
        return Malformed(
            Reason.SEGMENT_HASH_LENGTH, f"hash of {len(proto.original_payload_hash)} bytes, not {HASH_BYTES}"
        )
    count = proto.parity_segment_count if proto.is_parity else proto.data_segment_count
    if proto.data_segment_count < 1 or proto.data_segment_count + proto.parity_segment_count > MAX_TOTAL_SEGMENTS:
        return Malformed(Reason.SEGMENT_COUNT, f"{proto.data_segment_count} + {proto.parity_segment_count} segments")
    if proto.index >= count:
        return Malformed(Reason.SEGMENT_INDEX, f"index {proto.index} of {count} segments")
    return Segment(
        entire_message_hash=proto.original_payload_hash,
        index=proto.index,
        data_count=proto.data_segment_count,
        parity_count=proto.parity_segment_count if proto.HasField("parity_segment_count") else None,
        is_parity=proto.is_parity,
        payload=proto.segment_payload,
        original_length=proto.original_payload_length,
        dialect=Dialect.LIP243_LENGTH,
    )
