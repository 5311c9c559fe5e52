"""What sending costs through a whole channel, dispatch to a real broker included (issue targets), beside the producer
alone with the same bytes in the same run. Rates are per second of this process's CPU time, all its threads together:
what one core can do, whatever else the machine does meanwhile. The broker is another process."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.registry import MB, Result, bench
from reliable_channel.channel import (
    MemoryPersistence,
    MessageSent,
    Persistence,
    ReliableChannelConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.config import Settings, load
from reliable_channel.gateway.build import kafka_node
from reliable_channel.sds import SdsConfig
from reliable_channel.segmentation import SegmentationConfig
from reliable_channel.transport.base import NodeEvent, Sent
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.wire.waku import WakuMessage

TOPIC = "/reliable-channel/1/bench/proto"
SMALL = 4_000
SMALL_BYTES = 100
LARGE = 60
LARGE_BYTES = 1_048_576
REPETITIONS = 2
WAIT_S = 300

# Nobody answers here: no retransmission may disturb the measurement.
SDS = replace(SdsConfig(), acknowledgement_timeout_ms=3_600_000, sync_min_interval_ms=0)
CONFIG = ReliableChannelConfig(sds=SDS, query_on_connect=False)
PARITY = SegmentationConfig(enable_reed_solomon=True)


@contextmanager
def _broker() -> Iterator[Settings]:
    from reliable_channel.runtime import jars
    from reliable_channel.runtime.broker import running_broker
    from reliable_channel.runtime.topics import ensure_topics

    with tempfile.TemporaryDirectory(prefix="bench-channel-") as directory:
        settings = load("local", paths={"run_dir": directory})
        jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
        with running_broker(settings) as there:
            ensure_topics(there.kafka)
            yield there


@contextmanager
def _node(settings: Settings) -> Iterator[KafkaNode]:
    node = kafka_node(settings)
    node.start()
    try:
        yield node
    finally:
        node.stop()


def _channel_seconds(node: KafkaNode, payloads: list[bytes], config: ReliableChannelConfig) -> float:
    """CPU seconds from the first ``send`` until the last message is *sent*: acknowledged by the broker."""
    left, done = [len(payloads)], threading.Event()

    def count(_: MessageSent) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    with create_reliable_channel(node, f"bench-{time.monotonic_ns()}", TOPIC, "bench", config=config) as channel:
        channel.on_message_sent(count)
        started = time.process_time()
        for payload in payloads:
            channel.send(payload)
        if not done.wait(WAIT_S):
            raise TimeoutError(f"{left[0]} of {len(payloads)} messages were not sent within {WAIT_S} s")
        return time.process_time() - started


def _producer_seconds(node: KafkaNode, size: int, count: int) -> float:
    """CPU seconds of the same bytes through the node alone: no segments, no SDS, no channel."""
    left, done = [count], threading.Event()

    def settle(event: NodeEvent) -> None:
        if isinstance(event, Sent):
            left[0] -= 1
            if not left[0]:
                done.set()

    payload = os.urandom(size)
    node.add_listener(settle)
    started = time.process_time()
    for _ in range(count):
        node.send(WakuMessage(payload, TOPIC, version=0))
    if not done.wait(WAIT_S):
        raise TimeoutError("the producer did not finish")
    node.remove_listener(settle)
    return time.process_time() - started


@contextmanager
def _backends() -> Iterator[dict[str, Persistence]]:
    with tempfile.TemporaryDirectory(prefix="bench-channel-") as directory:
        kept = SqlitePersistence(Path(directory) / "channel.db")
        yield {"memory": MemoryPersistence(), "sqlite": kept}
        kept.close()


@bench
def sending() -> Iterator[Result]:
    """Small messages, then large ones with parity; the header of a message is its filter of 18 752 bytes."""
    small = [os.urandom(SMALL_BYTES) for _ in range(SMALL)]
    large = [os.urandom(LARGE_BYTES) for _ in range(LARGE)]
    with _broker() as settings, _node(settings) as node, _backends() as backends:
        _channel_seconds(node, small[:200], CONFIG)
        raw = min(_producer_seconds(node, 19_000, SMALL) for _ in range(REPETITIONS))
        yield Result("the node alone, 19 000-byte envelopes", SMALL / raw, "msg/s")
        for name, persistence in backends.items():
            config = replace(CONFIG, persistence=persistence)
            took = min(_channel_seconds(node, small, config) for _ in range(REPETITIONS))
            target = 2_000 if name == "memory" else None
            yield Result(f"channel, {SMALL_BYTES}-byte messages, {name}", SMALL / took, "msg/s", target)
            yield Result(f"channel / node alone, small, {name}", raw / took, "ratio")
        raw = min(_producer_seconds(node, 121_000, LARGE * 12) for _ in range(REPETITIONS))
        yield Result("the node alone, 121 000-byte envelopes", LARGE * 12 * 121_000 / MB / raw, "MB/s")
        for name, persistence in backends.items():
            config = replace(CONFIG, persistence=persistence, segmentation=PARITY)
            took = min(_channel_seconds(node, large, config) for _ in range(REPETITIONS))
            target = 60 if name == "memory" else None
            yield Result(
                f"channel, 1 MiB messages with parity, {name}", LARGE * LARGE_BYTES / MB / took, "MB/s", target
            )
