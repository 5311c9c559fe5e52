"""Segmentation and reassembly (protocol.md §3, seed 004). Ring 1: no clock, randomness or I/O; ``now`` is an argument.

Sending: :func:`contents_for` gives the SDS contents of a payload. Receiving: ``wire.segment.decode_segment`` tells a
segment from a bare payload, :class:`Reassembler` collects segments and tells what happened as events,
:func:`missing_segments` encodes again what a completed message never received; :func:`get_codec` gives a parity code.
"""

from __future__ import annotations

from reliable_channel.segmentation.chunk import ChunkDiscarded, ChunkGate, MessageChunk, ReceivedChunk, chunks_of
from reliable_channel.segmentation.codecs import Codec, get_codec
from reliable_channel.segmentation.config import SegmentationConfig, effective_segment_size
from reliable_channel.segmentation.events import (
    CompletedSend,
    EvictionReason,
    HashMismatch,
    HeldSegment,
    IncompleteSet,
    MessageCompleted,
    MissingSegment,
    PoisonedSegmentExcluded,
    Refusal,
    Scope,
    SegmentationEvent,
    SegmentConflict,
    SegmentDuplicate,
    SegmentRefused,
    SetEvicted,
    SetExpired,
)
from reliable_channel.segmentation.reassembler import Reassembler
from reliable_channel.segmentation.recovery import missing_segments
from reliable_channel.segmentation.split import contents_for, split, validates_as_segment
from reliable_channel.wire.segment import Dialect, Segment

__all__ = [
    "ChunkDiscarded",
    "ChunkGate",
    "Codec",
    "CompletedSend",
    "Dialect",
    "EvictionReason",
    "HashMismatch",
    "HeldSegment",
    "IncompleteSet",
    "MessageChunk",
    "MessageCompleted",
    "MissingSegment",
    "PoisonedSegmentExcluded",
    "Reassembler",
    "ReceivedChunk",
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
    "chunks_of",
    "contents_for",
    "effective_segment_size",
    "get_codec",
    "missing_segments",
    "split",
    "validates_as_segment",
]
