"""Reads a Kafka topic from stored offsets, with all partitions assigned instead of negotiated.

One reader reads all partitions: a participant must see every envelope of its content topics, and sharing partitions
out to a group would hide some. The group id only names where the offsets are kept.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import (
    CommitFailedError,
    CorruptRecordError,
    KafkaError,
    KafkaTimeoutError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedCodecError,
    for_code,
)
from kafka.structs import OffsetAndMetadata

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.base import RecordsGone
from reliable_channel.transport.kafka_clients import BOOTSTRAP_MS, KafkaClients, open_client
from reliable_channel.transport.kafka_producer import translate_errors
from reliable_channel.transport.kafka_records import Headers

_log = logging.getLogger(__name__)

TOPIC_REFRESH_S = 30.0
"""How often a reader looks for new partitions, and for a new topic of the same name."""
RENEW_OFFSETS_S = 3_600.0
"""How often offsets that did not change are committed again. Brokers forget an offset some time after its last commit
(``offsets.retention.minutes``, a week by default), also if the partition was only quiet."""
COMMIT_TIMEOUT_MS = 5_000
NO_ID = UUID(int=0)
"""What brokers return for a topic that does not exist."""
_CREATED_ANEW, _DELETED = "the topic was created anew", "retention has deleted them"


@dataclass(frozen=True, slots=True)
class RawRecord:
    """One record; ``partition`` and ``offset`` are its place in the topic, ``at_ms`` is its time there (Unix ms)."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class DescribedTopic:
    """What the brokers say of a topic. ``id`` is empty, and there are no ``partitions``, if it does not exist; brokers
    before 2.8 know no ids. ``ends``: where each partition ends, open transactions included, if that was
    asked for."""

    id: str
    partitions: frozenset[int]
    ends: Mapping[int, int]


def describe_topic(clients: KafkaClients, topic: str, with_ends: bool = False) -> DescribedTopic:
    """Ask the brokers for a topic. Raises ``KafkaError``, and ``EnvironmentFault`` if it has no end because a partition
    has no leader. A consumer would answer from its metadata, which may be five minutes old."""
    with closing(open_client(KafkaAdminClient, clients.admin)) as admin:
        described: dict[str, Any] = next(iter(admin.describe_topics([topic])), {})
        leaders = {each["partition_index"]: each["leader_id"] for each in described.get("partitions") or ()}
        partitions = frozenset(leaders)
        if with_ends and (without := sorted(partition for partition in leaders if leaders[partition] < 0)):
            raise EnvironmentFault(
                f"The topic {topic} has no leader for its partitions {', '.join(map(str, without))}.",
                "Start the brokers that have them; until then nothing of the topic is read.",
            )
        specs = {TopicPartition(topic, partition): OffsetSpec.LATEST for partition in partitions if with_ends}
        ends = admin.list_partition_offsets(specs) if specs else {}
    if (error := for_code(described.get("error_code", 0))) is TopicAuthorizationFailedError:
        raise error(topic)
    topic_id = described.get("topic_id") or NO_ID
    return DescribedTopic(
        "" if topic_id == NO_ID else str(topic_id), partitions, {at.partition: end.offset for at, end in ends.items()}
    )


def make_missing_topic_fault(topic: str) -> EnvironmentFault:
    """The fault of a topic that does not exist."""
    return EnvironmentFault(
        f"The Kafka topic {topic} does not exist.",
        "Check its name; `reliable-channel kafka topics` creates the topics of this project.",
    )


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
            "Install the codecs and start again: pip install 'reliable-channel[zstd]'."
            if isinstance(error, UnsupportedCodecError)
            else "Delete it (docs/howto/kafka.md).",
        ) from None


class OffsetReader:
    """Reads one topic from where ``group_id`` stopped. For one thread.

    ``start_at`` applies if the group has no offset for any partition: ``latest`` is the end at construction, so that no
    record written after the constructor returned is missed. The offsets are committed at once, so a group that reads
    nothing in its first session continues there too. A partition that is new to a known group is read from its
    beginning. The log and ``on_gone`` tell of unread records that Kafka no longer has, because retention deleted them
    or the topic was created anew; reading continues at the earliest record that is kept. Kafka deletes a group's
    offsets with their topic: an offset that is committed for ``marker_topic`` shows that the group is known all the
    same. Raises ``EnvironmentFault`` when the cluster or the topic does not exist."""

    @translate_errors()
    def __init__(
        self,
        clients: KafkaClients,
        topic: str,
        group_id: str | None,
        start_at: Literal["latest", "earliest"] = "latest",
        wait_for_topic_s: float = 30.0,
        on_gone: Callable[[RecordsGone], None] | None = None,
        marker_topic: str | None = None,
    ) -> None:
        self._topic = topic
        self._marker = None if marker_topic is None else TopicPartition(marker_topic, 0)
        self._name = secrets.token_hex(8)
        """Of this reader, beside other processes that use its group."""
        self._clients = clients
        self._keeps = group_id is not None
        self._on_gone = on_gone
        self._topic_id = ""
        self._committed: dict[int, int] = {}
        self._renewed = time.monotonic()
        self._options: dict[str, Any] = {
            "bootstrap_timeout_ms": BOOTSTRAP_MS,
            "group_id": group_id,
            "enable_auto_commit": False,
            "auto_offset_reset": "none",  # positions are always set here: a reset would skip records silently
            "fetch_max_wait_ms": 100,
            **clients.consumer,
        }
        self._consumer = open_client(KafkaConsumer, self._options)
        self.is_new = True
        """Whether Kafka knew no position of the group when this reader began."""
        self.withheld = 0
        """How many records Kafka withheld at the last check, until a transaction ends."""
        self._withheld_at: dict[tuple[TopicPartition, int], int] = {}
        """From where on Kafka withholds records → at how many refreshes on end."""
        self._spoilt = False
        """A record could not be decoded. kafka-python's next poll would not end, so another consumer must go on."""
        try:
            self._assigned: set[TopicPartition] = set()
            deadline = time.monotonic() + wait_for_topic_s
            while not self._refresh(start_at):
                if time.monotonic() > deadline:
                    raise make_missing_topic_fault(topic)
                time.sleep(0.2)  # there is nothing to wait for: the brokers report no new topic
        except BaseException:
            self._consumer.close()
            raise
        self.commit({tp.partition: self._consumer.position(tp) for tp in self._assigned})

    @translate_errors()
    def poll(self, timeout_ms: int) -> list[RawRecord]:
        """Return the records that have arrived, in order within each partition. Raises ``EnvironmentFault``, also for a
        record that cannot be decoded: reading continues when it is deleted."""
        try:
            if self._spoilt:
                self._replace_consumer()
            self._refresh_if_due()
            if time.monotonic() - self._renewed > RENEW_OFFSETS_S:
                self._renewed = time.monotonic()
                self.commit(dict(self._committed))
            batches = poll_records(self._consumer, self._topic, timeout_ms)
        except EnvironmentFault:
            self._spoilt = True
            raise
        except OffsetOutOfRangeError as error:
            for tp, offset in error.args[0].items():
                self._continue_at_earliest(tp, offset)
            return []
        except LogTruncationError as error:
            self._continue_in_other_log(error.divergent_offsets)
            return []
        return [
            RawRecord(r.partition, r.offset, r.key, r.value, tuple(r.headers or ()), r.timestamp or 0)
            for records in batches.values()
            for r in records
        ]

    @translate_errors()
    def commit(self, next_offsets: Mapping[int, int]) -> None:
        """Commit the offsets to continue from, by partition. Raises ``EnvironmentFault``; a later commit replaces a
        failed one."""
        if not self._keeps or not next_offsets:
            return
        self._refresh_if_due()
        # Positions in a topic that is gone do not apply to the new one.
        offsets = {
            tp: min(next_offsets[tp.partition], self._consumer.position(tp))
            for tp in self._assigned
            if tp.partition in next_offsets
        }
        self._committed |= {tp.partition: offset for tp, offset in offsets.items()}
        kept = {tp: OffsetAndMetadata(offset, self._topic_id, -1) for tp, offset in offsets.items()}
        if self._marker is not None:
            kept[self._marker] = OffsetAndMetadata(0, f"{self._topic_id} {self._name}", -1)
        try:
            self._consumer.commit(
                kept,
                timeout_ms=COMMIT_TIMEOUT_MS,  # without one it waits for a lost coordinator for ever
            )
        except CommitFailedError:  # to Kafka, this reader is a member of no group
            raise EnvironmentFault(
                f"Another client has joined the consumer group {self._options['group_id']}, so Kafka keeps no positions"
                " for this one.",
                "Stop it, or give it another group.",
            ) from None

    @translate_errors()
    def rewind(self, count: int) -> None:
        """Read again from ``count`` records before the end of each partition. Raises ``EnvironmentFault``."""
        begins = self._find_begins(self._assigned)
        for tp, end in self._find_ends(self._assigned).items():
            self._consumer.seek(tp, max(begins[tp], end - count))

    @translate_errors()
    def check(self) -> int:
        """Query the brokers; returns how many records this reader is behind, without those ``withheld``. Raises
        ``EnvironmentFault`` when they do not answer."""
        ends = self._find_ends(self._assigned)
        self.withheld = sum(self._count_withheld(tp, end) for tp, end in ends.items())
        return sum(max(0, end - self._consumer.position(tp)) for tp, end in ends.items())

    @translate_errors()
    def find_begins_of(self, topic: str, partitions: Iterable[int]) -> dict[int, int]:
        """The earliest offsets that Kafka keeps of partitions of another topic. Raises ``EnvironmentFault``."""
        begins = self._find_begins(TopicPartition(topic, partition) for partition in partitions)
        return {tp.partition: begin for tp, begin in begins.items()}

    @translate_errors()
    def is_shared(self) -> bool:
        """Whether another process was the last to keep positions in this group. Needs a ``marker_topic``. Raises
        ``EnvironmentFault``."""
        marker = self._fetch_committed(self._marker) if self._keeps and self._marker else None
        return marker is not None and (marker.metadata or "").partition(" ")[2] not in ("", self._name)

    def close(self) -> None:
        self._consumer.close(autocommit=False, timeout_ms=COMMIT_TIMEOUT_MS)

    def _refresh_if_due(self) -> None:
        if time.monotonic() - self._refreshed > TOPIC_REFRESH_S:
            self._refresh("earliest")  # a partition added meanwhile is new from its first record
            self._report_open_transactions()

    def _report_open_transactions(self) -> None:
        """Log once where Kafka withholds records from the same offset on as at the last refresh: their transaction is
        not just one of many, and its producer may have died."""
        with suppress(UnknownTopicOrPartitionError):  # deleted; it may be created anew
            withheld = [
                (tp, end) for tp, end in self._find_ends(self._assigned).items() if self._count_withheld(tp, end)
            ]
            self._withheld_at = {each: self._withheld_at.get(each, 0) + 1 for each in withheld}
            for (tp, end), times in self._withheld_at.items():
                if times == 2:
                    _log.warning(
                        "a transaction stays open in partition %d of %s: Kafka withholds what is there from offset %d"
                        " on; end its producer, or abort it (docs/howto/kafka.md, What is read)",
                        *(tp.partition, tp.topic, end),
                    )

    def _count_withheld(self, tp: TopicPartition, end: int) -> int:
        """How many records of a partition Kafka withholds behind the ``end`` of what it gives."""
        return max(0, (self._consumer.highwater(tp) or 0) - end)

    def _replace_consumer(self) -> None:
        """Continue with a new consumer at the same positions."""
        positions = {tp: self._consumer.position(tp) for tp in self._assigned}
        new = open_client(KafkaConsumer, self._options)  # may raise; the old one then keeps the positions
        self.close()
        self._consumer, self._spoilt = new, False
        new.assign(sorted(positions))
        for tp, position in positions.items():
            new.seek(tp, position)

    def _refresh(self, new_from: Literal["latest", "earliest"]) -> bool:
        """Assign the partitions that the topic has by now; ``False`` if it has never had any. Offsets alone cannot show
        that a topic was created anew once it has grown, so its id is compared."""
        described = describe_topic(self._clients, self._topic)
        partitions = {TopicPartition(self._topic, number) for number in described.partitions}
        if described.id and self._topic_id not in ("", described.id):
            self._start_over(partitions)
            self._topic_id = described.id
        elif partitions - self._assigned:
            self._topic_id = described.id
            self._add(partitions, new_from)
        self._refreshed = time.monotonic()
        return bool(self._assigned)

    def _start_over(self, partitions: set[TopicPartition]) -> None:
        """Read a new topic of the same name from its beginning."""
        begins = self._find_begins(partitions)  # may fail; then the old partitions stay assigned
        positions = {tp: self._consumer.position(tp) for tp in self._assigned}
        self._consumer.assign(sorted(partitions))
        for tp, begin in begins.items():
            self._consumer.seek(tp, begin)
        self._assigned = partitions
        self._committed = {}
        for tp, position in sorted(positions.items()):
            self._name_gone(tp, position, position, _CREATED_ANEW)

    def _add(self, partitions: set[TopicPartition], new_from: Literal["latest", "earliest"]) -> None:
        """Assign ``partitions``, some of which are new to this reader."""
        new = partitions - self._assigned
        stored = {tp: self._fetch_committed(tp) for tp in new} if self._keeps else {}
        marker = self._fetch_committed(self._marker) if self._keeps and self._marker else None
        positions = {tp: self._consumer.position(tp) for tp in self._assigned}
        self._consumer.assign(sorted(partitions))
        for tp, position in positions.items():
            self._consumer.seek(tp, position)
        is_known = bool(self._assigned) or marker is not None or any(stored.values())
        if not self._assigned:
            self.is_new = not is_known
        known_id = "" if marker is None else (marker.metadata or "").partition(" ")[0]
        recreated = known_id not in ("", self._topic_id)
        for tp, begin in self._find_begins(new).items():
            kept = stored.get(tp)
            if kept is not None:
                self._continue(tp, kept)
            elif recreated:
                self._continue_at_earliest(tp, begin, recreated=True)
            elif is_known and begin:  # new since then, and deleted from already
                self._continue_at_earliest(tp, 0, recreated=False)
            elif is_known or new_from == "earliest":
                self._consumer.seek(tp, begin)
            else:
                self._consumer.seek(tp, self._find_ends([tp])[tp])
        self._assigned = partitions

    def _fetch_committed(self, tp: TopicPartition) -> OffsetAndMetadata | None:
        try:
            return self._consumer.committed(tp, metadata=True, timeout_ms=BOOTSTRAP_MS)  # without: for ever
        except KafkaTimeoutError:
            raise EnvironmentFault(
                f"Kafka does not say where the group {self._options['group_id']} stopped.",
                "Check that all brokers run, and that there are as many as their offsets.topic.replication.factor"
                " says (3 by default).",
            ) from None

    def _continue(self, tp: TopicPartition, kept: OffsetAndMetadata) -> None:
        """Continue at a stored offset if it is of this topic and still there."""
        begin, end = self._find_begins([tp])[tp], self._find_ends([tp])[tp]
        other_topic = bool(self._topic_id and kept.metadata) and kept.metadata != self._topic_id
        if begin <= kept.offset <= end and not other_topic:
            if self._topic_id and not kept.metadata:
                _log.warning(
                    "another client set the group %s to offset %d in partition %d of %s; reading continues there",
                    *(self._options["group_id"], kept.offset, tp.partition, tp.topic),
                )
            self._consumer.seek(tp, kept.offset)
        else:
            self._continue_at_earliest(tp, kept.offset, recreated=other_topic or kept.offset > end)

    def _continue_in_other_log(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue where the broker has other records at the offsets that were read: the topic was created anew, or
        restored from an older copy. kafka-python names an offset to continue at, which is beyond new records where the
        broker's count of leaders was restored as well."""
        known = self._topic_id
        self._refresh("earliest")
        if self._topic_id == known:
            for tp in sorted(partitions):
                self._continue_at_earliest(tp, self._consumer.position(tp), recreated=True)

    def _continue_at_earliest(self, tp: TopicPartition, offset: int, recreated: bool | None = None) -> None:
        begin = self._find_begins([tp])[tp]
        if recreated is None:
            recreated = offset > self._find_ends([tp])[tp]
        self._consumer.seek(tp, begin)
        if recreated:
            self._name_gone(tp, offset, offset, _CREATED_ANEW)
        else:
            self._name_gone(tp, offset, begin, _DELETED)

    def _name_gone(self, tp: TopicPartition, first: int, next_offset: int, reason: str) -> None:
        gone = RecordsGone(self._topic, tp.partition, first, next_offset, reason)
        _log.warning("records are gone before they were read: %s", gone)
        if self._on_gone is not None:
            self._on_gone(gone)

    def _find_begins(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The earliest offsets that are kept, in order of the partitions. Raises ``KafkaError``."""
        return query_offsets(self._consumer.beginning_offsets, partitions)

    def _find_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The offsets after the newest records, in order of the partitions. Raises ``KafkaError``."""
        return query_offsets(self._consumer.end_offsets, partitions)


def query_offsets(
    ask: Callable[[list[TopicPartition]], dict[TopicPartition, int]], partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The offsets that the brokers answer with. Raises ``KafkaError``, also for partitions of a topic that was deleted:
    for them kafka-python raises ``KeyError``."""
    wanted = sorted(partitions)
    try:
        return dict(sorted(ask(wanted).items())) if wanted else {}
    except KeyError as error:
        raise UnknownTopicOrPartitionError(str(error)) from None
