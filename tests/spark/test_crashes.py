"""The crash matrix at function level (docs/pipeline.md *Crashes*): after every crash the first restart goes on, and in
the end no row is lost and none is doubled. Whole processes are killed in ``tests/e2e/test_kill_restart.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake import tables
from reliable_channel.pipeline.ack import stream as ack
from reliable_channel.pipeline.reassembly import stream as reassembly
from reliable_channel.pipeline.runner.queries import Query, start
from reliable_channel.pipeline.runner.run import run_to_end
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import World, simulate

from .chain import as_kafka, chain_over, configured, rows, run_once
from .crashes import AFTER_THE_LAST, CrashError, DyingWorker, breaking_off
from .kafka_log import KafkaLog

pytestmark = [pytest.mark.spark, pytest.mark.faults]

VOLATILE = {
    "envelopes": ["ingest_time"],
    "sds_messages": ["ingest_time"],
    "quarantine": ["ingest_time"],
    "source_gaps": ["ingest_time"],
    "clock": ["query_id", "recorded_at"],
    "delivered_messages": ["written_at"],
}
WRITTEN = (
    tables.ENVELOPES,
    tables.SDS_MESSAGES,
    tables.QUARANTINE,
    tables.SOURCE_GAPS,
    tables.CLOCK,
    tables.ORDERED_SDS_MESSAGES,
    tables.REASSEMBLED_MESSAGES,
    tables.INCOMPLETE_MESSAGES,
    tables.DELIVERIES,
    tables.ACKS,
    tables.REFETCH_REQUESTS,
    tables.LOST_DEPENDENCIES,
    tables.REPAIR_REQUESTS,
    tables.CHANNEL_EVENTS,
    tables.DELIVERED_MESSAGES,
)
MAX_APPENDS = 20


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(small_scenario())


@pytest.fixture(scope="module")
def log(spark: SparkSession, world: World, tmp_path_factory: pytest.TempPathFactory) -> KafkaLog:
    found = KafkaLog(spark, tmp_path_factory.mktemp("log") / "log")
    found.produce(as_kafka(world.records))
    return found


def contents(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    return {table.name: rows(settings, table, VOLATILE.get(table.name, [])) for table in WRITTEN}


@pytest.fixture(scope="module")
def undisturbed(
    spark: SparkSession,
    spark_settings: Settings,
    world: World,
    log: KafkaLog,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[dict[str, Any]]]:
    """The tables of a run to which nothing happens."""
    settings = configured(spark_settings, world, tmp_path_factory.mktemp("undisturbed"))
    run_once(spark, settings, chain_over(log))
    return contents(settings)


def crashes(spark: SparkSession, settings: Settings, query: Query) -> int:
    """Crash before the first append, after every append, and after the last; each start but the first is a restart.
    How many crashes there were."""
    for appends in range(MAX_APPENDS):
        with pytest.raises(StreamingQueryException, match=CrashError.__name__) as crash:
            start(spark, settings, breaking_off(query, appends), once=True).awaitTermination()
        if AFTER_THE_LAST in str(crash.value):
            return appends + 1
    raise AssertionError(f"{query.name} made more than {MAX_APPENDS} appends")


def test_a_crash_before_between_and_after_the_appends_of_a_micro_batch_loses_and_doubles_nothing(
    spark: SparkSession,
    settings: Settings,
    world: World,
    log: KafkaLog,
    undisturbed: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    here = configured(settings, world, tmp_path)
    for query in chain_over(log):
        assert crashes(spark, here, query) >= 2
        start(spark, here, query, once=True).awaitTermination()
    found = contents(here)
    for name, expected in undisturbed.items():
        assert found[name] == expected, name


def test_a_python_worker_killed_also_while_state_is_committed_costs_a_restart_and_nothing_else(
    spark: SparkSession,
    settings: Settings,
    world: World,
    log: KafkaLog,
    undisturbed: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = configured(settings, world, tmp_path)
    ingest, *others = chain_over(log)
    run_once(spark, here, (ingest,))
    functions = ((reassembly, "KeyedSets"), (ack, "stateful"))
    for query, (module, function), halves in zip(others, functions, (True, False), strict=False):
        notes = tmp_path / f"{query.name}-notes"
        notes.mkdir()
        whole, checkpoint = getattr(module, function), Path(here.paths.checkpoint(query.name)) if halves else None

        def dying(*arguments: Any, **named: Any) -> DyingWorker:
            return DyingWorker(whole(*arguments, **named), notes, checkpoint)  # noqa: B023 - used before the next turn

        with monkeypatch.context() as patched:
            patched.setattr(module, function, dying)
            with pytest.raises(EnvironmentFault, match=f"The query {query.name} failed"):
                run_to_end(spark, here, query)
        assert (notes / "died").exists()
        run_to_end(spark, here, query)
    run_once(spark, here, others[2:])
    found = contents(here)
    for name, expected in undisturbed.items():
        assert found[name] == expected, name
