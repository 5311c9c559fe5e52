"""The quotas of :mod:`~reliable_channel.pipeline.ingest.quotas` over micro-batches; what is above: ``quarantine``.

The tasks sum a micro-batch up by sender. Only when a scope of a content topic could get above its quota are the rows
of that topic looked at one by one, in the driver, without their bytes, in the files that the tasks have written; and
when some of them are above, the micro-batch is written again without them. What was admitted before is read from
``segments`` once, at the start.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import ChannelsSettings, PathSettings, QuotaSettings
from reliable_channel.pipeline.clock import Place
from reliable_channel.pipeline.ingest.quotas import Candidate, Cost, Group, Refused, Spent, Topics, cost_of
from reliable_channel.pipeline.storage.checkpoints import filesystem
from reliable_channel.pipeline.storage.io import read_table
from reliable_channel.pipeline.storage.task_files import WrittenFile
from reliable_channel.pipeline.tables import QUARANTINE, SEGMENTS

_SENDER = ("pubsub_topic", "content_topic", "channel_id", "sender_id")
_COSTS = ("content_bytes", "segment_kind", "causal_history", "repair_request")
ASKED = ("kafka_topic", "kafka_partition", "kafka_offset", "event_time", *_SENDER, *_COSTS)


def window_of(event_time: str, quotas: QuotaSettings) -> Column:
    """The window of an event time."""
    return F.expr(f"unix_micros({event_time}) div {quotas.window_ms * 1000}")


def costs() -> list[Column]:
    """What a row of ``segments`` takes of a quota, under the names of :class:`~.quotas.Cost`."""

    def named(column: str) -> Column:
        return F.greatest(F.size(column), F.lit(0))

    found = (
        F.lit(1),
        F.coalesce("content_bytes", F.lit(0)),
        F.coalesce(F.col("segment_kind").isin("data", "parity"), F.lit(False)).cast("int"),
        named("causal_history") + named("repair_request"),
    )
    return [cost.alias(name) for name, cost in zip(Cost._fields, found, strict=True)]


class Admission:
    """What was admitted so far, and the judgement of what comes. Lives in the driver of the ingest job."""

    def __init__(self, quotas: QuotaSettings, channels: ChannelsSettings) -> None:
        self._quotas = quotas
        self._pattern_of = channels.pattern_for
        self._spent = Spent(quotas, self._pattern_of)

    def restore(self, spark: SparkSession, paths: PathSettings, reached: Mapping[Place, tuple[int, int]]) -> None:
        """Read from ``segments`` what was admitted in each partition's present window. ``reached``: event time (µs) and
        the offset that comes next. What a micro-batch that is run again wrote already does not count, and neither
        does what was requeued: the answer must be the one that was given without a restart."""
        self._spent = Spent(self._quotas, self._pattern_of)
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

    def restore_for(self, spark: SparkSession, paths: PathSettings, groups: Sequence[Group]) -> None:
        """Read from ``segments`` all that was admitted in the windows of ``groups``, which come late."""
        self._spent = Spent(self._quotas, self._pattern_of)
        windows = {(place, window) for place, window, *_ in groups}
        if windows:
            numbers, window_us = [window for _, window in windows], self._quotas.window_ms * 1000
            inside = (F.col("event_time") >= F.timestamp_micros(F.lit(min(numbers) * window_us))) & (
                F.col("event_time") < F.timestamp_micros(F.lit((max(numbers) + 1) * window_us))
            )
            self._count(read_table(spark, paths, SEGMENTS).where(inside), windows)

    def _count(self, segments: DataFrame, windows: Collection[tuple[Place, int]]) -> None:
        """Count rows of ``segments`` that are in ``windows``."""
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
    """The SDS messages of some content topics in those of ``files``, not committed yet, that are of ``segments``. One
    file holds one Kafka partition, in its order."""
    there, root = filesystem(paths.table(SEGMENTS.name))
    for file in files:
        if file.table == SEGMENTS.name:
            with pq.ParquetFile(f"{root}/{file.path}", filesystem=there) as opened:
                for batch in opened.iter_batches(columns=list(ASKED)):
                    for one in candidates_of(batch, quotas):
                        if (one.place, one.sender[:2]) in topics:
                            yield one


def candidates_of(segments: pa.RecordBatch, quotas: QuotaSettings) -> Iterator[Candidate]:
    """Rows of ``segments``, of which the columns ``ASKED`` are needed, as messages that ask to be admitted."""
    times = segments.column("event_time").cast(pa.int64()).to_pylist()
    for row, time in zip(segments.drop_columns(["event_time"]).to_pylist(), times, strict=True):
        yield Candidate(
            (row["kafka_topic"], row["kafka_partition"]),
            row["kafka_offset"],
            time // (quotas.window_ms * 1000),
            tuple(row[name] for name in _SENDER),
            cost_of(*(row[name] for name in _COSTS)),
        )
