"""Refuses a topic that was deleted and created again under the checkpoint of ingest, or restored from an older copy.

Spark would silently wait until the topic has as many records as were read, and lose those up to there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.checkpoints import read_checkpoint, read_record, write_record
from reliable_channel.lake.tables import TopicPartition
from reliable_channel.pipeline.ingest.lost_offsets import PATIENCE_MS
from reliable_channel.runtime.topics import unreachable

_TOPIC_ID = "kafka.topic_id"
"""The key of the topic's id in the record of the checkpoint."""


def refuse_recreated_topic(consumer: Any, topic_id: str, settings: Settings) -> None:
    """Compare the id of the topic, and the end of every partition, with the checkpoint of ingest, and record the id if
    the checkpoint has none. ``consumer``: a ``KafkaConsumer``; ``topic_id``: empty if the broker knows no ids.

    Raises ``ConfigurationError`` if the ids differ, or a partition ends before the offset that was read. Only the id
    tells a new topic that has grown beyond the old one, or of which nothing was read yet."""
    recorded = read_record(settings.paths, "ingest")
    known = recorded.get(_TOPIC_ID, "")
    if topic_id and known and topic_id != known:
        raise _make_error(settings.kafka.topics.envelopes, f"its id is {topic_id}, and {known} was read")
    _compare_ends(consumer, settings)
    if topic_id and not known:
        write_record(settings.paths, "ingest", {**recorded, _TOPIC_ID: topic_id})


def find_unread(settings: Settings) -> frozenset[TopicPartition]:
    """The partitions that have records beyond the last micro-batch of ingest, also such as Kafka withholds until a
    transaction has ended. Raises ``ConfigurationError`` if the id of the topic is not that of the checkpoint or a
    partition ends before the offset that was read, and ``EnvironmentFault`` if Kafka does not answer."""
    from kafka.errors import KafkaError

    from reliable_channel.transport.kafka_consumer import describe_topic

    clients, name = settings.kafka.clients(), settings.kafka.topics.envelopes
    checkpoint = read_checkpoint(settings.paths, "ingest")  # before the ends: a running query reads beyond older ones
    patience = {"request_timeout_ms": PATIENCE_MS, "bootstrap_timeout_ms": PATIENCE_MS}
    try:
        topic = describe_topic(replace(clients, admin={**patience, **clients.admin}), name, with_ends=True)
    except (KafkaError, OSError) as error:
        raise unreachable(settings.kafka, error) from None
    known = read_record(settings.paths, "ingest").get(_TOPIC_ID, "")
    if topic.id and known and topic.id != known:
        raise _make_error(name, f"its id is {topic.id}, and {known} was read")
    read = {} if checkpoint is None else checkpoint.offsets.kafka.get(name, {})
    refuse_shorter_topic(name, read, topic.ends)
    return frozenset((name, partition) for partition, end in topic.ends.items() if end > read.get(partition, 0))


def _compare_ends(consumer: Any, settings: Settings) -> None:
    from kafka import TopicPartition

    from reliable_channel.transport.kafka_consumer import query_offsets

    checkpoint, topic = read_checkpoint(settings.paths, "ingest"), settings.kafka.topics.envelopes
    read = {} if checkpoint is None else checkpoint.offsets.kafka.get(topic, {})
    there = consumer.partitions_for_topic(topic) or ()
    partitions = [TopicPartition(topic, number) for number in sorted(there) if number in read]
    ends = query_offsets(consumer.end_offsets, partitions)
    refuse_shorter_topic(topic, read, {each.partition: end for each, end in ends.items()})


def refuse_shorter_topic(topic: str, read: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Raise ``ConfigurationError`` if a partition ends before the offset to which it was ``read``."""
    for partition, end in ends.items():
        if end < read.get(partition, 0):
            raise _make_error(topic, f"its partition {partition} ends at {end}, and was read to {read[partition]}")


def _make_error(topic: str, how_known: str) -> ConfigurationError:
    return ConfigurationError(
        f"The topic {topic} was deleted and recreated, or restored from an older copy: {how_known}.",
        "Set paths.data_dir and paths.checkpoint_dir to new places: the tables identify a record by its offset.",
    )
