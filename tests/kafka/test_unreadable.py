"""Records whose time Spark's Kafka source cannot hold: ingest names the record, and goes on without it."""

from __future__ import annotations

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake import tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.pipeline.runner.run import run_to_end
from tests.support import error_page
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.slow]

FAR = 2**62
START_MS = 1_767_225_600_000


def produce(settings: Settings, times_ms: list[int]) -> None:
    producer = KafkaProducer(**settings.kafka.clients().producer, acks="all")
    headers = [("pubsub_topic", b"/waku/2/rs/1/0"), ("source", b"relay")]
    for time_ms in times_ms:
        value = encode_waku_message(WakuMessage(b"x", "/other/1/x/proto", timestamp=time_ms))
        topic = settings.kafka.topics.envelopes
        producer.send(topic, value, partition=0, timestamp_ms=time_ms, headers=headers).get(timeout=WAIT_S)
    producer.close()


@pytest.fixture
def dated(broker: Settings, settings: Settings) -> Settings:
    """A topic of somebody else's, which believes its producers whatever they say."""
    topics = broker.kafka.topics.model_copy(update={"envelopes": "waku.dated"})
    admin = KafkaAdminClient(**broker.kafka.clients().admin)
    no_limit = str(2**63 - 1)
    configs = {
        "message.timestamp.type": "CreateTime",
        "message.timestamp.after.max.ms": no_limit,
        "message.timestamp.before.max.ms": no_limit,
        "retention.ms": "-1",
    }
    admin.create_topics({topics.envelopes: {"num_partitions": 1, "replication_factor": 1, "configs": configs}})
    admin.close()
    return settings.model_copy(update={"kafka": broker.kafka.model_copy(update={"topics": topics})})


def offsets(settings: Settings, table: tables.Table) -> list[object]:
    return sorted(row["kafka_offset"] for row in rows_of(open_table(settings.paths, table)))


def test_a_time_that_spark_cannot_read_is_named_and_ingest_goes_on_when_the_record_is_deleted(
    spark: SparkSession, dated: Settings
) -> None:
    produce(dated, [START_MS])
    run_to_end(spark, dated, INGEST)
    produce(dated, [START_MS + 1, FAR, START_MS + 2])
    for _ in range(2):
        with pytest.raises(EnvironmentFault) as fault:
            run_to_end(spark, dated, INGEST)
        assert error_page.pattern_of("A record whose time Spark cannot read").fullmatch(str(fault.value))
        assert "waku.dated, partition 0, offset 2." in str(fault.value)
    assert offsets(dated, tables.ENVELOPES) == [0]

    admin = KafkaAdminClient(**dated.kafka.clients().admin)
    admin.delete_records({TopicPartition("waku.dated", 0): 3})
    admin.close()
    run_to_end(spark, dated, INGEST)
    assert offsets(dated, tables.ENVELOPES) == [0, 3]
    (gap,) = rows_of(open_table(dated.paths, tables.SOURCE_GAPS))
    assert (gap["first_offset"], gap["last_offset"], gap["cause"]) == (1, 2, "offset_jump")
