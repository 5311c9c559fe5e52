"""The quotas of :mod:`~reliable_channel.pipeline.ingest.quotas` over micro-batches; what is above: ``quarantine``.

A micro-batch is summed by sender in one aggregation. Only when a scope of a content topic could get above its quota are
the rows of that topic looked at one by one, in the driver, without their bytes. What was admitted before is read from
``segments`` once, at the start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import Row

from reliable_channel.config import PathSettings, QuotaSettings
from reliable_channel.pipeline.clock import Place
from reliable_channel.pipeline.ingest.quotas import Candidate, Cost, Refused, Sender, Spent
from reliable_channel.pipeline.storage.io import read_table
from reliable_channel.pipeline.tables import QUARANTINE, SEGMENTS
from reliable_channel.wire.malformed import Reason

_SENDER = ("pubsub_topic", "content_topic", "channel_id", "sender_id")


def window_of(event_time: str, quotas: QuotaSettings) -> Column:
    """The window of an event time."""
    return F.expr(f"unix_micros({event_time}) div {quotas.window_ms * 1000}")


def costs(prefix: str = "") -> list[Column]:
    """What one row takes of a quota, under the names of :class:`~.quotas.Cost`; ``prefix``: where its columns stand."""

    def named(column: str) -> Column:
        return F.greatest(F.size(f"{prefix}{column}"), F.lit(0))

    return [
        F.lit(1).alias("messages"),
        F.coalesce(f"{prefix}content_bytes", F.lit(0)).alias("bytes"),
        F.coalesce(F.col(f"{prefix}segment_kind").isin("data", "parity"), F.lit(False)).cast("int").alias("segments"),
        (named("causal_history") + named("repair_request")).alias("named_ids"),
    ]


def summed(prefix: str = "") -> list[Column]:
    """:func:`costs` as sums."""
    return [F.sum(cost).alias(name) for name, cost in zip(Cost._fields, costs(prefix), strict=True)]


class Admission:
    """What was admitted so far, and the judgement of what comes. Lives in the driver of the ingest job."""

    def __init__(self, quotas: QuotaSettings) -> None:
        self._quotas = quotas
        self._spent = Spent(quotas)

    def restore(self, spark: SparkSession, paths: PathSettings, reached: Mapping[Place, tuple[int, int]]) -> None:
        """Read from ``segments`` what was admitted in each partition's present window. ``reached``: event time (µs) and
        the offset that comes next. What a micro-batch that is run again wrote already does not count, and neither
        does what was requeued: the answer must be the one that was given without a restart."""
        self._spent = Spent(self._quotas)
        if not reached:
            return
        windows = {(place, self._window(at)) for place, (at, _) in reached.items()}
        before = F.lit(False)
        for (topic, partition), (_, next_offset) in reached.items():
            here = (F.col("kafka_topic") == topic) & (F.col("kafka_partition") == partition)
            before = before | (here & (F.col("kafka_offset") < next_offset))
        since = F.timestamp_micros(F.lit(min(window for _, window in windows) * self._quotas.window_ms * 1000))
        requeued = read_table(spark, paths, QUARANTINE).where(
            (F.col("event_time") >= since) & (F.col("disposition") == "requeued")
        )
        admitted = read_table(spark, paths, SEGMENTS).where((F.col("event_time") >= since) & before)
        place = ["kafka_topic", "kafka_partition", "kafka_offset"]
        self._count(admitted.join(requeued, place, "left_anti"), windows)

    def restore_for(self, spark: SparkSession, paths: PathSettings, groups: Sequence[Row]) -> None:
        """Read from ``segments`` all that was admitted in the windows of ``groups``, which come late."""
        self._spent = Spent(self._quotas)
        windows = {((row["topic"], row["partition"]), row["window"]) for row in groups if row["window"] is not None}
        if windows:
            numbers, window_us = [window for _, window in windows], self._quotas.window_ms * 1000
            inside = (F.col("event_time") >= F.timestamp_micros(F.lit(min(numbers) * window_us))) & (
                F.col("event_time") < F.timestamp_micros(F.lit((max(numbers) + 1) * window_us))
            )
            self._count(read_table(spark, paths, SEGMENTS).where(inside), windows)

    def _count(self, segments: DataFrame, windows: Collection[tuple[Place, int]]) -> None:
        """Count rows of ``segments`` that are in ``windows``."""
        window = window_of("event_time", self._quotas).alias("window")
        grouped = segments.where("sds_kind <> 'tick'").groupBy("kafka_topic", "kafka_partition", window, *_SENDER)
        for row in grouped.agg(*summed()).collect():
            group = _group(row, row["kafka_topic"], row["kafka_partition"])
            if group[:2] in windows:
                self._spent.add(*group)

    def _window(self, event_us: int) -> int:
        return event_us // (self._quotas.window_ms * 1000)

    def groups(self, rows: DataFrame, *also: Column) -> list[Row]:
        """Decoded rows with an ``event_time``, summed by place, and for SDS messages by window and sender as well: one
        pass for everything the driver asks of a micro-batch. ``also``: further aggregates."""
        is_sds = F.col("d.kind") == "sds"
        by = [
            F.when(is_sds, window_of("event_time", self._quotas)).alias("window"),
            *(F.when(is_sds, F.col(f"d.{name}")).alias(name) for name in _SENDER),
        ]
        return rows.groupBy("topic", "partition", *by).agg(*summed("d."), *also).collect()

    def refused(self, rows: DataFrame, groups: Sequence[Row]) -> list[Refused]:
        """What of decoded ``rows`` with an ``event_time`` is above a quota. ``groups``: what :meth:`groups`
        said of them."""
        asked = [_group(row, row["topic"], row["partition"]) for row in groups if row["window"] is not None]
        return self._spent.judge(asked, lambda topics: candidates(rows, topics, self._quotas))


def candidates(
    rows: DataFrame, topics: Iterable[tuple[Place, tuple[str, str]]], quotas: QuotaSettings
) -> list[Candidate]:
    """The SDS messages of some content topics, in record order of each partition."""
    wanted = F.lit(False)
    for (topic, partition), (pubsub_topic, content_topic) in topics:
        wanted = wanted | (
            (F.col("topic") == topic)
            & (F.col("partition") == partition)
            & (F.col("d.pubsub_topic") == pubsub_topic)
            & (F.col("d.content_topic") == content_topic)
        )
    found = rows.where((F.col("d.kind") == "sds") & wanted).select(
        "topic",
        "partition",
        "offset",
        window_of("event_time", quotas).alias("window"),
        *(F.col(f"d.{name}") for name in _SENDER),
        *costs("d."),
    )
    return [
        Candidate(group[0], row["offset"], *group[1:])
        for row in found.orderBy("topic", "partition", "offset").collect()
        if (group := _group(row, row["topic"], row["partition"]))
    ]


def marked(rows: DataFrame, refused: Sequence[Refused]) -> DataFrame:
    """Decoded rows, those that were refused as rows for ``quarantine``."""
    if not refused:
        return rows
    why = rows.sparkSession.createDataFrame(
        [(*r.place, r.offset, r.detail) for r in refused],
        "topic string, partition int, offset bigint, above string",
    )
    joined = rows.join(F.broadcast(why), ["topic", "partition", "offset"], "left")
    told = {
        "kind": F.lit("quarantined"),
        "stage": F.lit("quota"),
        "reason": F.lit(Reason.OVER_QUOTA.value),
        "detail": F.col("above"),
        "disposition": F.lit("dropped"),
    }
    changed = F.col("d")
    for name, value in told.items():
        changed = changed.withField(name, F.when(F.col("above").isNotNull(), value).otherwise(F.col(f"d.{name}")))
    return joined.withColumn("d", changed).drop("above")


def _group(row: Row, topic: str, partition: int) -> tuple[Place, int, Sender, Cost]:
    sender = (row["pubsub_topic"], row["content_topic"], row["channel_id"], row["sender_id"])
    return (topic, partition), row["window"], sender, Cost(*(row[name] for name in Cost._fields))
