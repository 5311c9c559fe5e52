"""The log of open keys: what a micro-batch sees is what the earlier ones wrote, however a process came to read it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import DeltaFollower
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import TIMERS
from reliable_channel.pipeline.reassembly import timers
from reliable_channel.pipeline.reassembly.timers import TimerChange, TimerLog, Timers, forget, record

PLACE = ("waku.envelopes", 0)

CHANGES = st.dictionaries(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(1, 99)), max_size=3)
"""Of one micro-batch: key → when its timer is due, ``None`` where it is closed."""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PathSettings:
    monkeypatch.setattr(timers, "RESTATED_EVERY", 4)
    return PathSettings(run_dir=str(tmp_path))


def state(keys: Timers) -> set[TimerChange]:
    return set(keys)


def write(paths: PathSettings, batches: list[dict[str, int | None]], query: str = "q") -> None:
    for batch_id, changes in enumerate(batches):
        changed = [TimerChange(key, PLACE, due) for key, due in changes.items()]
        record(BatchSink(paths, query, batch_id), changed)


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(CHANGES, min_size=9, max_size=9),
    asked=st.lists(st.integers(0, 9), min_size=2, max_size=4),
)
def test_every_micro_batch_sees_the_same_in_a_new_process_and_in_one_that_read_on_or_goes_back(
    batches: list[dict[str, int | None]],
    asked: list[int],
    tmp_path_factory: pytest.TempPathFactory,
    paths: PathSettings,
) -> None:
    here = PathSettings(run_dir=str(tmp_path_factory.mktemp("log")))
    create_tables(here, (TIMERS,))
    write(here, batches)
    write(here, [{"z": 1}] * 2, query="another")
    long_lived = TimerLog(here, "q")
    for batch_id in asked:
        expected = Timers()
        for changes in batches[:batch_id]:
            for key, due in changes.items():
                expected.apply(TimerChange(key, PLACE, due))
        assert state(TimerLog(here, "q").before(batch_id)) == state(expected)
        assert state(long_lived.before(batch_id)) == state(expected)


def test_what_is_read_does_not_grow_with_the_log(paths: PathSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    create_tables(paths, (TIMERS,))
    write(paths, [{"a": n + 1} for n in range(50)])
    read: list[str] = []
    true_read = DeltaFollower.read

    def counted(self: DeltaFollower, file: object, *rest: object) -> object:
        read.append(str(file))
        return true_read(self, file, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(DeltaFollower, "read", counted)
    log = TimerLog(paths, "q")
    assert state(log.before(50)) == {TimerChange("a", PLACE, 50)}
    assert len(read) <= 4, "from the last time all was restated"
    record(BatchSink(paths, "q", 50), [TimerChange("b", PLACE, 7)])
    read.clear()
    assert state(log.before(51)) == {TimerChange("a", PLACE, 50), TimerChange("b", PLACE, 7)}
    assert len(read) == 1


def test_a_log_that_was_compacted_meanwhile_says_the_same(paths: PathSettings) -> None:
    create_tables(paths, (TIMERS,))
    write(paths, [{"a": 1}, {"b": 2}, {"a": None}])
    log = TimerLog(paths, "q")
    before = state(log.before(2))
    DeltaTable(paths.table(TIMERS.name)).optimize.compact()
    assert before == {TimerChange("a", PLACE, 1), TimerChange("b", PLACE, 2)}
    assert state(log.before(3)) == state(TimerLog(paths, "q").before(3)) == {TimerChange("b", PLACE, 2)}


def test_a_log_whose_commits_were_removed_before_they_were_read_says_the_same(paths: PathSettings) -> None:
    create_tables(paths, (TIMERS,))
    write(paths, [{"a": 1, "b": 2}])
    idle = TimerLog(paths, "q")
    assert state(idle.before(1)) == {TimerChange("a", PLACE, 1), TimerChange("b", PLACE, 2)}
    write(paths, [{}, {"a": None}, {"c": 3}])
    table = open_table(paths, TIMERS)
    table.alter.set_table_properties({"delta.logRetentionDuration": "interval 0 seconds"})
    table = open_table(paths, TIMERS)
    table.create_checkpoint()
    table.cleanup_metadata()
    log = Path(paths.table(TIMERS.name)) / "_delta_log"
    assert not (log / f"{table.version() - 1:020d}.json").exists()
    assert state(idle.before(3)) == {TimerChange("b", PLACE, 2), TimerChange("c", PLACE, 3)}


def test_files_that_another_writer_made_are_read_beside_our_own(paths: PathSettings) -> None:
    """Spark, which compacts the log, keeps no column that may not be null, and writes times without their zone."""
    create_tables(paths, (TIMERS,))
    write(paths, [{"a": 10}, {"b": 20}, {"c": 30}])
    first = sorted(Path(paths.table(TIMERS.name)).rglob("*.parquet"))[0]
    rows = pq.read_table(first, partitioning=None)
    pq.write_table(
        rows.cast(pa.schema([f.with_nullable(True) for f in rows.schema])), first, use_deprecated_int96_timestamps=True
    )
    assert {change.key for change in state(TimerLog(paths, "q").before(3))} == {"a", "b", "c"}


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.lists(CHANGES, min_size=12, max_size=12),
    committed=st.integers(-1, 10),
)
def test_no_micro_batch_to_come_misses_what_is_forgotten(
    batches: list[dict[str, int | None]],
    committed: int,
    tmp_path_factory: pytest.TempPathFactory,
    paths: PathSettings,
) -> None:
    here = PathSettings(run_dir=str(tmp_path_factory.mktemp("log")))
    create_tables(here, (TIMERS,))
    write(here, [{"z": 1}] * 2, query="without a checkpoint")
    write(here, batches)
    running = TimerLog(here, "q")
    running.before(committed + 1)
    expected = [state(TimerLog(here, "q").before(coming)) for coming in range(committed + 1, 13)]
    there = len(rows_of(open_table(here, TIMERS)))
    told = forget(here, {"q": committed, "another": -1}, dry_run=True)
    assert len(rows_of(open_table(here, TIMERS))) == there
    assert forget(here, {"q": committed, "another": -1}) == told
    left = rows_of(open_table(here, TIMERS))
    assert len(left) == there - told
    assert all(row["query_id"] == "q" for row in left)
    assert all(row["batch_id"] >= committed // 4 * 4 for row in left if committed > 0)
    assert [state(TimerLog(here, "q").before(coming)) for coming in range(committed + 1, 13)] == expected
    assert [state(running.before(coming)) for coming in range(committed + 1, 13)] == expected
    assert forget(here, {}) == len(left)


def test_what_a_job_appends_meanwhile_does_not_hinder_forgetting(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_tables(paths, (TIMERS,))
    write(paths, [{"a": 1}] * 6)
    opened = open_table(paths, TIMERS)
    monkeypatch.setattr(timers, "open_table", lambda *_: opened)
    record(BatchSink(paths, "q", 6), [TimerChange("b", PLACE, 7)])
    record(BatchSink(paths, "new", 0), [TimerChange("c", PLACE, 7)])
    assert forget(paths, {"q": 5, "new": -1}) == 4
    assert state(TimerLog(paths, "q").before(7)) == {TimerChange("a", PLACE, 1), TimerChange("b", PLACE, 7)}
    assert state(TimerLog(paths, "new").before(1)) == {TimerChange("c", PLACE, 7)}


def test_keys_are_woken_in_their_partition_when_they_are_due() -> None:
    keys = Timers()
    for change in (TimerChange("a", PLACE, 5), TimerChange("b", PLACE, 9), TimerChange("c", ("other", 0), 1)):
        keys.apply(change)
    assert [*keys.due(PLACE, 5)] == ["a"]
    assert [*keys.due(("other", 0), 5)] == ["c"]
    assert keys.is_open("b")
    assert not keys.is_open("d")
