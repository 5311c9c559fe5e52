"""Writes records of facts about a channel that envelopes do not show: of its sends, and of messages that it lost.

The Messaging API records every segment that reaches it. Only the channel knows of a send that the rate limit delays, or
that never reached the API. Without these rows a verdict could not distinguish *rate-limited* from *never sent*.
"""

from __future__ import annotations

from reliable_channel.channel.channel import ReliableChannel
from reliable_channel.channel.events import (
    ChannelEvent,
    EphemeralMessageDropped,
    MessageDelayed,
    MessageLost,
    MessageSendError,
    SegmentSent,
)
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.messaging.pipeline_feed import Feed
from reliable_channel.messaging.sender_events import LossReport, SenderEvent, SenderEventKind


class ChannelEvidence:
    """Listens to one channel from :meth:`follow` on and passes rows to ``feed``."""

    def __init__(self, channel: ReliableChannel, pubsub_topic: str, feed: Feed) -> None:
        self._channel = channel
        self._pubsub_topic = pubsub_topic
        self._feed = feed
        self._held_back: set[str] = set()

    def follow(self) -> None:
        """Start listening; it ends with the channel."""
        self._channel.on(ChannelEvent, self._on_event)

    def record_queued(self, request_id: str, payload: bytes, at_ms: int) -> None:
        """Record that the channel accepted this payload, as its segments. Without this, a message that never leaves
        would be unknown, and segments that only nodes record could be of any send of this payload."""
        whole = keccak256(payload)
        for sds_id in self._channel.segment_ids(request_id) or (request_id,):
            self._record(SenderEventKind.QUEUED, at_ms, request_id, "", whole, segment=sds_id)

    def _on_event(self, event: ChannelEvent) -> None:
        if isinstance(event, MessageLost):
            self._report_loss(event)
        elif isinstance(event, MessageDelayed):
            self._held_back.add(event.request_id)
            whole, detail = _digest(event.message_id), f"held back until {event.until} ms"
            self._record(SenderEventKind.RATE_LIMITED, event.at, event.request_id, detail, whole)
        elif isinstance(event, SegmentSent) and event.sds_id in self._held_back:
            # The record of its envelope has no SDS id if it is encrypted, and over Kafka there is none.
            self._held_back.discard(event.sds_id)
            whole = _digest(event.message_id)
            self._record(SenderEventKind.SENT, event.at, event.request_id, "", whole, event.message_hash)
        elif isinstance(event, EphemeralMessageDropped):
            detail = f"ephemeral, {event.utilization:.0%} of the rate limit is used"
            whole = _digest(event.message_id)
            self._record(SenderEventKind.DROPPED, event.at, event.message_id, detail, whole, is_reliable=False)
        elif isinstance(event, MessageSendError) and not event.dispatched:
            # Whether what was dispatched was ever acknowledged is recorded by the ack job.
            self._held_back.discard(event.request_id)
            self._record(
                SenderEventKind.FAILED, event.at, event.request_id, event.error[:300], _digest(event.message_id)
            )

    def _report_loss(self, event: MessageLost) -> None:
        needed = "an unknown number of" if event.data_count is None else event.data_count
        self._feed.record(
            LossReport(
                at_ms=event.at,
                reported_by=self._channel.sender_id,
                pubsub_topic=self._pubsub_topic,
                content_topic=self._channel.content_topic,
                channel_id=self._channel.channel_id,
                sender_id=event.sender_id,
                entire_message_hash=bytes.fromhex(event.message_id),
                sds_ids=event.sds_ids,
                data_count=event.data_count,
                reason=event.reason,
                detail=f"{len(event.sds_ids)} segments held, {needed} needed",
            )
        )

    def _record(
        self,
        kind: SenderEventKind,
        at_ms: int,
        request_id: str,
        detail: str,
        whole: bytes | None = None,
        envelope_hash: bytes | None = None,
        *,
        is_reliable: bool = True,
        segment: str | None = None,
    ) -> None:
        # A ReliableSendId is the SDS id of the send's first segment; an ephemeral message has none to look for.
        first = request_id if is_reliable else None
        self._feed.record(
            SenderEvent(
                event=kind,
                at_ms=at_ms,
                request_id=request_id,
                pubsub_topic=self._pubsub_topic,
                content_topic=self._channel.content_topic,
                channel_id=self._channel.channel_id,
                sender_id=self._channel.sender_id,
                sds_id=segment or first,
                send_id=first,
                entire_message_hash=whole,
                envelope_hash=envelope_hash,
                detail=detail,
            )
        )


def _digest(message_id: str | None) -> bytes | None:
    """The logical message id is the hex Keccak-256 of the payload."""
    try:
        digest = bytes.fromhex(message_id or "")
    except ValueError:
        return None
    return digest if len(digest) == 32 else None
