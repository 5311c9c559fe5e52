"""Converts measured stages to the figures of the issue, as pure functions.

A ratio compares the times for the same records in one process, each the best of its repetitions. It is accompanied by
the same ratio of CPU seconds, which stays meaningful on a shared machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from statistics import mean, quantiles
from typing import Any

from bench.jobs.stages import Stage
from bench.registry import Result

JOBS = ("ingest", "reassembly", "ack")
INGEST_TARGETS = {"small": 0.6, "filters": 0.75}
"""Shares of the floor's throughput; a plain decode in one ``mapInArrow`` reaches 0.52 and 0.70."""
CHAIN_TARGET = 0.25
CHAIN_TARGETS = {"small": 0.4, "pairs": 0.3}
"""Of all three jobs on two cores, in time; :data:`CHAIN_TARGET` for other workloads, one core, and CPU time."""
COPY = "Spark copying the topic"
TWO_CORES_TARGET = 1.6
LATENCY_TARGET = 3.0
"""Latency p95 / a round: the batch times of all queries."""
FLAT = 1.25
"""Maximum ratio of a run's second half to its first half that counts as flat."""
FEW_ROWS = 16
"""State of fewer rows on average is not compared, because one more set cut in two by a micro-batch would double it."""

Best = dict[tuple[str, int, str], Stage]


def best_of(stages: Iterable[Stage]) -> Best:
    """(workload, cores, stage) → the quickest repetition, with the least CPU time of all repetitions."""
    best: Best = {}
    for stage in stages:
        key = (stage.workload, stage.cores, stage.stage)
        known = best.get(key, stage)
        quickest = stage if stage.seconds < known.seconds else known
        best[key] = replace(quickest, cpu_s=min(stage.cpu_s, known.cpu_s))
    return best


def as_json(stage: Stage) -> dict[str, Any]:
    """A stage as a row for people and for JSON."""
    return {
        "workload": stage.workload,
        "cores": stage.cores,
        "stage": stage.stage,
        "repetition": stage.repetition,
        "records": stage.records,
        "rows_per_s": round(stage.records / stage.seconds),
        "mb_per_s": round(stage.bytes / 1e6 / stage.seconds, 1),
        "seconds": round(stage.seconds, 2),
        "cpu_s": round(stage.cpu_s, 2),
        "others_cpu_s": round(stage.others_s, 2),
        "peak_mb": round(stage.peak_mb),
    }


def ratios(best: Best) -> Iterator[Result]:
    """Yield every comparison that the measured stages allow."""
    for workload, cores in dict.fromkeys((workload, cores) for workload, cores, _ in best):
        stages = {stage: s for (w, c, stage), s in best.items() if (w, c) == (workload, cores)}
        label = f"{workload}, {_cores(cores)}"
        floor = stages.get("floor")
        if floor is not None and "ingest" in stages:
            yield from _pair(
                f"{label}: ingest / floor", [floor], [stages["ingest"]], INGEST_TARGETS.get(workload), COPY
            )
        if floor is not None and all(job in stages for job in JOBS):
            jobs = [stages[job] for job in JOBS]
            yield Result(f"{label}: all three together", floor.records / sum(s.seconds for s in jobs), "rows/s")
            target = CHAIN_TARGETS.get(workload, CHAIN_TARGET) if cores == 2 else CHAIN_TARGET
            yield from _pair(f"{label}: all three / floor", [floor], jobs, target, COPY, CHAIN_TARGET)
        if workload == "hot" and "ack" in stages:
            yield Result(
                f"one hot channel, {_cores(cores)}: ack", stages["ack"].records / stages["ack"].seconds, "rows/s"
            )
    for workload in dict.fromkeys(workload for workload, _, _ in best):
        if workload != "hot" and all((workload, cores, job) in best for cores in (1, 2) for job in JOBS):
            one, two = (sum(best[workload, cores, job].seconds for job in JOBS) for cores in (1, 2))
            yield Result(
                f"{workload}: all three, 2 cores / 1 core", one / two, "ratio", TWO_CORES_TARGET, against="one core"
            )
    ours, others = sum(s.cpu_s for s in best.values()), sum(s.others_s for s in best.values())
    if ours:
        yield Result("CPU time that others took from the same cores", others / (ours + others), "share")


def _pair(
    name: str, of: list[Stage], by: list[Stage], target: float | None, against: str, cpu_target: float | None = None
) -> Iterator[Result]:
    """Divide the cost of ``of`` by that of ``by``, in time and in CPU time (``cpu_target``: if it differs)."""
    times = sum(s.seconds for s in of) / sum(s.seconds for s in by)
    cpu = sum(s.cpu_s for s in of) / sum(s.cpu_s for s in by)
    yield Result(name, times, "ratio", target, against=against)
    yield Result(f"{name}, CPU", cpu, "ratio", cpu_target or target, against=against)


def _cores(cores: int) -> str:
    return f"{cores} core{'s' * (cores > 1)}"


def steady(answer: dict[str, Any], rate: float, reached: float) -> Iterator[Result]:
    """Yield the figures of ``bench.jobs.steady`` at ``rate`` records/s: latency, and whether batch time and state stay
    flat."""
    yield Result("steady: traffic at half the maximum", reached, f"records/s (wanted {rate:,.0f})")
    latency = sorted(answer["latency_s"])
    if len(latency) > 1:
        percentiles = quantiles(latency, n=20)
        yield Result("steady: latency p50", percentiles[9], "s")
        yield Result("steady: latency p95", percentiles[18], "s")
        a_round = sum(mean(batch["ms"] for batch in some) for some in answer["batches"].values() if some) / 1000
        if a_round:
            ratio = percentiles[18] / a_round
            yield Result("steady: latency p95 / a round", ratio, "ratio", LATENCY_TARGET, True, "a round")
    yield Result("steady: peak memory", answer["peak_mb"], "MB")
    yield Result("steady: CPU seconds", answer["cpu_s"], "s")
    yield Result("steady: CPU seconds of others", answer["others_s"], "s")
    for name, batches in answer["batches"].items():
        yield Result(f"steady, {name}: micro-batches", len(batches), "batches")
        settled = batches[len(batches) // 3 :]  # before that, memories fill up
        half = len(settled) // 2
        if half < 3:
            continue
        yield Result(f"steady, {name}: batch time", mean(b["ms"] for b in settled) / 1000, "s")
        yield Result(f"steady, {name}: wait for its turn", mean(b["wait_ms"] for b in settled) / 1000, "s")
        for what, unit in (("ms", "batch time"), ("state_rows", "state rows"), ("state_bytes", "state bytes")):
            earlier, later = mean(b[what] for b in settled[:half]), mean(b[what] for b in settled[half:])
            if what == "state_rows" and max(earlier, later) < FEW_ROWS:
                yield Result(f"steady, {name}: {unit}", max(earlier, later), "rows", FEW_ROWS, True, "its first half")
            elif earlier:
                target = None if what == "state_bytes" else FLAT
                label = f"steady, {name}: {unit}, second half / first"
                yield Result(label, later / earlier, "ratio", target, True, "its first half")
