"""Records how far each Kafka partition was read, in offsets and in event time (docs/pipeline.md, *Time*).

Only ingest assigns event times. The event time of a partition never decreases: every micro-batch and every tick writes
the position reached to ``clock``, and no later record gets an earlier event time. Ticks are rows of ``sds_messages``
and ``ordered_sds_messages`` in record order, so their position does not depend on the cut into micro-batches. Spark's
watermark is one for all partitions, and what is behind it is dropped: a partition that lags would lose records.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field

import pyarrow as pa

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import BatchSink, append_rows
from reliable_channel.lake.read import open_table, quote, select
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CLOCK, TopicPartition, micros

WALL_CLOCK_GRACE_US = 10_000_000
"""How far the time of a partition without records stays behind the wall clock, because brokers' clocks may differ from
ours."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far one Kafka partition was read: event time (µs) and the next offset to read."""

    event_time_us: int
    next_offset: int


@dataclass
class IngestClock:
    """The recorded position of every partition, cached in the driver of the ingest job; ``clock`` stores it durably."""

    paths: PathSettings
    reached: dict[TopicPartition, Progress] = field(default_factory=dict)
    waiting: frozenset[TopicPartition] = frozenset()
    """Partitions that had records beyond what was read, when Kafka was last asked: no time passes in them without a
    record, since Kafka may withhold those of a transaction, and all after them, until it ends."""
    _loaded_for: tuple[str, int] | None = None

    def load(self, query_id: str, batch_id: int) -> bool:
        """Read the positions recorded before this micro-batch, by other checkpoints and by earlier micro-batches of
        this one. Returns ``False`` if they are still in memory.

        So a replay after a crash computes the same event times, even if its positions were already recorded."""
        if self._loaded_for == (query_id, batch_id - 1):
            return False
        self.reached = read_progress(self.paths, f"query_id <> {quote(query_id)} OR batch_id < {batch_id}")
        return True

    def find_quiet(
        self, reached: dict[TopicPartition, Progress], ingest_us: int, interval_us: int
    ) -> dict[TopicPartition, Progress]:
        """Partitions without records in a micro-batch that ``reached`` something in others: advanced to the latest
        event time there, unless that is less than ``interval_us`` further, so that timers of their channels run.

        They had been read to their end when the micro-batch was planned, except :attr:`waiting`: Spark reads at least
        one offset of every partition that has more. ``ingest_us``: the ingest clock, µs."""
        at_us = min(max(at.event_time_us for at in reached.values()), ingest_us - WALL_CLOCK_GRACE_US)
        return {
            topic_partition: Progress(at_us, at.next_offset)
            for topic_partition, at in self.reached.items()
            if topic_partition not in {*reached, *self.waiting} and at.event_time_us + interval_us <= at_us
        }

    def record(self, sink: BatchSink, reached: dict[TopicPartition, Progress]) -> None:
        """Record the positions that this micro-batch reached."""
        sink.append_small(_make_rows(reached, sink.query_id, sink.batch_id, "batch"), CLOCK)
        self.reached.update(reached)
        self._loaded_for = (sink.query_id, sink.batch_id)

    def record_tick(self, query_id: str, batch_id: int, kind: str, at_us: int) -> dict[TopicPartition, Progress]:
        """Advance every partition that is not :attr:`waiting` to ``at_us`` (µs) while no micro-batch runs; returns
        those that moved.

        ``batch_id``: the last micro-batch. The next one then begins after the tick, and a replay of that one before it
        (:meth:`load`)."""
        moved = {
            topic_partition: Progress(at_us, reached.next_offset)
            for topic_partition, reached in self.reached.items()
            if topic_partition not in self.waiting and reached.event_time_us < at_us
        }
        if moved:
            append_rows(self.paths, CLOCK, _make_rows(moved, query_id, batch_id, kind))
            self.reached.update(moved)
        return moved


def read_progress(paths: PathSettings, where: str = "true") -> dict[TopicPartition, Progress]:
    """The recorded position of each partition, from the rows ``where``."""
    # In SQL, which reads the table piece by piece: it has a row for each partition and micro-batch of a week.
    rows = select(
        "SELECT kafka_topic, kafka_partition, max(event_time) AS event_time, max(next_offset) AS next_offset"  # noqa: S608 - conditions of our own
        f" FROM clock WHERE {where} GROUP BY kafka_topic, kafka_partition",
        clock=open_table(paths, CLOCK),
    )
    return {
        (row["kafka_topic"], row["kafka_partition"]): Progress(micros(row["event_time"]), row["next_offset"])
        for row in rows
    }


def find_last_batch(paths: PathSettings) -> tuple[str, int] | None:
    """The query and micro-batch recorded last, or ``None``."""
    # The newest row of a query may be of an earlier micro-batch, during which the wall clock was ahead.
    last = select(
        "SELECT query_id, max(batch_id) AS batch_id FROM clock GROUP BY query_id"
        " ORDER BY max(recorded_at) DESC LIMIT 1",
        clock=open_table(paths, CLOCK),
    )
    return (last[0]["query_id"], last[0]["batch_id"]) if last else None


def _make_rows(reached: dict[TopicPartition, Progress], query_id: str, batch_id: int, kind: str) -> pa.Table:
    now = dt.datetime.now(dt.UTC)
    rows = [
        {
            "kafka_topic": topic,
            "kafka_partition": partition,
            "query_id": query_id,
            "batch_id": batch_id,
            "kind": kind,
            "event_time": at.event_time_us,
            "next_offset": at.next_offset,
            "recorded_at": now,
        }
        for (topic, partition), at in sorted(reached.items(), key=lambda item: item[0])
    ]
    return as_arrow(rows, CLOCK)
