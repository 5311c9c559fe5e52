"""Verdicts are computed as of what all jobs have read: a message that one has yet to read is not missing. No Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CLOCK, ORDERED_SDS_MESSAGES, SDS_MESSAGES, Table, micros
from reliable_channel.pipeline.verdict.as_of import find_as_of

BEGIN_US = 1_767_225_600_000_000
MINUTE_US = 60_000_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    configured = load("local").with_run_dir(tmp_path)
    create_tables(configured.paths, (CLOCK, SDS_MESSAGES, ORDERED_SDS_MESSAGES))
    return configured


def at(minute: int) -> int:
    return BEGIN_US + minute * MINUTE_US


def commit(settings: Settings, table: Table, *rows: tuple[str, int, int]) -> None:
    """One commit of rows (kind, partition, minute)."""
    place = {"kafka_topic": "t", "kafka_offset": 0}
    records = [{**place, "sds_kind": kind, "kafka_partition": p, "event_time": at(m)} for kind, p, m in rows]
    append_rows(settings.paths, table, as_arrow(records, table))


def read_to(settings: Settings, query: str, table: Table, version: int) -> None:
    """What the checkpoint of a query says that has read a table up to a version."""
    root = Path(settings.paths.checkpoint(query))
    offset = {"reservoirId": str(open_table(settings.paths, table).metadata().id), "reservoirVersion": version + 1}
    for part in ("offsets", "commits"):
        (root / part).mkdir(parents=True, exist_ok=True)
        (root / part / "0").write_text(f'v1\n{{"batchTimestampMs":1}}\n{json.dumps(offset)}')


def ingest_reached(settings: Settings, **partitions: int) -> None:
    common = {"kafka_topic": "t", "query_id": "q", "batch_id": 0, "kind": "batch", "next_offset": 1}
    rows = [
        {**common, "kafka_partition": int(name[1:]), "event_time": at(minute), "recorded_at": 0}
        for name, minute in partitions.items()
    ]
    append_rows(settings.paths, CLOCK, as_arrow(rows, CLOCK))


def minute_of_verdicts(settings: Settings) -> float:
    as_of = find_as_of(settings.paths)
    assert as_of is not None
    return (micros(as_of) - BEGIN_US) / MINUTE_US


def test_before_ingest_has_read_anything_there_is_no_time_to_judge_as_of(settings: Settings) -> None:
    assert find_as_of(settings.paths) is None


def test_without_a_job_that_is_behind_the_furthest_partition_counts(settings: Settings) -> None:
    ingest_reached(settings, p0=20, p1=30)
    assert minute_of_verdicts(settings) == 30
    commit(settings, SDS_MESSAGES, ("content", 0, 20))
    read_to(settings, "reassembly", SDS_MESSAGES, 1)
    read_to(settings, "ack", ORDERED_SDS_MESSAGES, 0)
    assert minute_of_verdicts(settings) == 30


@pytest.mark.parametrize(("query", "table"), [("reassembly", SDS_MESSAGES), ("ack", ORDERED_SDS_MESSAGES)])
def test_a_job_that_is_behind_holds_back_verdicts_at_its_first_unread_message(
    settings: Settings, query: str, table: Table
) -> None:
    ingest_reached(settings, p0=90)
    commit(settings, table, ("content", 0, 1))
    commit(settings, table, ("content", 0, 20), ("content", 0, 50), ("tick", 0, 50))
    commit(settings, table, ("content", 0, 90), ("tick", 0, 90))
    for version, minute in ((1, 20), (2, 90), (3, 90)):
        read_to(settings, query, table, version)
        assert minute_of_verdicts(settings) == minute


def test_a_partition_that_is_far_behind_holds_nothing_back(settings: Settings) -> None:
    """Also not one whose producer's clock is wrong."""
    ingest_reached(settings, p0=90, p1=2)
    commit(settings, SDS_MESSAGES, ("content", 1, 1), ("content", 0, 80), ("tick", 1, 2), ("tick", 0, 90))
    read_to(settings, "reassembly", SDS_MESSAGES, 0)
    assert minute_of_verdicts(settings) == 80


def test_an_unread_tick_holds_verdicts_back_and_rewritten_files_do_not(settings: Settings) -> None:
    ingest_reached(settings, p0=90)
    commit(settings, SDS_MESSAGES, ("content", 0, 1))
    commit(settings, SDS_MESSAGES, ("content", 0, 2))
    read_to(settings, "reassembly", SDS_MESSAGES, 2)
    open_table(settings.paths, SDS_MESSAGES).optimize.compact()
    assert minute_of_verdicts(settings) == 90
    commit(settings, SDS_MESSAGES, ("tick", 0, 80))
    commit(settings, SDS_MESSAGES, ("content", 0, 85))
    assert minute_of_verdicts(settings) == 80
