"""Writes observed records to a Kafka topic in order at a chosen rate, with the senders' evidence, and reports their
offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaProducer
from kafka.errors import KafkaError

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.transport.kafka_producer import open_producer

Coordinates = tuple[str, int, int]
"""Topic, partition, offset."""

MAX_REQUEST_BYTES = 16 * 1024 * 1024


def write_records(
    records: Iterable[ObserverRecord],
    topic: str,
    client: Mapping[str, Any],
    rate: float | None = None,
    on_written: Callable[[int], None] = lambda _: None,
) -> list[Coordinates]:
    """Produce ``records`` with acks from all replicas, in order, with their virtual arrival times as record times
    (which a ``LogAppendTime`` topic replaces). ``rate`` is records per second, ``None`` as fast as the broker accepts
    them. ``client`` are kafka-python settings: servers, TLS, SASL. Raises :class:`EnvironmentFault` when Kafka does not
    accept a record."""
    with _open_producer(client, topic) as producer:
        futures = [
            producer.send(topic, value=r.value, key=r.key, headers=list(r.headers), timestamp_ms=r.at_ms)
            for r in _pace(records, rate, on_written)
        ]
        producer.flush()
        return [(m.topic, m.partition, m.offset) for m in (future.get(timeout=60) for future in futures)]


def write_events(events: Iterable[Mapping[str, Any]], topic: str, client: Mapping[str, Any]) -> None:
    """Produce the records of senders and bridges (:mod:`reliable_channel.simulation.evidence`) to the evidence topic.
    Raises :class:`EnvironmentFault` when Kafka does not accept one."""
    with _open_producer(client, topic) as producer:
        futures = [
            producer.send(
                topic, value=json.dumps(event).encode(), key=str(event.get("content_topic", event["kind"])).encode()
            )
            for event in events
        ]
        producer.flush()
        for future in futures:
            future.get(timeout=60)


@contextmanager
def _open_producer(client: Mapping[str, Any], topic: str) -> Iterator[KafkaProducer]:
    """A producer for this block. Raises :class:`EnvironmentFault` for Kafka's errors in it."""
    settings: dict[str, Any] = {
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 20,
        "max_request_size": MAX_REQUEST_BYTES,
        **client,
    }
    try:
        producer = open_producer(settings)
    except KafkaError as error:
        raise EnvironmentFault(
            f"No Kafka broker answers at {client.get('bootstrap_servers')} ({type(error).__name__}).",
            "Start one with `reliable-channel kafka start` or set kafka.bootstrap_servers.",
        ) from error
    try:
        yield producer
    except KafkaError as error:
        raise EnvironmentFault(
            f"Kafka refused a record for topic {topic}: {type(error).__name__}.",
            "Check that the topic exists and that its max.message.bytes allows envelopes.",
        ) from error
    finally:
        producer.close(timeout=10)


def _pace(
    records: Iterable[ObserverRecord], rate: float | None, on_written: Callable[[int], None]
) -> Iterable[ObserverRecord]:
    begin = time.monotonic()
    for number, record in enumerate(records):
        if rate:
            ahead = begin + number / rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
        yield record
        on_written(number + 1)
