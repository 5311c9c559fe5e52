"""Applies the quotas of :mod:`~reliable_channel.pipeline.ingest.quotas` to micro-batches; excess rows are quarantined.

Tasks sum up the cost of a micro-batch by sender. Only if a scope could exceed its quota does the driver read the rows
of its content topics, without their bytes, from the files just written; and if some are above, the micro-batch is
written again without them. What was admitted earlier is read from ``sds_messages`` once, at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import ChannelsSettings, PathSettings, QuotaSettings
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.tables import QUARANTINE, SDS_MESSAGES
from reliable_channel.pipeline.clock import TopicPartition
from reliable_channel.pipeline.delta import read_table
from reliable_channel.pipeline.ingest.quotas import (
    COSTING,
    ENTRY,
    Candidate,
    Cost,
    Group,
    QuotaUsage,
    Refused,
    Topics,
    costs_of,
)

_SENDER = ("pubsub_topic", "content_topic", "channel_id", "sender_id")
ASKED = ("kafka_topic", "kafka_partition", "kafka_offset", "event_time", *_SENDER[:3], *COSTING)


def window_of(event_time: str, quotas: QuotaSettings) -> Column:
    """The window of an event time."""
    return F.expr(f"unix_micros({event_time}) div {quotas.window_ms * 1000}")


def costs() -> list[Column]:
    """What a row of ``sds_messages`` takes of a quota, under the names of :class:`~.quotas.Cost`: the same as
    :func:`~.quotas.costs_of` computes in a task."""

    def named(column: str) -> Column:
        return F.greatest(F.size(column), F.lit(0))

    def size(column: Column | str) -> Column:
        return F.coalesce(F.octet_length(column), F.lit(0)).cast("bigint")

    def entries(column: str) -> Column:
        def longer(total: Column, entry: Column) -> Column:
            return sum((size(entry[name]) for name in ENTRY), total)

        return F.coalesce(F.aggregate(column, F.lit(0).cast("bigint"), longer), F.lit(0))

    found = (
        F.lit(1),
        F.coalesce(F.col("content_bytes").cast("bigint"), F.lit(0))
        + (size("sds_id") + size("sender_id") + entries("causal_history") + entries("repair_request")),
        F.coalesce(F.col("segment_kind").isin("data", "parity"), F.lit(False)).cast("int"),
        named("causal_history") + named("repair_request"),
    )
    return [cost.alias(name) for name, cost in zip(Cost._fields, found, strict=True)]


class QuotaGate:
    """What was admitted so far, and the judgement of what comes. Lives in the driver of the ingest job."""

    def __init__(self, quotas: QuotaSettings, channels: ChannelsSettings) -> None:
        self._quotas = quotas
        self._pattern_of = channels.pattern_for
        self._spent = QuotaUsage(quotas, self._pattern_of)

    def restore(
        self, spark: SparkSession, paths: PathSettings, reached: Mapping[TopicPartition, tuple[int, int]]
    ) -> None:
        """Read from ``sds_messages`` what was admitted in each partition's present window.

        ``reached``: event time (µs) and the offset that comes next. Rows that a replayed micro-batch has already
        written do not count, nor do requeued ones: the result must be that of a run without a restart."""
        self._spent = QuotaUsage(self._quotas, self._pattern_of)
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
        admitted = read_table(spark, paths, SDS_MESSAGES).where((F.col("event_time") >= since) & before)
        place = ["kafka_topic", "kafka_partition", "kafka_offset"]
        self._count(admitted.join(requeued, place, "left_anti"), windows)

    def restore_for(self, spark: SparkSession, paths: PathSettings, groups: Sequence[Group]) -> None:
        """Read from ``sds_messages`` all that was admitted in the windows of ``groups``, which come late."""
        self._spent = QuotaUsage(self._quotas, self._pattern_of)
        windows = {(place, window) for place, window, *_ in groups}
        if windows:
            numbers, window_us = [window for _, window in windows], self._quotas.window_ms * 1000
            inside = (F.col("event_time") >= F.timestamp_micros(F.lit(min(numbers) * window_us))) & (
                F.col("event_time") < F.timestamp_micros(F.lit((max(numbers) + 1) * window_us))
            )
            self._count(read_table(spark, paths, SDS_MESSAGES).where(inside), windows)

    def _count(self, segments: DataFrame, windows: Collection[tuple[TopicPartition, int]]) -> None:
        """Count rows of ``sds_messages`` that are in ``windows``."""
        window = window_of("event_time", self._quotas).alias("window")
        by = ("kafka_topic", "kafka_partition", "window", *_SENDER)
        asked = segments.where("sds_kind <> 'tick'").select(*by[:2], window, *_SENDER, *costs())
        grouped = asked.groupBy(*by)
        for row in grouped.agg(*(F.sum(name).alias(name) for name in Cost._fields)).collect():
            place = (row["kafka_topic"], row["kafka_partition"])
            if (place, row["window"]) in windows:
                sender = (row["pubsub_topic"], row["content_topic"], row["channel_id"], row["sender_id"])
                self._spent.add(place, row["window"], sender, Cost(*(row[name] for name in Cost._fields)))

    def _window(self, event_us: int) -> int:
        return event_us // (self._quotas.window_ms * 1000)

    def refused(self, groups: Sequence[Group], candidates: Callable[[Topics], Iterable[Candidate]]) -> list[Refused]:
        """What of a micro-batch is above a quota, given its sums; ``candidates``: its messages of some content topics,
        in record order of each partition."""
        return self._spent.judge(groups, candidates)


def candidates_in(
    files: Iterable[WrittenFile], paths: PathSettings, quotas: QuotaSettings, topics: Topics
) -> Iterator[Candidate]:
    """The SDS messages of some content topics in those of ``files`` that belong to ``sds_messages``; none is committed.
    One file holds one Kafka partition, in its order."""
    there, root = filesystem(paths.table(SDS_MESSAGES.name))
    for file in files:
        if file.table == SDS_MESSAGES.name:
            with pq.ParquetFile(f"{root}/{file.path}", filesystem=there) as opened:
                for batch in opened.iter_batches(columns=list(ASKED)):
                    for one in candidates_of(batch, quotas):
                        if (one.place, one.sender[:2]) in topics:
                            yield one


def candidates_of(segments: pa.RecordBatch, quotas: QuotaSettings) -> Iterator[Candidate]:
    """Rows of ``sds_messages``, of which the columns ``ASKED`` are needed, as messages that ask to be admitted."""
    times = segments.column("event_time").cast(pa.int64()).to_pylist()
    costs = costs_of({name: segments.column(name) for name in COSTING})
    names = segments.select(["kafka_topic", "kafka_partition", "kafka_offset", *_SENDER]).to_pylist()
    for row, time, *cost in zip(names, times, *(costs[name].to_pylist() for name in Cost._fields), strict=True):
        yield Candidate(
            (row["kafka_topic"], row["kafka_partition"]),
            row["kafka_offset"],
            time // (quotas.window_ms * 1000),
            tuple(row[name] for name in _SENDER),
            Cost(*cost),
        )
