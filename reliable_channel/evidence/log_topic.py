"""Reads a Kafka topic of log lines, as log shippers write it, and adds what they show to ``sightings``.

Offsets are committed after the rows are in the table: a line may be read twice, its sighting is written once. The
consumer group has the id of the table in its name: tables that were made anew read the topic from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import LocalError
from reliable_channel.evidence.log_files import MAX_LINE_BYTES, ROWS_AT_ONCE, WAIT_S, LogCounts, PendingSightings
from reliable_channel.evidence.node_logs import MAX_TEXT, LogSighting, read_field
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import SIGHTINGS
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import OffsetReader, RawRecord

GROUP = "reliable-channel-logs-"
"""The consumer group is this and the id of the table."""
POLL_MS = 1_000


def read_topic(
    paths: PathSettings,
    clients: KafkaClients,
    topic: str,
    node: str | None = None,
    node_field: str | None = None,
    follow: bool = False,
) -> LogCounts:
    """Add the sightings in the records of ``topic`` since the last time to the table, up to its end, or for ever.

    A line is of ``node``, else of the node in ``node_field`` of its JSON, in the key of its record, or in the line
    itself (its peer id). Lines that name none are counted. Raises ``LocalError`` if no line names one, and
    ``EnvironmentFault`` if the topic cannot be read."""
    create_tables(paths, (SIGHTINGS,))
    group = f"{GROUP}{open_table(paths, SIGHTINGS).metadata().id}"
    reading = _TopicReading(PendingSightings(paths, counts := LogCounts()), counts, node, node_field)
    with closing(OffsetReader(clients, topic, group, "earliest", wait_for_topic_s=0)) as reader:
        left, written_at, ended = reader.check(), time.monotonic(), False
        while not ended:
            records = reader.poll(POLL_MS)
            for record in records:
                reading.take(record)
            left -= len(records)
            # Markers of transactions are counted in ``left`` and never come, so the brokers are asked once more.
            ended = not follow and (left <= 0 or (not records and reader.check() == 0))
            if ended or reading.is_full() or time.monotonic() - written_at > WAIT_S:
                reader.commit(reading.write(topic))
                written_at = time.monotonic()
        reader.check()
        counts.withheld = reader.withheld
    return counts


class _TopicReading:
    """What was read of a topic and is not written yet."""

    def __init__(self, pending: PendingSightings, counts: LogCounts, node: str | None, node_field: str | None) -> None:
        self._pending, self._counts, self._node, self._node_field = pending, counts, node, node_field
        self._next_offsets: dict[int, int] = {}
        self._named = False
        """A line named its node."""

    def is_full(self) -> bool:
        return len(self._pending) >= ROWS_AT_ONCE

    def take(self, record: RawRecord) -> None:
        for line in self._lines(record.value or b""):
            if sightings := self._pending.parse(line):
                if node := self._node_of(line, record.key, sightings[0]):
                    self._pending.add(sightings, node)
                else:
                    self._counts.unnamed += 1
        self._next_offsets[record.partition] = record.offset + 1

    def write(self, topic: str) -> dict[int, int]:
        """Write the sightings; returns the offsets to continue from."""
        self._named = self._named or len(self._pending) > 0
        if self._counts.unnamed and not self._named:
            raise LocalError(
                f"The lines in the topic {topic} do not name their nodes.",
                "Name the field of their JSON that does: --node-field FIELD. If all are of one node: --node NAME.",
            )
        self._pending.write()
        offsets, self._next_offsets = self._next_offsets, {}
        return offsets

    def _lines(self, value: bytes) -> Iterator[bytes]:
        for line in value.rstrip(b"\n").split(b"\n"):
            self._counts.lines += 1
            if len(line) > MAX_LINE_BYTES:
                self._counts.too_long += 1
            else:
                yield line

    def _node_of(self, line: bytes, key: bytes | None, sighting: LogSighting) -> str | None:
        field = read_field(line, self._node_field) if self._node_field else None
        in_key = (key or b"")[:MAX_TEXT].decode("utf-8", "replace")
        return self._node or field or in_key or sighting.node
