"""Limits an ingest micro-batch to about ``spark.max_bytes_per_trigger``.

Spark's Kafka source limits only the number of records (``maxOffsetsPerTrigger``). If the newest records of the topic
are large, a micro-batch reads fewer; their sizes are sampled once, when the query starts.
"""

from __future__ import annotations

import logging
import time
from contextlib import closing, suppress
from typing import Any

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.pipeline.ingest.recreated_topic import refuse_recreated_topic
from reliable_channel.transport.kafka_clients import open_client

SAMPLED_RECORDS = 200
"""The number of newest records of each partition that are sampled."""

SAMPLING_SECONDS = 5.0
"""How long (s) the start of the query waits for samples; those that have come by then count."""

_LOG = logging.getLogger(__name__)


def limit_records(settings: Settings) -> int:
    """Return ``spark.max_offsets_per_trigger``, or fewer if that many records, at the average size of the newest ones,
    exceed ``spark.max_bytes_per_trigger``. If Kafka does not answer, no size is known; the query reports that.

    Raises ``ConfigurationError`` for a topic that was deleted and created again (:mod:`.recreated_topic`)."""
    from kafka import KafkaConsumer
    from kafka.errors import KafkaError

    from reliable_channel.transport.kafka_consumer import describe_topic

    try:
        options = {"bootstrap_timeout_ms": int(SAMPLING_SECONDS * 1000), **settings.kafka.clients().consumer}
        # In no group: it stores no offsets, and needs no permission for a group.
        options |= {"group_id": None, "enable_auto_commit": False}
        with closing(open_client(KafkaConsumer, options)) as consumer:
            topic = settings.kafka.topics.envelopes
            described = describe_topic(settings.kafka.clients(), topic)
            refuse_recreated_topic(consumer, described.id, settings)
            sizes = sample_sizes(consumer, topic)
    except KafkaError:
        sizes = []
    limit = count_records_within(sizes, settings.spark.max_offsets_per_trigger, settings.spark.max_bytes_per_trigger)
    if limit < settings.spark.max_offsets_per_trigger:
        _LOG.info("A micro-batch reads at most %d records, because recent records are large.", limit)
    return limit


def count_records_within(sizes: list[int], max_records: int, max_bytes: int) -> int:
    """How many records of the average size in ``sizes`` (bytes) are within both limits; at least one."""
    if not any(sizes):
        return max_records
    return max(1, min(max_records, max_bytes * len(sizes) // sum(sizes)))


def sample_sizes(consumer: Any, topic: str) -> list[int]:
    """The value sizes (bytes) of the newest records of every partition that arrive within :data:`SAMPLING_SECONDS`."""
    from kafka import TopicPartition

    from reliable_channel.transport.kafka_consumer import poll_records, query_offsets

    partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
    if not partitions:
        return []
    ends, begins = (query_offsets(ask, partitions) for ask in (consumer.end_offsets, consumer.beginning_offsets))
    wanted = {each: min(ends[each] - begins[each], SAMPLED_RECORDS) for each in partitions}
    consumer.assign(partitions)
    for each in partitions:
        consumer.seek(each, ends[each] - wanted[each])
    sizes: list[int] = []
    until = time.monotonic() + SAMPLING_SECONDS
    with suppress(EnvironmentFault):  # for a record that only Spark can decode
        while len(sizes) < sum(wanted.values()) and time.monotonic() < until:
            came = poll_records(consumer, topic, 500).values()
            sizes += [len(record.value or b"") for records in came for record in records]
    return sizes
