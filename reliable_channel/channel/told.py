"""What SDS reports, in the words of the API (protocol.md §7): events of one layer into events of the other."""

from __future__ import annotations

from reliable_channel.channel.events import (
    ChunkInfo,
    IrretrievableMessage,
    MessageAcknowledged,
    MessagePossiblyAcknowledged,
)
from reliable_channel.channel.sends import Send
from reliable_channel.sds import DependencyLost, PossiblyAcknowledged, SegmentAcknowledged, SendError


def irretrievable(event: DependencyLost, channel_id: str, now: int) -> IrretrievableMessage:
    """A missing segment was given up."""
    return IrretrievableMessage(
        channel_id=channel_id,
        at=now,
        sds_id=event.message_id,
        sender_id=event.sender_id,
        missing_since=event.missing_since,
        refetches=event.refetches,
    )


def possibly_acknowledged(
    event: PossiblyAcknowledged, send: Send, index: int, channel_id: str, now: int
) -> MessagePossiblyAcknowledged:
    """A filter holds segment ``index`` of an own send."""
    return MessagePossiblyAcknowledged(
        channel_id=channel_id,
        at=now,
        request_id=send.send_id,
        message_id=send.message_id,
        sds_id=event.message_id,
        chunk_info=ChunkInfo(index, len(send.sds_ids)),
        by=event.by,
        count=event.count,
    )


def acknowledged(event: SegmentAcknowledged, send: Send, index: int, channel_id: str, now: int) -> MessageAcknowledged:
    """Segment ``index`` of an own send is acknowledged."""
    return MessageAcknowledged(
        channel_id=channel_id,
        at=now,
        request_id=send.send_id,
        message_id=send.message_id,
        sds_id=event.message_id,
        chunk_info=ChunkInfo(index, len(send.sds_ids)),
        chunks_acknowledged=event.acknowledged,
        total_chunks=event.total,
        evidence=event.evidence.value,
    )


def exhausted(event: SendError) -> str:
    """Why a send failed, in a sentence."""
    lacking = event.required - len(event.acknowledged)
    return (
        f"retransmissions exhausted: {len(event.acknowledged)} of {event.total} segments acknowledged, "
        f"{lacking} more are needed"
    )
