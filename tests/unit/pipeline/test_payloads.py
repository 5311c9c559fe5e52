"""Payloads are found where their records stand, in files of either writer, and in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import LONG_ROWS, list_files_of_records, read_payloads
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import DELIVERIES, REASSEMBLED_MESSAGES, SDS_MESSAGES
from reliable_channel.pipeline.ack.deliver import Wanted, add_payloads, chunks, find_payloads

NOW_US = 1_767_225_600_000_000


def append(paths: PathSettings, partition: int, offsets: range, *, encrypted: bool = False) -> None:
    rows = [
        {
            "kafka_topic": "t",
            "kafka_partition": partition,
            "kafka_offset": offset,
            "event_time": NOW_US + offset,
            "entire_message_hash": bytes([partition, offset]),
            "content": b"%d/%d" % (partition, offset),
            "encrypted": encrypted,
        }
        for offset in offsets
    ]
    append_rows(paths, SDS_MESSAGES, as_arrow(rows, SDS_MESSAGES))


def test_a_payload_is_found_by_record_and_hash(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (SDS_MESSAGES,))
    append(paths, 0, range(5))
    append(paths, 1, range(5))

    def wanted(partition: int, offset: int) -> Wanted:
        return Wanted("t", partition, offset, bytes([partition, offset]))

    other_hash = Wanted("t", 0, 2, b"another")
    asked = {wanted(0, 1), wanted(1, 1), wanted(1, 4), wanted(2, 1), other_hash}
    assert find_payloads(paths, SDS_MESSAGES, asked) == {
        wanted(0, 1): b"0/1",
        wanted(1, 1): b"1/1",
        wanted(1, 4): b"1/4",
    }
    append(paths, 2, range(9))
    append(paths, 3, range(3), encrypted=True)
    payloads = find_payloads(paths, SDS_MESSAGES, {wanted(2, 1), wanted(3, 1)})
    assert payloads == {wanted(2, 1): b"2/1"}, "encrypted rows have none"
    opened = open_table(paths, SDS_MESSAGES)
    assert len(list_files_of_records(opened, {0: [1], 1: [7]})) == 1, "only the file that may hold one of them"


def test_a_payload_is_found_in_a_file_in_which_somebody_deleted_rows_through_delta_rs(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (SDS_MESSAGES,))
    append(paths, 0, range(5))
    open_table(paths, SDS_MESSAGES).delete("kafka_offset = 3")  # rewrites texts and bytes as views
    files = [uri.rpartition("/")[2] for uri in open_table(paths, SDS_MESSAGES).file_uris()]
    is_wanted = pc.field("entire_message_hash").isin([bytes([0, 2])])
    rows = read_payloads(paths, SDS_MESSAGES, files, ["content"], ["entire_message_hash"], is_wanted)
    assert rows.to_pylist() == [{"content": b"0/2"}]


def test_of_a_large_file_only_the_row_groups_with_a_wanted_record_are_read_a_few_rows_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    place = Path(paths.table(SDS_MESSAGES.name))
    place.mkdir(parents=True)
    offsets = [5, 0, 4, 1, 3, 2, 6, 7]  # the statistics of no row group leave it out
    rows = [{"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": n, "content": b"%d" % n} for n in offsets]
    pq.write_table(as_arrow(rows, SDS_MESSAGES), place / "a.parquet", row_group_size=2)
    read: list[tuple[int, list[int]]] = []
    iter_batches = pq.ParquetFile.iter_batches

    def recording(file: pq.ParquetFile, rows: int, groups: Sequence[int], *more: Any, **options: Any) -> Any:
        read.append((rows, [*groups]))
        return iter_batches(file, rows, groups, *more, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recording)
    keys, columns = ("kafka_partition", "kafka_offset"), ("content", "kafka_offset")
    where = (pc.field("kafka_partition") == 0) & pc.field("kafka_offset").isin([1, 3])
    rows_read = read_payloads(paths, SDS_MESSAGES, ["a.parquet"], columns, keys, where)
    assert rows_read.to_pylist() == [{"content": b"1", "kafka_offset": 1}, {"content": b"3", "kafka_offset": 3}]
    assert read == [(LONG_ROWS, [1]), (LONG_ROWS, [2])]
    assert read_payloads(paths, SDS_MESSAGES, [], columns, keys, where).schema == rows_read.schema


def test_a_requeued_record_has_its_payload_however_old_it_is(tmp_path: Path) -> None:
    """It keeps its event time, and is delivered when its channel has long gone on."""
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (SDS_MESSAGES, REASSEMBLED_MESSAGES))
    append(paths, 0, range(1))
    delivery = {
        "row_kind": "message",
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 0,
        "entire_message_hash": bytes([0, 0]),
        "segment_kind": "bare",
        "sds_kind": "content",
        "first_seen": NOW_US + 24 * 3_600_000_000,
    }
    (rows,) = as_arrow([delivery], DELIVERIES).to_batches()
    assert add_payloads(rows, paths, NOW_US)["payload"].to_pylist() == [b"0/0"]


@given(st.lists(st.none() | st.integers(0, 9), max_size=12), st.integers(1, 12))
def test_chunks_are_all_rows_in_order_and_none_much_larger_than_asked(sizes: list[int | None], limit: int) -> None:
    rows = pa.RecordBatch.from_pydict({"payload_bytes": pa.array(sizes, pa.int64())})
    found = [chunk.column("payload_bytes").to_pylist() for chunk in chunks(rows, limit)]
    assert [size for chunk in found for size in chunk] == sizes
    assert all(sum(size or 0 for size in chunk[:-1]) < limit for chunk in found)
