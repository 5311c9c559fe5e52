"""Measures the stages of the pipeline over existing Kafka records, in one pinned process: ``python -m bench.jobs.stages
SPEC``.

``SPEC`` is JSON: bootstrap servers, run directory, cores, and the topic and sizes of each workload. Every stage prints
one line of JSON as soon as it is done. The processor affinity is set first, so driver, JVM and Python workers share the
same cores.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs.usage import Usage
from reliable_channel.lake.read import dataset_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from reliable_channel.config import Settings

MEMORY = "1536m"


@dataclass(frozen=True, slots=True)
class Stage:
    """One measured run. ``seconds``: the sum of the micro-batches' trigger times, without the start of the query.
    ``others_s``: the CPU seconds that other processes used on the same cores meanwhile."""

    workload: str
    cores: int
    stage: str
    repetition: int
    records: int
    bytes: int
    seconds: float
    cpu_s: float
    peak_mb: float
    others_s: float


def prepare(run_dir: str) -> Settings:
    """Return the local configuration with this run directory; downloads missing jars."""
    from reliable_channel.config import load
    from reliable_channel.runtime import jars

    settings = load("local", paths={"run_dir": run_dir})
    jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
    return settings


def settings_for(run_dir: Path, servers: str, cores: int, **spark: Any) -> Settings:
    """Return the configuration of a bench run: a local session, and two shuffle partitions whatever the number of
    cores."""
    from reliable_channel.config import load

    session = {"master": f"local[{cores}]", "shuffle_partitions": 2, "driver_memory": MEMORY, **spark}
    settings = load("local", paths={"run_dir": str(run_dir)}, spark=session)
    return settings.with_servers(servers)


def pin_cores(cores: int) -> None:
    """Pin this process, and all processes it starts from now on, to the first ``cores`` available processors."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))


def on_topic(settings: Settings, topic: str, run_dir: Path) -> Settings:
    """Return settings for the same session with another topic, and separate tables and checkpoints."""
    topics = settings.kafka.topics.model_copy(update={"envelopes": topic})
    kafka = settings.kafka.model_copy(update={"topics": topics})
    return settings.model_copy(update={"kafka": kafka}).with_run_dir(run_dir)


def floor(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Copy Kafka → Delta without Python: the best that the same Spark can do with the same records."""
    from reliable_channel.pipeline.ingest.stream import read_kafka_records

    records = read_kafka_records(spark, settings.kafka, settings.pipeline, settings.spark.max_offsets_per_trigger)
    return (
        records.select("topic", "partition", "offset", "timestamp", "value")
        .writeStream.format("delta")
        .option("checkpointLocation", settings.paths.checkpoint("floor"))
        .trigger(availableNow=True)
        .start(settings.paths.table("floor"))
    )


def measure_seconds(query: StreamingQuery) -> float:
    """Wait for the query's end; returns the seconds of its micro-batches."""
    from reliable_channel.pipeline.runner.run import wait_for

    wait_for(query)
    return sum(progress.durationMs.get("triggerExecution", 0) for progress in query.recentProgress) / 1000


def measure(
    spark: SparkSession, settings: Settings, spec: dict[str, Any], cores: int, repetition: int
) -> Iterator[Stage]:
    """Yield all stages over one workload, in a separate directory, each as it is done."""
    from reliable_channel.pipeline.runner.queries import ACK, INGEST, REASSEMBLY, start

    here = Path(settings.paths.run_dir) / f"{spec['name']}-{repetition}"
    there = on_topic(settings, spec["topic"], here)

    def once(name: str, begin: Callable[[], StreamingQuery]) -> Stage:
        with Usage() as usage:
            seconds = measure_seconds(begin())
        workload, records, size = spec["name"], spec["records"], spec["bytes"]
        return Stage(
            workload,
            cores,
            name,
            repetition,
            records,
            size,
            seconds,
            usage.cpu_s,
            usage.peak_mb,
            usage.others_s,
        )

    yield once("floor", lambda: floor(spark, there))
    yield once("ingest", lambda: start(spark, there, INGEST, once=True))
    yield once("reassembly", lambda: start(spark, there, REASSEMBLY, once=True))
    yield once("ack", lambda: start(spark, there, ACK, once=True))
    if repetition == 0:
        check(there, spec)


def check(settings: Settings, spec: dict[str, Any]) -> None:
    """Check that the measured results are right: every record is an envelope, every message is delivered."""
    from reliable_channel.lake.read import open_table
    from reliable_channel.lake.tables import DELIVERED_MESSAGES, ENVELOPES

    for table, wanted in ((ENVELOPES, spec["records"]), (DELIVERED_MESSAGES, spec["messages"])):
        rows = dataset_of(open_table(settings.paths, table)).count_rows()
        if rows != wanted:
            raise AssertionError(f"{spec['name']}: {rows} rows in {table.name}, {wanted} expected.")


def main(arguments: list[str]) -> int:
    """Warm up, then measure every workload ``repetitions`` times; one line of JSON per stage on stdout."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    from reliable_channel.runtime.spark import spark_session

    run_dir = Path(spec["run_dir"])
    settings = settings_for(run_dir, spec["servers"], spec["cores"])
    with spark_session(settings, "bench") as spark:
        for number, warm in enumerate(spec["warm_up"]):
            for _ in measure(spark, settings.with_run_dir(run_dir / f"warm-{number}"), warm, spec["cores"], 0):
                pass
        for workload in spec["workloads"]:
            for repetition in range(spec["repetitions"]):
                for stage in measure(spark, settings, workload, spec["cores"], repetition):
                    print(json.dumps(asdict(stage)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
