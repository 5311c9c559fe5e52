"""A broker that stops and comes back: participant, loop and ingest wait, and lose, double and reorder nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition
from pyspark.sql import SparkSession

from reliable_channel.config import Settings, load
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.lake.read import dataset_of, open_table, rows_of
from reliable_channel.lake.tables import ENVELOPES
from reliable_channel.pipeline.runner.queries import INGEST, start
from reliable_channel.runtime import broker, jars
from reliable_channel.runtime.build import kafka_node, make_bridge
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from reliable_channel.transport.base import FailureReason, HealthChanged, Queued, Received, SendFailed, Sent
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.sharding import NamedTopic
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

TOPIC = "/app/1/golden/proto"


def records(settings: Settings) -> int:
    """How many records the envelopes topic holds."""
    consumer, topic = KafkaConsumer(**settings.kafka.clients().consumer), settings.kafka.topics.envelopes
    try:
        places = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        return sum(consumer.end_offsets(places).values())
    finally:
        consumer.close()


def ingested(settings: Settings) -> int:
    return int(dataset_of(open_table(settings.paths, ENVELOPES)).count_rows())


def test_everything_sent_around_a_restart_of_the_broker_arrives_once_and_in_order(
    spark: SparkSession, tmp_path: Path
) -> None:
    settings = load(
        "local",
        paths={"run_dir": str(tmp_path)},
        kafka={"broker": {"port": broker.free_port()}},
        node={"pubsub_topic": "/waku/2/rs/16/32"},
        spark={"master": "local[2]", "shuffle_partitions": 2, "trigger_interval_ms": 1_000},
    )
    jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
    broker.start(settings)
    events: list[Any] = []
    sent = 0

    def talk_until(condition: Callable[[], object]) -> None:
        nonlocal sent
        end = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            node.send(WakuMessage(b"%d" % sent, TOPIC))
            sent += 1
            time.sleep(0.01)

    def states() -> list[HealthState]:
        return [e.health.state for e in events if isinstance(e, HealthChanged)]

    try:
        ensure_topics(settings.kafka)
        ensure_evidence_topic(settings)
        loop = make_bridge(settings, loop=True)
        node = kafka_node(settings, group_id="participant")
        node.add_listener(events.append)
        node.subscribe([TOPIC])
        loop.start()
        node.start()
        query = start(spark, settings, INGEST, once=False)
        talk_until(lambda: any(isinstance(e, Received) for e in events))
        stopping = threading.Thread(target=broker.stop, args=(settings,))
        stopping.start()
        talk_until(lambda: states()[-1:] == [HealthState.UNHEALTHY])
        stopping.join()
        starting = threading.Thread(target=broker.start, args=(settings,))
        starting.start()
        talk_until(lambda: states()[-1:] == [HealthState.HEALTHY])
        starting.join()
        for kind in (Received, Sent):  # the bridge's results come by a topic of their own, in their own time
            until(lambda kind=kind: sum(isinstance(e, kind) for e in events) >= sent)  # type: ignore[misc]
        node.stop()
        loop.stop()
        written = records(settings)
        until(lambda: ingested(settings) >= written or not query.isActive)
        assert query.exception() is None
        query.stop()
    finally:
        broker.stop(settings)
    received = [int(e.envelope.message.payload) for e in events if isinstance(e, Received)]
    assert received == list(range(sent))
    assert sum(isinstance(e, Sent) for e in events) == sent
    assert [e for e in events if isinstance(e, SendFailed)] == []
    assert loop.failure is None
    rows = rows_of(open_table(settings.paths, ENVELOPES), columns=["kafka_partition", "kafka_offset"])
    assert len({(row["kafka_partition"], row["kafka_offset"]) for row in rows}) == len(rows) == written >= sent


def test_stopping_while_the_broker_is_gone_fails_what_is_left_and_leaves_no_thread(tmp_path: Path) -> None:
    settings = load(
        "local",
        paths={"run_dir": str(tmp_path)},
        kafka={"broker": {"port": broker.free_port()}},
        node={"pubsub_topic": "/waku/2/rs/16/32"},
    )
    jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
    broker.start(settings)
    before = set(threading.enumerate())
    events: list[Any] = []
    try:
        ensure_topics(settings.kafka)
        node = KafkaNode(settings.kafka.clients(), NamedTopic("/waku/2/rs/16/32"), group_id="p", stop_timeout_s=1.0)
        node.add_listener(events.append)
        node.start()
        queued = node.send(WakuMessage(b"before", TOPIC))
        until(lambda: any(isinstance(e, Queued) for e in events))
    finally:
        broker.stop(settings)
    ids = {node.send(WakuMessage(b"%d" % n, TOPIC)) for n in range(5)}
    node.stop()
    failed = [e for e in events if isinstance(e, SendFailed)]
    assert {e.request_id for e in failed} == {*ids, queued}
    assert {e.reason for e in failed} == {FailureReason.STOPPED}
    until(lambda: not {t for t in set(threading.enumerate()) - before if t.is_alive()})
