"""Tables that are opened while a micro-batch is computed: its rows are there once all the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake.exceptions import CommitFailedError

from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.commit import TableFile, replace_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import CLOCK, SDS_MESSAGES
from reliable_channel.pipeline.clock import IngestClock, Progress
from reliable_channel.pipeline.ingest.stream import tick_files

PLACE = ("t", 0)


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    paths = load("local").with_run_dir(tmp_path).paths
    create_tables(paths, (SDS_MESSAGES, CLOCK))
    return paths


def opened(paths: PathSettings, batch: int) -> BatchSink:
    sink = BatchSink(paths, "query", batch)
    sink.open_ahead(SDS_MESSAGES, CLOCK)
    return sink


def reached(batch: int) -> dict[tuple[str, int], Progress]:
    return {PLACE: Progress(10**15 + batch, batch + 1)}


def files(paths: PathSettings, batch: int) -> list[WrittenFile]:
    """One written file with one row."""
    return tick_files(paths, reached(batch), 10**15)


def offsets(paths: PathSettings) -> list[int]:
    return sorted(row["kafka_offset"] for row in rows_of(open_table(paths, SDS_MESSAGES)))


def test_of_a_replay_nothing_is_added(paths: PathSettings) -> None:
    for batch in (0, 1, 1, 0):
        sink = opened(paths, batch)
        sink.together(
            lambda sink=sink, batch=batch: sink.add_files(SDS_MESSAGES, files(paths, batch)),  # type: ignore[misc]
            lambda sink=sink, batch=batch: IngestClock(paths).record(sink, reached(batch)),  # type: ignore[misc]
        )
    assert offsets(paths) == [0, 1]
    assert len(rows_of(open_table(paths, CLOCK))) == 2


def test_of_two_drivers_that_opened_before_either_wrote_the_second_is_refused(paths: PathSettings) -> None:
    first, second = opened(paths, 0), opened(paths, 0)
    for sink in (first, second):  # both have opened it
        sink._opened[SDS_MESSAGES.name].result()
    first.add_files(SDS_MESSAGES, files(paths, 0))
    with pytest.raises(CommitFailedError):
        second.add_files(SDS_MESSAGES, files(paths, 0))
    assert offsets(paths) == [0]


@pytest.mark.parametrize("removal", ["a row", "a file"])
def test_rows_that_maintenance_deletes_meanwhile_do_not_stop_an_append(paths: PathSettings, removal: str) -> None:
    first = opened(paths, 0)
    first.add_files(SDS_MESSAGES, [*files(paths, 0), *files(paths, 5)])
    IngestClock(paths).record(first, reached(0))
    sink = opened(paths, 1)
    for table in (SDS_MESSAGES, CLOCK):
        sink._opened[table.name].result()
        there = open_table(paths, table)
        if removal == "a row":
            there.delete("kafka_offset = 0" if table is SDS_MESSAGES else None)
        else:
            gone, *_ = pa.table(there.get_add_actions()).to_pylist()
            replace_files(there, [TableFile(gone["path"], gone["size_bytes"])], [])
    kept = offsets(paths)
    sink.add_files(SDS_MESSAGES, files(paths, 1))
    IngestClock(paths).record(sink, reached(1))
    assert offsets(paths) == sorted([*kept, 1])
    assert len(rows_of(open_table(paths, CLOCK))) == 1


def test_a_second_append_to_a_table_opens_it_again(paths: PathSettings) -> None:
    sink = opened(paths, 0)
    sink.add_files(SDS_MESSAGES, files(paths, 0))
    sink.add_files(SDS_MESSAGES, files(paths, 1))
    assert offsets(paths) == [0], "it finds its own commit and takes this one for a replay"


def test_a_table_that_does_not_exist_is_a_fault_when_it_is_written(tmp_path: Path, paths: PathSettings) -> None:
    sink = BatchSink(load("local").with_run_dir(tmp_path / "nowhere").paths, "query", 0)
    sink.open_ahead(SDS_MESSAGES)
    with pytest.raises(EnvironmentFault):
        sink.add_files(SDS_MESSAGES, files(paths, 0))
