"""Copies the evidence topic into the tables, up to its current end: kafka-python reads, ``evidence.intake``
converts."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kafka import KafkaConsumer, TopicPartition

from reliable_channel.config import Settings
from reliable_channel.evidence.intake import Collected, EvidenceRecord, name_source, read_position, write
from reliable_channel.transport.kafka_clients import open_client
from reliable_channel.transport.kafka_consumer import DescribedTopic, describe_topic, poll_records, query_offsets
from reliable_channel.transport.kafka_producer import translate_errors

BATCH_RECORDS = 5_000
POLL_MS = 2_000


@translate_errors()
def collect_evidence(settings: Settings) -> Collected:
    """Process all current records of the evidence topic, each exactly once. Needs no Spark.

    A second collector on the same run directory (a job beside ``run``) waits for the first. Raises ``EnvironmentFault``
    if Kafka cannot be reached or a record cannot be decoded."""
    topic, clients = settings.bridge.evidence_topic, settings.kafka.clients()
    # Earliest: where records are deleted while this begins, kafka-python's default would skip the kept ones as well.
    options = {"max_poll_records": BATCH_RECORDS, "auto_offset_reset": "earliest", **clients.consumer}
    # No group: the positions are in the tables, committed together with the rows (:mod:`.intake`).
    options |= {"enable_auto_commit": False, "group_id": None}
    with closing(open_client(KafkaConsumer, options)) as consumer, _hold_lock(settings):
        return _read(settings, consumer, topic, describe_topic(clients, topic, with_ends=True))


@contextmanager
def _hold_lock(settings: Settings) -> Iterator[None]:
    """Hold the collector lock: two collectors would both process the records since the same position. Waits for it,
    unlike ``FileLock``."""
    directory = Path(settings.paths.run_dir)
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "evidence.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _read(settings: Settings, consumer: KafkaConsumer, topic: str, described: DescribedTopic) -> Collected:
    topic_partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    if not topic_partitions:
        return Collected()
    consumer.assign(topic_partitions)
    first = query_offsets(consumer.beginning_offsets, topic_partitions)
    end = query_offsets(consumer.end_offsets, topic_partitions)
    source = name_source(settings.paths, topic, described.id, {each.partition: end[each] for each in topic_partitions})
    for each in topic_partitions:
        consumer.seek(each, max(first[each], read_position(settings.paths, source, each.partition)))
    # The ends that include open transactions were fetched first: what was written since does not count as withheld.
    total = Collected(
        withheld=sum(max(0, described.ends.get(each.partition, 0) - end[each]) for each in topic_partitions)
    )
    while any(consumer.position(each) < end[each] for each in topic_partitions):
        polled = poll_records(consumer, topic, POLL_MS)
        records = [EvidenceRecord(r.partition, r.offset, r.value) for batch in polled.values() for r in batch]
        if not records:  # a slow broker: other collectors wait meanwhile, and the next run reads the rest
            break
        new = write(settings.paths, source, records, settings.kafka.topics.envelopes)
        where = total.first_refused or new.first_refused
        total = Collected(total.written + new.written, total.refused + new.refused, where, total.withheld)
    return total
