"""Topics as others make them, read by the ingest job: what a reader of committed records gets, each once, and no gap
but where records are really gone. ``tests/kafka/test_odd_topics.py`` reads the same topics as a participant."""

from __future__ import annotations

import os

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as Place
from pyspark.sql import SparkSession
from support.odd_topics import HEADERS, TOPIC, create, delete_records, transact, write

from reliable_channel.config import Settings
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import ENVELOPES, QUARANTINE, SOURCE_GAPS
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.pipeline.runner.run import run_chain

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def committed(broker: Settings, topic: str) -> set[tuple[int, int]]:
    """Partition and offset of what kafka-python reads as committed."""
    consumer = KafkaConsumer(**broker.kafka.clients().consumer, group_id=None)
    places = [Place(topic, number) for number in (0, 1)]
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends, read = consumer.end_offsets(places), set()
    while any(consumer.position(place) < ends[place] for place in places):
        read |= {(r.partition, r.offset) for records in consumer.poll(200).values() for r in records}
    consumer.close()
    return read


def test_ingest_reads_what_others_commit_and_says_only_what_is_gone(
    spark: SparkSession, settings: Settings, broker: Settings
) -> None:
    topic = f"odd-spark-{os.getpid()}"
    create(broker, topic, partitions=2)
    topics = broker.kafka.topics.model_copy(update={"envelopes": topic})
    kafka = broker.kafka.model_copy(update={"topics": topics})
    configured = settings.model_copy(update={"kafka": kafka})
    for number in range(3):
        transact(broker, topic, [f"committed {number} {each}" for each in "ab"], commit=True)
        transact(broker, topic, [f"aborted {number}"], commit=False)
    for codec in ("gzip", "snappy", "lz4", "zstd"):
        texts = [f"{codec} {number} " + "x" * 1_000 for number in range(20)]
        write(broker, topic, texts, compression_type=codec, linger_ms=50, batch_size=1 << 20)
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(topic, None, TOPIC.encode(), HEADERS, 0, timestamp_ms=0).get(timeout=30)  # a tombstone of 1970
    producer.close()
    write(broker, topic, ["0", "1"], partition=1)
    before = committed(broker, topic)
    run_chain(spark, configured, queries=(INGEST,))
    write(broker, topic, ["2", "3", "4", "5"], partition=1)
    delete_records(broker, topic, 4, partition=1)
    transact(broker, topic, ["after"], commit=True)
    run_chain(spark, configured, queries=(INGEST,))

    rows = [*rows_of(open_table(settings.paths, ENVELOPES)), *rows_of(open_table(settings.paths, QUARANTINE))]
    places = [(row["kafka_partition"], row["kafka_offset"]) for row in rows]
    assert sorted(places) == sorted(before | committed(broker, topic))
    gaps = rows_of(open_table(settings.paths, SOURCE_GAPS))
    assert [(g["kafka_partition"], g["first_offset"], g["last_offset"], g["cause"]) for g in gaps] == [
        (1, 2, 3, "offset_jump")
    ]
