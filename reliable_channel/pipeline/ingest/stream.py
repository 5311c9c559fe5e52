"""The ingest query: Kafka records to ``envelopes``, ``sds_messages``, ``quarantine``, ``source_gaps`` and ``clock``.

``read_kafka_records`` reads, ``select_records`` selects columns, ``IngestWriter`` decodes and writes a micro-batch
exactly once, in one Spark job (:mod:`.task`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import KafkaSettings, PathSettings, PipelineSettings, Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.checkpoints import read_checkpoint, read_start
from reliable_channel.lake.commit import discard
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    CLOCK,
    ENVELOPES,
    QUARANTINE,
    RECORD_KEY,
    SDS_MESSAGES,
    SOURCE_GAPS,
    TopicPartition,
)
from reliable_channel.pipeline import counters
from reliable_channel.pipeline.clock import IngestClock, Progress
from reliable_channel.pipeline.delta import task_results
from reliable_channel.pipeline.ingest.admission import QuotaGate, read_candidates
from reliable_channel.pipeline.ingest.lost_offsets import FindLost, make_gap_rows
from reliable_channel.pipeline.ingest.quotas import Refused
from reliable_channel.pipeline.ingest.task import IngestResult, IngestTask, find_missing_offsets

TABLES_WRITTEN = (ENVELOPES, SDS_MESSAGES, QUARANTINE, SOURCE_GAPS)


def read_kafka_records(
    spark: SparkSession, kafka: KafkaSettings, pipeline: PipelineSettings, max_offsets_per_trigger: int
) -> DataFrame:
    """Read the envelopes topic as a stream."""
    records = (
        spark.readStream.format("kafka")
        .options(**kafka.spark_options())
        .option("subscribe", kafka.topics.envelopes)
        .option("startingOffsets", pipeline.starting_offsets)
        .option("maxOffsetsPerTrigger", max_offsets_per_trigger)
        .option("fetchOffset.numRetries", 9)  # three minutes, with the time-outs of these clients
        .option("failOnDataLoss", "false")  # offsets that Kafka has deleted are recorded in source_gaps instead
        .option("includeHeaders", "true")  # the pubsub topic and the source, which an envelope does not name
        .load()
    )
    context = spark.sparkContext
    # One task reads several partitions, because each task of a small micro-batch costs two Python workers and a file
    # per table. On a cluster executors come and go, so the number of cores is unknown.
    return records.coalesce(context.defaultParallelism) if (context.master or "").startswith("local") else records


def select_records(pipeline: PipelineSettings) -> Callable[[DataFrame], DataFrame]:
    """Select from Kafka records the columns that tasks decode: coordinates, ``record_time``, ``ingest_time``,
    ``time_us``, ``value`` and the two headers.

    ``time_us`` is :func:`limit_record_time`. The ingest clock is the micro-batch's timestamp, which Spark writes to the
    checkpoint before it runs the batch, so a replay computes the same rows."""

    def transform(records: DataFrame) -> DataFrame:
        now = read_batch_time()
        time = F.unix_micros(limit_record_time(F.col("timestamp"), now, pipeline))
        return records.select(
            "topic",
            "partition",
            "offset",
            F.col("timestamp").alias("record_time"),
            now.alias("ingest_time"),
            time.alias("time_us"),
            "value",
            header("pubsub_topic").alias("pubsub_header"),
            header("source").alias("source_header"),
        )

    return transform


def limit_record_time(record_time: Column, ingest_time: Column, pipeline: PipelineSettings) -> Column:
    """The record time, at most ``max_clock_skew_ms`` ahead of the ingest clock. A record without a plausible time
    (none, or not after 1970) has that of the ingest clock: its envelope is read like any other, and event time also
    advances in a topic whose producers set none."""
    latest = ingest_time + F.make_dt_interval(secs=F.lit(pipeline.max_clock_skew_ms / 1000))
    has_time = record_time > F.timestamp_seconds(F.lit(0))
    return F.when(has_time, F.least(record_time, latest)).otherwise(ingest_time)


def select_coordinates() -> list[Column]:
    """The Kafka coordinates of a table, under the names of Spark's Kafka source."""
    return [F.col(name).alias(name.removeprefix("kafka_")) for name in RECORD_KEY]


def read_batch_time() -> Column:
    """The micro-batch's timestamp."""
    # Spark makes a literal of current_timestamp in every micro-batch (SPARK-18339). Alone it would be part of the
    # generated code, which would be compiled again each time; the result of a lambda function is not part of the code.
    return F.element_at(F.transform(F.array(F.current_timestamp()), lambda time: time), 1)


def header(name: str) -> Column:
    """The value of the last Kafka header with this name, or null."""
    entries = F.filter(F.col("headers"), lambda entry: entry["key"] == name)
    return F.try_element_at(entries, F.lit(-1))["value"]


class IngestWriter:
    """Decodes and writes micro-batches; the ``write`` function of :func:`reliable_channel.pipeline.delta.each_batch`.

    ``lock`` is held while a micro-batch is written, so that no tick comes between its event times and its commit."""

    def __init__(
        self,
        settings: Settings,
        find_lost: FindLost,
        find_unread: Callable[[], frozenset[TopicPartition]] = frozenset,
    ) -> None:
        """``find_lost``: returns the lost records among missing offsets. ``find_unread``: as that of
        :mod:`.recreated_topic`, for the first micro-batch; then the ticker asks."""
        self._settings = settings
        self._find_lost, self._find_unread = find_lost, find_unread
        checkpoint = read_checkpoint(settings.paths, "ingest")
        self._replayed = checkpoint.planned if checkpoint is not None and checkpoint.interrupted else None
        self._admission = QuotaGate(settings.quotas, settings.channels)
        self.clock = IngestClock(settings.paths)
        self.lock = threading.Lock()

    def __call__(self, records: DataFrame, sink: BatchSink) -> None:
        """Write one micro-batch: files by tasks, then the ticks after their last records, then all commits, side by
        side. After a crash between two of them, the replay decides everything as before and makes up for the rest."""
        with self.lock:
            # At a start and in a replay, what is in memory is not what had been counted before this micro-batch.
            if self.clock.load(sink.query_id, sink.batch_id):
                self._admission.restore(sink.paths, self.clock.reached)
                if sink.batch_id != self._replayed:  # which advances what its first run may have advanced
                    self.clock.waiting = self._ask_for_unread()
            sink.open_ahead(ENVELOPES, SDS_MESSAGES, CLOCK)
            floors = {topic_partition: at.event_time_us for topic_partition, at in self.clock.reached.items()}
            result = admit(records, self._settings, sink.paths, floors, self._admission)
            reached = {
                topic_partition: Progress(part.last_us, part.last_offset + 1)
                for topic_partition, part in result.parts.items()
            }
            clock_us = max((part.ingest_us for part in result.parts.values()), default=None)
            if clock_us is not None:
                reached |= self.clock.find_quiet(reached, clock_us, self._settings.pipeline.clock_interval_ms * 1000)
            files = [*result.files, *tick_files(sink.paths, reached, clock_us)]
            missing = find_missing_offsets(result.parts, self.clock.reached, self._read_starts(sink, result))
            gaps = make_gap_rows(self._find_lost(missing), result.parts)
            sink.together(
                *(partial(sink.add_files, table, files) for table in (ENVELOPES, SDS_MESSAGES, QUARANTINE)),
                partial(sink.append_small, gaps, SOURCE_GAPS),
                # Also a micro-batch without records (of a transaction's marker), so that the table has all of them
                # (runner/settings_guard.py).
                partial(self.clock.record, sink, reached or self.clock.reached),
            )
            quarantined = sum(part.quarantined for part in result.parts.values())
            counters.put(sink.query_id, sink.batch_id, quarantined_rows=quarantined)

    def _ask_for_unread(self) -> frozenset[TopicPartition]:
        """The partitions that have more records; all if Kafka does not say."""
        try:
            return self._find_unread()
        except EnvironmentFault:
            return frozenset(self.clock.reached)

    def _read_starts(self, sink: BatchSink, result: IngestResult) -> Mapping[str, Mapping[int, int]]:
        """Where the micro-batch begins to read; looked up only if it reads a partition for the first time."""
        if result.parts.keys() <= self.clock.reached.keys():
            return {}
        return read_start(sink.paths, "ingest", sink.batch_id).kafka


def admit(
    records: DataFrame, settings: Settings, paths: PathSettings, floors: dict[TopicPartition, int], admission: QuotaGate
) -> IngestResult:
    """Decode ``records`` (:func:`select_records`) into files of the tables under ``paths``; rows that exceed a quota go
    to ``quarantine``. Nothing is committed."""

    def run(refused: Refused) -> IngestResult:
        raw_bytes = settings.pipeline.quarantine_raw_bytes
        task = IngestTask(paths, settings.channels, raw_bytes, settings.quotas, floors, refused)
        return IngestResult.of(task_results(records, task))

    result = run({})
    refused = admission.find_refused(result.groups, partial(read_candidates, result.files, paths, settings.quotas))
    if not refused:
        return result
    # Whose quota is exceeded is known when all records are counted. That is rare, so the records are decoded twice then
    # instead of being kept until the count is there.
    discard(paths, result.files)
    return run(refused)


def tick_files(
    paths: PathSettings, reached: dict[TopicPartition, Progress], ingest_us: int | None
) -> list[WrittenFile]:
    """Write the recorded clock to a file of ``sds_messages``: one row after the last record read of each partition."""
    rows = [
        {
            "kafka_topic": topic,
            "kafka_partition": partition,
            "kafka_offset": at.next_offset - 1,
            "event_time": at.event_time_us,
            "ingest_time": ingest_us,
            "sds_kind": "tick",
        }
        for (topic, partition), at in sorted(reached.items())
    ]
    with TaskFiles(paths) as files:
        files.add(SDS_MESSAGES, as_arrow(rows, SDS_MESSAGES))
        return files.finish()
