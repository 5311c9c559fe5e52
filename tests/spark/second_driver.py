"""``python -m tests.spark.second_driver SETTINGS LOG``: another driver of ingest, over the same Kafka log and the same
checkpoint, until it fails or ``stop`` appears beside the log. ``runs`` appears when it has started."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from reliable_channel.config import load
from reliable_channel.pipeline.runner.run import run_continuously
from reliable_channel.runtime.faults import print_fault
from reliable_channel.runtime.spark import spark_session

from .chain import chain_over
from .kafka_log import KafkaLog


def main(settings_file: str, log: Path) -> int:
    settings, stop = load(settings_file), threading.Event()

    def watch() -> None:
        while not (log.parent / "stop").exists():
            time.sleep(0.2)
        stop.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        with spark_session(settings, "second driver") as spark:
            queries = chain_over(KafkaLog(spark, log))[:1]
            run_continuously(
                spark, settings, stop, queries=queries, on_progress=lambda _: (log.parent / "runs").touch()
            )
    except Exception as error:  # as jobs do
        return print_fault(error, "ingest")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
