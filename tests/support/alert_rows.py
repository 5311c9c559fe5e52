"""Rows of tables that alert rules read, for tests."""

from __future__ import annotations

import datetime as dt
from typing import Any

NOON = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
CHANNEL = {"pubsub_topic": "/p", "content_topic": "/c", "channel_id": "talk"}


def minutes(count: float) -> dt.datetime:
    return NOON + dt.timedelta(minutes=count)


def clock(event_time: dt.datetime, partition: int = 0, recorded_at: dt.datetime = NOON) -> dict[str, Any]:
    return {
        "kafka_topic": "waku.envelopes",
        "kafka_partition": partition,
        "query_id": "q",
        "batch_id": 0,
        "kind": "batch",
        "event_time": event_time,
        "next_offset": 1,
        "recorded_at": recorded_at,
    }


def place(offset: int, partition: int = 0) -> dict[str, Any]:
    return {"kafka_topic": "waku.envelopes", "kafka_partition": partition, "kafka_offset": offset}


def bridge_row(offset: int, event_time: dt.datetime, partition: int = 0, **more: Any) -> dict[str, Any]:
    return {**place(offset, partition), **CHANNEL, "sds_kind": "content", "event_time": event_time, **more}
