"""Envelopes of made-up conversations, as bytes: the same for the same workload, so that every stage reads the same."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
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
    """``messages`` of ``payload_bytes`` in ``channels`` channels. ``lost_every``: every so many messages lose their
    second data segment, which parity then rebuilds."""

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
    """The workloads of the issue. ``pairs`` are small messages of two segments: bare ones never touch keyed state.

    So many that the work counts and not Spark's start: a stage that takes two seconds spends one of them on planning,
    compiling and opening state. (What a small micro-batch costs is what steady traffic measures.)"""

    def scaled(count: int) -> int:
        return max(16, int(count * scale))

    return (
        Workload("small", scaled(100_000), 200),
        Workload("filters", scaled(12_000), 200, filters=True),
        Workload("pairs", scaled(20_000), 320, PAIRS),
        Workload("large", scaled(120), 800_000, PARITY, lost_every=2),
        Workload("hot", scaled(40_000), 200, channels=1),
    )


def records(workload: Workload, seed: str = "") -> Iterator[Record]:
    """The envelopes in the order of the network: channels in turn, each message with its segments together, naming the
    two before it. Another ``seed`` gives other payloads in the same channels."""
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
    """Full filters of 2 000 other ids each: nothing in them is acknowledged, all of it is looked at. No two are the
    same: Spark's dictionary would store equal ones once, and the floor would be a copy of half of the topic."""
    filter_format = FilterFormat()
    words = bytearray(filter_format.byte_count)
    filter_format.insert(words, (f"other-{number}" for number in range(2_000)))
    bits = np.frombuffer(words, np.uint64)
    while True:
        for places in range(len(bits)):
            yield np.roll(bits, places).tobytes()
        bits = np.roll(bits.view(np.uint8), 1).view(np.uint64)


def produce(client: dict[str, Any], workload: Workload) -> tuple[int, int]:
    """Write a workload to its topic; returns (records, bytes of the envelopes)."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**client, acks=1, linger_ms=20, batch_size=1 << 20)
    count = size = 0
    for partition, topic, envelope in records(workload):
        producer.send(workload.topic, envelope, topic.encode(), HEADERS, partition=partition)
        count, size = count + 1, size + len(envelope)
    producer.flush()
    producer.close()
    return count, size


_BATCH_BYTES = 256 * 1024
"""One request for what is sent at a time: it takes two thirds of the processor time of many, which the jobs lack."""


def produce_steadily(
    client: dict[str, Any], topic: str, traffic: Sequence[Record], rate: float, stop: threading.Event
) -> float:
    """Write ``traffic``, which was made before, at ``rate`` records/s until ``stop``; returns the rate that was
    reached. What was late is caught up with at once."""
    from kafka import KafkaProducer

    producer = KafkaProducer(**client, acks=1, linger_ms=20, batch_size=_BATCH_BYTES)
    started, sent = time.monotonic(), 0
    while not stop.wait(0.1):
        due = min(int((time.monotonic() - started) * rate), len(traffic))
        for partition, key, envelope in traffic[sent:due]:
            producer.send(topic, envelope, key.encode(), HEADERS, partition=partition)
        sent = due
    reached = sent / (time.monotonic() - started)
    producer.flush()
    producer.close()
    return reached
