"""Topics as others make them, read by the ingest job: what a reader of committed records gets, each once, and no gap
but where records are really gone. ``tests/kafka/test_odd_topics.py`` reads the same topics as a participant."""

from __future__ import annotations

import os

import pytest
from kafka import KafkaProducer
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import ENVELOPES, QUARANTINE, SOURCE_GAPS
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.pipeline.runner.run import run_chain
from tests.support.odd_topics import (
    HEADERS,
    TOPIC,
    add_partitions,
    admin,
    compact,
    configure,
    create,
    delete_records,
    read_committed,
    transact,
    until,
    write,
)

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def on_topic(settings: Settings, broker: Settings, topic: str) -> Settings:
    """The settings of jobs that read a topic of the broker."""
    topics = broker.kafka.topics.model_copy(update={"envelopes": topic})
    return settings.model_copy(update={"kafka": broker.kafka.model_copy(update={"topics": topics})})


def places(settings: Settings) -> list[tuple[int, int]]:
    """Partition and offset of every row of the tables, in order."""
    rows = [*rows_of(open_table(settings.paths, ENVELOPES)), *rows_of(open_table(settings.paths, QUARANTINE))]
    return sorted((row["kafka_partition"], row["kafka_offset"]) for row in rows)


def gaps(settings: Settings) -> list[tuple[int, int, int, str]]:
    rows = rows_of(open_table(settings.paths, SOURCE_GAPS))
    return [(g["kafka_partition"], g["first_offset"], g["last_offset"], g["cause"]) for g in rows]


def test_ingest_reads_what_others_commit_and_says_only_what_is_gone(
    spark: SparkSession, settings: Settings, broker: Settings
) -> None:
    topic = f"odd-spark-{os.getpid()}"
    create(broker, topic, partitions=2)
    configured = on_topic(settings, broker, topic)
    for number in range(3):
        transact(broker, topic, [f"committed {number} {each}" for each in "ab"], commit=True)
        transact(broker, topic, [f"aborted {number}"], commit=False)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        texts = [f"{codec} {number} " + "x" * 1_000 for number in range(20)]
        write(broker, topic, texts, compression_type=codec, linger_ms=50, batch_size=1 << 20)
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(topic, None, TOPIC.encode(), HEADERS, 0, timestamp_ms=0).get(timeout=30)  # a tombstone of 1970
    producer.close()
    configure(broker, topic, message_timestamp_after_max_ms=str(2**63 - 1))
    for timestamp_ms in (1, 2**31, 2**62):
        write(broker, topic, [f"{timestamp_ms}"], timestamp_ms=timestamp_ms)
    write(broker, topic, ["0", "1"], partition=1)
    before = read_committed(broker, topic, 2)
    run_chain(spark, configured, queries=(INGEST,))
    write(broker, topic, ["2", "3", "4", "5"], partition=1)
    delete_records(broker, topic, 4, partition=1)
    transact(broker, topic, ["after"], commit=True)
    add_partitions(broker, topic, 3)
    configure(broker, topic, message_timestamp_type="LogAppendTime")
    write(broker, topic, ["new"], partition=2, timestamp_ms=1)
    run_chain(spark, configured, queries=(INGEST,))

    assert places(settings) == sorted({*before, *read_committed(broker, topic, 3)})
    assert gaps(settings) == [(1, 2, 3, "offset_jump")]


def test_ingest_reads_what_is_left_of_a_compacted_topic_and_refuses_it_when_it_was_created_anew(
    spark: SparkSession, settings: Settings, broker: Settings
) -> None:
    topic = f"odd-spark-compacted-{os.getpid()}"
    create(broker, topic)
    configured = on_topic(settings, broker, topic)
    write(broker, topic, [f"{number}" for number in range(5)])
    before = read_committed(broker, topic)
    run_chain(spark, configured, queries=(INGEST,))
    write(broker, topic, [f"{number}" for number in range(5, 10)])
    compact(broker, topic)
    run_chain(spark, configured, queries=(INGEST,))
    assert places(settings) == sorted({*before, *read_committed(broker, topic)}) == [(0, n) for n in (*range(5), 9, 10)]
    assert gaps(settings) == [(0, 5, 8, "compaction")]

    client = admin(broker)
    client.delete_topics([topic])
    until(lambda: topic not in client.list_topics())
    client.close()
    create(broker, topic)
    write(broker, topic, ["new"])
    with pytest.raises(ConfigurationError, match="was deleted and recreated: its partition 0 ends at 1"):
        run_chain(spark, configured, queries=(INGEST,))
    assert len(places(settings)) == 7
