"""What was rebuilt before: the SDS ids of messages that are complete, looked up in ``messages``.

A set completed without state leaves no memory, and a late segment of it must neither open a set of its own nor join the
next send of the same payload. The ids say exactly which message a segment belongs to, also those that were recomputed.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection

import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.io import open_table
from reliable_channel.pipeline.tables import MESSAGES
from reliable_channel.segmentation import Scope

Done = dict[Scope, dict[str, int]]
"""(pubsub topic, content topic, channel, sender) → SDS id → when its message was complete (event time, ms)."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_COLUMNS = ["kafka_topic", "kafka_partition", "kafka_offset", "event_time", "pubsub_topic", "content_topic"]
_COLUMNS += ["channel_id", "sender_id", "entire_message_hash", "sds_ids"]


def completed_before(
    paths: PathSettings, hashes: Collection[bytes], since_us: int, batch: Collection[tuple[str, int, int]]
) -> dict[bytes, Done]:
    """Hash → what was completed since ``since_us`` (event time, µs) by records that are not in this micro-batch.

    ``batch``: the Kafka coordinates of the micro-batch's records. A replay finds its own messages written already; they
    are told by the record that completed them."""
    wanted = pc.field("event_time") >= _EPOCH + dt.timedelta(microseconds=max(since_us, 0))
    wanted &= pc.field("entire_message_hash").isin(sorted(hashes))
    rows = open_table(paths, MESSAGES).to_pyarrow_dataset().to_table(columns=_COLUMNS, filter=wanted)
    found: dict[bytes, Done] = {}
    for row in rows.to_pylist():
        if (row["kafka_topic"], row["kafka_partition"], row["kafka_offset"]) in batch:
            continue
        scope = (row["pubsub_topic"], row["content_topic"], row["channel_id"], row["sender_id"])
        at = (row["event_time"] - _EPOCH) // dt.timedelta(milliseconds=1)
        ids = found.setdefault(row["entire_message_hash"], {}).setdefault(scope, {})
        ids.update((sds_id, at) for sds_id in row["sds_ids"] if sds_id is not None)
    return found
