"""The Spark pipeline against the floor, in the same run on the same Kafka records (issue targets; docs/pipeline.md).

Floor: Spark copies the topic to Delta without Python. A stage's time is that of its micro-batches; what is compared is
always of one process, pinned to one or two cores together with its Python workers. The broker runs beside it, unpinned.
``--scale`` sets the sizes; ``--quick`` is small and on two cores only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from bench.jobs.stages import Stage
from bench.jobs.traffic import Workload, produce, produce_steadily, workloads
from bench.registry import SIZES, Result, bench

REPETITIONS = 2
"""Floor and stages twice, in turn; the best of each counts, since the machine may be shared."""

WARM_UP = 0.02
"""Of the pairs, which pass every stage: what the JVM compiles in its first minute is nobody's cost."""

THROUGH_STATE = ("pairs", "large")
STEADY_S = 100.0
_OUTPUT = Path("build") / "bench" / "pipeline-stages.json"

Best = dict[tuple[str, int, str], Stage]


@bench
def pipeline() -> Iterator[Result]:
    """All workloads on all cores, then steady traffic at half of what the three jobs together can do."""
    from reliable_channel.config import load
    from reliable_channel.runtime import jars
    from reliable_channel.runtime.broker import running_broker

    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        settings = load("local", paths={"run_dir": place})
        jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
        with running_broker(settings) as there:
            stages: list[Stage] = []
            specs = [_produced(there, workload) for workload in workloads(SIZES.scale)]
            warm = [_produced(there, workload, "warm-") for workload in workloads(WARM_UP) if workload.name == "pairs"]
            usable = len(os.sched_getaffinity(0))
            for cores in (2,) if SIZES.quick else (1, 2):
                if cores <= usable:
                    stages += _run_stages(there, Path(place) / f"cores-{cores}", cores, specs, warm)
            _OUTPUT.parent.mkdir(parents=True, exist_ok=True)
            _OUTPUT.write_text(json.dumps([_shown(stage) for stage in stages], indent=1) + "\n", encoding="utf-8")
            best = _best(stages)
            _print_stages(best)
            yield from _ratios(best)
            yield from _steady(there, Path(place) / "steady", best)


def _produced(there: Any, workload: Workload, prefix: str = "") -> dict[str, Any]:
    """Create the topic and fill it; what a process of stages has to know."""
    from dataclasses import replace

    from reliable_channel.runtime.topics import ensure_topics

    workload = replace(workload, name=prefix + workload.name)
    topics = there.kafka.topics.model_copy(update={"envelopes": workload.topic, "partitions": 4})
    ensure_topics(there.kafka.model_copy(update={"topics": topics}))
    records, size = produce(there.kafka.client_options(), workload)
    return {
        "name": workload.name,
        "topic": workload.topic,
        "records": records,
        "bytes": size,
        "messages": workload.messages,
        "through_state": workload.name.removeprefix("warm-") in THROUGH_STATE,
    }


def _command(module: str, spec: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", module, json.dumps(spec)]


def _run_stages(there: Any, run_dir: Path, cores: int, specs: list[dict[str, Any]], warm: list[Any]) -> list[Stage]:
    spec = {
        "servers": there.kafka.servers,
        "run_dir": str(run_dir),
        "cores": cores,
        "repetitions": 1 if SIZES.quick else REPETITIONS,
        "workloads": specs,
        "warm_up": warm,
    }
    command = _command("bench.jobs.stages", spec)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    if done.returncode != 0:
        raise RuntimeError(f"the stages on {cores} cores failed: {done.stderr.strip()[-3000:]}")
    return [Stage(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]


def _best(stages: list[Stage]) -> Best:
    best: Best = {}
    for stage in stages:
        key = (stage.workload, stage.cores, stage.stage)
        if key not in best or stage.seconds < best[key].seconds:
            best[key] = stage
    return best


def _shown(stage: Stage) -> dict[str, Any]:
    return {
        "workload": stage.workload,
        "cores": stage.cores,
        "stage": stage.stage,
        "repetition": stage.repetition,
        "records": stage.records,
        "rows_per_s": round(stage.records / stage.seconds),
        "mb_per_s": round(stage.bytes / 1e6 / stage.seconds, 1),
        "cpu_s": round(stage.cpu_s, 2),
        "peak_mb": round(stage.peak_mb),
    }


def _print_stages(best: Best) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        "workload", "cores", "stage", "records", "rows/s", "MB/s", "CPU s", "peak MB", title="Pipeline stages"
    )
    for stage in best.values():
        row = _shown(stage)
        del row["repetition"]
        table.add_row(*(f"{value:,}" if isinstance(value, int) else str(value) for value in row.values()))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _ratios(best: Best) -> Iterator[Result]:
    """Every comparison of the issue. Ratios are of rows/s; CPU ratios stand beside them for a busy machine."""
    for workload, cores in dict.fromkeys((workload, cores) for workload, cores, _ in best):
        found = {stage: s for (w, c, stage), s in best.items() if (w, c) == (workload, cores)}
        floor, ingest, reassembly, ack = (found[name] for name in ("floor", "ingest", "reassembly", "ack"))
        label = f"{workload}, {cores} core{'s' * (cores > 1)}"
        target = {"small": 0.6, "filters": 0.75}.get(workload)
        yield Result(f"{label}: ingest / floor", floor.seconds / ingest.seconds, "ratio", target)
        yield Result(f"{label}: ingest / floor, CPU", floor.cpu_s / ingest.cpu_s, "ratio")
        together = ingest.seconds + reassembly.seconds + ack.seconds
        cpu = ingest.cpu_s + reassembly.cpu_s + ack.cpu_s
        yield Result(f"{label}: all three together", floor.records / together, "rows/s")
        yield Result(f"{label}: all three / floor", floor.seconds / together, "ratio", 0.25)
        yield Result(f"{label}: all three / floor, CPU", floor.cpu_s / cpu, "ratio")
        if (through := found.get("reassembly, all through state")) is not None:
            ratio = through.seconds / reassembly.seconds
            yield Result(
                f"{label}: reassembly / all through state", ratio, "ratio", 10 if workload == "pairs" else None
            )
            yield Result(f"{label}: reassembly / all through state, CPU", through.cpu_s / reassembly.cpu_s, "ratio")
        if workload == "hot":
            yield Result(f"one hot channel, {cores} core{'s' * (cores > 1)}: ack", ack.records / ack.seconds, "rows/s")
    for workload in dict.fromkeys(workload for workload, _, _ in best):
        if (workload, 1, "ack") in best and (workload, 2, "ack") in best and workload != "hot":
            one, two = (
                sum(best[workload, cores, stage].seconds for stage in ("ingest", "reassembly", "ack"))
                for cores in (1, 2)
            )
            yield Result(f"{workload}: all three, 2 cores / 1 core", one / two, "ratio", 1.6)


def _steady(there: Any, run_dir: Path, best: Best) -> Iterator[Result]:
    """Steady traffic of pairs at half the maximum rate: latency, batch time, state."""
    used = {stage: s for (workload, cores, stage), s in best.items() if (workload, cores) == ("pairs", 2)}
    if not used:
        return
    chain = sum(used[stage].seconds for stage in ("ingest", "reassembly", "ack", "deliver"))
    rate = used["ingest"].records / chain / 2
    seconds = 30.0 if SIZES.quick else STEADY_S
    template = next(w for w in workloads(1) if w.name == "pairs")
    from dataclasses import replace

    traffic = replace(template, name="steady", messages=int(rate * seconds))
    prepared = _produced(there, replace(traffic, messages=16))  # a first micro-batch that pays for planning
    spec = {"servers": there.kafka.servers, "run_dir": str(run_dir), "cores": 2, "topic": prepared["topic"]}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            _command("bench.jobs.steady", spec),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None and process.stdin is not None
        try:
            process.stdout.readline()
            sent = produce_steadily(there.kafka.client_options(), traffic, rate, seconds)
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
        lines = process.stdout.read().splitlines()
        if process.wait(300) != 0 or not lines:
            errors.seek(0)
            raise RuntimeError(f"the steady run failed: {errors.read().decode(errors='replace').strip()[-2000:]}")
    answer = json.loads(lines[-1])
    yield from _steady_results(answer, rate, sent / seconds)


def _steady_results(answer: dict[str, Any], rate: float, reached: float) -> Iterator[Result]:
    yield Result("steady: traffic at half the maximum", reached, f"records/s (wanted {rate:,.0f})")
    latency = sorted(answer["latency_s"])
    if len(latency) > 1:
        percentiles = quantiles(latency, n=20)
        yield Result("steady: latency p50", percentiles[9], "s")
        yield Result("steady: latency p95", percentiles[18], "s", 10, lower_is_better=True)
    yield Result("steady: peak memory", answer["peak_mb"], "MB")
    yield Result("steady: CPU seconds", answer["cpu_s"], "s")
    for name, batches in answer["batches"].items():
        yield Result(f"steady, {name}: micro-batches", len(batches), "batches")
        settled = batches[len(batches) // 3 :]  # before, memories fill up
        half = len(settled) // 2
        if half < 3:
            continue
        for what, unit in (("ms", "batch time"), ("state_rows", "state rows"), ("state_bytes", "state bytes")):
            earlier, later = mean(b[what] for b in settled[:half]), mean(b[what] for b in settled[half:])
            if earlier:
                target = None if what == "state_bytes" else 1.25
                label = f"steady, {name}: {unit}, second half / first"
                yield Result(label, later / earlier, "ratio", target, lower_is_better=True)
        yield Result(f"steady, {name}: batch time", mean(b["ms"] for b in settled) / 1000, "s")
