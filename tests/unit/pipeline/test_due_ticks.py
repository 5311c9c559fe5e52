"""Ticks on their way through the combiner: a row for every key whose timer is due, and for no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reliable_channel.config import load
from reliable_channel.pipeline.reassembly import memory, timers
from reliable_channel.pipeline.reassembly.combiner import ROW_SCHEMA, TICK, TICKS, Combiner
from reliable_channel.pipeline.reassembly.stream import due_timer_rows

DUE, LATER, ELSEWHERE = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
AT_US = 1_000_000


def tick(partition: int, event_us: int) -> dict[str, Any]:
    place = {"kafka_topic": "t", "kafka_partition": partition, "kafka_offset": 7, "sub_order": 0}
    return {"state_key": TICKS, "kind": TICK, "event_us": event_us, **place}


@pytest.fixture
def combiner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Combiner:
    open_keys = timers.Timers()
    for key, partition, due_us in ((DUE, 0, AT_US), (LATER, 0, AT_US + 1), (ELSEWHERE, 1, AT_US)):
        open_keys.apply(timers.TimerChange(key.hex(), ("t", partition), due_us))
    monkeypatch.setattr(timers, "timers_of", lambda paths: open_keys)
    monkeypatch.setattr(memory, "find_completed", lambda paths, hashes, since, places: {})
    return Combiner(load("local", paths={"run_dir": str(tmp_path)}))


def returned(combiner: Combiner, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    batches = [pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA) for row in rows]
    return [row for batch in combiner(iter(batches)) for row in batch.to_pylist()]


def test_a_tick_becomes_a_row_for_each_key_that_is_due_in_its_partition(combiner: Combiner) -> None:
    assert returned(combiner, tick(0, AT_US)) == [
        {name: {**tick(0, AT_US), "state_key": DUE}.get(name) for name in ROW_SCHEMA.names}
    ]


def test_ticks_of_all_partitions_are_taken_together(combiner: Combiner) -> None:
    rows = returned(combiner, tick(0, AT_US + 1), tick(1, AT_US))
    assert {row["state_key"] for row in rows} == {DUE, LATER, ELSEWHERE}


def test_a_tick_before_every_timer_becomes_nothing(combiner: Combiner) -> None:
    assert returned(combiner, tick(0, AT_US - 1), tick(2, AT_US)) == []


def test_a_tick_among_segments_becomes_the_same_rows(combiner: Combiner) -> None:
    segment = {**tick(0, AT_US), "state_key": LATER, "kind": "segment", "content": b"", "segment_dialect": "waku"}
    rows = returned(combiner, segment, tick(0, AT_US))
    assert [row["state_key"] for row in rows if row["kind"] == TICK] == [DUE]
    assert [row["state_key"] for row in rows if row["kind"] == "segment"] == [LATER]


def test_without_the_combiner_the_rows_are_the_same(combiner: Combiner, tmp_path: Path) -> None:
    paths = load("local", paths={"run_dir": str(tmp_path)}).paths
    frames = [pa.RecordBatch.from_pylist([tick(0, AT_US)], schema=ROW_SCHEMA).to_pandas()]
    given = [frame[["kafka_topic", "kafka_partition", "kafka_offset", "event_us"]] for frame in frames]
    (alone,) = due_timer_rows(paths)(iter(given))
    wanted = ["state_key", "kind", "kafka_topic", "kafka_partition", "kafka_offset", "event_us"]
    assert alone[wanted].to_dict("records") == [
        {name: row[name] for name in wanted} for row in returned(combiner, tick(0, AT_US))
    ]
