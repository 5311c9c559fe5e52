"""What a channel's events become in the sender's own records."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from reliable_channel.channel.events import (
    ChunkInfo,
    MessageDelayed,
    MessageDeliveryError,
    MessageLost,
    MessageSendError,
    SegmentSent,
)
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.messaging.channel_evidence import ChannelEvidence
from reliable_channel.messaging.sender_events import to_json
from tests.support.messaging_world import CONTENT, PUBSUB, KeptFeed

WHOLE = keccak256(b"whole")


class FakeChannel:
    """Takes one listener and has the names of a channel."""

    channel_id, content_topic, sender_id = "lobby", CONTENT, "alice"
    segments: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.tell: Callable[[Any], object] = print

    def on(self, kind: object, listener: Callable[[Any], object]) -> None:
        self.tell = listener

    def segment_ids(self, request_id: str) -> tuple[str, ...]:
        return self.segments


@pytest.fixture
def channel() -> FakeChannel:
    return FakeChannel()


@pytest.fixture
def feed(channel: FakeChannel) -> KeptFeed:
    kept = KeptFeed()
    ChannelEvidence(channel, PUBSUB, kept).follow()  # type: ignore[arg-type]
    return kept


def failed(request_id: str, message_id: str = WHOLE.hex()) -> MessageSendError:
    return MessageSendError(channel_id="lobby", at=2, request_id=request_id, message_id=message_id, error="refused")


def delayed(request_id: str, at: int) -> MessageDelayed:
    return MessageDelayed(channel_id="lobby", at=at, request_id=request_id, message_id=WHOLE.hex(), until=9)


def test_a_send_that_fails_before_it_was_dispatched_was_never_sent(channel: FakeChannel, feed: KeptFeed) -> None:
    channel.tell(failed("first-id"))
    (row,) = feed.rows
    assert (row.event, row.sds_id, row.entire_message_hash, row.detail) == ("failed", "first-id", WHOLE, "refused")
    assert (row.channel_id, row.sender_id, row.pubsub_topic, row.content_topic) == ("lobby", "alice", PUBSUB, CONTENT)


def test_a_send_that_nobody_acknowledged_was_sent(channel: FakeChannel, feed: KeptFeed) -> None:
    ids = {"channel_id": "lobby", "request_id": "first-id", "message_id": WHOLE.hex()}
    channel.tell(MessageDeliveryError(**ids, at=2, error="exhausted"))
    channel.tell(MessageSendError(**ids, at=2, error="exhausted", dispatched=True))
    assert feed.rows == []


def test_a_held_back_send_says_until_when(channel: FakeChannel, feed: KeptFeed) -> None:
    channel.tell(delayed("first-id", at=3))
    (row,) = feed.rows
    assert (row.event, row.at_ms, row.sds_id, row.detail) == ("rate_limited", 3, "first-id", "held back until 9 ms")
    assert row.entire_message_hash == WHOLE, "over Kafka, it may be the only row of a send that never leaves"


@pytest.mark.parametrize("segments", [(), ("first-id",), ("first-id", "second-id", "parity-id")])
def test_what_is_queued_names_every_segment_with_its_send(
    channel: FakeChannel, feed: KeptFeed, segments: tuple[str, ...]
) -> None:
    channel.segments = segments  # none of a send that ended long ago
    ChannelEvidence(channel, PUBSUB, feed).record_queued("first-id", b"whole", 5)  # type: ignore[arg-type]
    assert [row.sds_id for row in feed.rows] == [*(segments or ("first-id",))]
    assert {(row.event, row.send_id, row.entire_message_hash) for row in feed.rows} == {("queued", "first-id", WHOLE)}


def test_a_send_that_was_held_back_and_then_left_is_no_longer_held_back(channel: FakeChannel, feed: KeptFeed) -> None:
    """Where messages are encrypted as a whole, nobody else can say so: the envelope shows no SDS id."""
    for at, request_id in ((3, "held back"), (4, "held back and refused")):
        channel.tell(delayed(request_id, at))
    channel.tell(failed("held back and refused"))
    feed.rows.clear()
    for request_id in ("held back", "held back", "held back and refused", "never held back"):
        for sds_id, index in ((request_id, 0), ("second segment", 1)):
            channel.tell(
                SegmentSent(
                    channel_id="lobby",
                    at=9,
                    request_id=request_id,
                    message_id=WHOLE.hex(),
                    sds_id=sds_id,
                    chunk_info=ChunkInfo(index, 2),
                    node_request_id="n",
                    message_hash=bytes(32),
                )
            )
    (row,) = feed.rows
    assert (row.event, row.sds_id, row.channel_id, row.sender_id) == ("sent", "held back", "lobby", "alice")
    assert (row.at_ms, row.envelope_hash) == (9, bytes(32))


@pytest.mark.parametrize("message_id", ["", "no hex", "ff"])
def test_an_id_that_is_no_hash_of_the_message_is_left_out(
    channel: FakeChannel, feed: KeptFeed, message_id: str
) -> None:
    channel.tell(failed("first-id", message_id))
    assert feed.rows[0].entire_message_hash is None


def test_a_message_that_this_participant_gave_up_is_a_report_of_its_own(channel: FakeChannel, feed: KeptFeed) -> None:
    channel.tell(
        MessageLost(
            channel_id="lobby",
            at=5,
            message_id=WHOLE.hex(),
            sender_id="bob",
            reason="expired",
            held=(0,),
            missing=(1,),
            data_count=2,
            parity_count=None,
            lacking=1,
            held_bytes=64,
            sds_ids=("bobs-first",),
            first_seen=1,
            last_seen=2,
        )
    )
    (row,) = feed.rows
    assert json.loads(to_json(row)) == {
        "kind": "loss",
        "at_ms": 5,
        "reported_by": "alice",
        "pubsub_topic": PUBSUB,
        "content_topic": CONTENT,
        "channel_id": "lobby",
        "sender_id": "bob",
        "entire_message_hash": WHOLE.hex(),
        "sds_ids": ["bobs-first"],
        "data_count": 2,
        "reason": "expired",
        "detail": "1 segments held, 2 needed",
    }
