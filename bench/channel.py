"""Measures the cost of sending through a whole channel, including dispatch to a real broker (issue targets), beside the
producer alone with the same bytes in the same run. All threads of this process are pinned to one core, and rates are
per second of its CPU time, so they do not depend on other load. The broker is a separate, unpinned process. Payloads
are created in advance, and nobody acknowledges: the worst case for the stored state."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.runtime.build import kafka_node
from reliable_channel.transport.base import NodeEvent, Sent
from reliable_channel.transport.kafka import KafkaNode

TOPIC = "/reliable-channel/1/bench/proto"
SMALL = 4_000
SMALL_BYTES = 100
LARGE = 60
LARGE_BYTES = 1_048_576
REPETITIONS = 3
WAIT_S = 300

# Nobody answers here, so retransmissions must not disturb the measurement.
SDS = replace(SdsParameters(), acknowledgement_timeout_ms=3_600_000, sync_min_interval_ms=0)
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
def _one_core() -> Iterator[None]:
    """Pin this thread, and all threads it starts, to one core, if the system supports it."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def _node(settings: Settings) -> Iterator[KafkaNode]:
    node = kafka_node(settings)
    node.start()
    try:
        yield node
    finally:
        node.stop()


class Took(NamedTuple):
    """Seconds of CPU time, and of wall time."""

    cpu: float
    wall: float


def _channel_seconds(node: KafkaNode, payloads: list[bytes], config: ReliableChannelConfig) -> Took:
    """Measure from the first ``send`` until the last message is *sent*: acknowledged by the broker."""
    left, done = [len(payloads)], threading.Event()

    def count(_: MessageSent) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    with create_reliable_channel(node, f"bench-{time.monotonic_ns()}", TOPIC, "bench", config=config) as channel:
        channel.on_message_sent(count)
        started, at = time.process_time(), time.perf_counter()
        for payload in payloads:
            channel.send(payload)
        if not done.wait(WAIT_S):
            raise TimeoutError(f"{left[0]} of {len(payloads)} messages were not sent within {WAIT_S} s")
        return Took(time.process_time() - started, time.perf_counter() - at)


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
def _persistence(name: str) -> Iterator[Persistence]:
    """Create a new one for each run, so that writes left by a closed channel do not count for the next one."""
    if name == "memory":
        yield MemoryPersistence()
        return
    with tempfile.TemporaryDirectory(prefix="bench-channel-") as directory:
        kept = SqlitePersistence(Path(directory) / "channel.db")
        try:
            yield kept
        finally:
            kept.close()


def _fastest(node: KafkaNode, payloads: list[bytes], config: ReliableChannelConfig, persistence: str) -> Took:
    def once() -> Took:
        with _persistence(persistence) as kept:
            return _channel_seconds(node, payloads, replace(config, persistence=kept))

    return min(once() for _ in range(REPETITIONS))


@bench
def sending() -> Iterator[Result]:
    """Measure small messages, then large ones with parity; a message's header is mainly its filter of 18 752 bytes.
    ``sqlite`` is the persistence of the command line."""
    small = [os.urandom(SMALL_BYTES) for _ in range(SMALL)]
    large = [os.urandom(LARGE_BYTES) for _ in range(LARGE)]
    with _broker() as settings, _one_core(), _node(settings) as node:
        _channel_seconds(node, small[:200], CONFIG)
        raw = min(_producer_seconds(node, 19_000, SMALL) for _ in range(REPETITIONS))
        yield Result("the node alone, 19 000-byte envelopes", SMALL / raw, "msg/s")
        for name in ("memory", "sqlite"):
            took = _fastest(node, small, CONFIG, name)
            yield Result(f"channel, {SMALL_BYTES}-byte messages, {name}", SMALL / took.cpu, "msg/s", 2_000)
            yield Result(f"channel, {SMALL_BYTES}-byte messages, {name}, by the clock", SMALL / took.wall, "msg/s")
        raw = min(_producer_seconds(node, 121_000, LARGE * 12) for _ in range(REPETITIONS))
        yield Result("the node alone, 121 000-byte envelopes", LARGE * 12 * 121_000 / MB / raw, "MB/s")
        megabytes = LARGE * LARGE_BYTES / MB
        for name in ("memory", "sqlite"):
            took = _fastest(node, large, replace(CONFIG, segmentation=PARITY), name)
            yield Result(f"channel, 1 MiB messages with parity, {name}", megabytes / took.cpu, "MB/s", 60)
            yield Result(f"channel, 1 MiB messages with parity, {name}, by the clock", megabytes / took.wall, "MB/s")
