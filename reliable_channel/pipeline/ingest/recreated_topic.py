"""Refuses a topic that was deleted and created again under the checkpoint of ingest.

Spark would silently wait until the new topic has as many records as the old one, and lose those up to there.
"""

from __future__ import annotations

from typing import Any

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.checkpoints import read_checkpoint


def refuse_recreated_topic(consumer: Any, settings: Settings) -> None:
    """Compare the end of every partition with the checkpoint of ingest. ``consumer``: a ``KafkaConsumer``.

    Raises ``ConfigurationError`` if a partition ends before the offset that was read. Once the new topic has grown
    beyond the old one, offsets cannot show the difference."""
    from kafka import TopicPartition

    checkpoint, topic = read_checkpoint(settings.paths, "ingest"), settings.kafka.topics.envelopes
    read = {} if checkpoint is None else checkpoint.offsets.kafka.get(topic, {})
    there = consumer.partitions_for_topic(topic) or ()
    partitions = [TopicPartition(topic, number) for number in sorted(there) if number in read]
    for partition, end in (consumer.end_offsets(partitions) if partitions else {}).items():
        if end < read[partition.partition]:
            raise ConfigurationError(
                f"The topic {topic} was deleted and recreated: its partition {partition.partition} ends at {end}, and"
                f" ingest has read to {read[partition.partition]}.",
                "Set paths.data_dir and paths.checkpoint_dir to new places: the tables identify a record by its"
                " offset.",
            )
