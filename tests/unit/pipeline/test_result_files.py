"""Results on their way to their tables: however they are packed, the same rows in order; and what gets compressed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.lake.files import compressible
from reliable_channel.lake.open_hashes import HashDue
from reliable_channel.lake.schema import row_type
from reliable_channel.lake.tables import ACKS, DELIVERIES, Table
from reliable_channel.pipeline.guarded import FailedRows
from reliable_channel.pipeline.handover import deserialize
from reliable_channel.pipeline.result_files import RESULTS, Result, Results, _unpack_all, _write, group_by_table, pack

Ack, Delivery = row_type(ACKS), row_type(DELIVERIES)
RESULT = st.one_of(
    st.builds(Ack, sds_id=st.text(max_size=4)),
    st.builds(Delivery, sds_id=st.text(max_size=4), kafka_offset=st.integers(0, 1 << 40)),
    st.builds(FailedRows, st.integers(1, 9)),
)


@given(st.lists(RESULT, max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_where_results_are_packed_does_not_matter(results: list[Result], cuts: list[int]) -> None:
    ends = [0, *sorted(cuts), len(results)]
    blobs = [b for i, end in enumerate(ends[1:]) for b in pack(results[min(ends[i], end) : end])]
    unpacked = [*_unpack_all(pa.array(blobs, pa.binary()))]
    assert unpacked == ([group_by_table(results)] if results else [])


def test_every_kind_is_written_to_its_table_and_the_rest_is_told(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    for table in (ACKS, DELIVERIES):
        Path(paths.table(table.name)).mkdir(parents=True)
    keys = [[Delivery(sds_id=f"{n}"), HashDue(b"%d" % n, [("t", 1, n)])] for n in range(40)]
    blobs = [blob for results in keys for blob in pack(results)]
    batch = pa.RecordBatch.from_pydict({"kind": [RESULTS] * len(blobs), "results": pa.array(blobs, pa.binary())})
    (result,) = _write(paths, {}, iter([batch]))
    (file,) = Path(paths.table(DELIVERIES.name)).glob("*.parquet")
    assert pq.read_table(file)["sds_id"].to_pylist() == [f"{n}" for n in range(40)]
    told: Results = deserialize(result["task_result"][0].as_py())
    assert told.of(HashDue) == [HashDue(b"%d" % n, [("t", 1, n)]) for n in range(40)]
    assert told.of(FailedRows) == []
    assert not [*Path(paths.table(ACKS.name)).glob("*.parquet")]


def test_the_task_that_writes_rows_of_a_table_writes_what_follows_from_them(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    for table in (ACKS, DELIVERIES):
        Path(paths.table(table.name)).mkdir(parents=True)

    def long_ids(rows: pa.Table, _paths: PathSettings) -> Iterator[tuple[Table, pa.Table]]:
        found = rows.filter(pc.greater(pc.utf8_length(rows["sds_id"]), 1))
        nothing = {name: pa.nulls(found.num_rows) for name in ACKS.names()}
        yield ACKS, pa.table({**nothing, "sds_id": found["sds_id"]})

    results = [Delivery(sds_id=f"{n}") for n in range(12)]
    (blob,) = pack(results)
    batch = pa.RecordBatch.from_pydict({"kind": [RESULTS], "results": pa.array([blob], pa.binary())})
    (result,) = _write(paths, {DELIVERIES.name: long_ids}, iter([batch]))
    (file,) = Path(paths.table(ACKS.name)).glob("*.parquet")
    assert pq.read_table(file)["sds_id"].to_pylist() == ["10", "11"]
    assert len(deserialize(result["task_result"][0].as_py()).files) == 2


def test_what_is_random_is_not_compressed_and_an_empty_filter_is() -> None:
    rng = random.Random(5)
    filter_format = FilterFormat()
    sparse = bytearray(filter_format.byte_count)
    filter_format.insert(sparse, [f"{n}" for n in range(50)])
    assert not compressible(pa.chunked_array([[rng.randbytes(5_000) for _ in range(40)]]))
    assert compressible(pa.chunked_array([[bytes(sparse)] * 20], pa.binary()))
    assert compressible(pa.chunked_array([[None] * 3], pa.binary()))
