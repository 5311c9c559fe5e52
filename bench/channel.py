"""Measures the cost of sending through a whole channel over a real broker, beside the node alone with the same bytes in
the same run. A message is *sent* when a bridge has dispatched it, so the local loop runs as it does for a user: broker
and loop are separate, unpinned processes. All threads of this process are pinned to one core, and rates are per second
of its CPU time. Payloads are created in advance, and nobody acknowledges: the worst case for the stored state."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.registry import MB, SIZES, Result, bench
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
SMALL_TARGET, LARGE_TARGET = 0.31, 0.22
"""A channel's rate / that of the node alone: messages/s of small messages, bytes/s of large ones with their parity."""
REPETITIONS = 3
WAIT_S = 300

# Nobody answers here, so retransmissions must not disturb the measurement.
SDS = replace(SdsParameters(), acknowledgement_timeout_ms=3_600_000, max_retransmissions=0, sync_min_interval_ms=0)
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
            with _local_loop(there):
                yield there


@contextmanager
def _local_loop(settings: Settings) -> Iterator[None]:
    """Run ``reliable-channel bridge --loop`` beside the bench; its CPU time is not the channel's."""
    environment = {
        **os.environ,
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": settings.kafka.servers,
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(settings.paths.run_dir),
    }
    with tempfile.TemporaryFile() as output:
        loop = subprocess.Popen(
            [sys.executable, "-m", "reliable_channel", "bridge", "--loop"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
            if loop.poll() is not None:
                output.seek(0)
                raise RuntimeError(f"the local loop ended: {output.read().decode(errors='replace')[-2_000:]}")
        finally:
            loop.terminate()
            loop.wait(60)


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
    """Measure from the first ``send`` until the last message is *sent*: the local loop has dispatched it."""
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

    return min(once() for _ in range(SIZES.count_repetitions(REPETITIONS)))


@bench
def sending() -> Iterator[Result]:
    """Measure small messages, then large ones with parity; a message's header is mainly its filter of 18 752 bytes.
    ``sqlite`` is the persistence of the command line. Targets are ratios to the node alone, which sends the same bytes
    in the same run: rates themselves differ by a factor of two from hour to hour on a shared machine."""
    small = [os.urandom(SMALL_BYTES) for _ in range(SIZES.scale_count(SMALL, 200))]
    large = [os.urandom(LARGE_BYTES) for _ in range(SIZES.scale_count(LARGE, 5))]
    with _broker() as settings, _one_core(), _node(settings) as node:
        _channel_seconds(node, small[:200], CONFIG)
        raw = min(_producer_seconds(node, 19_000, len(small)) for _ in range(SIZES.count_repetitions(REPETITIONS)))
        yield Result("the node alone, 19 000-byte envelopes", len(small) / raw, "msg/s")
        for name in ("memory", "sqlite"):
            took = _fastest(node, small, CONFIG, name)
            what = f"channel, {SMALL_BYTES}-byte messages, {name}"
            yield Result(what, len(small) / took.cpu, "msg/s")
            yield Result(f"{what}, by the clock", len(small) / took.wall, "msg/s")
            yield Result(f"{what} / the node alone", raw / took.cpu, "ratio", SMALL_TARGET, against="the node alone")
        raw = min(
            _producer_seconds(node, 121_000, len(large) * 12) for _ in range(SIZES.count_repetitions(REPETITIONS))
        )
        yield Result("the node alone, 121 000-byte envelopes", len(large) * 12 * 121_000 / MB / raw, "MB/s")
        megabytes = len(large) * LARGE_BYTES / MB
        for name in ("memory", "sqlite"):
            took = _fastest(node, large, replace(CONFIG, segmentation=PARITY), name)
            what = f"channel, 1 MiB messages with parity, {name}"
            yield Result(what, megabytes / took.cpu, "MB/s")
            yield Result(f"{what}, by the clock", megabytes / took.wall, "MB/s")
            yield Result(
                f"{what} / the node alone",
                raw * megabytes / (len(large) * 12 * 0.121) / took.cpu,
                "ratio",
                LARGE_TARGET,
                against="the node alone",
            )
