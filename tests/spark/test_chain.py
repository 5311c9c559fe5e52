"""The whole chain on real Spark and Delta: what it delivers is what was sent, however it is cut into micro-batches, and
whatever the settings of a site's Spark are."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake import tables
from reliable_channel.pipeline.runner.run import run_once
from reliable_channel.pipeline.session import set_meanwhile
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import World, simulate

from .chain import as_kafka, chain_over, configured, rows
from .chain import run_once as one_pass
from .kafka_log import KafkaLog

pytestmark = pytest.mark.spark

AN_HOUR_MS = 3_600_000
VOLATILE = {"envelopes": ["ingest_time"], "sds_messages": ["ingest_time"], "quarantine": ["ingest_time"]}
VOLATILE["delivered_messages"] = ["written_at"]
VOLATILE["delivery_status"] = ["as_of"]  # of the round that judged a message last
COMPARED = (
    tables.ENVELOPES,
    tables.QUARANTINE,
    tables.REASSEMBLED_MESSAGES,
    tables.INCOMPLETE_MESSAGES,
    tables.DELIVERIES,
    tables.ACKS,
    tables.REFETCH_REQUESTS,
    tables.LOST_DEPENDENCIES,
    tables.REPAIR_REQUESTS,
    tables.CHANNEL_EVENTS,
    tables.DELIVERED_MESSAGES,
    tables.DELIVERY_STATUS,
)
OF_A_SITE = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.session.timeZone": "America/St_Johns",
    "spark.sql.shuffle.partitions": "3",
}
"""Settings that ``spark-defaults.conf`` of a site may have; they stand before those of this project."""


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(small_scenario())


def assert_delivers_the_truth(settings: Settings, world: World) -> None:
    delivered = rows(settings, tables.DELIVERED_MESSAGES)
    true = Counter((m.channel_id, m.sender, m.payload) for m in world.truth.messages if m.outcome == "delivered")
    assert Counter((r["channel_id"], r["sender_id"], r["payload"]) for r in delivered) == true


def test_any_cut_delivers_the_truth(spark: SparkSession, settings: Settings, world: World, tmp_path: Path) -> None:
    records = as_kafka(world.records)
    quick = settings.model_copy(update={"pipeline": settings.pipeline.model_copy(update={"settle_delay_ms": 20_000})})
    whole, cut = configured(quick, world, tmp_path / "whole"), configured(quick, world, tmp_path / "cut")

    log = KafkaLog(spark, tmp_path / "whole-log")
    log.produce(records)
    run_once(spark, whole, close_after_ms=AN_HOUR_MS, queries=chain_over(log))

    log = KafkaLog(spark, tmp_path / "cut-log")
    draw = random.Random(world.scenario.seed)
    edges = sorted(draw.sample(range(1, len(records)), 8))
    ingest, *others = chain_over(log)
    for number, (start, end) in enumerate(zip([0, *edges], [*edges, len(records)], strict=True)):
        log.produce(records[start:end])
        one_pass(spark, cut, [ingest])
        if number == 4:
            verdicts.run(spark, cut)
            early = [r["cause"] for r in rows(cut, tables.DELIVERY_STATUS) if r["verdict"] == "missing"]
            assert early == [], "what reassembly and ack have yet to read is not missing"
        if number in (0, 4):  # so that every hop is cut, and the others find several commits, with files of all sizes
            one_pass(spark, cut, others)
    run_once(spark, cut, close_after_ms=AN_HOUR_MS, queries=chain_over(log))

    assert_delivers_the_truth(whole, world)
    assert len(rows(whole, tables.QUARANTINE)) == len(world.truth.bad)
    for configuration in (whole, cut):
        verdicts.run(spark, configuration)
    for table in COMPARED:
        volatile = VOLATILE.get(table.name, [])
        assert rows(cut, table, volatile) == rows(whole, table, volatile), table.name


def test_what_a_site_sets_in_spark_changes_no_delivery(
    spark: SparkSession, settings: Settings, world: World, tmp_path: Path
) -> None:
    here = configured(settings, world, tmp_path / "run")
    # Not frozen in the checkpoint, where Spark's own number of partitions stands before it.
    later = here.model_copy(update={"spark": here.spark.model_copy(update={"shuffle_partitions": 5})})
    records, log = as_kafka(world.records), KafkaLog(spark, tmp_path / "log")
    half = len(records) // 2
    with set_meanwhile(spark, OF_A_SITE):
        log.produce(records[:half])
        one_pass(spark, here, chain_over(log))
        log.produce(records[half:])
        run_once(spark, later, close_after_ms=AN_HOUR_MS, queries=chain_over(log))
    assert_delivers_the_truth(here, world)
