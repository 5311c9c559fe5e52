"""What operators do to running jobs by mistake (docs/operations.md, *What was tried*): each ends in one sentence, and
no row is lost or doubled."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake import tables
from reliable_channel.lake.read import open_table
from reliable_channel.pipeline.maintenance.rebuild import rebuild
from reliable_channel.pipeline.runner.queries import start
from reliable_channel.pipeline.runner.run import run_to_end, wait_for
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import World, simulate
from tests.support.error_page import pattern_of
from tests.support.waiting import WAIT_S

from .chain import as_kafka, chain_over, configured, rows, run_once
from .kafka_log import KafkaLog, Record

pytestmark = [pytest.mark.spark, pytest.mark.faults]

PIECE = 40


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(small_scenario())


@pytest.fixture
def here(settings: Settings, world: World, tmp_path: Path) -> Settings:
    """A place of its own for the world's channels; Kafka is looked at twice a second."""
    found = configured(settings, world, tmp_path)
    return found.model_copy(update={"spark": found.spark.model_copy(update={"trigger_interval_ms": 500})})


def pieces(world: World) -> list[list[Record]]:
    records = as_kafka(world.records)
    return [records[first : first + PIECE] for first in range(0, len(records), PIECE)]


def places(settings: Settings, table: tables.Table) -> Counter[tuple[str, int, int]]:
    return Counter((r["kafka_topic"], r["kafka_partition"], r["kafka_offset"]) for r in rows(settings, table))


def test_of_two_drivers_on_one_checkpoint_one_ends_with_a_sentence_and_nothing_is_doubled(
    spark: SparkSession, here: Settings, world: World, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    ingest = chain_over(log)[0]
    first, *others = pieces(world)
    log.produce(first)
    run_once(spark, here, (ingest,))
    (tmp_path / "settings.yaml").write_text(here.to_yaml())
    second = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.second_driver", str(tmp_path / "settings.yaml"), str(tmp_path / "log")],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    query = start(spark, here, ingest, once=False)
    ours = None
    try:
        deadline, produced = time.monotonic() + WAIT_S, 1
        while second.poll() is None and query.isActive:
            assert time.monotonic() < deadline, "both went on"
            if others and (tmp_path / "runs").exists():
                log.produce(others.pop(0))
                produced += 1
            time.sleep(0.3)
        if not query.isActive:
            with pytest.raises(EnvironmentFault) as fault:
                wait_for(query)
            ours = f"ingest: {fault.value}"
    finally:
        query.stop()
        (tmp_path / "stop").touch()
        _, said = second.communicate(timeout=WAIT_S)
    one_driver = pattern_of("Two drivers on one checkpoint")
    # Before, the second may say that no broker answers its ticker.
    assert one_driver.fullmatch(ours or said.strip().splitlines()[-1]), (ours, said)
    run_once(spark, here, (ingest,))
    envelopes, quarantine = places(here, tables.ENVELOPES), places(here, tables.QUARANTINE)
    assert set(envelopes.values()) == set(quarantine.values()) == {1}
    assert len(envelopes | quarantine) == sum(map(len, pieces(world)[:produced]))


def test_a_table_that_is_deleted_while_a_job_reads_it(
    spark: SparkSession, here: Settings, world: World, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    ingest, reassembly, _ = chain_over(log)
    first, second, *_ = pieces(world)
    log.produce(first)
    run_once(spark, here, (ingest,))
    query = start(spark, here, reassembly, once=False)
    try:
        query.processAllAvailable()
        before = places(here, tables.ORDERED_SDS_MESSAGES)
        shutil.rmtree(here.paths.table("sds_messages"))
        with pytest.raises(EnvironmentFault) as fault:
            wait_for(query)
    finally:
        query.stop()
    assert pattern_of("A table that was deleted").fullmatch(f"reassembly: {fault.value}")
    # The next start does not begin anew over the rows that come.
    log.produce(second)
    for query_again in (ingest, reassembly):
        with pytest.raises(ConfigurationError) as refused:
            run_to_end(spark, here, query_again)
        assert pattern_of("A checkpoint without its table").fullmatch(str(refused.value))
    assert places(here, tables.ORDERED_SDS_MESSAGES) == before
    # The remedy that the sentence names.
    rebuild(spark, here)
    assert places(here, tables.ORDERED_SDS_MESSAGES) == before
    run_once(spark, here, (ingest, reassembly))
    assert len(places(here, tables.ENVELOPES) | places(here, tables.QUARANTINE)) == len(first) + len(second)
    assert places(here, tables.ORDERED_SDS_MESSAGES) > before


def test_a_table_that_is_deleted_while_a_job_writes_it(
    spark: SparkSession, here: Settings, world: World, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    ingest = chain_over(log)[0]
    first, second, *_ = pieces(world)
    log.produce(first)
    query = start(spark, here, ingest, once=False)
    try:
        query.processAllAvailable()
        shutil.rmtree(here.paths.table("envelopes"))
        log.produce(second)
        with pytest.raises(EnvironmentFault) as fault:
            wait_for(query)
    finally:
        query.stop()
    assert pattern_of("A table that was deleted").fullmatch(f"ingest: {fault.value}")


def test_files_that_somebody_else_vacuumed_before_a_job_read_them(
    spark: SparkSession, here: Settings, world: World, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    ingest, reassembly, _ = chain_over(log)
    for piece in pieces(world)[:3]:
        log.produce(piece)
        run_once(spark, here, (ingest,))
    table = open_table(here.paths, tables.SDS_MESSAGES)
    table.optimize.compact()
    assert table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(EnvironmentFault) as fault:
        run_to_end(spark, here, reassembly)
    assert pattern_of("Rows that were vacuumed too early").fullmatch(f"reassembly: {fault.value}")
    assert not rows(here, tables.ORDERED_SDS_MESSAGES)
