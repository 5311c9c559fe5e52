"""Decides which missing offsets of a topic are lost records.

Offsets are missing for several reasons. Commit and abort markers of transactions take offsets, and so do aborted
records; nothing is lost then. Retention, or somebody who deletes records, moves the start of the log past them. In a
compacted topic any record with a newer one of its key may be gone. Only the broker knows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from reliable_channel.config import KafkaSettings
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import SOURCE_GAPS, TopicPartition
from reliable_channel.pipeline.ingest.task import OffsetGap, PartitionSummary
from reliable_channel.runtime.topics import fetch_topic_configs
from reliable_channel.transport.kafka_clients import open_client

COMPACTED = "compaction"
POLICY = "cleanup.policy"
PATIENCE_MS = 5_000
"""How long the broker may take to answer; then every missing offset counts as lost."""

_LOG = logging.getLogger(__name__)


Gaps = dict[TopicPartition, list[OffsetGap]]
FindLost = Callable[[Gaps], Gaps]
"""Returns what is lost of the missing offsets of each partition."""


def ask_broker(kafka: KafkaSettings) -> FindLost:
    """A function that asks the broker. Without its answer every missing offset counts as lost: verdicts are then
    *unknown* too often, and never *missing* too early."""

    unknown: set[str] = set()

    def find(gaps: Gaps) -> Gaps:
        from kafka.errors import KafkaError

        if not any(gaps.values()):
            return {}
        topic_partitions = [topic_partition for topic_partition, of_one in gaps.items() if of_one]
        try:
            starts, policies = _fetch_log_starts(kafka, topic_partitions)
        except (KafkaError, OSError) as error:
            _LOG.warning("Kafka did not say where its logs start (%s): missing offsets count as lost.", error)
            return gaps
        if silent := {topic for topic, _ in topic_partitions} - policies.keys() - unknown:
            unknown.update(silent)
            _LOG.warning(
                "Kafka does not tell this account whether %s is compacted (describe configs, docs/howto/kafka.md):"
                " compacted records are not in source_gaps.",
                ", ".join(sorted(silent)),
            )
        return {
            (topic, partition): [
                *_find_lost_ranges(
                    gaps[topic, partition], starts[topic, partition], "compact" in policies.get(topic, "")
                )
            ]
            for topic, partition in topic_partitions
        }

    return find


def _find_lost_ranges(gaps: Iterable[OffsetGap], start: int, is_compacted: bool) -> Iterator[OffsetGap]:
    """``start``: the first offset that the broker keeps."""
    for gap in gaps:
        if gap.first < start:
            yield replace(gap, last=min(gap.last, start - 1))
        if gap.last >= start and is_compacted:
            yield replace(gap, first=max(gap.first, start), cause=COMPACTED)


def _fetch_log_starts(
    kafka: KafkaSettings, topic_partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """The first kept offset of each partition, and the ``cleanup.policy`` of each topic of which Kafka says it; it may
    be ``compact,delete``."""
    import kafka as client
    from kafka.admin import KafkaAdminClient, OffsetSpec

    topics = sorted({topic for topic, _ in topic_partitions})
    options = {"request_timeout_ms": PATIENCE_MS, "bootstrap_timeout_ms": PATIENCE_MS, **kafka.clients().admin}
    with closing(open_client(KafkaAdminClient, options)) as admin:
        specs = {client.TopicPartition(*topic_partition): OffsetSpec.EARLIEST for topic_partition in topic_partitions}
        starts = {(at.topic, at.partition): each.offset for at, each in admin.list_partition_offsets(specs).items()}
        configs = fetch_topic_configs(admin, topics, [POLICY])
    return starts, {topic: settings[POLICY] for topic, settings in configs.items()}


def make_gap_rows(lost: Gaps, parts: Mapping[TopicPartition, PartitionSummary]) -> pa.Table:
    """The lost ranges of a micro-batch as rows of ``source_gaps``."""
    rows = [
        {
            "kafka_topic": topic_partition[0],
            "kafka_partition": topic_partition[1],
            "first_offset": each.first,
            "last_offset": each.last,
            "cause": each.cause,
            "name": f"{topic_partition[0]}/{topic_partition[1]}/{each.first}",
            "status": "open",
            "from_time": each.from_us,
            "to_time": each.to_us,
            "ingest_time": parts[topic_partition].ingest_us,
        }
        for topic_partition, ranges in lost.items()
        for each in ranges
    ]
    return as_arrow(rows, SOURCE_GAPS)
