"""Maintenance removes only what nobody needs: neither a stream that lags nor the recorded clock."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.config import Settings, load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import BY_NAME, CLOCK, DAY_MS
from reliable_channel.pipeline.maintenance.maintain_plan import CLOCK_SKEW_MS, find_needed_clock, make_plans

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load("local", paths={"run_dir": str(tmp_path)})


def commits(settings: Settings, table: str, count: int) -> DeltaTable:
    for number in range(count):
        row = {"sds_id": str(number), "event_time": NOON, "recorded_at": NOON}
        write_deltalake(settings.paths.table(table), pa.Table.from_pylist([row]), mode="append")
    return DeltaTable(settings.paths.table(table))


def reader(settings: Settings, query: str, table: DeltaTable, next_version: int) -> None:
    root = Path(settings.paths.checkpoint(query))
    for part in ("offsets", "commits"):
        (root / part).mkdir(parents=True, exist_ok=True)
        (root / part / "0").write_text(f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(reads(table, next_version))}')
    (root / "metadata").write_text('{"id":"q"}')


def reads(table: DeltaTable, version: int) -> dict[str, Any]:
    return {"reservoirId": str(table.metadata().id), "reservoirVersion": version, "index": -1}


def kept_ms(settings: Settings, table: str, now_ms: int) -> tuple[int, str | None]:
    (plan,) = [plan for plan in make_plans(settings, now_ms) if plan.table.name == table]
    return plan.keep_files_ms, plan.held_by


def test_files_stay_for_the_slowest_reader_and_no_longer(settings: Settings) -> None:
    table = commits(settings, "sds_messages", 4)
    times = {entry["version"]: entry["timestamp"] for entry in table.history()}
    configured = settings.pipeline.vacuum_retention_ms
    now = times[3] + configured + 10 * DAY_MS
    assert kept_ms(settings, "sds_messages", now) == (now - times[0] + CLOCK_SKEW_MS, "reassembly"), (
        "it has not started"
    )
    reader(settings, "reassembly", table, 3)
    assert kept_ms(settings, "sds_messages", now) == (now - times[3] + CLOCK_SKEW_MS, "reassembly")
    reader(settings, "another", table, 1)
    assert kept_ms(settings, "sds_messages", now) == (now - times[1] + CLOCK_SKEW_MS, "another")
    for query in ("another", "reassembly"):
        reader(settings, query, table, 4)
    assert kept_ms(settings, "sds_messages", now) == (configured, None)
    table.optimize.compact()
    assert kept_ms(settings, "sds_messages", now) == (configured, None), "what OPTIMIZE wrote nobody has to read"


def test_the_log_stays_for_a_reader_that_is_further_behind_than_the_log_is_kept(tmp_path: Path) -> None:
    year = {"vacuum_retention_ms": 365 * DAY_MS}
    settings = load("local", paths={"run_dir": str(tmp_path)}, pipeline=year)
    table = commits(settings, "sds_messages", 2)
    last = max(entry["timestamp"] for entry in table.history())
    assert kept_ms(settings, "sds_messages", last + 8 * DAY_MS) == (365 * DAY_MS, "reassembly")
    reader(settings, "reassembly", table, 2)
    assert kept_ms(settings, "sds_messages", last + 8 * DAY_MS) == (365 * DAY_MS, None)


def test_what_a_running_micro_batch_has_written_stays(settings: Settings) -> None:
    table = commits(settings, "sds_messages", 1)
    reader(settings, "reassembly", table, 1)
    configured = settings.pipeline.vacuum_retention_ms
    now = int(NOON.timestamp() * 1000)
    assert kept_ms(settings, "sds_messages", now) == (configured, None)
    planned = Path(settings.paths.checkpoint("reassembly")) / "offsets" / "1"
    planned.write_text(f'v1\n{{"batchTimestampMs":{now - configured}}}\n{json.dumps(reads(table, 1))}')
    assert kept_ms(settings, "sds_messages", now) == (configured + CLOCK_SKEW_MS, "reassembly")


def test_every_table_keeps_what_its_definition_says(settings: Settings) -> None:
    commits(settings, "sds_messages", 1)
    commits(settings, "delivery_status", 1)
    now = int(NOON.timestamp() * 1000) + 100 * DAY_MS
    cuts = {plan.table.name: plan.delete_before for plan in make_plans(settings, now)}
    kept = {name: BY_NAME[name].retention_ms or 0 for name in ("sds_messages", "delivery_status")}
    assert cuts == {name: dt.datetime.fromtimestamp((now - ms) / 1000, dt.UTC) for name, ms in kept.items()}


@pytest.mark.parametrize(("ahead_ms", "by_ms"), [(3_650 * DAY_MS, 0), (-DAY_MS, -DAY_MS)])
def test_a_wall_clock_that_is_wrong_deletes_nothing_that_is_young(
    settings: Settings, ahead_ms: int, by_ms: int
) -> None:
    commits(settings, "sds_messages", 1)
    create_tables(settings.paths, (CLOCK,))
    reached = {"kafka_topic": "t", "kafka_partition": 0, "next_offset": 1, "query_id": "q", "batch_id": 0}
    row = {**reached, "kind": "batch", "event_time": NOON, "recorded_at": NOON}
    append_rows(settings.paths, CLOCK, as_arrow([row], CLOCK))
    recorded_ms = int(NOON.timestamp() * 1000)
    cuts = {plan.table.name: plan.delete_before for plan in make_plans(settings, recorded_ms + ahead_ms)}
    kept_ms = BY_NAME["sds_messages"].retention_ms or 0
    assert cuts["sds_messages"] == dt.datetime.fromtimestamp((recorded_ms + by_ms - kept_ms) / 1000, dt.UTC)


def test_the_clock_of_a_silent_partition_is_never_forgotten(settings: Settings) -> None:
    def needed(*rows: tuple[int, int, int]) -> dt.datetime | None:
        """After further rows of ``clock``: partition, micro-batch, hour of the record."""
        made = [
            {"kafka_topic": "t", "kafka_partition": partition, "query_id": "q", "batch_id": batch,
             "recorded_at": NOON + dt.timedelta(hours=hour)}
            for partition, batch, hour in rows
        ]  # fmt: skip
        append_rows(settings.paths, CLOCK, as_arrow(made, CLOCK))
        return find_needed_clock(open_table(settings.paths, CLOCK))

    create_tables(settings.paths, (CLOCK,))
    assert needed() is None
    assert needed((1, 2, 1), (1, 3, 2), (1, 3, 3), (1, 4, 4)) == NOON + dt.timedelta(hours=2)
    assert needed((0, 1, 0), (0, 2, 1)) == NOON, "partition 0 has its last two micro-batches there"
