"""``python -m bench.jobs.steady SPEC``: all queries at once over steady traffic, in one pinned process.

Latency is from the Kafka record's time to the commit in ``delivered_messages`` that shows the message to readers.
Prints one line of JSON when the queries run, one when ``warm_batches`` of ingest are done and measuring begins, one
when ``batches`` more are done, and, after its input has ended, one with what was measured.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bench.jobs.stages import on_topic, pinned, settings_for
from bench.jobs.usage import Usage

TRIGGER_MS = 1_000


def main(arguments: list[str]) -> int:
    """Run until the standard input ends."""
    spec = json.loads(arguments[0])
    pinned(spec["cores"])
    from reliable_channel.pipeline.running.run import run_continuously
    from reliable_channel.runtime.spark import spark_session
    from reliable_channel.sds import SdsConfig
    from reliable_channel.segmentation import SegmentationConfig

    settings = settings_for(Path(spec["run_dir"]), spec["servers"], spec["cores"], trigger_interval_ms=TRIGGER_MS)
    settings = on_topic(settings, spec["topic"], Path(spec["run_dir"]) / "steady")
    # Memories as long as a few batches: whether state is flat shows within minutes, not hours.
    short = {
        "pipeline": settings.pipeline.model_copy(update={"deduplication_delay_ms": 15_000}),
        "segmentation": SegmentationConfig(set_timeout_ms=10_000, completed_memory_ms=15_000),
        "sds": SdsConfig(max_log_entries=500),
    }
    settings = settings.model_copy(update=short)
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    progress: dict[str, dict[int, dict[str, Any]]] = {}
    marks: dict[str, float] = {}

    def mark(what: str) -> None:
        if what not in marks:
            marks[what] = time.time()
            print(json.dumps({what: marks[what]}), flush=True)

    with spark_session(settings, "bench") as spark:
        spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "1000")

        def watch() -> None:
            while not stop.wait(1):
                collect()
                done = len(progress.get("ingest", {}))
                if done >= spec["warm_batches"]:
                    mark("warm")
                if done >= spec["warm_batches"] + spec["batches"]:
                    mark("enough")

        def collect() -> None:
            for query in spark.streams.active:
                for update in query.recentProgress:
                    found = json.loads(update.json)
                    if found["numInputRows"]:
                        progress.setdefault(query.name, {})[found["batchId"]] = found

        def started(text: str) -> None:
            if text.startswith("deliver"):
                mark("ready")

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        with Usage() as usage:
            run_continuously(spark, settings, stop, on_progress=started)
        watcher.join()
    since = marks.get("warm", marks["ready"])
    batches = {
        name: [
            {
                "rows": update["numInputRows"],
                "ms": update["durationMs"]["triggerExecution"],
                "state_rows": sum(operator["numRowsTotal"] for operator in update["stateOperators"]),
                "state_bytes": sum(operator["memoryUsedBytes"] for operator in update["stateOperators"]),
            }
            for _, update in sorted(found.items())
            if dt.datetime.fromisoformat(update["timestamp"]).timestamp() >= since
        ]
        for name, found in progress.items()
    }
    answer = {"batches": batches, "latency_s": latencies(settings.paths.table("delivered_messages"), since),
              "cpu_s": usage.cpu_s, "others_s": usage.others_s, "peak_mb": usage.peak_mb}  # fmt: skip
    print(json.dumps(answer), flush=True)
    return 0


def latencies(table: str, since: float) -> list[float]:
    """Seconds from event time (Kafka's, for these topics) to the commit that shows the row, for every row whose event
    time is not before ``since`` (Unix s)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found: list[float] = []
    for log in sorted((Path(table) / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        committed = next(action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action)
        for action in actions:
            if "add" in action:
                rows = pq.read_table(Path(table) / action["add"]["path"], columns=["event_time"])
                times = rows["event_time"].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
                found += [committed / 1_000 - at / 1_000_000 for at in times if at >= since * 1_000_000]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
