"""Rebuilt messages that wait for SDS are bounded, and a full memory never costs a message that can be delivered."""

from __future__ import annotations

import pytest

from reliable_channel.pipeline.ack import rebuilt
from reliable_channel.pipeline.ack.accepted_messages import AcceptedMessage, AcceptedMessages, sds_key
from reliable_channel.pipeline.ack.rebuilt import RebuiltMessages
from reliable_channel.pipeline.ack.records import InputRow


def completed(sender: str, number: int, segments: int = 1) -> InputRow:
    ids = tuple(f"{sender}-{number}-{index}" for index in range(segments))
    payload_hash = f"{sender}{number}".encode().ljust(32, b"\0")
    return InputRow(
        "completed",
        "t",
        0,
        number,
        0,
        sender_id=sender,
        sds_id=ids[0],
        entire_message_hash=payload_hash,
        data_count=segments,
        sds_ids=ids,
        first_lamport_timestamp=number,
    )


def delivered(seen: AcceptedMessages, row: InputRow) -> None:
    hash_ = row.entire_message_hash or b""
    for index, sds_id in enumerate(row.sds_ids):
        key = sds_key(sds_id or "", row.sender_id)
        record = AcceptedMessage(key, b"digest", "t", 1, 2, 3, "data", hash_, index, None, None, -5, 10, "", True)
        seen.accept(record)
        seen.deliver(record)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuilt, "MAX_PENDING", 20)
    monkeypatch.setattr(rebuilt, "MAX_PENDING_SEGMENTS", 100)


def filled(seen: AcceptedMessages, segments: int = 1) -> RebuiltMessages:
    """Full of messages of strangers, each with a sender id of its own, of which SDS has delivered nothing."""
    messages = RebuiltMessages(seen)
    for number in range(20):
        messages.add(completed(f"stranger {number}", number, segments))
        assert list(messages.too_many()) == []
    return messages


def test_a_message_that_can_be_delivered_does_not_wait_for_room() -> None:
    seen = AcceptedMessages(100, 100, 100)
    messages, row = filled(seen), completed("alice", 1, segments=10)
    delivered(seen, row)
    held = messages.add(row)
    assert held is not None and len(held) == 10
    assert list(messages.too_many()) == []


def test_many_segments_do_not_make_one_message_the_first_to_go() -> None:
    messages = filled(AcceptedMessages(100, 100, 100))
    row = completed("alice", 1, segments=10)
    messages.add(row)
    assert [gone.sender_id for gone in messages.too_many()] == ["stranger 0"]
    assert messages.knows(row)


def test_the_sender_with_the_most_segments_goes_first_when_segments_are_too_many() -> None:
    messages = filled(AcceptedMessages(100, 100, 100), segments=4)
    messages.add(completed("greedy", 1, segments=30))
    assert [gone.sender_id for gone in messages.too_many()] == ["stranger 0", "greedy"]


def test_the_sender_with_the_most_messages_loses_its_oldest() -> None:
    messages = RebuiltMessages(AcceptedMessages(100, 100, 100))
    messages.add(completed("alice", 1))
    for number in range(20):
        messages.add(completed("greedy", number))
    assert [(gone.sender_id, gone.kafka_offset) for gone in messages.too_many()] == [("greedy", 0)]
