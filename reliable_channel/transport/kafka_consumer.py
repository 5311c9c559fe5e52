"""Reads a Kafka topic from stored offsets, with all partitions assigned instead of negotiated.

One reader reads all partitions: a participant must see every envelope of its content topics, and sharing partitions
out to a group would hide some. The group id only names where the offsets are kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, UnsupportedCodecError
from kafka.structs import OffsetAndMetadata

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.kafka_clients import KafkaClients
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


@dataclass(frozen=True, slots=True)
class GoneOffsets:
    """Offsets ``first`` up to, but without, ``next`` of a partition that are no longer in Kafka; ``next`` equals
    ``first`` where the topic was created anew and their number is not known."""

    partition: int
    first: int
    next: int
    reason: str


def poll_records(consumer: Any, topic: str, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
    """Poll a ``KafkaConsumer`` that has partitions of ``topic`` assigned. Raises ``EnvironmentFault`` for a record that
    kafka-python cannot decode, which names where it may be, and ``KafkaError`` for everything else. After the former
    the consumer must not be polled again: kafka-python's next poll would not end."""
    try:
        return dict(consumer.poll(timeout_ms=timeout_ms))
    except Exception as error:  # codecs raise errors of their own
        if isinstance(error, KafkaError) and not isinstance(error, UnsupportedCodecError | CorruptRecordError):
            raise
        next_offsets = {tp: consumer.position(tp) for tp in sorted(consumer.assignment())}
        where = " or ".join(
            f"partition {tp.partition}, offset {at}"
            for tp, at in next_offsets.items()
            if at < (consumer.highwater(tp) or 0)
        )
        raise EnvironmentFault(
            f"A record of {topic} cannot be decoded ({error}): {where}.",
            "Install the dependencies of reliable-channel, which include Kafka's codecs."
            if isinstance(error, UnsupportedCodecError)
            else "Delete it (docs/howto/kafka.md).",
        ) from None


class OffsetReader:
    """Reads one topic from where ``group_id`` stopped. For one thread.

    ``start_at`` applies if the group has no offset for any partition: ``latest`` is the end at construction, so that no
    record written after the constructor returned is missed. The offsets are committed at once, so a group that reads
    nothing in its first session continues there too. A partition that is new to a known group is read from its
    beginning. ``on_gone`` is told which unread records Kafka no longer has, because retention deleted them or the topic
    was created anew; reading continues at the earliest record that is kept. Kafka deletes a group's offsets with their
    topic: an offset that is committed for ``marker_topic`` shows that the group is known all the same. Raises
    ``EnvironmentFault`` when the cluster or the topic does not exist."""

    def __init__(
        self,
        clients: KafkaClients,
        topic: str,
        group_id: str | None,
        start_at: Literal["latest", "earliest"] = "latest",
        max_poll_records: int = 500,
        wait_for_topic_s: float = 30.0,
        on_gone: Callable[[GoneOffsets], None] | None = None,
        marker_topic: str | None = None,
    ) -> None:
        self._topic = topic
        self._marker = None if marker_topic is None else TopicPartition(marker_topic, 0)
        self._clients = clients
        self._keeps = group_id is not None
        self._on_gone = on_gone
        self._topic_id = ""
        self._options: dict[str, Any] = {
            "group_id": group_id,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",  # positions are always set here: a reset would skip records silently
            "max_poll_records": max_poll_records,
            "fetch_max_wait_ms": 100,
            "allow_auto_create_topics": False,
            **clients.consumer,
        }
        try:
            self._consumer = KafkaConsumer(**self._options)
        except KafkaError as error:
            raise unreachable(error) from None
        self._spoilt = False
        """A record could not be decoded. kafka-python's next poll would not end, so another consumer must go on."""
        try:
            self._assigned: set[TopicPartition] = set()
            deadline = time.monotonic() + wait_for_topic_s
            while not self._refresh(start_at):
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
        self.commit({tp.partition: self._consumer.position(tp) for tp in self._assigned})

    def poll(self, timeout_ms: int) -> list[RawRecord]:
        """Return the records that have arrived, in order within each partition. Raises ``EnvironmentFault``, also for a
        record that cannot be decoded: reading continues when it is deleted."""
        try:
            if self._spoilt:
                self._replace_consumer()
            if time.monotonic() - self._refreshed > PARTITION_REFRESH_S:
                self._refresh("earliest")  # a partition added meanwhile is new from its first record
            batches = poll_records(self._consumer, self._topic, timeout_ms)
        except EnvironmentFault:
            self._spoilt = True
            raise
        except OffsetOutOfRangeError as error:
            for tp, offset in error.args[0].items():
                self._continue_at_earliest(tp, offset)
            return []
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
        offsets = {TopicPartition(self._topic, partition): offset for partition, offset in next_offsets.items()}
        if self._marker is not None:
            offsets[self._marker] = 0
        try:
            self._consumer.commit(
                {tp: OffsetAndMetadata(offset, self._topic_id, -1) for tp, offset in offsets.items()},
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

    def _replace_consumer(self) -> None:
        """Continue with a new consumer at the same positions."""
        positions = {tp: self._consumer.position(tp) for tp in self._assigned}
        new = KafkaConsumer(**self._options)
        self.close()
        self._consumer, self._spoilt = new, False
        new.assign(sorted(positions))
        for tp, position in positions.items():
            new.seek(tp, position)

    def _refresh(self, new_from: Literal["latest", "earliest"]) -> bool:
        self._refreshed = time.monotonic()
        if self._keeps:
            self._notice_new_topic()
        partitions = {TopicPartition(self._topic, p) for p in self._consumer.partitions_for_topic(self._topic) or ()}
        new = partitions - self._assigned
        if not new:
            return bool(self._assigned)
        positions = {tp: self._consumer.position(tp) for tp in self._assigned}
        self._consumer.assign(sorted(partitions))
        for tp, position in positions.items():
            self._consumer.seek(tp, position)
        stored = {tp: self._consumer.committed(tp, metadata=True) for tp in new} if self._keeps else {}
        marker = self._consumer.committed(self._marker, metadata=True) if self._keeps and self._marker else None
        if marker is not None or any(stored.values()):
            new_from = "earliest"
        recreated = marker is not None and bool(marker.metadata) and marker.metadata != self._topic_id
        for tp in sorted(new):
            kept = stored.get(tp)
            if kept is not None:
                self._continue(tp, kept)
            elif recreated:
                self._continue_at_earliest(tp, self._consumer.beginning_offsets([tp])[tp], recreated=True)
            elif new_from == "latest":
                self._consumer.seek(tp, self._consumer.end_offsets([tp])[tp])
            else:
                self._consumer.seek(tp, self._consumer.beginning_offsets([tp])[tp])
        self._assigned = partitions
        return True

    def _continue(self, tp: TopicPartition, kept: OffsetAndMetadata) -> None:
        """Continue at a stored offset if it is of this topic and still there."""
        begin = self._consumer.beginning_offsets([tp])[tp]
        end = self._consumer.end_offsets([tp])[tp]
        other_topic = bool(self._topic_id and kept.metadata) and kept.metadata != self._topic_id
        if begin <= kept.offset <= end and not other_topic:
            self._consumer.seek(tp, kept.offset)
        else:
            self._continue_at_earliest(tp, kept.offset, recreated=other_topic or kept.offset > end)

    def _continue_at_earliest(self, tp: TopicPartition, offset: int, recreated: bool | None = None) -> None:
        begin = self._consumer.beginning_offsets([tp])[tp]
        if recreated is None:
            recreated = offset > self._consumer.end_offsets([tp])[tp]
        self._consumer.seek(tp, begin)
        if self._on_gone is not None:
            reason = "the topic was created anew" if recreated else "retention has deleted them"
            self._on_gone(GoneOffsets(tp.partition, offset, offset if recreated else begin, reason))

    def _notice_new_topic(self) -> None:
        """Compare the id of the topic with the one that this reader knows, and start over in a new topic of the same
        name. Offsets alone cannot show that a topic was created anew once it has grown."""
        admin = KafkaAdminClient(**self._clients.admin)
        try:
            described = admin.describe_topics([self._topic])
        finally:
            admin.close()
        topic_id = next((str(each["topic_id"]) for each in described if each.get("topic_id")), "")
        known, self._topic_id = self._topic_id, topic_id or self._topic_id
        if known and topic_id and topic_id != known:
            for tp in self._assigned:
                self._continue_at_earliest(tp, self._consumer.position(tp), recreated=True)
