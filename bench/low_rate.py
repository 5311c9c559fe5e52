"""Measures a round of the jobs at 100 records/s, and their cost while no records arrive.

A round is the time from one micro-batch of ingest to the next, in which its records pass all queries. Latency is from
Kafka's time to the commit in ``delivered_messages`` that shows the message.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from bench.jobs.children import child
from bench.jobs.low_rate import TRIGGER_MS
from bench.jobs.stages import prepare
from bench.jobs.traffic import produce_steadily, records, workloads
from bench.pipeline import PATIENCE_S, fill_topic
from bench.registry import SIZES, Result, bench

RATE = 100
"""Records/s."""
WARM_S, MEASURED_S, IDLE_S = 240.0, 120.0, 60.0
"""Seconds; Java compiles for three or four minutes."""

PARTS = ("trigger_execution_ms", "latest_offset_ms", "query_planning_ms", "add_batch_ms", "turn_wait_ms")
"""Measures of a micro-batch, as in ``pipeline_metrics``; the first and the fourth do not include the last."""

START_S = 180
"""Seconds that the first records may take on a slow machine."""

ROUND_TARGET, P95_TARGET, IDLE_TARGET = 1.5, 3.0, 0.1
"""A round / the trigger interval; latency / a round; CPU time without records / with them."""


@bench
def low_rate() -> Iterator[Result]:
    """Measure rounds, latency and CPU time at a low rate, and CPU time without traffic."""
    from reliable_channel.runtime.broker import running_broker

    pairs = next(workload for workload in workloads(1) if workload.name == "pairs")
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        settings = prepare(directory)
        with running_broker(settings) as there:
            yield from measure(there, Path(directory), replace(pairs, name="low-rate", messages=16), {})


def measure(there: Any, directory: Path, workload: Any, spark: dict[str, Any]) -> Iterator[Result]:
    """The figures of one run; ``spark``: settings of the session."""
    topic = fill_topic(there, workload)["topic"]
    share = min(1.0, SIZES.scale)
    warm_s, seconds, idle_s = (max(least, each * share) for each, least in ((WARM_S, 0), (MEASURED_S, 30), (IDLE_S, 5)))
    spec = {"servers": there.kafka.servers, "run_dir": str(directory), "cores": 2, "topic": topic}
    spec |= {"warm_s": warm_s, "seconds": seconds, "idle_s": idle_s, "spark": spark}
    endless = records(replace(workload, messages=10**9), "at a low rate")
    traffic = list(islice(endless, int(RATE * (2 * (warm_s + seconds) + START_S))))
    stop = threading.Event()
    answer: dict[str, Any] = {}
    with child("bench.jobs.low_rate", spec) as process, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(produce_steadily, there.kafka.clients().producer, topic, traffic, RATE, stop)
        try:
            for line in process.answers():
                stop.set()
                answer = line
        finally:
            stop.set()
        process.finish(PATIENCE_S)
        sending.result()
    yield from figures(answer, seconds, idle_s)


def figures(answer: dict[str, Any], seconds: float, idle_s: float) -> Iterator[Result]:
    """The figures of ``bench.jobs.low_rate`` after measuring for ``seconds`` and then idling for ``idle_s``."""
    what = f"{RATE} records/s"
    percentiles = quantiles(answer["latency_s"], n=20)
    a_round = seconds / len(answer["batches"]["ingest"])
    name = f"{what}: a round / the trigger interval"
    yield Result(f"{what}: a round", a_round, "s")
    yield Result(name, a_round * 1_000 / TRIGGER_MS, "ratio", ROUND_TARGET, True, "the trigger interval")
    yield Result(f"{what}: latency p50", percentiles[9], "s")
    yield Result(f"{what}: latency p95", percentiles[18], "s")
    yield Result(f"{what}: latency p95 / a round", percentiles[18] / a_round, "ratio", P95_TARGET, True, "a round")
    yield Result(f"{what}: CPU", answer["cpu_s"] / seconds, "cores")
    yield Result(f"{what}: CPU of others", answer["others_s"] / seconds, "cores")
    for name, batches in answer["batches"].items():
        for part in PARTS:
            yield Result(f"{what}, {name}: {part}", fmean(batch.get(part, 0) for batch in batches), "ms")
    idle, busy = answer["idle_cpu_s"] / idle_s, answer["cpu_s"] / seconds
    yield Result("idle: CPU", idle, "cores")
    yield Result(f"idle: CPU / at {RATE} records/s", idle / busy, "ratio", IDLE_TARGET, True, "the same with records")
