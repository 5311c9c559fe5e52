"""Decodes records, assigns event times to them, counts and writes them, in a task of ingest.

Rows go from Arrow into the tables' files; the driver gets one small result per task (docs/pipeline.md *Ingest*). With
``failOnDataLoss=false`` Spark skips missing offsets silently, so each task reports them; :mod:`.lost_offsets` decides
which of them were lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import ChannelsSettings, PathSettings, QuotaSettings
from reliable_channel.core.wire.malformed import Reason
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.schema import select_columns
from reliable_channel.lake.tables import ENVELOPES, QUARANTINE, SDS_MESSAGES, Table, TopicPartition
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.delta import task_result
from reliable_channel.pipeline.functions import decode_batch
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from reliable_channel.pipeline.ingest.quotas import Cost, Group, Refused, sum_by_sender

DECODED = "decoded"
"""The column with the decoded record, a struct."""


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """Missing offsets ``first`` to ``last`` (inclusive), and the event times around them, µs; ``from_us`` is ``None``
    if nothing was read before. ``cause``: as in ``source_gaps``, for those that are lost (:mod:`.lost_offsets`)."""

    first: int
    last: int
    from_us: int | None
    to_us: int
    cause: str = "offset_jump"


@dataclass(slots=True)
class PartitionSummary:
    """What a task has read of one Kafka partition. Times are event times, µs; ``ingest_us`` is the micro-batch's
    clock."""

    first_offset: int
    last_offset: int
    first_us: int
    last_us: int
    ingest_us: int
    quarantined: int = 0
    gaps: list[OffsetGap] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class IngestResult:
    """The combined results of the tasks of a micro-batch."""

    parts: dict[TopicPartition, PartitionSummary]
    groups: list[Group]
    files: list[WrittenFile]

    @classmethod
    def of(cls, task_results: Iterable[IngestResult]) -> IngestResult:
        """Combine the results of all tasks. One task reads all records of a Kafka partition."""
        whole = cls({}, [], [])
        for task in task_results:
            # Spark would split a partition among tasks with ``minPartitions``, an option that the query does not set.
            if twice := whole.parts.keys() & task.parts.keys():
                raise RuntimeError("Two tasks have read {}, partition {}.".format(*min(twice)))
            whole.parts.update(task.parts)
            whole.groups.extend(task.groups)
            whole.files.extend(task.files)
        return whole


@dataclass(frozen=True)
class IngestTask:
    """The function for ``mapInArrow`` that decodes records (:func:`~.stream.select_records`) and writes their rows.

    ``raw_bytes``: the bytes kept of a quarantined value; ``floors``: the recorded clock by Kafka partition, µs;
    ``refused``: the messages above a quota."""

    paths: PathSettings
    channels: ChannelsSettings
    raw_bytes: int
    quotas: QuotaSettings
    floors: Mapping[TopicPartition, int]
    refused: Refused

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of the records; yields one :class:`IngestResult` for the driver."""
        parts: dict[TopicPartition, PartitionSummary] = {}
        spent: dict[tuple[Any, ...], Cost] = {}
        with TaskFiles(self.paths) as files:
            for batch in date_batches(decode_batches(batches, self.channels), self.floors, self.refused):
                files.add(ENVELOPES, batch.envelopes())
                files.add(SDS_MESSAGES, batch.segments())
                files.add(QUARANTINE, batch.quarantine(self.raw_bytes))
                _note_batch(batch, parts)
                sds = batch.sds()
                for *key, cost in sum_by_sender({**sds.decoded, **sds.given}, self.quotas):
                    spent[*key] = spent.get((*key,), Cost()).plus(cost)
            written = files.finish()
        if parts:
            yield task_result(IngestResult(parts, [(*key, cost) for key, cost in spent.items()], written))


@dataclass(frozen=True)
class DecodedBatch:
    """Some records of one Kafka partition, in record order, as columns: no row becomes a Python object.

    ``given``: coordinates, ``record_time``, ``event_time``, ``ingest_time`` and ``value``, with the names of the
    tables. ``decoded``: the fields of a decoded record, by name."""

    given: Mapping[str, pa.Array]
    decoded: Mapping[str, pa.Array]

    def envelopes(self) -> pa.RecordBatch:
        """The rows of ``envelopes``: all readable envelopes."""
        part = self.where(self.decoded["kind"].is_valid())
        return part._make_rows(ENVELOPES, {"value_bytes": pc.binary_length(part.given["value"])})

    def segments(self) -> pa.RecordBatch:
        """The rows of ``sds_messages``."""
        part = self.sds()
        return part._make_rows(SDS_MESSAGES, {"envelope_hash": part.decoded["message_hash"]})

    def sds(self) -> DecodedBatch:
        """The records that are SDS messages."""
        return self.where(pc.equal(self.decoded["kind"], "sds"))

    def quarantine(self, raw_bytes: int) -> pa.RecordBatch:
        """The rows of ``quarantine``: refused and reported records, with at most ``raw_bytes`` of each value."""
        part = self.where(self.decoded["reason"].is_valid())
        value = part.given["value"]
        # The one column made value by value: Arrow computes no digests. Quarantined records are few.
        digests = [None if each is None else hashlib.sha256(each).digest() for each in value.to_pylist()]
        special = {
            "raw": pc.binary_slice(value, 0, raw_bytes),
            "raw_bytes": pc.binary_length(value),
            "raw_digest": pa.array(digests, pa.binary()),
        }
        return part._make_rows(QUARANTINE, special)

    def where(self, wanted: pa.BooleanArray) -> DecodedBatch:
        """The rows for which ``wanted`` is true; null counts as false."""
        if wanted.true_count == len(wanted):
            return self
        given, decoded = (
            {name: column.filter(wanted) for name, column in columns.items()} for columns in (self.given, self.decoded)
        )
        return DecodedBatch(given, decoded)

    def refuse_above_quota(self, why: Mapping[int, str]) -> DecodedBatch:
        """The same rows with those at the offsets of ``why`` refused; ``why`` names the exceeded quota."""
        offsets = self.given["kafka_offset"].to_pylist()
        details = pa.array([why.get(offset) for offset in offsets], pa.string())
        refused = details.is_valid()
        if not refused.true_count:
            return self
        instead = {"stage": "quota", "reason": Reason.OVER_QUOTA.value, "kind": "quarantined", "disposition": "dropped"}
        changed = {name: pc.if_else(refused, value, self.decoded[name]) for name, value in instead.items()}
        changed["detail"] = pc.if_else(refused, details, self.decoded["detail"])
        return DecodedBatch(self.given, {**self.decoded, **changed})

    def _make_rows(self, table: Table, special: Mapping[str, pa.Array]) -> pa.RecordBatch:
        return select_columns({**self.decoded, **self.given, **special}, len(self.given["kafka_offset"]), table)


def decode_batches(batches: Iterator[pa.RecordBatch], channels: ChannelsSettings) -> Iterator[pa.RecordBatch]:
    """Add the column :data:`DECODED` to records (:func:`~.stream.select_records`), by
    :func:`~reliable_channel.pipeline.functions.decode_batch`.

    Here and not by a UDF, for which Spark would pass every record to Python twice."""
    judge = RecordDecoder(channels)
    for batch in batches:
        decoded = decode_batch(judge, *map(batch.column, ("value", "pubsub_header", "source_header", "time_us")))
        yield batch.append_column(DECODED, decoded)


def date_batches(
    batches: Iterator[pa.RecordBatch], floors: Mapping[TopicPartition, int], refused: Refused
) -> Iterator[DecodedBatch]:
    """Add event times to decoded records (:func:`decode_batches`), and yield batches of one Kafka partition each.

    Event time is the running maximum of min(record time, ingest clock + ``max_clock_skew_ms``) in the partition,
    starting at its floor. A column ``event_time`` in the records overrides it."""
    reached = dict(floors)
    for whole in batches:
        for topic_partition, batch in _split_by_partition(whole):
            if "event_time" in batch.schema.names:
                event_times = batch.column("event_time")
            else:
                times = batch.column("time_us").to_numpy(zero_copy_only=False)
                own = np.maximum(np.maximum.accumulate(times), reached.get(topic_partition, np.iinfo(np.int64).min))
                reached[topic_partition] = int(own[-1])
                event_times = pa.array(own, pa.timestamp("us", tz="UTC"))
            given = {
                "kafka_topic": batch.column("topic"),
                "kafka_partition": batch.column("partition"),
                "kafka_offset": batch.column("offset"),
                "record_time": batch.column("record_time"),
                "event_time": event_times,
                "ingest_time": batch.column("ingest_time"),
                "value": batch.column("value"),
            }
            decoded = batch.column(DECODED)
            names = [field.name for field in decoded.type]
            batch_out = DecodedBatch(given, dict(zip(names, decoded.flatten(), strict=True)))
            here = {offset: why for (*at, offset), why in refused.items() if tuple(at) == topic_partition}
            yield batch_out.refuse_above_quota(here) if here else batch_out


def _split_by_partition(batch: pa.RecordBatch) -> Iterator[tuple[TopicPartition, pa.RecordBatch]]:
    """Split a batch by Kafka partition; nearly every batch has only one."""
    topics, partitions = batch.column("topic").unique(), batch.column("partition").unique()
    if batch.num_rows and len(topics) == len(partitions) == 1:
        yield (topics[0].as_py(), partitions[0].as_py()), batch
        return
    rows: dict[TopicPartition, list[int]] = {}
    for number, topic_partition in enumerate(
        zip(batch.column("topic").to_pylist(), batch.column("partition").to_pylist(), strict=True)
    ):
        rows.setdefault(topic_partition, []).append(number)
    for topic_partition, numbers in rows.items():
        yield topic_partition, batch.take(pa.array(numbers, pa.int32()))


def _note_batch(batch: DecodedBatch, parts: dict[TopicPartition, PartitionSummary]) -> None:
    """Update how far a Kafka partition was read, and which offsets are missing."""
    topic_partition = batch.given["kafka_topic"][0].as_py(), batch.given["kafka_partition"][0].as_py()
    offsets = batch.given["kafka_offset"].to_numpy(zero_copy_only=False)
    times = batch.given["event_time"].cast(pa.int64()).to_numpy(zero_copy_only=False)
    first, first_us, ingest_us = int(offsets[0]), int(times[0]), batch.given["ingest_time"].cast(pa.int64())[-1].as_py()
    known = parts.get(topic_partition)
    if known is None:
        known = parts[topic_partition] = PartitionSummary(first, first, first_us, first_us, ingest_us)
    elif first > known.last_offset + 1:
        known.gaps.append(OffsetGap(known.last_offset + 1, first - 1, known.last_us, first_us))
    for index in np.flatnonzero(np.diff(offsets) > 1).tolist():
        low, high = int(offsets[index]), int(offsets[index + 1])
        known.gaps.append(OffsetGap(low + 1, high - 1, int(times[index]), int(times[index + 1])))
    known.last_offset, known.last_us, known.ingest_us = int(offsets[-1]), int(times[-1]), ingest_us
    known.quarantined += len(offsets) - batch.decoded["reason"].null_count


def find_missing_offsets(
    parts: Mapping[TopicPartition, PartitionSummary],
    before: Mapping[TopicPartition, Progress],
    starts: Mapping[str, Mapping[int, int]],
) -> dict[TopicPartition, list[OffsetGap]]:
    """The missing offsets of a micro-batch by partition: after the previous micro-batch, and inside this one.

    ``starts``: topic → partition → where the micro-batch begins to read, for partitions that are not in ``before``; a
    partition that the topic lacks there is new, and begins at 0. Without them, no offset is missing before the first
    record ever read."""
    missing: dict[TopicPartition, list[OffsetGap]] = {}
    for topic_partition, part in sorted(parts.items()):
        gaps = list(part.gaps)
        known = before.get(topic_partition)
        topic, partition = topic_partition
        start, since = part.first_offset, None
        if known is not None:
            start, since = known.next_offset, known.event_time_us
        elif topic in starts:  # its records came after those that had been read elsewhere in the topic, or beside them
            start = starts[topic].get(partition, 0)
            since = min((at.event_time_us for (name, _), at in before.items() if name == topic), default=None)
        if part.first_offset > start:
            gaps.insert(0, OffsetGap(start, part.first_offset - 1, since, part.first_us))
        if gaps:
            missing[topic_partition] = gaps
    return missing
