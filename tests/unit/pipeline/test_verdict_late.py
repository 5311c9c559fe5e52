"""The verdict on a message of several segments that was late, or that a recipient gave up, says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reliable_channel.config import load
from reliable_channel.lake import tables
from tests.support.verdict_round import CHANNEL, at, judge

OF_ALICE = {**CHANNEL, "sender_id": "alice", "entire_message_hash": b"h" * 32}


def record(number: int) -> dict[str, Any]:
    return {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": number}


def test_a_message_is_missing_while_its_set_is_overdue_then_late_and_lost_for_who_gave_it_up(tmp_path: Path) -> None:
    """Two segments, the second seven minutes after the first; Bob acknowledges both and gave the message up, Carol
    acknowledges both, and Dave one."""
    settings = load("local", paths={"run_dir": str(tmp_path)})
    first = {**OF_ALICE, **record(0), "sds_id": "a", "segment_kind": "data", "data_count": 2, "sds_kind": "content"}
    first |= {"event_time": at(0), "ingest_time": at(0), "lamport_timestamp": 1}
    overdue = {**OF_ALICE, "sds_ids": ["a"], "data_count": 2, "data_missing": [1], "first_seen": at(0)}
    overdue |= {"status": "overdue", "event_time": at(300), "reason": "silent"}
    (before,) = judge(
        settings,
        {
            tables.SDS_MESSAGES: [first],
            tables.INCOMPLETE_MESSAGES: [overdue],
            tables.ACKS: [{**CHANNEL, "sds_id": "a", "sender_id": "alice", "acknowledged_by": "dave"}],
        },
        at(400),
    )
    assert (before["verdict"], before["cause"], before["data_missing"]) == ("missing", "segment_missing", [1])
    assert before["acknowledged_by"] == [], "one of two segments is not the message"

    done = {**OF_ALICE, **record(1), "event_time": at(424), "first_lamport_timestamp": 1, "data_count": 2}
    message = {**done, "row_seq": 3, "row_kind": "message", "sds_id": "a", "first_sds_id": "a", "late": False}
    (delivered,) = judge(
        settings,
        {
            tables.SDS_MESSAGES: [{**first, **record(1), "sds_id": "b", "event_time": at(424)}],
            tables.REASSEMBLED_MESSAGES: [{**done, "sds_ids": ["a", "b"]}],
            tables.DELIVERIES: [{**message, "first_seen": at(0)}],
            tables.ACKS: [
                {**CHANNEL, "sds_id": sds_id, "sender_id": "alice", "acknowledged_by": who}
                for sds_id in "ab"
                for who in ("bob", "carol")
            ],
        },
        at(500),
    )
    assert (delivered["verdict"], delivered["cause"]) == ("delivered", "late")
    assert (delivered["acknowledged_by"], delivered["lost_by"]) == (["bob", "carol"], [])

    lost = {**OF_ALICE, "sds_id": "a", "event": "lost", "reported_by": "bob", "event_time": at(600)}
    (after,) = judge(settings, {tables.SENDER_EVENTS: [lost]}, at(700))
    assert (after["acknowledged_by"], after["lost_by"]) == (["carol"], ["bob"])
