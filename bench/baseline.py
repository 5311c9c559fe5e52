"""Compares the current reassembly and ack jobs with those of an older commit, in the same run.

Both read the same Kafka records, each in its own process with the code of its commit, alternately: baseline, today,
baseline, today. The quickest run of each side is compared, in time and in CPU time. First each job is measured alone,
in the one micro-batch with which its query starts; then all jobs as in production, over a backlog of several
micro-batches without the first, in total and per job. The older code comes from ``git archive``, so the bench needs the
history of the repository.
"""

from __future__ import annotations

import io
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from bench.jobs.children import Child, child
from bench.jobs.compare import CHAIN_TARGET, Best, best_of
from bench.jobs.stages import Stage, prepare
from bench.jobs.traffic import workloads
from bench.pipeline import BACKLOG, BACKLOG_BATCHES, PATIENCE_S, fill_topic
from bench.registry import SIZES, Result, bench

BASELINE = "7987fde"
"""The last commit before the tables were hardened against hostile senders."""

WORKLOADS = ("small", "filters", "pairs", "hot")
RUNNING = ("small", "pairs", "hot")
"""The workloads that are also run over a backlog, with all jobs."""
BATCHES = 6
"""The number of micro-batches of the backlog when they are compared per job. The first does not count, and the last may
be smaller."""
ROUNDS = 2
TARGET = 0.95


@bench
def beside_the_baseline() -> Iterator[Result]:
    """Measure the throughput of today / throughput of the baseline; above 1 is quicker than before."""
    from reliable_channel.runtime.broker import running_broker

    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        then = _checkout(Path(place) / "baseline")
        settings = prepare(place)
        with running_broker(settings) as there:
            yield from _job_by_job(there, Path(place), then)
            yield from _as_they_run(there, Path(place), then)


def _job_by_job(there: Any, place: Path, then: Path) -> Iterator[Result]:
    chosen = [w for w in workloads(SIZES.scale) if w.name in (SIZES.workloads or WORKLOADS)]
    spec = {
        "servers": there.kafka.servers,
        "cores": 2,
        "repetitions": 1,
        "workloads": [fill_topic(there, workload) for workload in chosen],
        "warm_up": [fill_topic(there, w, "warm-") for w in workloads(0.25) if w.name == "pairs"],
    }
    for each in (*spec["workloads"], *spec["warm_up"]):
        each["through_state"] = False
    stages: dict[Path | None, list[Stage]] = {then: [], None: []}
    for turn in range(ROUNDS):
        for tree, here in _in_turn(then, place / f"jobs-{turn}"):
            with child("bench.jobs.stages", {**spec, "run_dir": str(here)}, tree) as process:
                stages[tree] += [Stage(**answer) for answer in process.answers()]
                process.finish(PATIENCE_S)
    before, now = best_of(stages[then]), best_of(stages[None])
    for workload in chosen:
        for job in ("ingest", "reassembly", "ack"):
            was, is_now = _measure_cpu(before, workload.name, job), _measure_cpu(now, workload.name, job)
            target = None if job == "ingest" else TARGET
            name = f"{workload.name}, {job}: today / {BASELINE}"
            yield Result(name, was[0] / is_now[0], "ratio", target)
            yield Result(f"{name}, CPU", was[1] / is_now[1], "ratio")
            yield Result(f"{workload.name}, {job}: today", is_now[0], "s")
        for side, best, target in ((BASELINE, before, None), ("today", now, CHAIN_TARGET)):
            all_jobs = sum(_measure_cpu(best, workload.name, job)[0] for job in ("ingest", "reassembly", "ack"))
            copy = _measure_cpu(best, workload.name, "floor")[0]
            yield Result(f"{workload.name}, all jobs / a copy: {side}", copy / all_jobs, "ratio", target)


def _as_they_run(there: Any, place: Path, then: Path) -> Iterator[Result]:
    for workload in (w for w in workloads(1) if w.name in (SIZES.workloads or RUNNING)):
        messages = max(64, int(BACKLOG * SIZES.scale))
        made = fill_topic(there, replace(workload, messages=messages), "backlog-")
        spec = {
            "servers": there.kafka.servers,
            "cores": 2,
            "topic": made["topic"],
            "backlog_messages": messages,
            "backlog_records": made["records"],
            "max_offsets": made["records"] // BACKLOG_BATCHES,
            "warm_batches": 1,
            "batches": 1,
        }
        in_batches = {
            "backlog_messages": messages // BATCHES,
            "max_offsets": made["records"] // BATCHES,
            "warm_batches": 0,
            "batches": BATCHES - 2,
        }
        best: dict[Path | None, float] = {then: 0.0, None: 0.0}
        seconds: dict[Path | None, dict[str, float]] = {then: {}, None: {}}
        for turn in range(ROUNDS):
            for tree, here in _in_turn(then, place / f"{workload.name}-{turn}"):
                with child("bench.jobs.steady", {**spec, "run_dir": str(here)}, tree) as process:
                    maximum = next((answer["maximum"] for answer in process.answers() if "maximum" in answer), 0.0)
                    best[tree] = max(best[tree], maximum)
                    process.finish(PATIENCE_S)
                with child("bench.jobs.steady", {**spec, **in_batches, "run_dir": f"{here}-each"}, tree) as process:
                    for job, took in _micro_batches(process).items():
                        seconds[tree][job] = min(took, seconds[tree].get(job, took))
        for job in ("ingest", "reassembly", "ack"):
            was, is_now = (sum(seconds[side].get(name, 0.0) for name in _jobs(job)) for side in (then, None))
            target = None if job == "ingest" else TARGET
            yield Result(f"{workload.name}, {job} as it runs: today / {BASELINE}", was / is_now, "ratio", target)
        name = f"{workload.name}, all jobs as they run: today"
        yield Result(f"{name} / {BASELINE}", best[None] / best[then], "ratio", TARGET)
        yield Result(name, best[None], "records/s")


def _micro_batches(process: Child) -> dict[str, float]:
    """Job → median seconds of its full micro-batches, which have the same number of records."""
    seconds: dict[str, float] = {}
    for answer in process.answers():
        if "enough" in answer:
            process.close_input()
        for job, batches in answer.get("batches", {}).items():
            most = max((batch["rows"] for batch in batches), default=0)
            seconds[job] = median([batch["ms"] for batch in batches if batch["rows"] > most / 2] or [0.0]) / 1_000
    process.finish(PATIENCE_S)
    return seconds


def _jobs(job: str) -> tuple[str, ...]:
    """Delivery is part of ack; in the baseline it was a separate job."""
    return ("ack", "deliver") if job == "ack" else (job,)


def _in_turn(then: Path, here: Path) -> Iterator[tuple[Path | None, Path]]:
    """The tree of each side (``None``: this one), and a run directory for it."""
    yield then, here / "baseline"
    yield None, here / "today"


def _measure_cpu(best: Best, workload: str, job: str) -> tuple[float, float]:
    """Seconds and CPU seconds of a job or of the ``floor``."""
    stages = [best[workload, 2, name] for name in _jobs(job) if (workload, 2, name) in best]
    return sum(stage.seconds for stage in stages), sum(stage.cpu_s for stage in stages)


def _checkout(place: Path) -> Path:
    """The baseline's files. Raises ``RuntimeError`` if the clone does not reach back that far."""
    archive = subprocess.run(["git", "archive", BASELINE], capture_output=True)
    if archive.returncode:
        raise RuntimeError(f"Commit {BASELINE} is not in this clone; fetch its history: git fetch --unshallow.")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(place, filter="data")
    return place
