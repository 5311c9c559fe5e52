"""Measures whether the cost of the ack job depends only on the rows, not on the number of channels or the length of
their logs.

Two cases are compared in the same session, micro-batch by micro-batch, in time and in CPU time. The first micro-batches
do not count, because Java compiles during them. Then many channels with logs are held and accessed at random.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

import numpy as np

from bench.jobs.channels import Case, MicroBatch
from bench.jobs.children import child
from bench.jobs.stages import prepare
from bench.registry import SIZES, Result, bench, python_step

WARM_UP, MEASURED = 5, 8
"""Micro-batches of each case: not counted, and measured."""
PATIENCE_S = 300.0
CHECKPOINT_TARGET = 4_096.0
"""Checkpoint bytes per row."""

HELD, HELD_LOG, HELD_STEPS, HELD_S = 20_000, 500, 12_500, 600
"""Channels, messages in the log of each, steps of plain Python between two records (200 records/s at 0.4 µs a step: a
fixed rate would be more than a slower machine can do), seconds."""
HELD_WARM_UP_S = 60
FLAT = 1.25

SHORT, LONG = 1.5, 1.3
"""Targets for the ratio of many channels to few, with short logs and with long ones."""


def pairs(scale: float, only: Sequence[str] = ()) -> list[tuple[float, Case, Case]]:
    """Target, many channels, few channels; ``only``: ``short`` logs, ``long`` ones, or neither (``held``)."""

    def scale_count(count: int) -> int:
        return max(16, int(count * scale))

    records, log = scale_count(4_000), scale_count(1_000)
    few = scale_count(400)
    pairs_by_name = {
        "short": (
            SHORT,
            Case(f"{records} records, {scale_count(2_000)} channels", records, scale_count(2_000), 0),
            Case(f"{records} records, 16 channels", records, 16, 0),
        ),
        "long": (
            LONG,
            Case(f"{few} records, {scale_count(200)} channels with logs of {log}", few, scale_count(200), log),
            Case(f"{few} records, 16 channels with logs of {log}", few, 16, log),
        ),
    }
    return [pair for name, pair in pairs_by_name.items() if not only or name in only]


@bench
def channels() -> Iterator[Result]:
    """Compare many channels with few, and measure the checkpoint's size."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        prepare(directory)
        if not (chosen := pairs(SIZES.scale, SIZES.workloads)):
            return
        spec = {
            "run_dir": directory,
            "cores": 2,
            "batches": SIZES.scale_count(WARM_UP + MEASURED, 3),
            "pairs": [[asdict(many), asdict(few)] for _, many, few in chosen],
        }
        batches: list[MicroBatch] = []
        with child("bench.jobs.channels", spec) as process:
            for answer in process.answers():
                batches.append(MicroBatch(**answer))
                sys.stderr.write(f"  {json.dumps(answer)}\n")
            process.finish(PATIENCE_S)
    for target, many, few in chosen:
        measured = SIZES.scale_count(MEASURED, 2)
        yield from compare(target, *(select_measured(batches, case, measured) for case in (many, few)))


@bench
def held() -> Iterator[Result]:
    """Measure many channels with logs, accessed at random for ten minutes: latency, and whether memory and checkpoint
    grow."""
    if SIZES.workloads and "held" not in SIZES.workloads:
        return
    rate = round(1 / (HELD_STEPS * python_step()))
    count, log = SIZES.scale_count(HELD, rate), SIZES.scale_count(HELD_LOG, 10)
    seconds = SIZES.scale_count(HELD_S, 10)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        prepare(directory)
        spec = {
            "run_dir": directory,
            "cores": 2,
            "channels": count,
            "log": log,
            "rate": rate,
            "warm_s": SIZES.scale_count(HELD_WARM_UP_S, 2),
            "seconds": seconds,
        }
        answers = []
        with child("bench.jobs.held", spec) as process:
            for answer in process.answers():
                answers.append(answer)
                if "latency_s" not in answer:
                    sys.stderr.write(f"  {json.dumps(answer)}\n")
            process.finish(PATIENCE_S)
    first, *_, last = [answer for answer in answers if "memory_mb" in answer]
    figures = {name: value for answer in answers for name, value in answer.items()}
    what = f"ack, {count} channels with logs of {log} for {seconds} s, a record every {HELD_STEPS} steps"
    latency = figures["latency_s"]
    half = len(latency) // 2
    growth = float(np.median(latency[half:]) / np.median(latency[:half]))
    yield Result(f"{what}: rate", rate, "records/s")
    yield Result(f"{what}: latency, median", float(np.median(latency)), "s")
    yield Result(f"{what}: latency, p95", float(np.percentile(latency, 95)), "s")
    yield Result(f"{what}: latency, second half / first", growth, "ratio", FLAT, True, "its first half")
    yield Result(f"{what}: CPU", figures["cpu_s"] / seconds, "cores")
    for name in ("memory_mb", "checkpoint_bytes"):
        growth = last[name] / first[name]
        yield Result(
            f"{what}: {name} in the end / after a tenth", growth, "ratio", FLAT, True, "the same after a tenth"
        )
    yield Result(f"{what}: checkpoint", last["checkpoint_bytes"] / 1e9, "GB")
    most = max(answer.get("checkpoint_bytes", 0) for answer in answers)
    yield Result(f"{what}: checkpoint, at most", most / 1e9, "GB")
    yield Result(f"{what}: first micro-batch after a restart", figures["restarted_s"], "s")


def select_measured(batches: Sequence[MicroBatch], case: Case, measured: int) -> list[MicroBatch]:
    """The last micro-batches of a case, which are measured."""
    return [batch for batch in batches if batch.case == case.name][-measured:]


def compare(target: float, many: Sequence[MicroBatch], few: Sequence[MicroBatch]) -> Iterator[Result]:
    """The figures of a pair of cases."""
    for case in (many, few):
        yield Result(f"ack, {case[0].case}: a micro-batch", median(b.seconds for b in case), "s")
        yield Result(f"ack, {case[0].case}: a micro-batch, CPU", median(b.cpu_s for b in case), "s")
        a_row = sum(b.checkpoint_bytes for b in case) / sum(b.rows for b in case)
        name = f"ack, {case[0].case}: checkpoint"
        yield Result(name, a_row, "bytes a row", CHECKPOINT_TARGET, True, "nothing: a size")
    name = f"ack, {many[0].case} / {few[0].case.split(', ', 1)[1]}"
    times = median(b.seconds for b in many) / median(b.seconds for b in few)
    cpu = median(b.cpu_s for b in many) / median(b.cpu_s for b in few)
    yield Result(name, times, "ratio", target, True, "as many records of 16 channels")
    yield Result(f"{name}, CPU", cpu, "ratio", target, True, "as many records of 16 channels")
