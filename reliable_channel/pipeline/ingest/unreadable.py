"""Kafka records that Spark cannot read at all: a record time (ms) beyond what its timestamps hold ends the query.

Spark's Kafka source raises ``KAFKA_MALFORMED_RECORD_TIMESTAMP`` for the whole micro-batch and has no setting against
it, so one such record would end ingest for good. ``LogAppendTime``, as our topics have it, makes it impossible; a
foreign topic with ``CreateTime`` may hold one. Then the planned micro-batch is cut in front of the record, in the
checkpoint's offset log, and the records themselves become a micro-batch of their own, read here and written to
``quarantine``, after which the query goes on. A crash between any two steps is repaired by the next start, which meets
the same record again: the tables take a micro-batch once, and the checkpoint's commit comes last.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.errors import EnvironmentFault
from reliable_channel.pipeline.clock import IngestClock, Place, Reached
from reliable_channel.pipeline.ingest.decode import MAX_RECORD_TIME_US
from reliable_channel.pipeline.storage.checkpoints import Offsets, filesystem, parse_offsets, read_checkpoint, read_text
from reliable_channel.pipeline.storage.io import BatchSink, conformed
from reliable_channel.pipeline.tables import QUARANTINE
from reliable_channel.wire.malformed import Reason

MAX_SPARK_TIME_MS = (2**63 - 1) // 1000
"""Above this a record time overflows Spark's microseconds, and the micro-batch fails."""

MAX_RECORDS = 1_000
"""So many records in a row are set aside in one step; a longer run takes several."""

_RAISED = re.compile(r"Record at topic (\S+) partition (\d+) offset (\d+) has timestamp value (-?\d+) that overflows")
_NO_WATERMARK = 'v1\n{"nextBatchWatermarkMs":0}'


class UnreadableRecord(EnvironmentFault):
    """A micro-batch holds a record that Spark cannot read. ``place`` and ``offset`` say which."""

    def __init__(self, place: Place, offset: int) -> None:
        super().__init__(f"Spark cannot read the record at {place[0]}, partition {place[1]}, offset {offset}.")
        self.place = place
        self.offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.place, self.offset)


@dataclass(frozen=True, slots=True)
class Refused:
    """One record as kafka-python reads it."""

    offset: int
    time_ms: int
    value: bytes | None


def unreadable_record(text: str) -> UnreadableRecord | None:
    """The record that the text of a failed query names, or ``None`` when it failed for another reason."""
    found = _RAISED.search(text)
    if found is None:
        return None
    return UnreadableRecord((found[1], int(found[2])), int(found[3]))


def set_aside(spark: SparkSession, settings: Settings, query: str, record: UnreadableRecord) -> None:
    """Make the query's next start get past ``record``: cut the planned micro-batch in front of it or, when nothing is
    in front, quarantine it and what follows of its kind. The query must not run.

    Raises ``EnvironmentFault`` when the checkpoint is not in the state that such a failure leaves."""
    checkpoint = read_checkpoint(settings.paths, query)
    if checkpoint is None or checkpoint.planned is None or checkpoint.query_id is None or not checkpoint.interrupted:
        raise record
    batch = checkpoint.planned
    files, root = filesystem(settings.paths.checkpoint(query))
    entry = f"{root}/offsets/{batch}"
    planned = read_text(files, entry) or ""
    begin = _begin(files, root, batch).kafka.get(record.place[0], {})
    first = begin.get(record.place[1], 0)
    if record.offset > first:
        end = {**parse_offsets(planned).kafka.get(record.place[0], {}), record.place[1]: record.offset}
        _write(files, root, "offsets", batch, with_end(planned, record.place[0], end))
        return
    refused = read_refused(settings, record)
    after = refused[-1].offset + 1
    _write(files, root, "offsets", batch, with_end(planned, record.place[0], {**begin, record.place[1]: after}))
    sink = BatchSink(settings.paths, checkpoint.query_id, batch)
    clock = IngestClock(settings.paths)
    clock.load(sink.query_id, batch)
    reached = clock.reached.get(record.place, Reached(0, first))
    quarantine(spark, settings, sink, record.place, refused, reached.event_time_us)
    clock.record(sink, {record.place: Reached(reached.event_time_us, after)})
    previous = read_text(files, f"{root}/commits/{batch - 1}") or _NO_WATERMARK
    _write(files, root, "commits", batch, previous)


def with_end(log_entry: str, topic: str, end: dict[int, int]) -> str:
    """A file of the offset log with other end offsets for ``topic``; everything else stays."""
    lines = log_entry.splitlines()
    source = next((i for i, line in enumerate(lines) if topic in parse_offsets(line).kafka), None)
    if source is None:
        raise EnvironmentFault(
            f"The checkpoint's offset log does not name the topic {topic}.", "Run `reliable-channel rebuild`."
        )
    lines[source] = json.dumps({topic: {str(p): offset for p, offset in sorted(end.items())}}, separators=(",", ":"))
    return "\n".join(lines)


def read_refused(settings: Settings, record: UnreadableRecord) -> list[Refused]:
    """The record and those behind it that Spark cannot read either, at most ``MAX_RECORDS``."""
    from kafka import KafkaConsumer, TopicPartition
    from kafka.errors import KafkaError

    partition = TopicPartition(*record.place)
    found: list[Refused] = []
    try:
        consumer = KafkaConsumer(
            **settings.kafka.client_options(), group_id=None, enable_auto_commit=False, consumer_timeout_ms=30_000
        )
        try:
            consumer.assign([partition])
            consumer.seek(partition, record.offset)
            end = consumer.end_offsets([partition])[partition]
            for message in consumer:
                if message.timestamp <= MAX_SPARK_TIME_MS or len(found) == MAX_RECORDS:
                    break
                found.append(Refused(message.offset, message.timestamp, message.value))
                if message.offset + 1 >= end:
                    break
        finally:
            consumer.close()
    except KafkaError as error:
        raise EnvironmentFault(
            f"Kafka at {settings.kafka.servers} does not serve us ({type(error).__name__}).",
            "Start the query again when it does.",
        ) from None
    if not found or found[0].offset != record.offset:
        raise record
    return found


def quarantine(
    spark: SparkSession, settings: Settings, sink: BatchSink, place: Place, refused: list[Refused], event_time_us: int
) -> None:
    """Write the records to ``quarantine``, as the micro-batch of ``sink``. Their record time fits no column: ``detail``
    says it."""
    now = dt.datetime.now(dt.UTC)
    event_time = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=event_time_us)
    kept = settings.pipeline.quarantine_raw_bytes
    rows: list[tuple[Any, ...]] = [
        (
            *place,
            one.offset,
            event_time,
            now,
            "record",
            Reason.RECORD_TIME_OUT_OF_RANGE.value,
            f"{one.time_ms} ms, at most {MAX_RECORD_TIME_US // 1000}",
            "dropped",
            None if one.value is None else bytearray(one.value[:kept]),
            None if one.value is None else len(one.value),
            None if one.value is None else bytearray(hashlib.sha256(one.value).digest()),
        )
        for one in refused
    ]
    frame = spark.createDataFrame(
        rows,
        "kafka_topic string, kafka_partition int, kafka_offset bigint, event_time timestamp, ingest_time timestamp,"
        " stage string, reason string, detail string, disposition string, raw binary, raw_bytes int, raw_digest binary",
    )
    sink.append(conformed(frame, QUARANTINE), QUARANTINE)


def _begin(files: Any, root: str, batch: int) -> Offsets:
    """Where the planned micro-batch begins: the end of the one before; of the first one, what the source noted."""
    text = read_text(files, f"{root}/offsets/{batch - 1}" if batch else f"{root}/sources/0/0") or ""
    return parse_offsets(text[text.find("v1") :])


def _write(files: Any, root: str, log: str, batch: int, text: str) -> None:
    """Replace a file of a checkpoint in one step; Hadoop's checksum of the old one goes first."""
    target = f"{root}/{log}/{batch}"
    checksum = f"{root}/{log}/.{batch}.crc"
    temporary = f"{root}/{log}/.{batch}.set-aside.tmp"
    with files.open_output_stream(temporary) as stream:
        stream.write(text.encode())
    if files.get_file_info(checksum).is_file:
        files.delete_file(checksum)
    files.move(temporary, target)
