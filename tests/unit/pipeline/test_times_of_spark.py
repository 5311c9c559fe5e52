"""Spark writes times as INT96 without a zone, delta-rs with one: what tasks look up understands both."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import TIMES, open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CLOCK, REASSEMBLED_MESSAGES
from reliable_channel.pipeline.reassembly.memory import read_completed

NOON_US = int(dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC).timestamp()) * 1_000_000


@pytest.mark.parametrize("by_spark", [True, False])
def test_what_was_rebuilt_is_found_by_its_time(tmp_path: Path, by_spark: bool) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (REASSEMBLED_MESSAGES,))
    hashes = [bytes([number]) * 32 for number in range(3)]
    rows = [
        {
            "kafka_topic": "t",
            "kafka_partition": 0,
            "kafka_offset": number,
            "event_time": NOON_US + number * 1_000_000,
            "pubsub_topic": "/p",
            "content_topic": "/c",
            "channel_id": "talk",
            "sender_id": "alice",
            "entire_message_hash": hash_,
        }
        for number, hash_ in enumerate(hashes)
    ]
    append_rows(paths, REASSEMBLED_MESSAGES, as_arrow(rows, REASSEMBLED_MESSAGES))
    if by_spark:
        (file,) = Path(paths.table("reassembled_messages")).glob("*.parquet")
        pq.write_table(pq.read_table(file), file, use_deprecated_int96_timestamps=True)
    completed = read_completed(paths, hashes, NOON_US + 1_000_000, paths.run_dir)
    assert completed["kafka_offset"].to_pylist() == [1, 2]
    assert completed["event_time"][0].as_py() == dt.datetime(2026, 1, 1, 12, 0, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("by_spark", [True, False])
def test_any_year_is_read(tmp_path: Path, by_spark: bool) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (CLOCK,))
    times = [dt.datetime(1, 1, 1, tzinfo=dt.UTC), dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC)]
    row = {"kafka_topic": "t", "kafka_partition": 0, "next_offset": 1, "query_id": "q", "batch_id": 0, "kind": "batch"}
    rows = [{**row, "event_time": time, "recorded_at": time} for time in times]
    append_rows(paths, CLOCK, as_arrow(rows, CLOCK))
    if by_spark:
        (file,) = Path(paths.table("clock")).glob("*.parquet")
        pq.write_table(pq.read_table(file), file, use_deprecated_int96_timestamps=True)
    cut = [dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time) for time in TIMES]
    assert [row["event_time"] for row in rows_of(open_table(paths, CLOCK))] == cut
