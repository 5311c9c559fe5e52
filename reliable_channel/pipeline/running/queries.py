"""The streaming queries, one per job: what each reads, transforms and writes. ``jobs/`` and ``run`` start the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import Settings
from reliable_channel.pipeline.ack import deliver
from reliable_channel.pipeline.ack import stream as ack
from reliable_channel.pipeline.ingest import stream as ingest
from reliable_channel.pipeline.reassembly import stream as reassembly
from reliable_channel.pipeline.running import settings_guard
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import BatchSink, each_batch, read_stream
from reliable_channel.pipeline.tables import CLOCK, DELIVERIES, OPEN_KEYS, SDS_INPUT, SEGMENTS, Table


@dataclass(frozen=True)
class Query:
    """One exactly-once hop. ``tables`` are created before it starts: those it reads and those it writes."""

    name: str
    read: Callable[[SparkSession, Settings], DataFrame]
    transform: Callable[[Settings], Callable[[DataFrame], DataFrame]]
    writer: Callable[[Settings], Callable[[DataFrame, BatchSink], None]]
    tables: tuple[Table, ...]
    writes_to_kafka: bool = False


INGEST = Query(
    "ingest",
    lambda spark, s: ingest.kafka_records(spark, s.kafka, s.pipeline, s.spark.max_offsets_per_trigger),
    lambda s: ingest.records_of(s.pipeline),
    ingest.IngestWriter,
    (*ingest.TABLES_WRITTEN, CLOCK),
)
REASSEMBLY = Query(
    "reassembly",
    lambda spark, s: read_stream(spark, s.paths, SEGMENTS),
    reassembly.reassembled,
    reassembly.ReassemblyWriter,
    (SEGMENTS, *reassembly.TABLES_WRITTEN, OPEN_KEYS),
)
ACK = Query(
    "ack",
    lambda spark, s: read_stream(spark, s.paths, SDS_INPUT),
    ack.acknowledged,
    ack.AckWriter,
    (SDS_INPUT, *ack.TABLES_WRITTEN, OPEN_KEYS),
)
DELIVER = Query(
    "deliver",
    lambda spark, s: read_stream(spark, s.paths, DELIVERIES),
    lambda s: deliver.messages_only,
    deliver.DeliverWriter,
    (DELIVERIES, *deliver.TABLES_READ, *deliver.TABLES_WRITTEN),
)
CHAIN = (INGEST, REASSEMBLY, ACK, DELIVER)
"""The main chain, in the order of the data flow."""


def start(spark: SparkSession, settings: Settings, query: Query, once: bool) -> StreamingQuery:
    """Start a query: over what is there now and then end (``once``), or continuously until it is stopped.

    Creates the tables it needs. The checkpoint makes a restart continue where the last run stopped. Raises
    ``ConfigurationError`` when the checkpoint was made with settings that it freezes and that differ now."""
    settings_guard.check(settings, query.name, {key: str(spark.conf.get(key, "")) for key in settings_guard.SPARK_KEYS})
    create_tables(spark, settings.paths, query.tables)
    # A micro-batch without data would only evict what de-duplication no longer needs; the next one with data does it.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    trigger = (
        {"availableNow": True} if once else {"processingTime": f"{settings.spark.trigger_interval_ms} milliseconds"}
    )
    return (
        query.read(spark, settings)
        .transform(query.transform(settings))
        .writeStream.queryName(query.name)
        .foreachBatch(each_batch(spark, settings.paths, query.writer(settings)))
        .option("checkpointLocation", settings.paths.checkpoint(query.name))
        .trigger(**trigger)
        .start()
    )
