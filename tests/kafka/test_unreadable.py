"""Records whose time Spark's Kafka source cannot hold: each is quarantined, and the stream goes on behind it."""

from __future__ import annotations

import pickle

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.errors import EnvironmentFault
from reliable_channel.pipeline import tables
from reliable_channel.pipeline.ingest.unreadable import unreadable_record, with_end
from reliable_channel.pipeline.running.queries import INGEST
from reliable_channel.pipeline.running.run import run_to_end
from reliable_channel.pipeline.storage.arrow_files import rows_of
from reliable_channel.pipeline.storage.io import open_table
from reliable_channel.wire.waku import WakuMessage, encode_waku_message

pytestmark = [pytest.mark.kafka, pytest.mark.spark]

FAR = 2**62
START_MS = 1_767_225_600_000
RECORDS = {
    0: [START_MS, START_MS + 1, FAR, FAR + 1, START_MS + 2, FAR, START_MS + 3],
    1: [FAR, START_MS],
    2: [START_MS],
}
"""Partition → record times (ms), in the order of the offsets."""


def produce(settings: Settings, records: dict[int, list[int]]) -> None:
    producer = KafkaProducer(**settings.kafka.client_options(), acks="all")
    headers = [("pubsub_topic", b"/waku/2/rs/1/0"), ("source", b"relay")]
    sent = []
    for partition, times in records.items():
        for time_ms in times:
            value = encode_waku_message(WakuMessage(b"x", "/other/1/x/proto", timestamp=time_ms))
            sent.append(
                producer.send(
                    settings.kafka.topics.envelopes, value, partition=partition, timestamp_ms=time_ms, headers=headers
                )
            )
    for future in sent:
        future.get(timeout=60)
    producer.close()


@pytest.fixture
def dated(broker: Settings, settings: Settings) -> Settings:
    """A topic of somebody else's, which believes its producers."""
    topics = broker.kafka.topics.model_copy(update={"envelopes": "waku.dated"})
    admin = KafkaAdminClient(**broker.kafka.client_options())
    no_limit = str(2**63 - 1)
    configs = {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": no_limit,
        "message.timestamp.before.max.ms": no_limit,
        "retention.ms": "-1",
    }
    admin.create_topics({topics.envelopes: {"num_partitions": 3, "replication_factor": 1, "configs": configs}})
    admin.close()
    return settings.model_copy(update={"kafka": broker.kafka.model_copy(update={"topics": topics})})


def read(settings: Settings, table: tables.Table) -> list[dict[str, object]]:
    return rows_of(open_table(settings.paths, table))


def places(rows: list[dict[str, object]]) -> list[tuple[object, object]]:
    return sorted((row["kafka_partition"], row["kafka_offset"]) for row in rows)


def test_what_spark_cannot_read_is_quarantined_and_the_rest_is_read(spark: SparkSession, dated: Settings) -> None:
    produce(dated, RECORDS)
    run_to_end(spark, dated, INGEST)
    expected = {(p, offset): time for p, times in RECORDS.items() for offset, time in enumerate(times)}
    refused = read(dated, tables.QUARANTINE)
    assert places(refused) == sorted(place for place, time in expected.items() if time >= FAR)
    assert {row["reason"] for row in refused} == {"record_time_out_of_range"}
    assert all(row["raw"] and row["raw_bytes"] == len(row["raw"]) for row in refused)
    assert places(read(dated, tables.ENVELOPES)) == sorted(place for place, time in expected.items() if time < FAR)
    assert read(dated, tables.SOURCE_GAPS) == []

    produce(dated, {1: [START_MS + 9, FAR]})
    run_to_end(spark, dated, INGEST)
    run_to_end(spark, dated, INGEST)
    assert places(read(dated, tables.QUARANTINE))[-1] == (1, 3)
    assert len(read(dated, tables.QUARANTINE)) == len(refused) + 1
    assert (1, 2) in places(read(dated, tables.ENVELOPES))
    assert read(dated, tables.SOURCE_GAPS) == []


def test_the_record_is_found_in_what_spark_says() -> None:
    said = f"Record at topic a.b partition 2 offset 7 has timestamp value {FAR} that overflows when converting"
    text = f"x\nKafkaIllegalStateException: {said}"
    found = unreadable_record(text)
    assert found is not None
    assert (found.place, found.offset) == (("a.b", 2), 7)
    again = pickle.loads(pickle.dumps(found))  # noqa: S301
    assert (again.place, again.offset) == (found.place, found.offset)
    assert unreadable_record("another failure") is None


def test_an_offset_log_without_the_topic_is_left_alone() -> None:
    entry = 'v1\n{"batchTimestampMs":1,"conf":{}}\n{"t":{"0":5}}'
    assert with_end(entry, "t", {0: 3, 1: 4}).splitlines()[2] == '{"t":{"0":3,"1":4}}'
    with pytest.raises(EnvironmentFault, match="does not name the topic u"):
        with_end(entry, "u", {0: 3})
