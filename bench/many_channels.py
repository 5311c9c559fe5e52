"""Measures a participant with many channels in one process, each with its thread and its journal in one SQLite file:
threads, memory, CPU while nothing happens, and the CPU time of one envelope beside the same with few channels."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.registry import SIZES, Result, bench, cpu_of
from reliable_channel.channel import (
    MemoryPersistence,
    Persistence,
    ReliableChannel,
    ReliableChannelConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.transport.clock import ManualClock, SystemClock
from reliable_channel.transport.memory import MemoryNetwork

MANY, FEW = 1_000, 10
IDLE_S = 20
ENVELOPES = 200


@contextmanager
def _channels(
    network: MemoryNetwork, name: str, count: int, kept: Persistence, *, is_shared: bool = False, threaded: bool = False
) -> Iterator[list[ReliableChannel]]:
    """Open channels on topics of their own, or on a shared one."""
    node, config = network.node(name), ReliableChannelConfig(persistence=kept)
    node.start()
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                create_reliable_channel(
                    node,
                    f"channel {number}",
                    f"/bench/1/{'shared' if is_shared else number}/proto",
                    name,
                    config=config,
                    clock=network.clock,
                    threaded=threaded,
                )
            )
            for number in range(count)
        ]


def _read_memory_kb() -> float:
    """The resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1_000


@bench
def idle() -> Iterator[Result]:
    """Open the channels, and let them wait."""
    many = SIZES.scale_count(MANY, FEW)
    with tempfile.TemporaryDirectory(prefix="bench-many-") as directory:
        kept = SqlitePersistence(Path(directory) / "channels.db")
        threads, memory, started = threading.active_count(), _read_memory_kb(), time.process_time()
        with _channels(MemoryNetwork(SystemClock()), "alice", many, kept, threaded=True):
            yield Result(f"{many} channels: CPU of opening one", (time.process_time() - started) / many * 1_000, "ms")
            time.sleep(IDLE_S * min(1.0, SIZES.scale))  # the queries of the start end
            against = "nothing: a count"
            at_rest = (threading.active_count() - threads) / many
            yield Result(f"{many} channels: threads a channel", at_rest, "threads", 1, True, against)
            grown = (_read_memory_kb() - memory) / many
            yield Result(f"{many} channels: memory a channel", grown, "kB", 1_000, True, "nothing: a size")
            waited = IDLE_S * min(1.0, SIZES.scale)
            share = cpu_of(lambda: time.sleep(waited)) / waited
            yield Result(f"{many} idle channels: CPU / a core", share, "ratio", 0.05, True, "a core")
        kept.close()


def _receive(count: int, is_shared: bool) -> float:
    """CPU seconds of one envelope, from the sender's channel to the receiver's, on two nodes with so many channels."""
    network = MemoryNetwork(ManualClock())
    with (
        _channels(network, "alice", count, MemoryPersistence(), is_shared=is_shared) as alices,
        _channels(network, "bob", count, MemoryPersistence(), is_shared=is_shared) as bobs,
    ):

        def exchange(count: int) -> None:
            for number in range(count):
                alices[number % FEW].send(b"hello")
                alices[number % FEW].step()
                network.pump()
                bobs[number % FEW].step()

        exchange(FEW)
        return cpu_of(lambda: exchange(ENVELOPES)) / ENVELOPES


@bench
def envelopes() -> Iterator[Result]:
    """Send through a few of the channels."""
    many = SIZES.scale_count(MANY, 2 * FEW)
    for where, is_shared, target in (("on topics of their own", False, 1.5), ("on one topic", True, 5.0)):
        few_s, many_s = (
            min(_receive(count, is_shared) for _ in range(SIZES.count_repetitions(3))) for count in (FEW, many)
        )
        yield Result(f"an envelope, {many} channels {where}", many_s * 1_000, "ms")
        name = f"an envelope, {many} / {FEW} channels {where}, CPU"
        yield Result(name, many_s / few_s, "ratio", target, True, f"{FEW} channels")
