"""Ticks on their way through the combiner: a row for every key whose timer is due, and for no other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reliable_channel.config import load
from reliable_channel.lake.open_hashes import HashDue, OpenHashes
from reliable_channel.pipeline.reassembly import combiner as combiner_module
from reliable_channel.pipeline.reassembly import memory
from reliable_channel.pipeline.reassembly.combiner import HASH, Combiner, ForState
from reliable_channel.pipeline.reassembly.sets import InputRow, SegmentRow, Tick
from tests.support.cuts import COMBINER_INPUT

DUE, LATER, ELSEWHERE = b"\x01" * 32, b"\x02" * 32, b"\x03" * 32
AT_US = 1_000_000


def tick(partition: int, event_us: int) -> dict[str, Any]:
    return {"kafka_topic": "t", "kafka_partition": partition, "kafka_offset": 7, "event_us": event_us}


@pytest.fixture
def combiner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Combiner:
    dues = ((DUE, 0, AT_US), (LATER, 0, AT_US + 1), (ELSEWHERE, 1, AT_US))
    in_state = OpenHashes().apply([HashDue(hash_, [("t", partition, at)]) for hash_, partition, at in dues])
    monkeypatch.setattr(combiner_module, "read_open_before", lambda paths: in_state)
    monkeypatch.setattr(memory, "find_completed", lambda paths, hashes, since, places: {})
    return Combiner(load("local", paths={"run_dir": str(tmp_path)}))


def returned(combiner: Combiner, *rows: dict[str, Any]) -> list[tuple[bytes, InputRow]]:
    """The rows that the keyed state is given, with their hashes."""
    batches = [pa.RecordBatch.from_pylist([row], schema=COMBINER_INPUT) for row in rows]
    given = [row for batch in combiner(iter(batches)) for row in batch.to_pylist()]
    return [(row[HASH], each) for row in given if row[HASH] is not None for each in _rows(row["given"])]


def _rows(given: bytes) -> Sequence[InputRow]:
    sets, rows = ForState.from_bytes(given)
    assert sets == b""
    return rows


def test_a_tick_becomes_a_row_for_each_key_that_is_due_in_its_partition(combiner: Combiner) -> None:
    assert returned(combiner, tick(0, AT_US)) == [(DUE, Tick("t", 0, 7, AT_US))]


def test_ticks_of_all_partitions_are_taken_together(combiner: Combiner) -> None:
    rows = returned(combiner, tick(0, AT_US + 1), tick(1, AT_US))
    assert {hash_ for hash_, _ in rows} == {DUE, LATER, ELSEWHERE}


def test_a_tick_before_every_timer_becomes_nothing(combiner: Combiner) -> None:
    assert returned(combiner, tick(0, AT_US - 1), tick(2, AT_US)) == []


@pytest.mark.parametrize("lamport", [None, 0, 2**53 + 1, 2**63 - 1])
def test_a_tick_among_segments_becomes_the_same_rows(combiner: Combiner, lamport: int | None) -> None:
    segment = {**tick(0, AT_US), "content": b"", "segment_dialect": "waku", "lamport_timestamp": lamport}
    rows = returned(combiner, {**segment, HASH: LATER}, tick(0, AT_US))
    assert [hash_ for hash_, row in rows if isinstance(row, Tick)] == [DUE]
    assert [(hash_, row.lamport_timestamp) for hash_, row in rows if isinstance(row, SegmentRow)] == [(LATER, lamport)]


def test_what_a_stranger_sends_of_one_hash_is_given_in_parts(
    combiner: Combiner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(combiner_module, "FLUSH_BYTES", 100)
    segment = {**tick(0, AT_US), HASH: DUE, "content": bytes(40), "segment_dialect": "waku"}
    batch = pa.RecordBatch.from_pylist([{**segment, "kafka_offset": n} for n in range(10)], schema=COMBINER_INPUT)
    given = [row["given"] for each in combiner(iter([batch])) for row in each.to_pylist() if row[HASH] == DUE]
    assert [len(_rows(one)) for one in given] == [3, 3, 3, 1]
    assert [row.kafka_offset for one in given for row in _rows(one)] == [*range(10)]
