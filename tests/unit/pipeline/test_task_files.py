"""Files that tasks write: what Delta's readers are told of them, and that a failure leaves none."""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.files import Bounds, TaskFiles, columns_with_statistics
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import EPOCH, INDEXED_COLUMNS, QUARANTINE, SDS_MESSAGES, TABLES
from reliable_channel.runtime.failures import explain_failure
from tests.support.disk import files_up_to
from tests.support.error_page import pattern_of

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "kafka_topic": st.text(max_size=40),
            "kafka_partition": st.integers(0, 100),
            "kafka_offset": st.integers(0, 1 << 62),
            "event_time": st.none() | st.integers(-(10**15), 10**16) | st.sampled_from([-(2**60), 2**60]),
            "pubsub_topic": st.none() | st.text(max_size=80),
        }
    ),
    min_size=1,
    max_size=8,
)


def segments(rows: list[dict[str, object]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=arrow_schema(SDS_MESSAGES))


@given(ROWS, st.integers(1, 8))
def test_no_row_is_outside_the_bounds_wherever_the_rows_are_cut(rows: list[dict[str, object]], cut: int) -> None:
    bounds = Bounds(SDS_MESSAGES)
    for part in (rows[:cut], rows[cut:]):
        bounds.add(segments(part))
    told = json.loads(bounds.json())
    assert told["numRecords"] == len(rows)
    if "nullCount" not in told:  # a value without a bound: the file has none, so no reader skips it
        assert any(row["event_time"] is not None and abs(row["event_time"]) == 2**60 for row in rows)  # type: ignore[arg-type]
        return
    for name in ("kafka_topic", "kafka_partition", "kafka_offset", "event_time", "pubsub_topic"):
        values = [row[name] for row in rows if row[name] is not None]
        assert told["nullCount"][name] == len(rows) - len(values)
        if not values:
            assert name not in told["minValues"]
            continue
        if name == "event_time":
            for end, extreme in (("minValues", min(values)), ("maxValues", max(values))):  # type: ignore[type-var]
                if name not in told[end]:
                    assert abs(extreme) == 2**60, "a time of no calendar"  # type: ignore[arg-type]
                    continue
                bound = (dt.datetime.fromisoformat(told[end][name]) - EPOCH) // dt.timedelta(microseconds=1)
                assert 0 <= (extreme - bound) * (1 if end == "minValues" else -1) < 1_000  # type: ignore[operator]
            continue
        assert all(told["minValues"][name] <= value <= told["maxValues"][name] for value in values)


def test_what_is_written_can_be_read_and_is_told(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    Path(paths.table("sds_messages")).mkdir(parents=True)
    rows = [
        {"kafka_topic": "t", "kafka_partition": 1, "kafka_offset": n, "event_time": n, "content": bytes([n]) * 9}
        for n in range(5)
    ]
    with TaskFiles(paths) as files:
        files.add(QUARANTINE, pa.table({}))  # nothing refused: no file
        for row in rows:
            files.add(SDS_MESSAGES, segments([row]).to_batches()[0])
        (file,) = files.finish()
    assert file.table == "sds_messages"
    place = Path(paths.table("sds_messages")) / file.path
    assert place.stat().st_size == file.bytes
    read = pq.read_table(place)
    assert read["content"].to_pylist() == [row["content"] for row in rows]
    assert read.schema.field("event_time").type == pa.timestamp("us", tz="UTC")
    assert json.loads(file.stats)["maxValues"]["kafka_offset"] == 4


def test_a_task_that_fails_leaves_no_file(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    Path(paths.table("sds_messages")).mkdir(parents=True)
    row = {"kafka_topic": "t", "kafka_partition": 1, "kafka_offset": 0}
    with pytest.raises(RuntimeError, match="in the middle"), TaskFiles(paths) as files:
        files.add(SDS_MESSAGES, segments([row]))
        raise RuntimeError("in the middle")
    assert [*Path(paths.table("sds_messages")).iterdir()] == []


@pytest.mark.parametrize("size", [0, 1_000], ids=["to the last byte", "soon"])
def test_a_task_on_a_full_disk_leaves_no_file(size: int, tmp_path: Path) -> None:
    """Where not even the first bytes fit, an empty file stayed, one more with every start of the job."""
    paths = PathSettings(run_dir=str(tmp_path))
    Path(paths.table("sds_messages")).mkdir(parents=True)
    row = {"kafka_topic": "t", "kafka_partition": 1, "kafka_offset": 0, "content": os.urandom(10_000)}
    with files_up_to(size), pytest.raises(OSError, match="File too large"), TaskFiles(paths) as files:
        files.add(SDS_MESSAGES, segments([row]))
        files.finish()
    assert [*Path(paths.table("sds_messages")).iterdir()] == []


def test_columns_of_the_z_order_have_bounds() -> None:
    for table in TABLES:
        assert len(columns_with_statistics(table)) <= INDEXED_COLUMNS
        assert set(table.z_order_by) <= {column.name for column in columns_with_statistics(table)}


def test_a_table_that_was_deleted_is_named(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    with pytest.raises(EnvironmentFault) as fault, TaskFiles(paths) as files:
        files.add(SDS_MESSAGES, segments([{"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 1}]))
        files.finish()
    text = f"An exception was raised by the Python Proxy. Return Message: {type(fault.value).__name__}: {fault.value}"
    assert pattern_of("A table that was deleted").fullmatch(f"ingest: {explain_failure('ingest', RuntimeError(text))}")
