"""What was rebuilt before is found in ``messages``, without what the same micro-batch wrote."""

from __future__ import annotations

import base64
from pathlib import Path

from reliable_channel.config import PathSettings
from reliable_channel.pipeline import tables
from reliable_channel.pipeline.io import append_rows, as_arrow
from reliable_channel.pipeline.memory import completed_before

START_MS = 1_767_225_600_000
HASH = b"h" * 32
SCOPE = ("p", "c", "talk", "alice")


def message(offset: int, at_ms: int, hash_: bytes, sds_ids: list[str | None]) -> dict[str, object]:
    return {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": offset,
        "event_time": at_ms * 1000,
        "pubsub_topic": "p",
        "content_topic": "c",
        "channel_id": "talk",
        "sender_id": "alice",
        "entire_message_hash": base64.b64encode(hash_).decode(),
        "sds_ids": sds_ids,
    }


def test_recent_messages_of_these_hashes_from_earlier_batches(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    rows = [
        message(1, START_MS - 10_000, HASH, ["old"]),
        message(2, START_MS, HASH, ["a", None, "b"]),
        message(3, START_MS, b"x" * 32, ["other"]),
        message(4, START_MS + 1, HASH, ["replayed"]),
    ]
    append_rows(paths, tables.MESSAGES, as_arrow(rows, tables.MESSAGES))
    found = completed_before(paths, {HASH, b"y" * 32}, START_MS * 1000, {("t", 0, 4)})
    assert found == {HASH: {SCOPE: {"a": START_MS, "b": START_MS}}}
