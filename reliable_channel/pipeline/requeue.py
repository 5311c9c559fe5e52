"""Quarantined records once more, after a fix or with a key that came: what can be decoded now goes on to ``segments``.

A record keeps its place (Kafka coordinates) and its event time, so it joins the record order as one that comes late.
Exactly once by that place: what stands in ``segments`` already is not appended again, whenever a run was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import Settings
from reliable_channel.pipeline.ddl import create_tables
from reliable_channel.pipeline.ingest import decoded, envelope_rows, segment_rows
from reliable_channel.pipeline.io import read_table
from reliable_channel.pipeline.tables import ENVELOPES, QUARANTINE, SEGMENTS

_PLACE = ["kafka_topic", "kafka_partition", "kafka_offset"]
REQUEUED = "requeued"


def requeue(spark: SparkSession, settings: Settings, reasons: Sequence[str] = ()) -> int:
    """Decode again what was dropped (of the given reasons, or of all); how many records go on now.

    What is refused again stays as it is. Records of which only a part was kept cannot be decoded and stay, too."""
    paths = settings.paths
    create_tables(spark, paths, (ENVELOPES, SEGMENTS, QUARANTINE))
    rows = dropped(spark, settings, reasons).transform(decoded(settings.channels, settings.pipeline)).persist()
    try:
        refused_before = read_table(spark, paths, QUARANTINE).select(
            F.col("kafka_topic").alias("topic"),
            F.col("kafka_partition").alias("partition"),
            F.col("kafka_offset").alias("offset"),
            "event_time",
        )
        good = rows.where("d.kind in ('sds', 'plain')").join(
            refused_before.dropDuplicates(["topic", "partition", "offset"]), ["topic", "partition", "offset"]
        )
        # Counted before anything is written: Spark computes a cached plan again when a table below it has changed.
        count = good.count()
        for table, made in ((ENVELOPES, envelope_rows(good)), (SEGMENTS, segment_rows(good))):
            new = made.join(read_table(spark, paths, table).select(*_PLACE), _PLACE, "left_anti")
            new.select(*table.names()).write.format("delta").mode("append").save(paths.table(table.name))
        places = good.select(*(F.col(name.removeprefix("kafka_")).alias(name) for name in _PLACE)).distinct()
        target = DeltaTable.forPath(spark, paths.table(QUARANTINE.name)).alias("q")
        same = " and ".join(f"q.{name} = p.{name}" for name in _PLACE)
        changed: dict[str, str | Column] = {"disposition": F.lit(REQUEUED)}
        target.merge(places.alias("p"), same).whenMatchedUpdate("q.disposition = 'dropped'", changed).execute()
        return count
    finally:
        rows.unpersist()


def dropped(spark: SparkSession, settings: Settings, reasons: Sequence[str]) -> DataFrame:
    """The dropped records as Kafka gave them: whole values from ``envelopes`` where they stand there, else from what
    quarantine kept, when that is all of it."""
    refused = read_table(spark, settings.paths, QUARANTINE).where(
        "disposition = 'dropped' and pubsub_topic is not null"
    )
    if reasons:
        refused = refused.where(F.col("reason").isin(*reasons))
    values = read_table(spark, settings.paths, ENVELOPES).select(*_PLACE, "value")
    whole = refused.dropDuplicates(_PLACE).join(values, _PLACE, "left")
    kept = F.when(F.octet_length("raw") == F.col("raw_bytes"), F.col("raw"))

    def header(name: str) -> Column:
        return F.struct(F.lit(name).alias("key"), F.encode(F.col(name), "UTF-8").alias("value"))

    return whole.select(
        F.col("kafka_topic").alias("topic"),
        F.col("kafka_partition").alias("partition"),
        F.col("kafka_offset").alias("offset"),
        F.col("record_time").alias("timestamp"),
        F.coalesce("value", kept).alias("value"),
        F.array(header("pubsub_topic"), header("source")).alias("headers"),
    ).where("value is not null")
