"""Defines the streaming queries, one per job: what each reads, transforms and writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import Settings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.checkpoints import repoint_state_schemas
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import CLOCK, ORDERED_SDS_MESSAGES, SDS_MESSAGES, Table
from reliable_channel.pipeline.ack import stream as ack
from reliable_channel.pipeline.ack.deliver import TABLES_READ as PAYLOADS
from reliable_channel.pipeline.delta import each_batch, read_stream
from reliable_channel.pipeline.ingest import stream as ingest
from reliable_channel.pipeline.ingest.batch_size import limit_records
from reliable_channel.pipeline.ingest.lost_offsets import ask_broker
from reliable_channel.pipeline.ingest.recreated_topic import find_unread
from reliable_channel.pipeline.reassembly import stream as reassembly
from reliable_channel.pipeline.runner import settings_guard
from reliable_channel.pipeline.runner.turns import Turns
from reliable_channel.pipeline.session import set_meanwhile

Source = Callable[[SparkSession, Settings], DataFrame]

Writer = Callable[[DataFrame, BatchSink], None]
"""A function that computes and writes one micro-batch."""


@dataclass(frozen=True)
class Query:
    """One exactly-once hop. ``reads``: the table whose new rows it reads, or a function that opens another stream.
    ``tables``: the tables it reads and writes; they are created before it starts."""

    name: str
    reads: Table | Source
    transform: Callable[[Settings], Callable[[DataFrame], DataFrame]]
    writer: Callable[[Settings], Writer]
    tables: tuple[Table, ...]


INGEST = Query(
    "ingest",
    lambda spark, s: ingest.read_kafka_records(spark, s.kafka, s.pipeline, limit_records(s)),
    lambda s: ingest.select_records(s.pipeline),
    lambda s: ingest.IngestWriter(s, ask_broker(s.kafka), partial(find_unread, s)),
    (*ingest.TABLES_WRITTEN, CLOCK),
)
REASSEMBLY = Query(
    "reassembly",
    SDS_MESSAGES,
    reassembly.reassemble,
    lambda _: reassembly.write_batch,
    (SDS_MESSAGES, *reassembly.TABLES_WRITTEN),
)
ACK = Query(
    "ack",
    ORDERED_SDS_MESSAGES,
    ack.acknowledge,
    lambda _: ack.write_batch,
    (ORDERED_SDS_MESSAGES, *PAYLOADS, *ack.TABLES_WRITTEN),
)
CHAIN = (INGEST, REASSEMBLY, ACK)
"""The main chain, in the order of the data flow."""


_POLLING_DELAY = "1s"
"""How often a query without a trigger interval checks for new commits while there are none. Spark's default is 10 ms;
at 0.2 s, and with more ticks, an idle pipeline used twice as much CPU (docs/measurements-history.md, *At 100 records/s,
and without records*)."""


def check(spark: SparkSession, settings: Settings, query: Query) -> None:
    """Raise ``ConfigurationError`` if a setting differs from the one fixed in the checkpoint of ``query``, or if one of
    its tables no longer exists or is of another time than the checkpoint."""
    conf = {key: str(spark.conf.get(key, "")) for key in settings_guard.SPARK_KEYS}
    settings_guard.check(settings, query.name, conf, query.tables)


def start(
    spark: SparkSession,
    settings: Settings,
    query: Query,
    once: bool,
    turns: Turns | None = None,
    writer: Writer | None = None,
) -> StreamingQuery:
    """Start a query: over the available rows until they end (``once``), or continuously until it is stopped.

    ``turns``: the turns of all queries of the session. ``writer``: by default the query's own.

    Kafka is read at the trigger interval, a table as soon as it has new rows. Creates the tables it needs. The
    checkpoint makes a restart continue where the last run stopped. Raises as :func:`check`."""
    check(spark, settings, query)
    repoint_state_schemas(settings.paths, query.name)
    create_tables(settings.paths, query.tables)
    wanted = {"spark.sql.streaming.pollingDelay": "10ms" if once else _POLLING_DELAY}
    with set_meanwhile(spark, wanted):  # a query keeps the settings of its start
        turn = partial(turns.take_turn, query.name) if turns else None
        reads = query.reads
        rows = read_stream(spark, settings.paths, reads) if isinstance(reads, Table) else reads(spark, settings)
        return (
            rows.transform(query.transform(settings))
            .writeStream.queryName(query.name)
            # Not Delta's sink, which writes one table: tasks write several (docs/pipeline.md, *Exactly once*).
            .foreachBatch(each_batch(spark, settings.paths, writer or query.writer(settings), turn))
            .option("checkpointLocation", settings.paths.checkpoint(query.name))
            .trigger(**_choose_trigger(settings, query, once))
            .start()
        )


def _choose_trigger(settings: Settings, query: Query, once: bool) -> dict[str, Any]:
    if once:
        return {"availableNow": True}
    # 0: the next micro-batch begins as soon as the last one is done, if there are rows.
    interval_ms = 0 if isinstance(query.reads, Table) else settings.spark.trigger_interval_ms
    return {"processingTime": f"{interval_ms} milliseconds"}
