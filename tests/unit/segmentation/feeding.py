"""Feeding a Reassembler the way a receiver does: SDS contents through the wire decoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reliable_channel.core.segmentation import (
    Dialect,
    MessageCompleted,
    Reassembler,
    Scope,
    Segment,
    SegmentationConfig,
    SegmentationEvent,
    contents_for,
)
from reliable_channel.core.wire._pb import reassembler_state_pb2 as pb
from reliable_channel.core.wire.segment import decode_segment

ALICE: Scope = ("/waku/2/rs/2/1", "/app/1/chat/proto", "channel", "alice")
BOB: Scope = (*ALICE[:3], "bob")
EVERY_DIALECT = frozenset(Dialect)


@dataclass(frozen=True)
class Sent:
    """One segment as its SDS message carries it."""

    content: bytes
    sds_id: str
    lamport: int

    @property
    def segment(self) -> Segment:
        decoded = decode_segment(self.content, EVERY_DIALECT)
        assert isinstance(decoded, Segment), decoded
        return decoded


def send(payload: bytes, config: SegmentationConfig, lamport: int = 1_000, name: str = "m") -> list[Sent]:
    """What one send puts on the wire: consecutive Lamport timestamps, distinct ids."""
    return [
        Sent(content, f"{name}-{lamport + place}", lamport + place)
        for place, content in enumerate(contents_for(payload, config))
    ]


def feed(reassembler: Reassembler, sent: Iterable[Sent], now: int = 0, scope: Scope = ALICE) -> list[SegmentationEvent]:
    """Add each in turn at ``now``; every event."""
    events: list[SegmentationEvent] = []
    for each in sent:
        events += reassembler.add(each.segment, now, scope=scope, sds_id=each.sds_id, lamport=each.lamport)
    return events


def completed(events: Iterable[SegmentationEvent]) -> list[MessageCompleted]:
    return [event for event in events if isinstance(event, MessageCompleted)]


def of_kind(kind: type, events: Iterable[SegmentationEvent]) -> list[SegmentationEvent]:
    return [event for event in events if isinstance(event, kind)]


def completed_sets(reassembler: Reassembler) -> int:
    """How many completed sets are remembered, as the snapshot says."""
    return len(pb.ReassemblerState.FromString(reassembler.to_bytes()).completed)


def lamport_of(shard: pb.ShardState) -> int | None:
    return shard.lamport if shard.HasField("lamport") else None


def held_segments(reassembler: Reassembler) -> list[tuple[Scope, bytes, int, str, int | None]]:
    """Scope, payload hash, slot, SDS id and Lamport timestamp of every segment in an incomplete set, as the snapshot
    says."""
    return [
        (tuple(held.scope), held.entire_message_hash, shard.slot, shard.sds_id, lamport_of(shard))
        for held in pb.ReassemblerState.FromString(reassembler.to_bytes()).open
        for shard in held.shards
    ]
