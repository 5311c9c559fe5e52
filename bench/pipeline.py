"""Compares the Spark pipeline with the floor, in the same run on the same Kafka records (issue targets;
docs/pipeline.md).

The floor: Spark copies the topic to Delta without Python. A stage's time is that of its micro-batches; compared stages
always run in one process, pinned to one or two cores together with its Python workers. The broker is not pinned.
``--scale`` sets the sizes, below 1 on two cores only; ``--workload`` selects one, ``--workload steady`` only the
backlog and the steady traffic. Every stage is a line of ``pipeline-stages.jsonl`` as soon as it is measured.

At scale 1 each stage of ``pairs`` and ``hot`` is the single micro-batch with which its query starts. Half of the JVM's
CPU time in it is compilation, in the floor as in the jobs. At scale 4 the floor and ingest have four micro-batches.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from bench.jobs.children import child
from bench.jobs.compare import Best, as_json, best_of, ratios, steady
from bench.jobs.stages import Stage, prepare
from bench.jobs.traffic import Workload, produce, produce_steadily, records, workloads
from bench.registry import SIZES, Result, bench

REPETITIONS = {1: 1, 2: 2}
"""Cores → how often floor and stages run alternately; the best of each counts, since the machine may be shared."""

WARM_UP, WARM_ROUNDS = 0.25, 2
"""The scale of the ``pairs`` workload that warms up every stage, and how often: the JVM's compilation in its first
minutes must not count, and a floor measured before its code is compiled is meaningless."""

STEADY = "steady"
"""The name with which ``--workload`` selects only the steady traffic; ``pairs`` includes it as well."""
BACKLOG, BACKLOG_BATCHES = 100_000, 4
"""The number of messages of two records, and of their ingest micro-batches, each of the default size."""
WARM_BATCHES, BATCHES = 40, 50
"""Micro-batches of steady traffic: those in which Java still compiles most of the code (docs/pipeline.md), and those
measured."""
STEADY_S = 600.0
"""Maximum duration (s); on a busy machine that may give fewer micro-batches."""
ENDLESS = 10**9
PATIENCE_S = 300.0


@bench
def pipeline() -> Iterator[Result]:
    """Measure all workloads on one and two cores, then a backlog, and steady traffic at half of the backlog's rate."""
    from reliable_channel.runtime.broker import running_broker

    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        settings = prepare(directory)
        with running_broker(settings) as there:
            chosen = [w for w in workloads(SIZES.scale) if not SIZES.workloads or w.name in SIZES.workloads]
            if chosen:
                yield from _compare(there, Path(directory), chosen)
            if not SIZES.workloads or {"pairs", STEADY} & {*SIZES.workloads}:
                yield from _steady(there, Path(directory) / STEADY)


def _compare(there: Any, directory: Path, chosen: list[Workload]) -> Iterator[Result]:
    """Yield the stages of every chosen workload, and their ratios."""
    stages: list[Stage] = []
    specs = [fill_topic(there, workload) for workload in chosen]
    warm = [
        fill_topic(there, workload, "warm-")
        for workload in workloads(WARM_UP * min(1.0, SIZES.scale))
        if workload.name == "pairs"
    ]
    usable = len(os.sched_getaffinity(0))
    SIZES.output.mkdir(parents=True, exist_ok=True)
    kept = SIZES.output / "pipeline-stages.jsonl"
    kept.unlink(missing_ok=True)
    try:
        for cores in (2, 1) if SIZES.scale >= 1 else (2,):
            if cores <= usable:
                for stage in _stages(there, directory / f"cores-{cores}", cores, specs, warm):
                    stages.append(stage)
                    _keep(stage, kept)
    finally:
        _print_stages(best_of(stages))
    yield from ratios(best_of(stages))


def fill_topic(there: Any, workload: Workload, prefix: str = "") -> dict[str, Any]:
    """Create the topic of a workload and fill it; returns the specification for the measured process."""
    from reliable_channel.runtime.topics import ensure_topics

    workload = replace(workload, name=prefix + workload.name)
    topics = there.kafka.topics.model_copy(update={"envelopes": workload.topic, "partitions": 4})
    ensure_topics(there.kafka.model_copy(update={"topics": topics}))
    records, size = produce(there.kafka.clients().producer, workload)
    return {
        "name": workload.name,
        "topic": workload.topic,
        "records": records,
        "bytes": size,
        "messages": workload.messages,
    }


def _stages(there: Any, run_dir: Path, cores: int, specs: list[dict[str, Any]], warm: list[Any]) -> Iterator[Stage]:
    """Yield the stages on ``cores`` cores, each as it is done."""
    spec = {
        "servers": there.kafka.servers,
        "run_dir": str(run_dir),
        "cores": cores,
        "repetitions": SIZES.count_repetitions(REPETITIONS[cores]),
        "workloads": specs,
        "warm_up": warm * SIZES.count_repetitions(WARM_ROUNDS),
    }
    with child("bench.jobs.stages", spec) as process:
        for answer in process.answers():
            yield Stage(**answer)
        process.finish(PATIENCE_S)


def _keep(stage: Stage, file: Path) -> None:
    row = as_json(stage)
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(row) + "\n")
    report = (
        f"  {row['workload']}, {row['cores']} cores, {row['stage']}: {row['records']:,} records,"
        f" {row['seconds']} s, {row['cpu_s']} CPU s\n"
    )
    sys.stderr.write(report)


def _print_stages(best: Best) -> None:
    from rich.console import Console
    from rich.table import Table

    columns = ("workload", "cores", "stage", "records", "rows/s", "MB/s", "s", "CPU s", "others' CPU s", "peak MB")
    table = Table(*columns, title="Pipeline stages")
    for stage in best.values():
        row = as_json(stage)
        del row["repetition"]
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _steady(there: Any, run_dir: Path) -> Iterator[Result]:
    """Measure the maximum rate of all queries over a backlog of pairs; then steady traffic at half of it: latency,
    batch time, state."""
    template = next(w for w in workloads(1) if w.name == "pairs")
    backlog = replace(template, name=STEADY, messages=SIZES.scale_count(BACKLOG, 512))
    traffic = replace(backlog, messages=ENDLESS)
    prepared = fill_topic(there, backlog)
    spec = {
        "servers": there.kafka.servers,
        "run_dir": str(run_dir),
        "cores": 2,
        "topic": prepared["topic"],
        "backlog_messages": backlog.messages,
        "backlog_records": prepared["records"],
        "max_offsets": prepared["records"] // BACKLOG_BATCHES,
        "warm_batches": SIZES.scale_count(WARM_BATCHES, 2),
        "batches": SIZES.scale_count(BATCHES, 3),
    }
    stop = threading.Event()
    with child("bench.jobs.steady", spec) as process, ThreadPoolExecutor(1) as pool:

        def end() -> None:
            stop.set()
            process.close_input()

        answers = process.answers()
        maximum = next((answer["maximum"] for answer in answers if "maximum" in answer), None)
        if maximum is None:
            process.finish(PATIENCE_S)
            return
        yield Result("steady: the most that all queries do as they run", maximum, "records/s")
        rate = maximum / 2
        longest_s = max(60.0, STEADY_S * min(1.0, SIZES.scale))
        prepared_traffic = list(islice(records(traffic, "steadily"), int(rate * longest_s)))  # not on their cores later
        patience = threading.Timer(longest_s, end)
        sending = pool.submit(
            produce_steadily, there.kafka.clients().producer, traffic.topic, prepared_traffic, rate, stop
        )
        patience.start()
        measured = None
        try:
            for answer in answers:
                if "enough" in answer:
                    end()
                measured = answer if "batches" in answer else None
        finally:
            patience.cancel()
            end()
        process.finish(PATIENCE_S)
    if measured is not None:
        yield from steady(measured, rate, sending.result())
