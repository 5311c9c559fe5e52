"""Topics as others make them: transactions, compression, retention, for tests with a real broker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource

from reliable_channel.config import Settings
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.runtime.topics import ensure_topics

PUBSUB_TOPIC, TOPIC = "/waku/2/rs/16/32", "/app/1/golden/proto"
HEADERS = [("pubsub_topic", PUBSUB_TOPIC.encode()), ("source", b"relay")]
_numbers = itertools.count()


def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until something happens."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def create(broker: Settings, name: str, partitions: int = 1) -> None:
    """Create a topic."""
    topics = broker.kafka.topics.model_copy(
        update={"envelopes": name, "outgoing": f"{name}-o", "dispatched": f"{name}-d", "partitions": partitions}
    )
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))


def admin(broker: Settings) -> KafkaAdminClient:
    """A client that administrates."""
    return KafkaAdminClient(**broker.kafka.clients().admin)


def write(
    broker: Settings,
    topic: str,
    texts: list[str],
    partition: int = 0,
    *,
    key: bytes = TOPIC.encode(),
    timestamp_ms: int | None = None,
    **options: Any,
) -> None:
    """Write envelopes with these payloads; ``options`` are the producer's."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all", **options)
    sent = [
        producer.send(
            topic, encode_waku_message(WakuMessage(text.encode(), TOPIC)), key, HEADERS, partition, timestamp_ms
        )
        for text in texts
    ]
    for each in sent:
        each.get(timeout=120)
    producer.close()


def transact(broker: Settings, topic: str, texts: list[str], commit: bool) -> None:
    """Write records in one transaction, and commit or abort it."""
    producer = KafkaProducer(**broker.kafka.clients().producer, transactional_id=f"t-{topic}-{next(_numbers)}")
    producer.init_transactions()
    producer.begin_transaction()
    for text in texts:
        producer.send(topic, encode_waku_message(WakuMessage(text.encode(), TOPIC)), TOPIC.encode(), HEADERS, 0)
    producer.flush()
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    producer.close()


class NotUtf8(str):
    """The key of a header as clients of other languages may write it."""

    def encode(self, *_: Any) -> bytes:
        return b"\xff" * len(self)


def write_undecodable(broker: Settings, topic: str, partition: int = 0) -> None:
    """Write a record that kafka-python cannot decode, and Kafka and Spark can."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(topic, b"x", TOPIC.encode(), [*HEADERS, (NotUtf8("key"), b"value")], partition).get(timeout=30)
    producer.close()


def configure(broker: Settings, topic: str, **configs: str) -> None:
    """Set configurations of a topic, with _ for every full stop in their names."""
    client = admin(broker)
    client.alter_configs([ConfigResource("TOPIC", topic, {key.replace("_", "."): v for key, v in configs.items()})])
    client.close()


def add_partitions(broker: Settings, topic: str, count: int) -> None:
    """Give a topic more partitions, ``count`` in all, and wait until the broker shows them."""
    client = admin(broker)
    client.create_partitions({topic: count})
    until(lambda: len(client.describe_topics([topic])[0]["partitions"]) == count)
    client.close()


def read_committed(broker: Settings, topic: str, partitions: int = 1) -> list[tuple[int, int]]:
    """Partition and offset of every record that a reader of committed records gets, in order."""
    consumer = KafkaConsumer(**broker.kafka.clients().consumer, group_id=None)
    places = [TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(places)
    consumer.seek_to_beginning()
    ends, read = consumer.end_offsets(places), []
    while any(consumer.position(place) < ends[place] for place in places):
        read += [(r.partition, r.offset) for records in consumer.poll(200).values() for r in records]
    consumer.close()
    return sorted(read)


def compact(broker: Settings, topic: str, partition: int = 0) -> None:
    """Let the broker remove all but the newest record of each key, and wait until it has. The last segment of a log is
    never compacted, so something is written after what shall go."""
    before = len(read_committed(broker, topic, partition + 1))
    configure(
        broker,
        topic,
        cleanup_policy="compact",
        segment_ms="100",
        min_cleanable_dirty_ratio="0",
        max_compaction_lag_ms="1",
    )
    time.sleep(0.2)
    write(broker, topic, ["begins a segment"], partition, key=b"another")
    until(lambda: len(read_committed(broker, topic, partition + 1)) <= before, 120)


def delete_records(broker: Settings, topic: str, before: int, partition: int = 0) -> None:
    """Delete what is before an offset, as retention does."""
    client = admin(broker)
    client.delete_records({TopicPartition(topic, partition): before})
    client.close()
