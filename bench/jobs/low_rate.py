"""Measures all queries as in production, in one pinned process, at a low rate and then idle: ``python -m
bench.jobs.low_rate SPEC``.

``SPEC`` is JSON: bootstrap servers, run directory, cores, topic, seconds to warm up, to measure, to be idle. It
measures only after the first records have passed all queries. Prints a line of JSON when the traffic may end, and one
with the measurements: every micro-batch's parts in ms, latency, CPU.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.jobs.stages import on_topic, pin_cores, settings_for
from bench.jobs.steady import latencies
from bench.jobs.usage import busy_seconds, cpu_seconds

TRIGGER_MS = 1_000
SETTLE_S = 10.0
"""The time (s) until the last records have passed all queries."""


def main(arguments: list[str]) -> int:
    """Warm up, measure under traffic, measure idle."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    from bench.jobs.progress import Recorder
    from reliable_channel.pipeline.runner.run import run_continuously
    from reliable_channel.runtime.spark import spark_session

    run_dir = Path(spec["run_dir"])
    settings = settings_for(run_dir, spec["servers"], spec["cores"], trigger_interval_ms=TRIGGER_MS, **spec["spark"])
    settings = on_topic(settings, spec["topic"], run_dir / "low-rate")
    stop = threading.Event()
    answer: dict[str, Any] = {}

    def observe() -> None:
        stop.wait(spec["warm_s"])
        while not recorder.batches["ack"]:
            if stop.wait(1.0):
                return
        answer["since"], answer["cpu_s"], busy = time.time(), -cpu_seconds(), -busy_seconds()
        stop.wait(spec["seconds"])
        answer["cpu_s"] += cpu_seconds()
        answer["others_s"] = max(0.0, busy + busy_seconds() - answer["cpu_s"])
        answer["batches"] = recorder.select_since(answer["since"])
        print(json.dumps({"measured": True}), flush=True)
        stop.wait(SETTLE_S)
        answer["idle_cpu_s"] = -cpu_seconds()
        stop.wait(spec["idle_s"])
        answer["idle_cpu_s"] += cpu_seconds()
        stop.set()

    with spark_session(settings, "bench") as spark:
        recorder = Recorder(spark, settings)
        observer = threading.Thread(target=observe, daemon=True)
        observer.start()
        run_continuously(spark, settings, stop)
        observer.join()
    answer["latency_s"] = latencies(settings.paths.table("delivered_messages"), answer["since"])
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
