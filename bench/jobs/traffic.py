"""Generates the envelopes of synthetic conversations, as bytes: deterministic per workload, so that every stage reads
the same."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message

HEADERS = [("pubsub_topic", b"/waku/2/rs/1/0"), ("source", b"relay")]
PARTITIONS = 4
SENDERS = 3

Record = tuple[int, str, bytes]
"""Kafka partition, content topic, envelope."""

BARE = SegmentationConfig()
PAIRS = SegmentationConfig(segment_size_bytes=192)
PARITY = SegmentationConfig(segment_size_bytes=102_400, enable_reed_solomon=True)


@dataclass(frozen=True, slots=True)
class Workload:
    """``messages`` of ``payload_bytes`` in ``channels`` channels. ``lost_every`` N: every Nth message loses its second
    data segment, which parity then rebuilds."""

    name: str
    messages: int
    payload_bytes: int
    segmentation: SegmentationConfig = BARE
    channels: int = 16
    filters: bool = False
    lost_every: int = 0

    @property
    def topic(self) -> str:
        return f"bench.{self.name}"


def workloads(scale: float) -> tuple[Workload, ...]:
    """Return the workloads of the issue. ``pairs`` are small messages of two segments, because bare ones never use
    keyed state.

    They are large enough that the work dominates and not Spark's start: a stage of two seconds spends one of them on
    planning, compiling and opening state. (Steady traffic measures the cost of small micro-batches.)"""

    def scale_count(count: int) -> int:
        return max(16, int(count * scale))

    return (
        Workload("small", scale_count(100_000), 200),
        Workload("filters", scale_count(12_000), 200, filters=True),
        Workload("pairs", scale_count(20_000), 320, PAIRS),
        Workload("large", scale_count(120), 800_000, PARITY, lost_every=2),
        Workload("hot", scale_count(40_000), 200, channels=1),
    )


def records(workload: Workload, seed: str = "") -> Iterator[Record]:
    """Yield the envelopes in network order: channels in turn, the segments of each message together; a message names
    the previous two. Another ``seed`` gives other payloads in the same channels."""
    rng = random.Random(workload.name + seed)
    start = int(time.time() * 1000)
    filters: Iterator[bytes | None] = _filters() if workload.filters else repeat(None)
    lamport = [start] * workload.channels
    history: list[tuple[HistoryEntry, ...]] = [()] * workload.channels
    for number in range(workload.messages):
        channel = number % workload.channels
        sender = f"sender-{number // workload.channels % SENDERS}"
        topic = f"/reliable-channel/1/{workload.name}-{channel}/proto"
        contents = contents_for(rng.randbytes(workload.payload_bytes), workload.segmentation)
        first = lamport[channel] + 1
        for index, content in enumerate(contents):
            lamport[channel] += 1
            message = SdsMessage(
                sender,
                sds_message_id(sender, first, content),
                f"{workload.name}-{channel}",
                lamport[channel],
                history[channel],
                next(filters),
                content=content,
            )
            entry = HistoryEntry(message.message_id, None, sender)
            history[channel] = (*history[channel][-1:], entry)
            if index == 1 and workload.lost_every and number % workload.lost_every == 0:
                continue
            envelope = WakuMessage(encode_sds_message(message), topic, timestamp=lamport[channel] * 1_000_000)
            yield channel % PARTITIONS, topic, encode_waku_message(envelope)


def _filters() -> Iterator[bytes]:
    """Return full filters of 2 000 other ids each: they are tested fully but acknowledge nothing. All differ, because
    Spark's dictionary would store equal ones once, and the floor would copy only half of the topic."""
    filter_format = FilterFormat()
    words = bytearray(filter_format.byte_count)
    filter_format.insert(words, (f"other-{number}" for number in range(2_000)))
    bits = np.frombuffer(words, np.uint64)
    while True:
        for shift in range(len(bits)):
            yield np.roll(bits, shift).tobytes()
        bits = np.roll(bits.view(np.uint8), 1).view(np.uint64)


@contextmanager
def open_producer(client: Mapping[str, Any], batch_bytes: int = 1 << 20) -> Iterator[Any]:
    """A Kafka producer of large requests. When the block ends, everything was sent."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**client, acks=1, linger_ms=20, batch_size=batch_bytes)
    yield producer
    producer.flush()
    producer.close()


def produce(client: dict[str, Any], workload: Workload) -> tuple[int, int]:
    """Write a workload to its topic; returns (records, bytes of the envelopes)."""
    count = size = 0
    with open_producer(client) as producer:
        for partition, topic, envelope in records(workload):
            producer.send(workload.topic, envelope, topic.encode(), HEADERS, partition=partition)
            count, size = count + 1, size + len(envelope)
    return count, size


_BATCH_BYTES = 256 * 1024
"""Bytes per request, so that one request carries all records sent at a time: two thirds of the CPU time of many
requests, which the jobs need."""


def produce_steadily(
    client: dict[str, Any], topic: str, traffic: Sequence[Record], rate: float, stop: threading.Event
) -> float:
    """Write ``traffic``, generated in advance, at ``rate`` records/s until ``stop``; returns the achieved rate. Late
    records are sent at once."""
    with open_producer(client, _BATCH_BYTES) as producer:
        started, sent = time.monotonic(), 0
        while not stop.wait(0.1):
            due = min(int((time.monotonic() - started) * rate), len(traffic))
            for partition, key, envelope in traffic[sent:due]:
                producer.send(topic, envelope, key.encode(), HEADERS, partition=partition)
            sent = due
        return sent / (time.monotonic() - started)
