"""Operations on real Spark and Delta: metrics, settings that a checkpoint froze, maintenance, rebuild."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from delta.tables import DeltaTable
from pyspark.sql import SparkSession

from reliable_channel.config import ChannelsSettings, ChannelTopic, Settings
from reliable_channel.errors import ConfigurationError
from reliable_channel.pipeline import maintain, tables
from reliable_channel.pipeline.io import open_table
from reliable_channel.pipeline.metrics import measured
from reliable_channel.pipeline.rebuild import rebuild
from reliable_channel.pipeline.status import collect
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import World, simulate
from tests.support import error_page

from .chain import as_kafka, chain_over, rows, run_once
from .kafka_log import KafkaLog

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(small_scenario())


@pytest.fixture
def configured(settings: Settings, world: World) -> Settings:
    topics = tuple(ChannelTopic(content_topic=t) for t in sorted({c.content_topic for c in world.scenario.channels}))
    return settings.model_copy(update={"channels": ChannelsSettings(content_topics=topics)})


def test_progress_is_recorded_and_a_frozen_setting_is_named(
    spark: SparkSession, configured: Settings, world: World, tmp_path: Path
) -> None:
    log = KafkaLog(spark, tmp_path / "log")
    log.produce(as_kafka(world.records))
    with measured(spark, configured, serve=False):
        run_once(spark, configured, chain_over(log)[:2])

    found = {(r["query"], r["metric"]): r["value"] for r in rows(configured, tables.PIPELINE_METRICS)}
    assert found["ingest", "input_rows"] == len(world.records)
    assert found["ingest", "quarantined_rows"] == len(world.truth.bad)
    assert found["reassembly", "lag_commits"] == 0
    assert found["reassembly", "dropped_by_watermark_rows"] == 0
    assert found["reassembly", "state_rows"] > 0
    assert found["reassembly", "state_memory_bytes"] > 0
    keys = [(r["query"], r["run_id"], r["batch_id"], r["metric"]) for r in rows(configured, tables.PIPELINE_METRICS)]
    assert len(keys) == len(set(keys))
    assert {job["job"]: job["micro_batch"] for job in collect(configured)["jobs"]} == {"ingest": 0, "reassembly": 0}

    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        with pytest.raises(ConfigurationError, match=r"shuffle_partitions=2, and the configuration says 7") as fault:
            run_once(spark, configured, chain_over(log)[1:2])
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", str(before))
    assert error_page.expected("A checkpoint that was made with another setting").fullmatch(str(fault.value))


# A tick that was deleted comes back from the clock, which keeps its event time and its own time of recording.
VOLATILE = {"delivered_messages": ["written_at"], "segments": ["ingest_time"]}
DERIVED = (
    tables.ENVELOPES,
    tables.SEGMENTS,
    tables.QUARANTINE,
    tables.SDS_INPUT,
    tables.MESSAGES,
    tables.INCOMPLETE_MESSAGES,
    tables.DELIVERIES,
    tables.ACKS,
    tables.REFETCH_REQUESTS,
    tables.LOST_DEPENDENCIES,
    tables.CHANNEL_EVENTS,
    tables.DELIVERED_MESSAGES,
)
CARRIED = (tables.CLOCK, tables.SOURCE_GAPS)
PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")
MAINTAINED = ("segments", "deliveries", "open_keys", "clock")


def contents(settings: Settings) -> dict[str, list[dict[str, Any]]]:
    return {table.name: rows(settings, table, VOLATILE.get(table.name, [])) for table in (*DERIVED, *CARRIED)}


def test_maintenance_spares_a_stream_that_lags_and_a_rebuild_gives_the_same_tables(
    spark: SparkSession, configured: Settings, world: World, tmp_path: Path
) -> None:
    eager = configured.model_copy(
        update={"pipeline": configured.pipeline.model_copy(update={"vacuum_retention_ms": 0})}
    )
    recorded = as_kafka(world.records)
    shift_ms = time.time_ns() // 1_000_000 - max(record.time_ms for record in recorded)  # young enough to be kept
    records = [replace(record, time_ms=record.time_ms + shift_ms) for record in recorded]
    log = KafkaLog(spark, tmp_path / "log")
    ingest, *others = chain_over(log)
    log.produce(records[: len(records) // 2])
    run_once(spark, eager, (ingest, *others))
    log.produce(records[len(records) // 2 :])
    run_once(spark, eager, (ingest,))

    # The other jobs lag behind by a commit whose files OPTIMIZE replaces, and VACUUM would take at once.
    before = contents(eager)
    written = len(open_table(eager.paths, tables.SEGMENTS).file_uris())
    planned = {outcome.table: outcome for outcome in maintain.run(spark, eager, dry_run=True, only=MAINTAINED)}
    assert contents(eager) == before
    assert len(open_table(eager.paths, tables.SEGMENTS).file_uris()) == written
    assert planned["segments"].held_by == "reassembly"
    done = {outcome.table: outcome for outcome in maintain.run(spark, eager, only=MAINTAINED)}
    assert done["segments"].files_vacuumed == 0
    assert done["deliveries"].held_by is None
    assert contents(eager) == before
    run_once(spark, eager, others)
    read = {tuple(row[c] for c in PLACE) for row in rows(eager, tables.SDS_INPUT)}
    assert read == {tuple(row[c] for c in PLACE) for row in rows(eager, tables.SEGMENTS)}
    assert len(rows(eager, tables.SDS_INPUT)) > len(before["sds_input"])
    true = {(m.channel_id, m.sender, m.payload) for m in world.truth.messages if m.outcome == "delivered"}
    delivered = rows(eager, tables.DELIVERED_MESSAGES)
    assert {(r["channel_id"], r["sender_id"], r["payload"]) for r in delivered} <= true
    reference = contents(eager)

    # Nobody lags any more: the replaced files go, and streams from the first commit could not be read again.
    maintained = {outcome.table: outcome for outcome in maintain.run(spark, eager, only=("segments",))}
    assert maintained["segments"].files_vacuumed > 0
    for damaged in (tables.SEGMENTS, tables.MESSAGES, tables.DELIVERIES):
        DeltaTable.forPath(spark, eager.paths.table(damaged.name)).delete("kafka_partition = 0")
    maintain.run(spark, eager, only=("segments", "messages"))

    done_again = rebuild(spark, eager)
    assert done_again.envelopes == len(reference["envelopes"])
    assert done_again.older_rows == 0
    assert done_again.old_tables is not None
    found = contents(eager)
    for name, expected in reference.items():
        assert found[name] == expected, name
    run_once(spark, eager, (ingest, *others))
    assert contents(eager) == reference, "the jobs go on where they were"
