"""Measures all queries as in production, over a backlog and then over steady traffic, in one pinned process: ``python
-m bench.jobs.steady SPEC``.

The backlog gives the maximum records/s, over all its micro-batches except the first, in which the JVM is cold. Latency
is from the Kafka record's time to the commit in ``delivered_messages`` that shows the message to readers. Prints one
line of JSON when the backlog is delivered, one when ``warm_batches`` of ingest are done after it and measuring begins,
one when ``batches`` more are done, and, after its standard input has ended, one with the measurements.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from bench.jobs.stages import on_topic, pin_cores, settings_for
from bench.jobs.usage import Usage

TRIGGER_MS = 1_000


def main(arguments: list[str]) -> int:
    """Run until the standard input ends."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    import pyarrow.compute as pc

    from bench.jobs.progress import Recorder
    from reliable_channel.core.sds import SdsParameters
    from reliable_channel.core.segmentation import SegmentationConfig
    from reliable_channel.lake.read import dataset_of, open_table
    from reliable_channel.lake.tables import DELIVERED_MESSAGES, INCOMPLETE_MESSAGES
    from reliable_channel.pipeline.runner.run import run_continuously
    from reliable_channel.runtime.spark import spark_session

    often = {"trigger_interval_ms": TRIGGER_MS, "max_offsets_per_trigger": spec["max_offsets"]}
    settings = settings_for(Path(spec["run_dir"]), spec["servers"], spec["cores"], **often)
    settings = on_topic(settings, spec["topic"], Path(spec["run_dir"]) / "steady")
    # Memories last only a few batches, so that minutes, not hours, show whether state is flat.
    short = {
        "segmentation": SegmentationConfig(
            set_timeout_ms=5_000, max_set_lifetime_ms=10_000, completed_memory_ms=15_000
        ),
        "sds": SdsParameters(max_log_entries=500),
    }
    settings = settings.model_copy(update=short)
    stop = threading.Event()

    def stop_at_end_of_input() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=stop_at_end_of_input, daemon=True).start()
    marks: dict[str, float] = {}
    wanted = spec["backlog_messages"]

    def mark(what: str, value: float) -> None:
        if what not in marks:
            marks[what] = value
            print(json.dumps({what: value}), flush=True)

    with spark_session(settings, "bench") as spark:
        recorder = Recorder(spark, settings)

        def count_finished() -> int:
            """Also what was given up: a producer may have paused between two segments for longer than sets live."""
            delivered = dataset_of(open_table(settings.paths, DELIVERED_MESSAGES)).count_rows()
            incomplete = dataset_of(open_table(settings.paths, INCOMPLETE_MESSAGES))
            return int(delivered + incomplete.count_rows(filter=pc.field("status") == "given_up"))

        def watch() -> None:
            while not stop.wait(1):
                ingest = [batch for _, batch in sorted(recorder.batches["ingest"].items())]
                if "maximum" not in marks:
                    if len(ingest) > 1 and count_finished() >= wanted:
                        after_the_first = spec["backlog_records"] - ingest[0]["input_rows"]
                        mark("maximum", after_the_first / (time.time() - ingest[1]["at"]))
                        marks["backlog"] = len(ingest)
                    continue
                done = len(ingest) - int(marks["backlog"])
                if done >= spec["warm_batches"]:
                    mark("warm", time.time())
                if done >= spec["warm_batches"] + spec["batches"]:
                    mark("enough", time.time())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        with Usage() as usage:
            run_continuously(spark, settings, stop)
        watcher.join()
    since = marks.get("warm", time.time())
    batches = {
        name: [
            {
                "rows": batch["input_rows"],
                "ms": batch["trigger_execution_ms"],
                "wait_ms": batch.get("turn_wait_ms", 0),
                "state_rows": batch.get("state_rows", 0),
                "state_bytes": batch.get("state_memory_bytes", 0),
            }
            for batch in batches
        ]
        for name, batches in recorder.select_since(since).items()
    }
    answer = {"batches": batches, "latency_s": latencies(settings.paths.table("delivered_messages"), since),
              "cpu_s": usage.cpu_s, "others_s": usage.others_s, "peak_mb": usage.peak_mb}  # fmt: skip
    print(json.dumps(answer), flush=True)
    return 0


def latencies(table: str, since: float) -> list[float]:
    """The seconds from event time (Kafka's, for these topics) to the commit that shows the row, for every row with an
    event time from ``since`` (Unix s) on."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    latencies: list[float] = []
    for log in sorted((Path(table) / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        committed = next(action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action)
        for action in actions:
            if "add" in action:
                rows = pq.read_table(Path(table) / action["add"]["path"], columns=["event_time"])
                times = rows["event_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
                latencies += [committed / 1_000 - at / 1_000_000 for at in times if at >= since * 1_000_000]
    return latencies


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
