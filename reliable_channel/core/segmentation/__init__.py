"""Splits payloads into segments and reassembles them (Segmentation 0.1, docs/spec/segmentation.md). It uses no clock,
randomness or I/O; ``now`` is an argument.

Sending: :func:`contents_for` gives the SDS contents of a payload. Receiving: ``wire.segment.decode_segment``
distinguishes a segment from a bare payload, :class:`Reassembler` collects segments and reports what happened as events,
:func:`missing_segments` re-encodes the segments that a completed message never received; :func:`get_codec` gives a
parity code. Names are loaded on first use, as those of ``sds``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_channel.core.segmentation.chunk import ChunkDiscarded, ChunkGate, MessageChunk, ReceivedChunk
    from reliable_channel.core.segmentation.codecs import get_codec
    from reliable_channel.core.segmentation.config import SegmentationConfig
    from reliable_channel.core.segmentation.events import (
        CompletedSend,
        EvictionReason,
        HashMismatch,
        HeldSegment,
        IncompleteSet,
        MessageCompleted,
        PoisonedSegmentExcluded,
        ReceivedSegmentEvent,
        Refusal,
        Scope,
        SegmentationEvent,
        SegmentConflict,
        SegmentDuplicate,
        SegmentRefused,
        SetEvicted,
        SetExpired,
        SetOverdue,
    )
    from reliable_channel.core.segmentation.reassembler import Reassembler
    from reliable_channel.core.segmentation.recovery import (
        find_repaired,
        id_scheme_of,
        missing_segments,
    )
    from reliable_channel.core.segmentation.splitting import contents_for, split, validates_as_segment
    from reliable_channel.core.wire.segment import Dialect, Segment

__all__ = [
    "ChunkDiscarded",
    "ChunkGate",
    "CompletedSend",
    "Dialect",
    "EvictionReason",
    "HashMismatch",
    "HeldSegment",
    "IncompleteSet",
    "MessageChunk",
    "MessageCompleted",
    "PoisonedSegmentExcluded",
    "Reassembler",
    "ReceivedChunk",
    "ReceivedSegmentEvent",
    "Refusal",
    "Scope",
    "Segment",
    "SegmentConflict",
    "SegmentDuplicate",
    "SegmentRefused",
    "SegmentationConfig",
    "SegmentationEvent",
    "SetEvicted",
    "SetExpired",
    "SetOverdue",
    "contents_for",
    "find_repaired",
    "get_codec",
    "id_scheme_of",
    "missing_segments",
    "split",
    "validates_as_segment",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reliable_channel.core.segmentation import chunk, codecs, config, events, reassembler, recovery, splitting

    modules = (config, events, chunk, codecs, reassembler, recovery, splitting)
    return globals().setdefault(name, next(getattr(one, name) for one in modules if hasattr(one, name)))
