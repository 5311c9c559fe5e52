"""Segments in any order into payloads (protocol.md §3 *Receiving*)."""

from __future__ import annotations

from collections.abc import Iterator

from reliable_channel.segmentation.config import SegmentationConfig
from reliable_channel.segmentation.events import HeldSegment, Scope, SegmentationEvent
from reliable_channel.wire.segment import Segment


class Reassembler:
    """Collects segments of many messages and tells what became of them.

    Sets are separate per (scope, hash, send): ``scope`` names the sender in its channel, and a segment whose index is
    held or completed under another SDS id opens a new send. ``now`` is ms and never runs backwards inside.
    """

    def __init__(self, config: SegmentationConfig | None = None) -> None:
        self.config = config or SegmentationConfig()

    def add(
        self, segment: Segment, now: int, *, scope: Scope = (), sds_id: str = "", lamport: int | None = None
    ) -> list[SegmentationEvent]:
        """Take one validated segment; what follows from it, in order. First expires what is due at ``now``."""
        raise NotImplementedError

    def expire(self, now: int) -> list[SegmentationEvent]:
        """Give up every incomplete set that is due, oldest first, and forget completed ones past their memory."""
        raise NotImplementedError

    def next_due(self) -> int | None:
        """When (ms) ``expire`` next has something to do, or ``None``: nothing is held and nothing remembered."""
        raise NotImplementedError

    def open_segments(self) -> Iterator[tuple[Scope, bytes, HeldSegment]]:
        """Every segment held in an incomplete set: what a combiner hands on to keyed state."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """A snapshot: versioned protobuf, deterministic, as large as what is held."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes, config: SegmentationConfig | None = None) -> Reassembler:
        """Restore a snapshot of this or an older version; raises :class:`LocalError` for anything else."""
        raise NotImplementedError
