"""Topics as others make them: transactions, compression, retention, for tests with a real broker."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

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


def write(broker: Settings, topic: str, texts: list[str], partition: int = 0, **options: Any) -> None:
    """Write envelopes with these payloads; ``options`` are the producer's."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all", **options)
    sent = [
        producer.send(topic, encode_waku_message(WakuMessage(text.encode(), TOPIC)), TOPIC.encode(), HEADERS, partition)
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

    def encode(self, *_: Any) -> bytes:  # type: ignore[override]
        return b"\xff" * len(self)


def write_undecodable(broker: Settings, topic: str, partition: int = 0) -> None:
    """Write a record that kafka-python cannot decode, and Kafka and Spark can."""
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    producer.send(topic, b"x", TOPIC.encode(), [*HEADERS, (NotUtf8("key"), b"value")], partition).get(timeout=30)
    producer.close()


def delete_records(broker: Settings, topic: str, before: int, partition: int = 0) -> None:
    """Delete what is before an offset, as retention does."""
    client = admin(broker)
    client.delete_records({TopicPartition(topic, partition): before})
    client.close()
