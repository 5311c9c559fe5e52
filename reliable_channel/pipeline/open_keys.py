"""Which keys of the stateful jobs have a timer (design.md *A recorded clock moves silent keys*).

``open_keys`` is a log of changes with the micro-batch that made them. A micro-batch only looks at what earlier ones
wrote, so a replay wakes the same keys as the first time, also when the crash came after the log was written. The tasks
that need it read it in Python and keep it: a stream-static join would scan it in Spark in every micro-batch, ticks or
not. Every so many micro-batches the log restates what is open, so a new worker need not read it from its beginning.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.clock import Place
from reliable_channel.pipeline.storage.increments import Followed, PerQuery, running
from reliable_channel.pipeline.storage.io import BatchSink, open_table
from reliable_channel.pipeline.storage.sql import quoted, select
from reliable_channel.pipeline.tables import OPEN_KEYS

RESTATED_EVERY = 100
"""Every micro-batch whose number this divides restates all that is open. Another number needs new checkpoints."""

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
_READ = ("query_id", "batch_id", "key", "due", "kafka_topic", "kafka_partition")


@dataclass(frozen=True, slots=True)
class KeyChange:
    """The next timer of ``key`` in one Kafka partition is due at ``due_us`` (event time, µs); ``None``: it has none."""

    key: str
    place: Place
    due_us: int | None


class OpenKeys:
    """The keys with a timer, and when each is due."""

    def __init__(self) -> None:
        self._due: dict[Place, dict[str, int]] = {}

    def apply(self, change: KeyChange) -> None:
        """Take one change, in the order of the log."""
        here = self._due.setdefault(change.place, {})
        if change.due_us is None:
            here.pop(change.key, None)
        else:
            here[change.key] = change.due_us

    def is_open(self, key: str) -> bool:
        """Whether the key has a timer in any partition."""
        return any(key in here for here in self._due.values())

    def due(self, place: Place, until_us: int) -> Iterator[str]:
        """The keys in one partition whose timer is due at ``until_us`` (µs)."""
        return (key for key, at in self._due.get(place, {}).items() if at <= until_us)

    def __iter__(self) -> Iterator[KeyChange]:
        return (KeyChange(key, place, at) for place, here in self._due.items() for key, at in here.items())


class Log:
    """``open_keys`` of one job and query, read on from where it was read last."""

    def __init__(self, paths: PathSettings, job: str, query_id: str) -> None:
        self._table = Followed(paths, OPEN_KEYS, "batch_id", {"job": job})
        self._query_id = query_id
        self._keys = OpenKeys()
        self._read = -1

    def before(self, batch_id: int) -> OpenKeys:
        """What was open before a micro-batch. For one earlier than the last, the log is read again."""
        restated = last_restated(batch_id)
        if restated > self._read or batch_id <= self._read:
            self._keys, self._read = OpenKeys(), restated - 1
        since = self._read + 1
        wanted = (pc.field("query_id") == self._query_id) & (pc.field("batch_id") >= since)
        wanted &= pc.field("batch_id") < batch_id
        files = self._table.files(since)
        new = [self._table.read(file, _READ, wanted) for file in files if (file.least or 0) < batch_id]
        if new:
            for change in _changes(pa.concat_tables(new).sort_by("batch_id")):
                self._keys.apply(change)
        self._read = batch_id - 1
        return self._keys


def last_restated(batch_id: int) -> int:
    """The micro-batch before ``batch_id`` that restated what was open, or the first."""
    return max(batch_id - 1, 0) // RESTATED_EVERY * RESTATED_EVERY


def _changes(rows: pa.Table) -> Iterator[KeyChange]:
    columns = [rows[name].to_pylist() for name in ("key", "kafka_topic", "kafka_partition")]
    for key, topic, partition, at in zip(*columns, rows["due"].cast(pa.int64()).to_pylist(), strict=True):
        yield KeyChange(key, (topic, partition), at)


_logs = PerQuery(Log)


def changes_of(told: Iterable[Mapping[str, Any]]) -> list[KeyChange]:
    """Results of kind ``open_key`` (``key``, ``due``, the Kafka partition): at most one per touched key."""
    return [
        KeyChange(change["key"], (change["kafka_topic"], change["kafka_partition"]), change["due"]) for change in told
    ]


def record(sink: BatchSink, job: str, changes: list[KeyChange]) -> None:
    """Write down what changed in this micro-batch, or all that is open where that is due. For every micro-batch."""
    if sink.batch_id and last_restated(sink.batch_id + 1) == sink.batch_id:
        stated = OpenKeys()
        for change in [*open_keys_before(sink.paths, job, sink.query_id, sink.batch_id), *changes]:
            stated.apply(change)
        changes = [*stated]
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


def forget(paths: PathSettings, committed: Mapping[str, int], *, dry_run: bool = False) -> int:
    """Delete what no micro-batch will look at again; how many rows. ``committed``: query id → its last committed
    micro-batch, -1 where there is none. What other queries wrote, which have no checkpoint any more, goes as well.

    The micro-batch after the committed one may run (again), and reads on from the last restatement before it. Through
    delta-rs, which sees by the bounds of their files that appends of the meantime are not concerned; Delta's own MERGE
    and DELETE would collide with each."""
    bounds = {query_id: last_restated(batch_id + 1) for query_id, batch_id in sorted(committed.items())}
    passed = [f"(query_id = {quoted(query_id)} and batch_id < {bound})" for query_id, bound in bounds.items()]
    others = f"query_id not in ({', '.join(map(quoted, bounds))})" if bounds else "true"
    gone = " or ".join([*passed, others])
    table = open_table(paths, OPEN_KEYS)
    if dry_run:
        return int(select(f"select count(*) as rows from open_keys where {gone}", open_keys=table)[0]["rows"])  # noqa: S608 - ids of checkpoints, quoted
    return int(table.delete(gone)["num_deleted_rows"])


def open_keys(paths: PathSettings, job: str) -> OpenKeys:
    """What was open as earlier micro-batches of the running query left it. For tasks of the query."""
    now = running()
    return OpenKeys() if now is None else open_keys_before(paths, job, *now)


def open_keys_before(paths: PathSettings, job: str, query_id: str, batch_id: int) -> OpenKeys:
    """What was open as the micro-batches before ``batch_id`` left it. Not to be changed: it is kept and read on."""
    return _logs.get(paths, job, query_id).before(batch_id)
