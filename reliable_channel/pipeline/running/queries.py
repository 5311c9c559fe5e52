"""The streaming queries, one per job: what each reads, transforms and writes. ``jobs/`` and ``run`` start the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import Settings
from reliable_channel.pipeline.ack import stream as ack
from reliable_channel.pipeline.ack.deliver import TABLES_READ as PAYLOADS
from reliable_channel.pipeline.ingest import stream as ingest
from reliable_channel.pipeline.ingest.batch_size import records_per_trigger
from reliable_channel.pipeline.reassembly import stream as reassembly
from reliable_channel.pipeline.running import settings_guard, taking_over
from reliable_channel.pipeline.running.turns import Turns
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import BatchSink, each_batch, read_stream
from reliable_channel.pipeline.storage.session import set_meanwhile
from reliable_channel.pipeline.tables import CLOCK, OPEN_KEYS, SDS_INPUT, SEGMENTS, Table

Source = Callable[[SparkSession, Settings], DataFrame]


@dataclass(frozen=True)
class Query:
    """One exactly-once hop. ``reads``: the table whose new rows it reads, or the stream of another source. ``tables``
    are created before it starts: those it reads and those it writes."""

    name: str
    reads: Table | Source
    transform: Callable[[Settings], Callable[[DataFrame], DataFrame]]
    writer: Callable[[Settings], Callable[[DataFrame, BatchSink], None]]
    tables: tuple[Table, ...]


INGEST = Query(
    "ingest",
    lambda spark, s: ingest.kafka_records(spark, s.kafka, s.pipeline, records_per_trigger(s)),
    lambda s: ingest.records_of(s.pipeline),
    ingest.IngestWriter,
    (*ingest.TABLES_WRITTEN, CLOCK),
)
REASSEMBLY = Query(
    "reassembly",
    SEGMENTS,
    reassembly.reassembled,
    reassembly.ReassemblyWriter,
    (SEGMENTS, *reassembly.TABLES_WRITTEN, OPEN_KEYS),
)
ACK = Query(
    "ack",
    SDS_INPUT,
    ack.acknowledged,
    ack.AckWriter,
    (SDS_INPUT, *PAYLOADS, *ack.TABLES_WRITTEN, OPEN_KEYS),
)
CHAIN = (INGEST, REASSEMBLY, ACK)
"""The main chain, in the order of the data flow."""


_POLLING_DELAY = "200ms"
"""How often a query without a trigger interval looks for new commits, while there are none."""


def start(
    spark: SparkSession, settings: Settings, query: Query, once: bool, turns: Turns | None = None
) -> StreamingQuery:
    """Start a query: over what is there now and then end (``once``), or continuously until it is stopped; ``turns``
    are those of the queries beside it.

    Kafka is read at the trigger interval, a table as soon as it has new rows. Creates the tables it needs. The
    checkpoint makes a restart continue where the last run stopped. Raises ``ConfigurationError`` when the checkpoint
    was made with settings that it freezes and that differ now."""
    if query.name == ACK.name:
        taking_over.finish(settings.paths)
    settings_guard.check(settings, query.name, {key: str(spark.conf.get(key, "")) for key in settings_guard.SPARK_KEYS})
    create_tables(settings.paths, query.tables)
    # A micro-batch without data would only evict what de-duplication no longer needs; the next one with data does it.
    spark.conf.set("spark.sql.streaming.noDataMicroBatches.enabled", "false")
    wanted = {"spark.sql.streaming.pollingDelay": "10ms" if once else _POLLING_DELAY}
    with set_meanwhile(spark, wanted):  # a query keeps the settings that it starts with
        turn = turns.of(query.name) if turns else None
        return (
            _rows_of(spark, settings, query)
            .transform(query.transform(settings))
            .writeStream.queryName(query.name)
            .foreachBatch(each_batch(spark, settings.paths, query.writer(settings), turn))
            .option("checkpointLocation", settings.paths.checkpoint(query.name))
            .trigger(**_trigger(settings, query, once))
            .start()
        )


def _rows_of(spark: SparkSession, settings: Settings, query: Query) -> DataFrame:
    if isinstance(query.reads, Table):
        return read_stream(spark, settings.paths, query.reads)
    return query.reads(spark, settings)


def _trigger(settings: Settings, query: Query, once: bool) -> dict[str, Any]:
    if once:
        return {"availableNow": True}
    interval_ms = 0 if isinstance(query.reads, Table) else settings.spark.trigger_interval_ms
    return {"processingTime": f"{interval_ms} milliseconds"}
