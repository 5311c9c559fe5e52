"""Commits of files that tasks wrote: each micro-batch once, whoever else writes the table meanwhile."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake import append
from reliable_channel.lake.append import CHECKPOINT_EVERY, BatchSink
from reliable_channel.lake.commit import TableFile, append_files, replace_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.history import read_unread
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import SDS_MESSAGES, Table
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.stream import tick_files
from reliable_channel.runtime.failures import explain_failure
from tests.support.error_page import pattern_of
from tests.support.examples import examples


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    settings: Settings = load("local").with_run_dir(tmp_path)
    create_tables(settings.paths, (SDS_MESSAGES,))
    return settings.paths


def files(paths: PathSettings, offset: int) -> list[WrittenFile]:
    """One written file with one row, at ``offset``."""
    return tick_files(paths, {("t", 0): Progress(10**15 + offset, offset + 1)}, 10**15)


def offsets(paths: PathSettings) -> list[int]:
    return sorted(row["kafka_offset"] for row in rows_of(open_table(paths, SDS_MESSAGES)))


def on_disk(paths: PathSettings) -> int:
    return len([*Path(paths.table(SDS_MESSAGES.name)).glob("*.parquet")])


@settings(max_examples=examples(25))  # each is up to a dozen commits
@given(batches=st.lists(st.integers(0, 5), max_size=12))
def test_a_micro_batch_is_in_the_table_once_however_often_it_runs(
    batches: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = load("local").with_run_dir(tmp_path_factory.mktemp("t")).paths
    create_tables(paths, (SDS_MESSAGES,))
    reached = -1
    expected = []
    for batch in batches:
        if batch > reached:
            expected.append(batch)
            reached = batch
        BatchSink(paths, "query", batch).add_files(SDS_MESSAGES, files(paths, batch))
    assert offsets(paths) == expected
    assert on_disk(paths) == len(expected), "the files of a replay are deleted"


def test_of_two_writers_of_one_micro_batch_the_second_is_refused(paths: PathSettings) -> None:
    first, second = open_table(paths, SDS_MESSAGES), open_table(paths, SDS_MESSAGES)
    append_files(first, files(paths, 0), ("query", 0))
    with pytest.raises(CommitFailedError):
        append_files(second, files(paths, 0), ("query", 0))
    append_files(open_table(paths, SDS_MESSAGES), files(paths, 1), ("another query", 0))
    assert offsets(paths) == [0, 1]


def test_of_two_drivers_the_second_is_refused_for_rows_of_the_driver_as_well(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = files(paths, 0)
    rows = pq.read_table(Path(paths.table(SDS_MESSAGES.name)) / file.path)
    opened, sinks = append.open_table, [BatchSink(paths, "query", 0), BatchSink(paths, "query", 0)]  # type: ignore[attr-defined]

    def and_meanwhile_the_other_one(paths: PathSettings, table: Table) -> DeltaTable:
        found = opened(paths, table)
        if sinks:
            sinks.pop().append_small(rows, table)
        return found

    monkeypatch.setattr(append, "open_table", and_meanwhile_the_other_one)
    with pytest.raises(CommitFailedError):
        sinks.pop().append_small(rows, SDS_MESSAGES)
    assert offsets(paths) == [0]


def test_of_two_attempts_of_a_task_the_files_of_one_are_the_tables(paths: PathSettings) -> None:
    """Speculative tasks, and tasks that are repeated: Spark tells the driver the result of one attempt."""
    (won,), (lost,) = files(paths, 0), files(paths, 0)
    assert won.path != lost.path
    append_files(open_table(paths, SDS_MESSAGES), [won], ("query", 0))
    assert (offsets(paths), on_disk(paths)) == ([0], 2)
    open_table(paths, SDS_MESSAGES).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert (offsets(paths), on_disk(paths)) == ([0], 1)


def test_a_file_that_is_not_there_is_not_committed(paths: PathSettings) -> None:
    """An executor wrote it to a disk of its own, or somebody's VACUUM took it for a leftover."""
    written = [*files(paths, 0), *files(paths, 1)]
    place = Path(paths.table(SDS_MESSAGES.name)) / written[1].path
    kept = place.read_bytes()
    place.unlink()
    with pytest.raises(EnvironmentFault) as fault:
        BatchSink(paths, "query", 0).add_files(SDS_MESSAGES, written)
    said = explain_failure("ingest", RuntimeError(f"EnvironmentFault: {fault.value}"))
    assert pattern_of("Files that the driver does not see").fullmatch(f"ingest: {said}")
    place.write_bytes(kept)
    BatchSink(paths, "query", 0).add_files(SDS_MESSAGES, written)
    assert offsets(paths) == [0, 1]


def test_replaced_files_go_and_what_was_appended_meanwhile_stays(paths: PathSettings) -> None:
    sink = BatchSink(paths, "query", 0)
    (old,) = files(paths, 0)
    sink.add_files(SDS_MESSAGES, [old])
    table, rival = open_table(paths, SDS_MESSAGES), open_table(paths, SDS_MESSAGES)
    BatchSink(paths, "query", 1).add_files(SDS_MESSAGES, files(paths, 1))
    gone = [TableFile(old.path, old.bytes)]
    replace_files(table, gone, files(paths, 2))
    assert offsets(paths) == [1, 2]
    with pytest.raises(CommitFailedError):
        replace_files(rival, gone, files(paths, 3))
    assert offsets(paths) == [1, 2]


@pytest.mark.parametrize("compact", ["compact", "z_order"])
def test_files_that_compaction_has_merged_meanwhile_are_not_replaced(paths: PathSettings, compact: str) -> None:
    written = [*files(paths, 0), *files(paths, 1)]
    for batch, file in enumerate(written):
        BatchSink(paths, "query", batch).add_files(SDS_MESSAGES, [file])
    table = open_table(paths, SDS_MESSAGES)
    optimizer = open_table(paths, SDS_MESSAGES).optimize
    optimizer.compact() if compact == "compact" else optimizer.z_order(["event_time"])
    with pytest.raises(CommitFailedError):
        replace_files(table, [TableFile(written[0].path, written[0].bytes)], files(paths, 2))
    assert offsets(paths) == [0, 1], "in the table once"


def test_streams_have_to_read_what_was_appended_and_not_what_was_replaced(paths: PathSettings) -> None:
    (old,) = files(paths, 0)
    append_files(open_table(paths, SDS_MESSAGES), [old], ("query", 0))
    replace_files(open_table(paths, SDS_MESSAGES), [TableFile(old.path, old.bytes)], files(paths, 2))
    append_files(open_table(paths, SDS_MESSAGES), files(paths, 1), ("query", 1))
    assert [(commit.version, commit.rows) for commit in read_unread(open_table(paths, SDS_MESSAGES), 0)] == [
        (1, 1),
        (3, 1),
    ]


def test_nothing_is_lost_when_only_a_checkpoint_tells_of_the_first_commits(paths: PathSettings) -> None:
    for batch_id in range(CHECKPOINT_EVERY):
        BatchSink(paths, "stream", batch_id).add_files(SDS_MESSAGES, files(paths, batch_id))
    log = Path(paths.table(SDS_MESSAGES.name)) / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    known = int(checkpoint.name.split(".")[0])
    for file in log.glob("[0-9]*.json"):
        if int(file.name.split(".")[0]) <= known:
            file.unlink()
    assert offsets(paths) == [*range(CHECKPOINT_EVERY)]
    assert open_table(paths, SDS_MESSAGES).transaction_version("stream") == CHECKPOINT_EVERY - 1


def test_a_commit_keeps_the_statistics_of_the_task(paths: PathSettings) -> None:
    (file,) = files(paths, 7)
    append_files(open_table(paths, SDS_MESSAGES), [file])
    told = DeltaTable(paths.table(SDS_MESSAGES.name)).get_add_actions(flatten=True)
    assert (told["num_records"][0].as_py(), told["min.kafka_offset"][0].as_py()) == (1, 7)
