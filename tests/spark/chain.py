"""The whole chain over a :class:`KafkaLog`: the real queries, only the Kafka source replaced."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from reliable_channel.config import ChannelsSettings, ChannelTopic, Settings
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.ingest.lost_offsets import ask_broker
from reliable_channel.pipeline.ingest.stream import IngestWriter
from reliable_channel.pipeline.runner.queries import CHAIN, INGEST, Query, start
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.simulation.world import World

from .kafka_log import KafkaLog, Record


def configured(settings: Settings, world: World, run_dir: Path) -> Settings:
    """Settings with a run directory of their own, under which the channels of ``world`` are observed."""
    names = sorted({channel.content_topic for channel in world.scenario.channels})
    topics = tuple(ChannelTopic(content_topic=name) for name in names)
    return settings.with_run_dir(run_dir).model_copy(update={"channels": ChannelsSettings(content_topics=topics)})


def chain_over(log: KafkaLog) -> tuple[Query, ...]:
    """The queries of the chain, ingest reading from ``log``. No broker withholds records of it."""
    ingest = replace(
        INGEST,
        reads=lambda spark, settings: log.stream(),
        writer=lambda settings: IngestWriter(settings, ask_broker(settings.kafka)),
    )
    return (ingest, *CHAIN[1:])


def run_once(spark: SparkSession, settings: Settings, queries: Sequence[Query]) -> None:
    """Every query over what is there now, one after another."""
    for query in queries:
        start(spark, settings, query, once=True).awaitTermination()


def as_kafka(records: Sequence[ObserverRecord], partitions: int = 2) -> list[Record]:
    """What a topic keyed by content topic would hold, with the times of reception as record times."""
    next_offset = [0] * partitions
    found = []
    for record in records:
        headers = dict(record.headers)
        partition = zlib.crc32(record.key or b"") % partitions
        found.append(
            Record(
                record.value,
                next_offset[partition],
                record.at_ms,
                partition,
                headers.get("pubsub_topic"),
                headers.get("source"),
            )
        )
        next_offset[partition] += 1
    return found


def rows(settings: Settings, table: Table, without: Sequence[str] = ()) -> list[dict[str, Any]]:
    """A table's rows, in the order of all their values, without columns that differ between runs."""
    found = dataset_of(open_table(settings.paths, table)).to_table().drop_columns(list(without)).to_pylist()
    return sorted(found, key=repr)
