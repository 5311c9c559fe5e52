"""Measures the three jobs over topics whose channels already have logs: ``python -m bench.jobs.beside SPEC``.

``SPEC`` is JSON: servers, run directory, cores, and cases of a topic, its number of channels, the messages of each log,
and the messages measured. Fills the topic with one conversation in each channel, in two parts; the jobs take each part
with ``availableNow``, and the second is measured. Prints one line of JSON per case: topic, records, seconds of the
micro-batches, CPU seconds, rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from bench.jobs.stages import measure_seconds, on_topic, pin_cores, settings_for
from bench.jobs.traffic import HEADERS, Record, Workload, open_producer, records
from bench.jobs.usage import cpu_seconds


def write(client: Mapping[str, Any], topic: str, part: Iterable[Record]) -> None:
    """Write records to Kafka, in one partition, in the order that JavaScript reads them too."""
    with open_producer(client) as producer:
        for _, key, envelope in part:
            producer.send(topic, envelope, key.encode(), HEADERS, partition=0)


def main(arguments: list[str]) -> int:
    """Fill the topic, run the jobs, fill it again, measure."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    from reliable_channel.lake.read import dataset_of, open_table
    from reliable_channel.lake.tables import DELIVERED_MESSAGES
    from reliable_channel.pipeline.runner.queries import CHAIN, start
    from reliable_channel.runtime.spark import spark_session

    run_dir = Path(spec["run_dir"])
    base = settings_for(run_dir, spec["servers"], spec["cores"])
    with spark_session(base, "bench") as spark:
        for case in spec["cases"]:
            topic, channels, measured = case["topic"], case["channels"], case["measured"]
            log = channels * case["log"]
            settings = on_topic(base, topic, run_dir / topic)
            conversation = records(Workload(topic, log + measured, 200, channels=channels))
            for count in (log, measured):
                write(settings.kafka.clients().producer, topic, islice(conversation, count))
                cpu_s = -cpu_seconds()
                seconds = sum(measure_seconds(start(spark, settings, query, once=True)) for query in CHAIN)
                cpu_s += cpu_seconds()
            rows = dataset_of(open_table(settings.paths, DELIVERED_MESSAGES)).count_rows() - log
            answer = {"topic": topic, "records": measured, "seconds": seconds, "cpu_s": cpu_s, "rows": rows}
            print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
