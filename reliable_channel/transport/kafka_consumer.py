"""Reads a Kafka topic from stored offsets, with all partitions assigned instead of negotiated.

One reader reads all partitions: a participant must see every envelope of its content topics, and sharing partitions
out to a group would hide some. The group id only names where the offsets are kept.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.kafka_producer import unreachable

PARTITION_REFRESH_S = 30.0
COMMIT_TIMEOUT_MS = 5_000


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record; ``partition`` and ``offset`` are its place in the topic."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]


class OffsetReader:
    """Reads one topic from where ``group_id`` stopped. For one thread.

    ``start_at`` applies if no offset is stored: ``latest`` is the end at construction, so that no record written after
    the constructor returned is missed. Raises ``EnvironmentFault`` when the cluster or the topic does not exist."""

    def __init__(
        self,
        client_options: Mapping[str, Any],
        topic: str,
        group_id: str | None,
        start_at: Literal["latest", "earliest"] = "latest",
        max_poll_records: int = 500,
        wait_for_topic_s: float = 30.0,
    ) -> None:
        self._topic = topic
        self._keeps = group_id is not None
        options: dict[str, Any] = {
            "group_id": group_id,
            "enable_auto_commit": False,
            "auto_offset_reset": start_at,
            "max_poll_records": max_poll_records,
            "fetch_max_wait_ms": 100,
            "allow_auto_create_topics": False,
            **client_options,
        }
        try:
            self._consumer = KafkaConsumer(**options)
        except KafkaError as error:
            raise unreachable(error) from None
        try:
            self._assigned: set[TopicPartition] = set()
            deadline = time.monotonic() + wait_for_topic_s
            while not self._refresh("latest" if start_at == "latest" else "earliest"):
                if time.monotonic() > deadline:
                    raise EnvironmentFault(
                        f"The Kafka topic {topic} does not exist.", "Create the topics with `reliable-channel setup`."
                    )
                time.sleep(0.2)
        except KafkaError as error:
            self._consumer.close()
            raise unreachable(error) from None
        except BaseException:
            self._consumer.close()
            raise

    def poll(self, timeout_ms: int) -> list[RawRecord]:
        """Return the records that have arrived, in order within each partition. Raises ``EnvironmentFault``."""
        try:
            if time.monotonic() - self._refreshed > PARTITION_REFRESH_S:
                self._refresh("earliest")  # a partition added meanwhile is new from its first record
            batches = self._consumer.poll(timeout_ms=timeout_ms)
        except KafkaError as error:
            raise unreachable(error) from None
        return [
            RawRecord(r.partition, r.offset, r.key, r.value, tuple(r.headers or ()))
            for records in batches.values()
            for r in records
        ]

    def commit(self, next_offsets: Mapping[int, int]) -> None:
        """Commit the offsets to continue from, by partition. Raises ``EnvironmentFault``; a later commit replaces a
        failed one."""
        if not self._keeps or not next_offsets:
            return
        try:
            self._consumer.commit(
                {TopicPartition(self._topic, p): OffsetAndMetadata(o, "", -1) for p, o in next_offsets.items()},
                timeout_ms=COMMIT_TIMEOUT_MS,  # without one it waits for a lost coordinator for ever
            )
        except KafkaError as error:
            raise unreachable(error) from None

    def seek(self, partition: int, offset: int) -> None:
        """Continue reading at ``offset``."""
        self._consumer.seek(TopicPartition(self._topic, partition), offset)

    def rewind(self, count: int) -> None:
        """Read again from ``count`` records before the end of each partition. Raises ``EnvironmentFault``."""
        try:
            begins = self._consumer.beginning_offsets(sorted(self._assigned))
            for tp, end in self._consumer.end_offsets(sorted(self._assigned)).items():
                self._consumer.seek(tp, max(begins[tp], end - count))
        except KafkaError as error:
            raise unreachable(error) from None

    def check(self, timeout_ms: int = 5_000) -> int:
        """Query the brokers; returns how many records this reader is behind. Raises ``EnvironmentFault`` when they do
        not answer."""
        try:
            ends = self._consumer.end_offsets(sorted(self._assigned))
            return sum(max(0, end - self._consumer.position(tp)) for tp, end in ends.items())
        except KafkaError as error:
            raise unreachable(error) from None

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=COMMIT_TIMEOUT_MS)

    def _refresh(self, new_from: Literal["latest", "earliest"]) -> bool:
        self._refreshed = time.monotonic()
        partitions = {TopicPartition(self._topic, p) for p in self._consumer.partitions_for_topic(self._topic) or ()}
        new = partitions - self._assigned
        if not new:
            return bool(self._assigned)
        places = {tp: self._consumer.position(tp) for tp in self._assigned}
        self._consumer.assign(sorted(partitions))
        for tp, place in places.items():
            self._consumer.seek(tp, place)
        for tp in new:
            kept = self._consumer.committed(tp) if self._keeps else None
            if kept is not None:
                self._consumer.seek(tp, kept)
            elif new_from == "latest":
                self._consumer.seek_to_end(tp)
            else:
                self._consumer.seek_to_beginning(tp)
            self._consumer.position(tp)  # resolves the place now, not at the first poll
        self._assigned = partitions
        return True
