"""``python -m bench.jobs.stages SPEC``: the stages of the pipeline over what is in Kafka, in one pinned process.

``SPEC`` is JSON: bootstrap servers, run directory, cores, and per workload its topic and sizes. Every stage prints one
line of JSON. The processor affinity is set first of all, so driver, JVM and Python workers share the same cores.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs.usage import Usage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from reliable_channel.config import Settings

MEMORY = "1536m"


@dataclass(frozen=True, slots=True)
class Stage:
    """One measured run. ``seconds``: sum of the micro-batches' trigger times, without the start of the query."""

    workload: str
    cores: int
    stage: str
    repetition: int
    records: int
    bytes: int
    seconds: float
    cpu_s: float
    peak_mb: float


def settings_for(run_dir: Path, servers: str, cores: int, **spark: Any) -> Settings:
    """The configuration of a bench run: local session, two shuffle partitions whatever the number of cores."""
    from reliable_channel.config import load

    session = {"master": f"local[{cores}]", "shuffle_partitions": 2, "driver_memory": MEMORY, **spark}
    settings = load("local", paths={"run_dir": str(run_dir)}, spark=session)
    return settings.with_servers(servers)


def pinned(cores: int) -> None:
    """Run on the first ``cores`` processors that we may use, and so does everything that is started from now on."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))


def on_topic(settings: Settings, topic: str, run_dir: Path) -> Settings:
    """The same session, reading another topic, with tables and checkpoints of its own."""
    topics = settings.kafka.topics.model_copy(update={"envelopes": topic})
    kafka = settings.kafka.model_copy(update={"topics": topics})
    return settings.model_copy(update={"kafka": kafka}).with_run_dir(run_dir)


def floor(spark: SparkSession, settings: Settings) -> StreamingQuery:
    """Kafka → Delta without Python: what the same Spark does at best with the same records."""
    from reliable_channel.pipeline.ingest import kafka_records

    records = kafka_records(spark, settings.kafka, settings.pipeline, settings.spark.max_offsets_per_trigger)
    return (
        records.select("topic", "partition", "offset", "timestamp", "value")
        .writeStream.format("delta")
        .option("checkpointLocation", settings.paths.checkpoint("floor"))
        .trigger(availableNow=True)
        .start(settings.paths.table("floor"))
    )


def all_through_state(read_from: Settings) -> Any:
    """Reassembly without the combiner: every segment goes to keyed state. Reads the segments of another run."""
    from pyspark.sql.streaming.state import GroupStateTimeout

    from reliable_channel.pipeline import reassembly
    from reliable_channel.pipeline.io import read_stream
    from reliable_channel.pipeline.queries import REASSEMBLY
    from reliable_channel.pipeline.tables import SEGMENTS

    def transformed(settings: Settings) -> Callable[[DataFrame], DataFrame]:
        def transform(segments: DataFrame) -> DataFrame:
            rows = (
                segments.where("segment_kind in ('data', 'parity') and content is not null")
                .withWatermark("ingest_time", f"{settings.pipeline.deduplication_delay_ms} milliseconds")
                .dropDuplicatesWithinWatermark(list(reassembly._IDENTITY))
                .select(*reassembly._segment_columns())
            )
            results = rows.groupBy("state_key").applyInPandasWithState(
                reassembly.stateful(settings.segmentation, reassembly.Unsealer(settings.channels)),
                reassembly._OUT,
                reassembly._STATE,
                "append",
                GroupStateTimeout.NoTimeout,
            )
            return reassembly.passed_through(segments).unionByName(results, allowMissingColumns=True)

        return transform

    return replace(
        REASSEMBLY, read=lambda spark, _: read_stream(spark, read_from.paths, SEGMENTS), transform=transformed
    )


def spent(query: StreamingQuery) -> float:
    """Wait for the query's end; the seconds of its micro-batches."""
    from reliable_channel.pipeline.run import wait_for

    wait_for(query)
    return sum(progress.durationMs.get("triggerExecution", 0) for progress in query.recentProgress) / 1000


def measure(spark: SparkSession, settings: Settings, spec: dict[str, Any], cores: int, repetition: int) -> list[Stage]:
    """All stages over one workload, in a directory of its own."""
    from reliable_channel.pipeline.queries import ACK, DELIVER, INGEST, REASSEMBLY, start

    here = Path(settings.paths.run_dir) / f"{spec['name']}-{repetition}"
    there = on_topic(settings, spec["topic"], here)
    stages: list[Stage] = []

    def run(name: str, begin: Callable[[], StreamingQuery]) -> None:
        with Usage() as usage:
            seconds = spent(begin())
        stages.append(
            Stage(
                spec["name"],
                cores,
                name,
                repetition,
                spec["records"],
                spec["bytes"],
                seconds,
                usage.cpu_s,
                usage.peak_mb,
            )
        )

    run("floor", lambda: floor(spark, there))
    run("ingest", lambda: start(spark, there, INGEST, once=True))
    run("reassembly", lambda: start(spark, there, REASSEMBLY, once=True))
    run("ack", lambda: start(spark, there, ACK, once=True))
    if repetition == 0:
        run("deliver", lambda: start(spark, there, DELIVER, once=True))
        if spec["through_state"]:
            elsewhere = there.with_run_dir(here / "through-state")
            run("reassembly, all through state", lambda: start(spark, elsewhere, all_through_state(there), once=True))
        check(there, spec)
    return stages


def check(settings: Settings, spec: dict[str, Any]) -> None:
    """What is measured must also be right: every record is an envelope, every message is delivered."""
    from reliable_channel.pipeline.io import open_table
    from reliable_channel.pipeline.tables import DELIVERED_MESSAGES, ENVELOPES

    for table, wanted in ((ENVELOPES, spec["records"]), (DELIVERED_MESSAGES, spec["messages"])):
        found = open_table(settings.paths, table).to_pyarrow_dataset().count_rows()
        if found != wanted:
            raise AssertionError(f"{spec['name']}: {found} rows in {table.name}, {wanted} expected.")


def main(arguments: list[str]) -> int:
    """Warm up, then measure every workload ``repetitions`` times; one line of JSON per stage on stdout."""
    spec = json.loads(arguments[0])
    pinned(spec["cores"])
    from reliable_channel.runtime.spark import spark_session

    run_dir = Path(spec["run_dir"])
    settings = settings_for(run_dir, spec["servers"], spec["cores"])
    with spark_session(settings, "bench") as spark:
        for warm in spec["warm_up"]:
            measure(spark, settings, warm, spec["cores"], 0)
        for workload in spec["workloads"]:
            for repetition in range(spec["repetitions"]):
                for stage in measure(spark, settings, workload, spec["cores"], repetition):
                    print(json.dumps(asdict(stage)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
