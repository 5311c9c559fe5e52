"""Splits a payload into segments (Segmentation 0.1, *Sending*). Independent of SDS and envelopes."""

from __future__ import annotations

from reliable_channel.core.errors import EmptyMessage, MessageTooLarge
from reliable_channel.core.segmentation.codecs import get_codec
from reliable_channel.core.segmentation.config import SHARD_ALIGNMENT, SegmentationConfig
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.segment import Dialect, Segment, decode_segment, encode_segment


def split(payload: bytes, config: SegmentationConfig) -> list[Segment]:
    """Split ``payload`` into segments: data in order, then parity; never an empty list.

    In dialect v0.1 a payload of at most ``config.bare_size()`` bytes becomes one segment with ``is_bare`` true, whose
    encoding is the payload itself, unless those bytes would validate as a segment. The other dialects wrap every
    payload.

    Raises :class:`EmptyMessage` for an empty payload and :class:`MessageTooLarge` for one above
    ``max_message_bytes`` or of more than ``max_total_segments`` segments.
    """
    check_size(payload, config)
    entire_message_hash = keccak256(payload)
    chunk = config.chunk_size()
    if config.dialect is Dialect.V01 and len(payload) <= config.bare_size():
        # A receiver would take it for a segment of another message (Segmentation 0.1, *Sending*): it is split in two.
        if not validates_as_segment(payload):
            return [Segment(entire_message_hash, 0, 1, 0, False, payload)]
        chunk = _halve(len(payload))
    elif len(payload) <= config.bare_size():
        chunk = config.bare_size()
    data_count = -(-len(payload) // chunk)
    if data_count > config.max_total_segments:
        raise MessageTooLarge(
            f"The message is {len(payload)} bytes, {config.max_total_segments} segments of {chunk} bytes hold "
            f"{config.max_total_segments * chunk} bytes.",
            "Send less, or raise segment_size_bytes.",
        )
    parity_count = config.parity_count(data_count) if chunk % SHARD_ALIGNMENT == 0 else 0
    data = data_segments(payload, entire_message_hash, chunk, data_count, parity_count, config.dialect)
    return [*data, *parity_segments(data, chunk, parity_count, config.codec)]


def check_size(payload: bytes, config: SegmentationConfig) -> None:
    """Raise :class:`EmptyMessage` for an empty payload and :class:`MessageTooLarge` for one above
    ``max_message_bytes``."""
    if not payload:
        raise EmptyMessage("An empty payload cannot be sent.", "Send at least one byte.")
    if len(payload) > config.max_message_bytes:
        raise MessageTooLarge(
            f"The message is {len(payload)} bytes, the limit is {config.max_message_bytes} bytes.",
            "Send less, or raise max_message_bytes at every participant.",
        )


def contents_for(payload: bytes, config: SegmentationConfig) -> list[bytes]:
    """The SDS contents of one send: ``[payload]`` for a bare one, else the encoded segments, data then parity.
    Raises as :func:`split`."""
    return [encode_segment(segment) for segment in split(payload, config)]


def validates_as_segment(payload: bytes) -> bool:
    """Whether a receiver would decode these bytes as a segment (Segmentation 0.1, the ambiguity of bare payloads)."""
    return not isinstance(decode_segment(payload), Malformed)


def data_segments(
    payload: bytes,
    entire_message_hash: bytes,
    chunk: int,
    data_count: int,
    parity_count: int,
    dialect: Dialect,
    original_length: int | None = None,
) -> list[Segment]:
    """Cut the payload into data segments of ``chunk`` bytes; the last one keeps its true length."""
    length = len(payload) if dialect is Dialect.LIP243_LENGTH else original_length
    return [
        Segment(
            entire_message_hash,
            index,
            data_count,
            parity_count_to_state(dialect, parity_count),
            False,
            payload[index * chunk : (index + 1) * chunk],
            length,
            dialect,
        )
        for index in range(data_count)
    ]


def parity_segments(data: list[Segment], chunk: int, parity_count: int, codec: str) -> list[Segment]:
    """Encode the parity segments of a message's data segments, each of ``chunk`` bytes; the last data segment is
    zero-padded for coding only."""
    if parity_count == 0:
        return []
    first, shards = data[0], [segment.payload for segment in data]
    shards[-1] = shards[-1].ljust(chunk, b"\0")
    return [
        Segment(
            first.entire_message_hash,
            index,
            None if first.dialect is Dialect.V01 else len(data),
            parity_count,
            True,
            shard,
            first.original_length,
            first.dialect,
        )
        for index, shard in enumerate(get_codec(codec).encode(shards, parity_count))
    ]


def cut_shards(payload: bytes, chunk: int, data_count: int) -> list[bytes]:
    """Cut the payload into ``data_count`` shards of ``chunk`` bytes, the last one padded with zeros."""
    shards = [payload[index * chunk : (index + 1) * chunk] for index in range(data_count)]
    shards[-1] = shards[-1].ljust(chunk, b"\0")
    return shards


def parity_count_to_state(dialect: Dialect, parity_count: int) -> int | None:
    """The parity count that a data segment states: none in v0.1; the count in lip243; in ``lip243-length`` an optional
    field, absent without parity."""
    if dialect is Dialect.V01:
        return None
    return parity_count if parity_count or dialect is Dialect.LIP243 else None


def _halve(length: int) -> int:
    """Return the chunk size (bytes) that splits ``length`` bytes in two, a multiple of 64 where that is possible
    (parity needs it)."""
    half = -(-length // 2)
    aligned = -(-half // SHARD_ALIGNMENT) * SHARD_ALIGNMENT
    return aligned if aligned < length else half
