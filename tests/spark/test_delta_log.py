"""Checkpoints of Delta's logs, which delta-rs writes: what Delta itself finds in them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.pipeline.clock import Reached
from reliable_channel.pipeline.ingest.stream import tick_files
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import CHECKPOINT_EVERY, BatchSink, read_table
from reliable_channel.pipeline.tables import SEGMENTS

pytestmark = pytest.mark.spark


def test_nothing_is_lost_when_only_a_checkpoint_tells_of_the_first_commits(
    spark: SparkSession, settings: Settings
) -> None:
    create_tables(spark, settings.paths, (SEGMENTS,))
    for batch_id in range(CHECKPOINT_EVERY):
        files = tick_files(settings.paths, {("t", 0): Reached(10**15, batch_id + 1)}, 10**15)
        BatchSink(settings.paths, "stream", batch_id).add_files(spark, SEGMENTS, files)
    place = settings.paths.table(SEGMENTS.name)
    log = Path(place) / "_delta_log"
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    known = int(checkpoint.name.split(".")[0])
    for file in (*log.glob("[0-9]*.json"), *log.glob("[0-9]*.crc")):
        if int(file.name.split(".")[0]) <= known:
            file.unlink()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    detail = spark.sql(f"describe detail delta.`{place}`").collect()[0]
    assert tuple(detail["clusteringColumns"]) == SEGMENTS.cluster_by
    assert read_table(spark, settings.paths, SEGMENTS).count() == CHECKPOINT_EVERY
    for batch_id in (0, CHECKPOINT_EVERY - 1):
        assert BatchSink(settings.paths, "stream", batch_id).written(SEGMENTS)
    assert not BatchSink(settings.paths, "stream", CHECKPOINT_EVERY).written(SEGMENTS)
