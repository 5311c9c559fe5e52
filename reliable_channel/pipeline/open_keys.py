"""Which keys of the stateful jobs have a timer (design.md *A recorded clock moves silent keys*).

``open_keys`` is a log of changes with the micro-batch that made them. A micro-batch only looks at what earlier ones
wrote, so a replay wakes the same keys as the first time, also when the crash came after the log was written. It is read
in Python by the tasks that need it; a stream-static join would scan it in Spark in every micro-batch, ticks or not.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.clock import Place
from reliable_channel.pipeline.io import BATCH_ID, QUERY_ID, BatchSink, open_table
from reliable_channel.pipeline.tables import OPEN_KEYS

_SCHEMA = pa.schema(
    [
        pa.field("job", pa.string(), nullable=False),
        pa.field("query_id", pa.string(), nullable=False),
        pa.field("batch_id", pa.int64(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        ("due", pa.timestamp("us", tz="UTC")),
        ("kafka_topic", pa.string()),
        ("kafka_partition", pa.int32()),
    ]
)


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The next timer of ``key`` in one Kafka partition is due at ``due_us`` (event time, µs); ``None``: it has none."""

    key: str
    place: Place
    due_us: int | None


def record(sink: BatchSink, job: str, changes: list[KeyChange]) -> None:
    """Write down what changed in this micro-batch."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    rows = [
        {
            "job": job,
            "query_id": sink.query_id,
            "batch_id": sink.batch_id,
            "key": change.key,
            "due": None if change.due_us is None else epoch + dt.timedelta(microseconds=change.due_us),
            "kafka_topic": change.place[0],
            "kafka_partition": change.place[1],
        }
        for change in changes
    ]
    sink.append_small(pa.Table.from_pylist(rows, schema=_SCHEMA), OPEN_KEYS)


def open_keys(paths: PathSettings, job: str) -> dict[tuple[str, Place], int]:
    """(key, partition) → due (µs), as earlier micro-batches of the running query left it. For tasks of the query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID) if context else None
    batch_id = context.getLocalProperty(BATCH_ID) if context else None
    if query_id is None or batch_id is None:
        return {}
    return open_keys_before(paths, job, query_id, int(batch_id))


def open_keys_before(paths: PathSettings, job: str, query_id: str, batch_id: int) -> dict[tuple[str, Place], int]:
    """(key, partition) → due (µs), as the micro-batches before ``batch_id`` left it."""
    rows = open_table(paths, OPEN_KEYS).to_pyarrow_table(partitions=[("job", "=", job)])
    mine = pc.and_(pc.equal(rows["query_id"], query_id), pc.less(rows["batch_id"], batch_id))
    rows = rows.filter(mine).sort_by("batch_id")
    due = rows["due"].cast(pa.int64()).to_pylist()
    found: dict[tuple[str, Place], int] = {}
    for key, topic, partition, at in zip(
        rows["key"].to_pylist(), rows["kafka_topic"].to_pylist(), rows["kafka_partition"].to_pylist(), due, strict=True
    ):
        if at is None:
            found.pop((key, (topic, partition)), None)
        else:
            found[key, (topic, partition)] = at
    return found
