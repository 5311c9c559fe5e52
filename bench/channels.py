"""Whether the ack job costs what the rows cost, however many channels they are in and however long their logs are.

Two cases are compared in the same session, micro-batch by micro-batch, in time and in CPU time. The first micro-batches
count for nothing: Java compiles in them.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from statistics import median

from bench.jobs.channels import Batch, Case
from bench.jobs.children import child
from bench.registry import SIZES, Result, bench

WARM_UP, MEASURED = 5, 8
"""Micro-batches of each case."""
PATIENCE_S = 300.0
CHECKPOINT_TARGET = 4_096.0
"""Bytes of checkpoint a row."""

SHORT, LONG = 1.5, 1.3
"""Targets: many channels against few, with short logs and with long ones."""


def pairs(scale: float, only: Sequence[str] = ()) -> list[tuple[float, Case, Case]]:
    """Target, many channels, few channels; ``only``: ``short`` logs or ``long`` ones."""

    def scaled(count: int) -> int:
        return max(16, int(count * scale))

    records, log = scaled(4_000), scaled(1_000)
    few = scaled(400)
    found = {
        "short": (
            SHORT,
            Case(f"{records} records, {scaled(2_000)} channels", records, scaled(2_000), 0),
            Case(f"{records} records, 16 channels", records, 16, 0),
        ),
        "long": (
            LONG,
            Case(f"{few} records, {scaled(200)} channels with logs of {log}", few, scaled(200), log),
            Case(f"{few} records, 16 channels with logs of {log}", few, 16, log),
        ),
    }
    return [pair for name, pair in found.items() if not only or name in only]


@bench
def channels() -> Iterator[Result]:
    """Many channels against few, and what the checkpoint takes."""
    from reliable_channel.config import load
    from reliable_channel.runtime import jars

    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        settings = load("local", paths={"run_dir": place})
        jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
        chosen = pairs(SIZES.scale, SIZES.workloads)
        spec = {
            "run_dir": place,
            "cores": 2,
            "batches": WARM_UP + MEASURED,
            "pairs": [[asdict(many), asdict(few)] for _, many, few in chosen],
        }
        batches: list[Batch] = []
        with child("bench.jobs.channels", spec) as process:
            for answer in process.answers():
                batches.append(Batch(**answer))
                sys.stderr.write(f"  {json.dumps(answer)}\n")
            process.finish(PATIENCE_S)
    for target, many, few in chosen:
        yield from compared(target, *(measured(batches, case) for case in (many, few)))


def measured(batches: Sequence[Batch], case: Case) -> list[Batch]:
    """The micro-batches of a case that count."""
    return [batch for batch in batches if batch.case == case.name][-MEASURED:]


def compared(target: float, many: Sequence[Batch], few: Sequence[Batch]) -> Iterator[Result]:
    """The figures of a pair of cases."""
    for case in (many, few):
        yield Result(f"ack, {case[0].case}: a micro-batch", median(b.seconds for b in case), "s")
        yield Result(f"ack, {case[0].case}: a micro-batch, CPU", median(b.cpu_s for b in case), "s")
        a_row = sum(b.checkpoint_bytes for b in case) / sum(b.rows for b in case)
        name = f"ack, {case[0].case}: checkpoint"
        yield Result(name, a_row, "bytes a row", CHECKPOINT_TARGET, lower_is_better=True)
    name = f"ack, {many[0].case} / {few[0].case.split(', ', 1)[1]}"
    times = median(b.seconds for b in many) / median(b.seconds for b in few)
    cpu = median(b.cpu_s for b in many) / median(b.cpu_s for b in few)
    yield Result(name, times, "ratio", target, lower_is_better=True)
    yield Result(f"{name}, CPU", cpu, "ratio", target, lower_is_better=True)
