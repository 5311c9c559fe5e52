"""Maintenance of real Delta tables, without Spark: what expires goes, what streams need stays, files become few."""

from __future__ import annotations

import errno
import os
import runpy
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from reliable_channel.cli import main
from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.append import BatchSink, append_rows
from reliable_channel.lake.commit import TableFile, replace_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.history import read_unread
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ACKS, DAY_MS, SDS_MESSAGES, Table
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.stream import tick_files
from reliable_channel.pipeline.maintenance import alone, maintain, maintain_plan
from reliable_channel.pipeline.maintenance.alone import LEASE_MS, hold_lease
from reliable_channel.runtime.faults import as_fault
from tests.support.error_page import pattern_of

JOBS = Path(__file__).parents[3] / "jobs"
NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000
RETENTION_MS = SDS_MESSAGES.retention_ms or 0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = load("local", pipeline={"vacuum_retention_ms": HOUR_MS}).with_run_dir(tmp_path)
    create_tables(found.paths, (SDS_MESSAGES,))
    return found


def append(settings: Settings, offset: int, age_ms: int) -> None:
    """A micro-batch with one row."""
    files = tick_files(settings.paths, {("t", 0): Progress((NOW_MS - age_ms) * 1000, offset + 1)}, 10**15)
    BatchSink(settings.paths, "stream", offset).add_files(SDS_MESSAGES, files)


def offsets(settings: Settings) -> list[int]:
    return sorted(row["kafka_offset"] for row in rows_of(open_table(settings.paths, SDS_MESSAGES)))


def maintained(settings: Settings, *, dry_run: bool = False) -> maintain.MaintenanceResult:
    (outcome,) = maintain.run(settings, dry_run=dry_run, only=("sds_messages",), now_ms=NOW_MS)
    return outcome


def test_rows_past_their_retention_are_deleted_and_no_stream_reads_that(settings: Settings) -> None:
    ages = [RETENTION_MS + DAY_MS, RETENTION_MS + 1, RETENTION_MS, RETENTION_MS - 1, 0]
    for offset, age in enumerate(ages):
        append(settings, offset, age)
    unread = [commit.version for commit in read_unread(open_table(settings.paths, SDS_MESSAGES), 0)]
    assert maintained(settings, dry_run=True).rows_deleted == 2
    assert offsets(settings) == [0, 1, 2, 3, 4]
    outcome = maintained(settings)
    assert (outcome.rows_deleted, outcome.files_before, outcome.files_after) == (2, 5, 1)
    assert offsets(settings) == [2, 3, 4]
    append(settings, 5, 0)
    later = [commit.version for commit in read_unread(open_table(settings.paths, SDS_MESSAGES), 0)]
    assert later[:-1] == unread
    assert maintained(settings).rows_deleted == 0


def test_the_log_that_a_stream_has_still_to_read_stays(settings: Settings) -> None:
    for offset, age in enumerate([RETENTION_MS + 1, 0, 0]):
        append(settings, offset, age)
    table = open_table(settings.paths, SDS_MESSAGES)
    table.create_checkpoint()
    log = Path(settings.paths.table("sds_messages")) / "_delta_log"
    for entry in log.iterdir():
        os.utime(entry, (time.time() - 40 * 86_400,) * 2)  # older than any log is kept
    versions = {entry.name for entry in log.glob("*.json")}
    create_tables(settings.paths, (SDS_MESSAGES,))
    outcome = maintained(settings)
    assert (outcome.rows_deleted, outcome.files_after, outcome.held_by) == (1, 1, "reassembly")
    assert versions <= {entry.name for entry in log.glob("*.json")}


def test_a_stream_that_appends_meanwhile_does_not_hinder_the_deletion(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(settings, 0, RETENTION_MS + 1)
    append(settings, 1, 0)
    really = maintain.delete_rows  # type: ignore[attr-defined]
    attempts = []

    def late(table: DeltaTable, predicate: str, *, dry_run: bool) -> int:
        attempts.append(predicate)
        append(settings, 1 + len(attempts), 0)
        return really(table, predicate, dry_run=dry_run)

    monkeypatch.setattr(maintain, "delete_rows", late)
    assert maintained(settings).rows_deleted == 1
    assert (len(attempts), offsets(settings)) == (1, [1, 2])


def test_files_that_a_running_task_has_written_stay_and_old_orphans_go(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain_plan, "STREAM_READERS", {})
    append(settings, 0, 0)
    place = Path(settings.paths.table(SDS_MESSAGES.name))
    for name, age_s in (("young", 600), ("orphan", 3 * 3600)):
        file = place / f"part-{name}.parquet"
        file.write_bytes(b"not committed")
        os.utime(file, (time.time() - age_s,) * 2)
    assert maintained(settings, dry_run=True).files_vacuumed == 1
    assert maintained(settings).files_vacuumed == 1
    assert not (place / "part-orphan.parquet").exists()
    assert (place / "part-young.parquet").exists()
    assert offsets(settings) == [0]


def test_of_maintenance_runs_one_works_at_a_time_and_no_row_is_doubled(settings: Settings) -> None:
    for offset in range(20):
        append(settings, offset, RETENTION_MS + 1 if offset < 5 else 0)

    def maintained_or_not(_: int) -> int | str:
        try:
            return maintained(settings).rows_deleted
        except EnvironmentFault as fault:
            return str(fault)

    with ThreadPoolExecutor(4) as pool:
        runs = [*pool.map(maintained_or_not, range(4))]
    assert sum(run for run in runs if isinstance(run, int)) == 5
    one_at_a_time = pattern_of("Two maintenance runs")
    assert all(one_at_a_time.fullmatch(f"reliable-channel: {run}") for run in runs if isinstance(run, str))
    assert offsets(settings) == [*range(5, 20)]


def test_a_maintenance_run_keeps_others_out_until_it_ends_and_no_longer_than_its_lease(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(settings, 0, 0)
    with hold_lease(settings.paths):
        with pytest.raises(EnvironmentFault, match="Another maintenance run"):
            maintained(settings)
        maintained(settings, dry_run=True)
        later = time.time_ns() + (LEASE_MS + 1) * 1_000_000
        with monkeypatch.context() as patched:
            patched.setattr(time, "time_ns", lambda: later)
            maintained(settings)
    for _ in range(12):
        maintained(settings)
    log = Path(settings.paths.table("_maintenance")) / "_delta_log"
    assert len([*log.glob("*.checkpoint.parquet")]) == 1


def test_a_lock_that_cannot_be_written_is_named_by_its_cause(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DeltaError("Generic LocalFileSystem error: /srv/run/tables: Permission denied (os error 13)")

    monkeypatch.setattr(DeltaTable, "create", refuse)
    with pytest.raises(DeltaError) as error, hold_lease(settings.paths):
        pass
    assert "it has no permission to write its tables" in str(as_fault(error.value))


def test_a_run_on_a_full_disk_does_not_keep_the_next_run_of_its_process_out(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither its work nor the end of its lease can be written then."""
    append(settings, 0, 0)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for _ in range(2):
        with monkeypatch.context() as full, pytest.raises(OSError, match="No space"), hold_lease(settings.paths):
            full.setattr(alone, "_commit", fail)
            fail()
    maintained(settings)
    with hold_lease(settings.paths), pytest.raises(EnvironmentFault, match="Another maintenance run"):
        maintained(settings)


def test_a_run_that_finds_the_disk_full_removes_what_can_be_removed_in_every_table(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended at the first table that it could not write anew, and left the disk as full as it was."""
    monkeypatch.setattr(maintain_plan, "STREAM_READERS", {})
    create_tables(settings.paths, (ACKS,))
    orphans = []
    for table in (SDS_MESSAGES, ACKS):
        orphans.append(Path(settings.paths.table(table.name)) / "part-orphan.parquet")
        orphans[-1].write_bytes(b"not committed")
        os.utime(orphans[-1], (time.time() - 3 * 3600,) * 2)
    append(settings, 0, RETENTION_MS + 1)
    append(settings, 1, 0)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full, pytest.raises(OSError, match="No space left"):
        full.setattr(maintain, "delete_rows", fail)
        maintain.run(settings, now_ms=NOW_MS)
    assert [orphan.exists() for orphan in orphans] == [False, False]
    assert offsets(settings) == [0, 1]
    assert maintained(settings).rows_deleted == 1


def test_a_table_that_others_change_in_each_attempt_keeps_no_other_from_maintenance(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a large table of verdicts, of which each round rewrites a file: the tables after it were not maintained."""
    create_tables(settings.paths, (ACKS,))
    real = maintain._optimize

    def conflict(paths: PathSettings, table: Table) -> None:
        if table == SDS_MESSAGES:
            raise EnvironmentFault("Another writer changed the table in each of 6 attempts.")
        real(paths, table)

    monkeypatch.setattr(maintain, "_optimize", conflict)
    said: list[str] = []
    with pytest.raises(EnvironmentFault, match="in each of 6 attempts"):
        maintain.run(settings, now_ms=NOW_MS, say=said.append)
    assert [line.partition(" ")[0] for line in said] == ["sds_messages:", "acks:"]
    assert "in each of 6 attempts" in said[0]


def test_compaction_and_a_rewrite_of_the_same_files_double_no_row(settings: Settings) -> None:
    """delta-rs would let both commit."""
    for offset in range(3):
        append(settings, offset, 0)
    rewriting = open_table(settings.paths, SDS_MESSAGES)
    adds = pa.table(rewriting.get_add_actions(flatten=True)).to_pylist()
    old = [TableFile(add["path"], add["size_bytes"]) for add in adds][:1]
    new = tick_files(settings.paths, {("t", 0): Progress(NOW_MS * 1000, 1)}, 10**15)
    maintained(settings)
    with pytest.raises(CommitFailedError):
        replace_files(rewriting, old, new)
    assert offsets(settings) == [0, 1, 2]


def test_one_file_is_left_alone(settings: Settings) -> None:
    append(settings, 0, 0)
    maintained(settings)
    version = open_table(settings.paths, SDS_MESSAGES).version()
    maintained(settings)
    assert open_table(settings.paths, SDS_MESSAGES).version() == version


def test_a_z_order_keeps_every_row_and_lets_a_query_skip_files(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every file that arrives holds rows of all topics; after maintenance a topic is in a part of the files only."""
    monkeypatch.setattr(maintain, "FILE_BYTES", 1_000)
    for file in range(8):
        rows = [
            {
                "kafka_topic": "t",
                "kafka_partition": 0,
                "kafka_offset": file * 3_000 + number,
                "event_time": NOW_MS * 1000 + number,
                "content_topic": f"/{number % 4}",
            }
            for number in range(3_000)
        ]
        append_rows(settings.paths, SDS_MESSAGES, as_arrow(rows, SDS_MESSAGES))

    def contents() -> list[tuple[object, ...]]:
        found = rows_of(open_table(settings.paths, SDS_MESSAGES), ["kafka_offset", "event_time", "content_topic"])
        return sorted(tuple(row.values()) for row in found)

    before = contents()

    def holding(topic: str) -> float:
        """The share of files that may hold rows of ``topic``, by their statistics."""
        files = pa.table(open_table(settings.paths, SDS_MESSAGES).get_add_actions(flatten=True)).to_pylist()
        return sum(f["min.content_topic"] <= topic <= f["max.content_topic"] for f in files) / len(files)

    assert holding("/0") == 1
    assert maintained(settings).files_after > 3
    assert holding("/0") < 0.5
    assert contents() == before
    ordered = open_table(settings.paths, SDS_MESSAGES).version()
    maintained(settings)
    assert open_table(settings.paths, SDS_MESSAGES).version() == ordered, "files of a z-order are small as well"
    append(settings, 30_000, 0)
    append(settings, 30_001, 0)
    maintained(settings)
    assert open_table(settings.paths, SDS_MESSAGES).version() == ordered + 3, "two new files are a reason"


@pytest.mark.parametrize("z_order_bytes", [1 << 40, 0], ids=["ordered", "compacted"])
def test_row_groups_stay_small_enough_to_be_decoded_for_a_few_rows(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, z_order_bytes: int
) -> None:
    monkeypatch.setattr(maintain, "Z_ORDER_BYTES", z_order_bytes)
    for offset in range(40):
        append(settings, offset, 0)
    opened = open_table(settings.paths, SDS_MESSAGES)
    total = sum(pa.table(opened.get_add_actions(flatten=True))["size_bytes"].to_pylist())
    monkeypatch.setattr(maintain, "ROW_GROUP_BYTES", total // 10)
    maintained(settings)
    (uri,) = open_table(settings.paths, SDS_MESSAGES).file_uris()
    file = pq.ParquetFile(uri).metadata
    assert [file.row_group(number).num_rows for number in range(file.num_row_groups)] == [4] * 10
    assert file.row_group(0).column(0).compression == "ZSTD"
    assert offsets(settings) == [*range(40)]


def test_a_large_table_is_compacted_and_not_written_anew(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintain, "Z_ORDER_BYTES", 0)
    for offset in range(3):
        append(settings, offset, 0)
    assert maintained(settings).files_after == 1
    last = open_table(settings.paths, SDS_MESSAGES).history(1)[0]
    assert (last["operation"], last["operationMetrics"]["plannerStrategy"]) == ("OPTIMIZE", "preserveLocality")


def test_a_table_with_wide_rows_is_compacted_where_a_z_order_lacks_memory(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintain, "SPILL_BYTES", 16 * 1024 * 1024)
    for commit in range(4):
        given = [
            {
                "kafka_topic": "t",
                "kafka_partition": 0,
                "kafka_offset": commit * 1_000 + number,
                "event_time": NOW_MS * 1_000,
                "content_topic": f"/{number % 50}",
                "bloom_filter": os.urandom(18_752),
            }
            for number in range(1_000)
        ]
        append_rows(settings.paths, SDS_MESSAGES, as_arrow(given, SDS_MESSAGES))
    outcome = maintained(settings)
    assert (outcome.files_before, outcome.files_after) == (4, 1)
    assert offsets(settings) == list(range(4_000))


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [([], "There are no Delta tables under"), (["--table", "acks"], "There is no Delta table at")],
)
def test_a_place_without_tables_is_a_fault(
    arguments: list[str],
    cause: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path / "wrong"))
    with pytest.raises(SystemExit) as ended:
        main(["maintain", "--dry-run", *arguments])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (1, "")
    assert f"{cause} {tmp_path / 'wrong'}" in err and "Run the pipeline" in err


def test_the_job_ends_as_the_command_where_there_are_no_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path / "wrong"))
    monkeypatch.setattr("sys.argv", ["jobs/maintain.py"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(JOBS / "maintain.py"), run_name="__main__")
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (1, "") and "There are no Delta tables under" in err
