"""``deliveries`` and payloads to ``delivered_messages`` (design.md, fourth hop).

No join: a delivery says at which Kafka record its payload stands (a bare payload in ``segments``, a rebuilt one in
``messages``), and the tasks read the few files that hold those records.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from reliable_channel.config import PathSettings, Settings
from reliable_channel.pipeline.ack.payloads import Wanted, payloads_of
from reliable_channel.pipeline.storage.io import BatchSink
from reliable_channel.pipeline.storage.task_files import written
from reliable_channel.pipeline.tables import DELIVERED_MESSAGES, DELIVERIES, MESSAGES, SEGMENTS

TABLES_READ = (SEGMENTS, MESSAGES)
TABLES_WRITTEN = (DELIVERED_MESSAGES,)

CHUNK_BYTES = 16 * 1024 * 1024
"""Payloads of about this size are in memory at a time."""

_RENAMED = {"causal_lamport": "first_lamport_timestamp", "causal_sds_id": "first_sds_id"}


def messages_only(deliveries: DataFrame) -> DataFrame:
    """The application messages among the deliveries."""
    return deliveries.where("row_kind = 'message'").select(*DELIVERIES.names())


class DeliverWriter:
    """Looks up the payloads of one micro-batch and appends the messages."""

    def __init__(self, settings: Settings) -> None:
        self._paths = settings.paths

    def __call__(self, rows: DataFrame, sink: BatchSink) -> None:
        paths, now_us = self._paths, time.time_ns() // 1_000

        def made(batch: pa.RecordBatch) -> Iterator[pa.Table]:
            return (delivered(chunk, paths, now_us) for chunk in chunks(batch, CHUNK_BYTES))

        sink.add_files(DELIVERED_MESSAGES, written(rows, paths, DELIVERED_MESSAGES, made))


def chunks(deliveries: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """The rows in order, in pieces whose payloads have about ``size`` bytes together; one row at least."""
    start = total = 0
    for number, payload_bytes in enumerate(deliveries.column("payload_bytes").to_pylist()):
        total += payload_bytes or 0
        if total >= size:
            yield deliveries.slice(start, number + 1 - start)
            start, total = number + 1, 0
    if start < deliveries.num_rows:
        yield deliveries.slice(start)


def delivered(deliveries: pa.RecordBatch, paths: PathSettings, written_us: int) -> pa.Table:
    """Deliveries with their payloads, as rows of ``delivered_messages``. A payload that is not there is null.
    ``written_us``: when they are written, Unix µs."""
    columns = ("kafka_topic", "kafka_partition", "kafka_offset", "entire_message_hash")
    places = [Wanted(*place) for place in zip(*(deliveries.column(name).to_pylist() for name in columns), strict=True)]
    # What has no place has no payload here; a segment's kind says that it was not rebuilt from several.
    bare = deliveries.column("segment_kind").is_valid().to_pylist()
    since = pc.min(deliveries.column("first_seen").cast(pa.int64())).as_py() or 0
    found: dict[Wanted, bytes] = {}
    for table, wanted_is_bare in ((SEGMENTS, True), (MESSAGES, False)):
        wanted = {p for p, is_bare in zip(places, bare, strict=True) if is_bare == wanted_is_bare and None not in p}
        if wanted:
            found |= payloads_of(paths, table).find(wanted, since)
    special = {
        "payload": pa.array([found.get(place) for place in places], pa.binary()),
        "written_at": pa.repeat(pa.scalar(written_us, pa.timestamp("us", tz="UTC")), deliveries.num_rows),
        "ephemeral": pc.equal(deliveries.column("sds_kind"), "ephemeral"),
    }
    names = DELIVERED_MESSAGES.names()
    arrays = [special[n] if n in special else deliveries.column(_RENAMED.get(n, n)) for n in names]
    return pa.Table.from_arrays(arrays, [*names])
