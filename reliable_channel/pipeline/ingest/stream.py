"""Kafka records to ``envelopes``, ``segments``, ``quarantine``, ``source_gaps`` and ``clock`` (design.md, first hop).

``kafka_records`` reads, ``decoded`` transforms, ``IngestWriter`` writes one micro-batch, exactly once.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import Row

from reliable_channel.config import (
    ChannelsSettings,
    KafkaSettings,
    PathSettings,
    PipelineSettings,
    Settings,
)
from reliable_channel.pipeline.clock import IngestClock, Place, Reached
from reliable_channel.pipeline.ingest import admission
from reliable_channel.pipeline.ingest.arrow import DECODED_DDL, decoded_array
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from reliable_channel.pipeline.ingest.gaps import gap_rows, missing_offsets
from reliable_channel.pipeline.operations import counters
from reliable_channel.pipeline.storage.io import BatchSink, conformed
from reliable_channel.pipeline.tables import ENVELOPES, QUARANTINE, SEGMENTS, SOURCE_GAPS

TABLES_WRITTEN = (ENVELOPES, SEGMENTS, QUARANTINE, SOURCE_GAPS)


def kafka_records(
    spark: SparkSession, kafka: KafkaSettings, pipeline: PipelineSettings, max_offsets_per_trigger: int
) -> DataFrame:
    """The envelopes topic as a stream. What Kafka has already deleted does not stop it: ``source_gaps`` says it."""
    return (
        spark.readStream.format("kafka")
        .options(**kafka.spark_options())
        .option("subscribe", kafka.topics.envelopes)
        .option("startingOffsets", pipeline.starting_offsets)
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        .option("failOnDataLoss", "false")
        .option("includeHeaders", "true")
        .load()
    )


def decoded(
    channels: ChannelsSettings, pipeline: PipelineSettings, keep: tuple[str, ...] = ()
) -> Callable[[DataFrame], DataFrame]:
    """Kafka records → the same with ``ingest_time`` and the struct ``d`` of :class:`~.decode.Decoded`; columns ``keep``
    of the records go along.

    ``d.event_time_us`` is min(record time, ingest clock + ``max_clock_skew_ms``) as a running maximum of the rows of
    its partition in this micro-batch. The ingest clock is the micro-batch's timestamp, which Spark keeps in the
    checkpoint before it runs the batch, so a replay computes the same rows.
    """

    @F.arrow_udf(DECODED_DDL)  # type: ignore[attr-defined, untyped-decorator]
    def decode(columns: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        decoder = RecordDecoder(channels, pipeline)
        reached: dict[Place, int] = {}
        for value, pubsub_topic, source, time, topic, partition in columns:
            times = time.to_numpy(zero_copy_only=False)
            rows = [
                decoder.decode(*row)
                for row in zip(
                    value.to_pylist(), pubsub_topic.to_pylist(), source.to_pylist(), times.tolist(), strict=True
                )
            ]
            yield decoded_array(rows, running_maximum(times, topic, partition, reached))

    def transform(records: DataFrame) -> DataFrame:
        latest = F.current_timestamp() + F.make_dt_interval(secs=F.lit(pipeline.max_clock_skew_ms / 1000))
        time = F.unix_micros(F.least(F.coalesce("timestamp", F.timestamp_seconds(F.lit(0))), latest))
        columns = [F.col("value"), header("pubsub_topic"), header("source"), time, F.col("topic"), F.col("partition")]
        return records.select(
            "topic",
            "partition",
            "offset",
            "timestamp",
            "value",
            F.current_timestamp().alias("ingest_time"),
            decode(*columns).alias("d"),
            *keep,
        )

    return transform


def header(name: str) -> Column:
    """The value of a Kafka header, the last one of that name, or null."""
    found = F.filter(F.col("headers"), lambda entry: entry["key"] == name)
    return F.try_element_at(found, F.lit(-1))["value"]


def running_maximum(times: Any, topic: pa.Array, partition: pa.Array, reached: dict[Place, int]) -> Any:
    """``times`` (µs) as a running maximum per Kafka partition; ``reached`` carries it on to the next rows of the task.

    One task reads one partition, so the loop is over one place nearly always."""
    result = np.empty(len(times), dtype=np.int64)
    partitions = partition.to_numpy(zero_copy_only=False)
    topics = np.asarray(topic.to_pylist(), dtype=object)
    for place in {*zip(topics.tolist(), partitions.tolist(), strict=True)}:
        here = (topics == place[0]) & (partitions == place[1])
        own = np.maximum.accumulate(times[here])
        floor = reached.get(place)
        if floor is not None:
            own = np.maximum(own, floor)
        result[here] = own
        reached[place] = int(own[-1])
    return result


class IngestWriter:
    """Writes decoded micro-batches; fits :func:`reliable_channel.pipeline.storage.io.each_batch`.

    ``lock`` is held while a micro-batch is written: no tick may come between its event times and its commit."""

    def __init__(self, settings: Settings) -> None:
        self._pipeline = settings.pipeline
        self._admission = admission.Admission(settings.quotas)
        self.clock = IngestClock(settings.paths)
        self.lock = threading.Lock()
        _WRITERS[settings.paths.data_dir] = self

    def __call__(self, rows: DataFrame, sink: BatchSink) -> None:
        with self.lock:
            self._write(rows, sink)

    def _write(self, rows: DataFrame, sink: BatchSink) -> None:
        if self.clock.load(sink.query_id, sink.batch_id):
            places = {place: (at.event_time_us, at.next_offset) for place, at in self.clock.reached.items()}
            self._admission.restore(rows.sparkSession, sink.paths, places)
        floors = {place: at.event_time_us for place, at in self.clock.reached.items()}
        rows = rows.withColumn("event_time", F.timestamp_micros(F.greatest("d.event_time_us", _floor(floors))))
        groups = self._admission.groups(
            rows,
            F.count("*").alias("records"),
            F.min("offset").alias("first_offset"),
            F.max("offset").alias("last_offset"),
            F.min("d.event_time_us").alias("first_time_us"),
            F.max("d.event_time_us").alias("event_time_us"),
            F.max("ingest_time").alias("ingest_time"),
            F.count("d.reason").alias("refused"),
        )
        stats = _by_place(groups)
        refused = self._admission.refused(rows, groups)
        rows = admission.marked(rows, refused)
        reached = {
            place: Reached(max(s["event_time_us"], floors.get(place, 0)), s["last_offset"] + 1)
            for place, s in stats.items()
        }
        sink.append(envelope_rows(rows), ENVELOPES)
        ticks = tick_rows(rows.sparkSession, reached, max((s["ingest_time"] for s in stats.values()), default=None))
        sink.append(segment_rows(rows).unionByName(ticks), SEGMENTS)
        quarantined = sum(s["refused"] for s in stats.values()) + len(refused)
        if quarantined:
            sink.append(quarantine_rows(rows, self._pipeline.quarantine_raw_bytes), QUARANTINE)
        gaps = missing_offsets(rows, stats, self.clock.reached)
        sink.append_small(gap_rows(gaps), SOURCE_GAPS)
        self.clock.record(sink, reached)
        counters.put(sink.query_id, sink.batch_id, quarantined_rows=quarantined)


_WRITERS: dict[str, IngestWriter] = {}


def running_writer(paths: PathSettings) -> IngestWriter:
    """The writer of the ingest query that this process runs into these tables."""
    return _WRITERS[paths.data_dir]


_FOLDS: dict[str, Callable[[list[Any]], Any]] = {
    "records": sum,
    "first_offset": min,
    "last_offset": max,
    "first_time_us": min,
    "event_time_us": max,
    "ingest_time": max,
    "refused": sum,
}


def _by_place(groups: list[Row]) -> dict[Place, dict[str, Any]]:
    """The numbers of a micro-batch by Kafka partition alone."""
    found: dict[Place, list[Row]] = {}
    for row in groups:
        found.setdefault((row["topic"], row["partition"]), []).append(row)
    return {
        place: {name: fold([row[name] for row in rows]) for name, fold in _FOLDS.items()}
        for place, rows in found.items()
    }


def _floor(floors: dict[Place, int]) -> Column:
    """The recorded clock of the row's partition, µs."""
    column = F.lit(None).cast("bigint")
    for (topic, partition), at in floors.items():
        here = (F.col("topic") == topic) & (F.col("partition") == partition)
        column = F.when(here, F.lit(at)).otherwise(column)
    return column


def envelope_rows(rows: DataFrame) -> DataFrame:
    """What could be read as an envelope, as rows of ``envelopes``."""
    return rows.where("d.kind is not null").select(
        *_coordinates(),
        F.col("timestamp").alias("record_time"),
        "event_time",
        "ingest_time",
        "d.source",
        "d.pubsub_topic",
        "d.content_topic",
        "d.message_hash",
        "value",
        F.octet_length("value").alias("value_bytes"),
        "d.sender_timestamp_ns",
        "d.ephemeral",
        "d.kind",
    )


def segment_rows(rows: DataFrame) -> DataFrame:
    """The SDS messages, as rows of ``segments``."""
    content = F.substring(F.col("value"), F.col("d.content_at") + 1, F.col("d.content_bytes"))
    bloom_filter = F.substring(F.col("value"), F.col("d.filter_at") + 1, F.col("d.filter_bytes"))
    special = {
        "content": F.coalesce(content, F.col("d.content")),
        "bloom_filter": F.coalesce(bloom_filter, F.col("d.bloom_filter")),
        "envelope_hash": F.col("d.message_hash"),
        "event_time": F.col("event_time"),
        "ingest_time": F.col("ingest_time"),
    }
    return rows.where("d.kind = 'sds'").select(
        *_coordinates(),
        *(special.get(name, F.col(f"d.{name}")).alias(name) for name in SEGMENTS.names()[3:]),
    )


def tick_rows(spark: SparkSession, reached: dict[Place, Reached], ingest_time: dt.datetime | None) -> DataFrame:
    """The recorded clock as rows of ``segments``, after the last record read of each partition."""
    ticks = spark.createDataFrame(
        [
            (topic, partition, at.next_offset - 1, at.event_time_us, ingest_time)
            for (topic, partition), at in sorted(reached.items())
        ],
        "kafka_topic string, kafka_partition int, kafka_offset bigint, us bigint, ingest_time timestamp",
    )
    ticks = ticks.withColumn("event_time", F.timestamp_micros("us")).withColumn("sds_kind", F.lit("tick"))
    return conformed(ticks, SEGMENTS)


def quarantine_rows(rows: DataFrame, raw_bytes: int) -> DataFrame:
    """What was refused or reported, as rows of ``quarantine``; at most ``raw_bytes`` of each record's value."""
    return rows.where("d.reason is not null").select(
        *_coordinates(),
        F.col("timestamp").alias("record_time"),
        "event_time",
        "ingest_time",
        "d.stage",
        "d.reason",
        "d.detail",
        "d.disposition",
        "d.source",
        "d.pubsub_topic",
        "d.content_topic",
        "d.message_hash",
        F.substring("value", 1, raw_bytes).alias("raw"),
        F.octet_length("value").alias("raw_bytes"),
        F.unhex(F.sha2("value", 256)).alias("raw_digest"),
    )


def _coordinates() -> list[Column]:
    return [
        F.col("topic").alias("kafka_topic"),
        F.col("partition").alias("kafka_partition"),
        F.col("offset").alias("kafka_offset"),
    ]
