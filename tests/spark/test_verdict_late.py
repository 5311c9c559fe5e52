"""The verdict on a message of several segments that was late, or that a recipient gave up, says so."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict import verdicts

from .chain import rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEGIN_US = 1_767_225_600_000_000
CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/a/1/b/proto", "channel_id": "talk"}
HASH = b"h" * 32
OF_ALICE = {**CHANNEL, "sender_id": "alice", "entire_message_hash": HASH}


def record(number: int) -> dict[str, Any]:
    return {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": number}


def at(seconds: int) -> int:
    return BEGIN_US + seconds * 1_000_000


def put(settings: Settings, table: tables.Table, *found: dict[str, Any]) -> None:
    append_rows(settings.paths, table, as_arrow(found, table))


def judged(spark: SparkSession, settings: Settings, now_s: int) -> dict[str, Any]:
    tick = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "query_id": "q", "batch_id": now_s}
    put(settings, tables.CLOCK, {**tick, "kind": "batch", "event_time": at(now_s), "next_offset": now_s})
    verdicts.run(spark, settings)
    (row,) = rows(settings, tables.DELIVERY_STATUS)
    return row


def test_a_message_is_missing_while_its_set_is_overdue_then_late_and_lost_for_who_gave_it_up(
    spark: SparkSession, settings: Settings
) -> None:
    """Two segments, the second seven minutes after the first; Bob acknowledges both and gave the message up, Carol
    acknowledges both, and Dave one."""
    create_tables(settings.paths, (*verdicts.TABLES_READ, tables.DELIVERY_STATUS))
    first = {**OF_ALICE, **record(0), "sds_id": "a", "segment_kind": "data", "data_count": 2, "sds_kind": "content"}
    first |= {"event_time": at(0), "ingest_time": at(0), "lamport_timestamp": 1}
    put(settings, tables.SDS_MESSAGES, first)
    overdue = {**OF_ALICE, "sds_ids": ["a"], "data_count": 2, "data_missing": [1], "first_seen": at(0)}
    put(
        settings,
        tables.INCOMPLETE_MESSAGES,
        {**overdue, "status": "overdue", "event_time": at(300), "reason": "silent"},
    )
    put(settings, tables.ACKS, {**CHANNEL, "sds_id": "a", "sender_id": "alice", "acknowledged_by": "dave"})
    before = judged(spark, settings, 400)
    assert (before["verdict"], before["cause"], before["data_missing"]) == ("missing", "segment_missing", [1])
    assert before["acknowledged_by"] == [], "one of two segments is not the message"

    put(settings, tables.SDS_MESSAGES, {**first, **record(1), "sds_id": "b", "event_time": at(424)})
    done = {**OF_ALICE, **record(1), "event_time": at(424), "first_lamport_timestamp": 1, "data_count": 2}
    put(settings, tables.REASSEMBLED_MESSAGES, {**done, "sds_ids": ["a", "b"]})
    message = {**done, "row_seq": 3, "row_kind": "message", "sds_id": "a", "first_sds_id": "a", "late": False}
    put(settings, tables.DELIVERIES, {**message, "first_seen": at(0)})
    acks = [
        {**CHANNEL, "sds_id": i, "sender_id": "alice", "acknowledged_by": who} for i in "ab" for who in ("bob", "carol")
    ]
    put(settings, tables.ACKS, *acks)
    delivered = judged(spark, settings, 500)
    assert (delivered["verdict"], delivered["cause"]) == ("delivered", "late")
    assert (delivered["acknowledged_by"], delivered["lost_by"]) == (["bob", "carol"], [])

    lost = {**OF_ALICE, "sds_id": "a", "event": "lost", "reported_by": "bob", "event_time": at(600)}
    put(settings, tables.SENDER_EVENTS, lost)
    after = judged(spark, settings, 700)
    assert (after["acknowledged_by"], after["lost_by"]) == (["carol"], ["bob"])
