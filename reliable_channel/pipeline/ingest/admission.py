"""Applies the quotas of :mod:`~reliable_channel.pipeline.ingest.quotas` to micro-batches; excess rows are quarantined.

Tasks sum up the cost of a micro-batch by sender. Only if a scope could exceed its quota does the driver read the rows
of its content topics, without their bytes, from the files just written. If rows exceed the quota, the micro-batch is
written again without them. Messages admitted earlier are read from ``sds_messages`` once, at the start. No Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import or_

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from reliable_channel.config import ChannelsSettings, PathSettings, QuotaSettings
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.follow import iterate_rows, list_files_since
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.tables import QUARANTINE, RECORD_KEY, SDS_MESSAGES, TopicPartition
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.quotas import (
    ADMISSION_COLUMNS,
    COSTING,
    SENDER,
    Candidate,
    Cost,
    Group,
    QuotaUsage,
    Refused,
    Topics,
    compute_costs,
    sum_by_sender,
)


class QuotaGate:
    """Counts admitted messages and finds those above a quota. Lives in the driver of the ingest job."""

    def __init__(self, quotas: QuotaSettings, channels: ChannelsSettings) -> None:
        self._quotas = quotas
        self._pattern_of = channels.pattern_for
        self._spent = QuotaUsage(quotas, self._pattern_of)

    def restore(self, paths: PathSettings, reached: Mapping[TopicPartition, Progress]) -> None:
        """Count the admitted messages in ``sds_messages`` in each partition's current window.

        Rows that a replayed micro-batch has already written do not count, nor do requeued ones: a restart must not
        change decisions."""
        windows = {
            (topic_partition, at.event_time_us // (self._quotas.window_ms * 1000))
            for topic_partition, at in reached.items()
        }
        topic, partition, offset = map(pc.field, RECORD_KEY)
        before = [
            (topic == topic_partition[0]) & (partition == topic_partition[1]) & (offset < at.next_offset)
            for topic_partition, at in reached.items()
        ]
        since = self._begin(min((window for _, window in windows), default=0))
        requeued = (pc.field("event_time") >= since) & (pc.field("disposition") == "requeued")
        uncounted = dataset_of(open_table(paths, QUARANTINE)).to_table(columns=[*RECORD_KEY], filter=requeued)
        self._count(paths, windows, reduce(or_, before, pc.scalar(False)), uncounted)

    def restore_for(self, paths: PathSettings, groups: Sequence[Group]) -> None:
        """Count all admitted messages in ``sds_messages`` in the windows of ``groups``, for records decoded later."""
        self._count(paths, {(topic_partition, window) for topic_partition, window, *_ in groups}, pc.scalar(True), None)

    def _count(
        self,
        paths: PathSettings,
        windows: Collection[tuple[TopicPartition, int]],
        among: pc.Expression,
        uncounted: pa.Table | None,
    ) -> None:
        """Replace all counts by those of the rows of ``sds_messages`` in ``windows``."""
        self._spent = QuotaUsage(self._quotas, self._pattern_of)
        if not windows:
            return
        numbers, time = [window for _, window in windows], pc.field("event_time")
        inside = (time >= self._begin(min(numbers))) & (time < self._begin(max(numbers) + 1))
        wanted = inside & among & (pc.field("sds_kind") != "tick")
        files = list_files_since(open_table(paths, SDS_MESSAGES), "event_time", self._begin(min(numbers)).value)
        for rows in iterate_rows(paths, SDS_MESSAGES, files, (*ADMISSION_COLUMNS, "sds_kind")):
            for batch in rows.filter(wanted).select(ADMISSION_COLUMNS).to_batches():
                messages = dict(zip(ADMISSION_COLUMNS, batch.columns, strict=True))
                for group in sum_by_sender(messages, self._quotas, uncounted):
                    if group[:2] in windows:
                        self._spent.add(*group)

    def _begin(self, window: int) -> pa.TimestampScalar:
        return pa.scalar(window * self._quotas.window_ms * 1000, pa.timestamp("us", tz="UTC"))

    def find_refused(self, groups: Sequence[Group], candidates: Callable[[Topics], Iterable[Candidate]]) -> Refused:
        """Find the messages of a micro-batch, summed up by sender, that exceed a quota. ``candidates`` returns those of
        some content topics, in record order of each partition."""
        return self._spent.judge(groups, candidates)


def read_candidates(
    files: Iterable[WrittenFile], paths: PathSettings, quotas: QuotaSettings, topics: Topics
) -> Iterator[Candidate]:
    """Read the SDS messages of some content topics from the uncommitted ``files`` for ``sds_messages``. One file has
    the rows of one Kafka partition, in record order."""
    there, root = filesystem(paths.table(SDS_MESSAGES.name))
    for file in files:
        if file.table == SDS_MESSAGES.name:
            with pq.ParquetFile(f"{root}/{file.path}", filesystem=there) as opened:
                for batch in opened.iter_batches(columns=list(ADMISSION_COLUMNS)):
                    for one in make_candidates(batch, quotas):
                        if (one.topic_partition, one.sender[:2]) in topics:
                            yield one


def make_candidates(segments: pa.RecordBatch, quotas: QuotaSettings) -> Iterator[Candidate]:
    """Convert rows of ``sds_messages``, with the columns ``ADMISSION_COLUMNS``, to candidates for admission."""
    times = segments.column("event_time").cast(pa.int64()).to_pylist()
    costs = compute_costs({name: segments.column(name) for name in COSTING})
    names = segments.select([*RECORD_KEY, *SENDER]).to_pylist()
    for row, time, *cost in zip(names, times, *(costs[name].to_pylist() for name in Cost._fields), strict=True):
        yield Candidate(
            (row["kafka_topic"], row["kafka_partition"]),
            row["kafka_offset"],
            time // (quotas.window_ms * 1000),
            tuple(row[name] for name in SENDER),
            Cost(*cost),
        )
