"""Measures ``reliable-channel status`` as a user waits for it: the wall time of the whole process.

The tables have a long history (delta-rs, no Spark), three streams lag, and a broker does not answer.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.registry import SIZES, Result, bench

COMMITS = 400
"""Appending commits per table: an hour of a run that writes every ten seconds."""
ROWS = 200
RUNS = 5
TARGET = 3.0
"""The command / a process that opens the same tables, in CPU time."""
OPEN = """
import sys
from pathlib import Path
from deltalake import DeltaTable
versions = [DeltaTable(directory).version() for directory in Path(sys.argv[1]).iterdir()]
"""
READERS = {"sds_messages": "reassembly", "ordered_sds_messages": "ack"}


@bench
def status() -> Iterator[Result]:
    """Measure the command with and without Kafka, which does not answer: the command waits its maximum time for it."""
    commits = SIZES.scale_count(COMMITS, 4)
    with tempfile.TemporaryDirectory() as directory:
        _fill(directory, commits)
        opened = [
            _run([sys.executable, "-c", OPEN, str(Path(directory) / "tables")])[1]
            for _ in range(SIZES.count_repetitions(RUNS))
        ]
        yield Result(f"opening the tables: {commits} commits per table, CPU", min(opened), "s")
        for name, option in (("status --no-kafka", "--no-kafka"), ("status, no broker answers", "--kafka")):
            times = [_measure_status(directory, option) for _ in range(SIZES.count_repetitions(RUNS))]
            label = f"{name}: {commits} commits per table"
            seconds = statistics.median(wall for wall, _ in times)
            yield Result(f"{label}, wall", seconds, "s")
            ratio = min(cpu for _, cpu in times) / min(opened)
            yield Result(
                f"{name} / opening the tables", ratio, "ratio", TARGET, True, "a process that opens the tables"
            )
            yield Result(f"{label}, CPU", min(cpu for _, cpu in times), "s")


def _measure_status(directory: str, option: str) -> tuple[float, float]:
    """The wall and CPU time (s) of one call."""
    return _run([sys.executable, "-m", "reliable_channel", "status", option], directory)


def _run(command: list[str], directory: str = "") -> tuple[float, float]:
    """The wall and CPU time (s) of a process, which uses this run directory."""
    environment = {
        **os.environ,
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": directory,
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:9",
    }
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, capture_output=True, check=True)
    took, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _fill(directory: str, commits: int) -> None:
    """Write all tables, with long histories for those that grow, and checkpoints half-way through them."""
    from reliable_channel.config import PathSettings
    from reliable_channel.lake.append import append_rows
    from reliable_channel.lake.create import create_tables
    from reliable_channel.lake.schema import as_arrow
    from reliable_channel.lake.tables import BY_NAME, TABLES

    paths = PathSettings(run_dir=directory)
    for table in TABLES:
        create_tables(paths, (table,))
    for name in (*READERS, "envelopes", "quarantine", "refetch_requests", "incomplete_messages", "delivered_messages"):
        table = BY_NAME[name]
        rows = as_arrow([_row(number) for number in range(ROWS)], table)
        for _ in range(commits):
            append_rows(paths, table, rows)
    for name, query in READERS.items():
        _checkpoint(Path(paths.checkpoint(query)), _id(paths.table(name)), commits // 2)
    _checkpoint(Path(paths.checkpoint("ingest")), None, commits // 2)


def _row(number: int) -> dict[str, object]:
    """Return a row for every table, which ignores columns it does not have; its other columns are null."""
    return {
        "pubsub_topic": "/waku/2/rs/1/0",
        "content_topic": "/reliable-channel/1/bench/proto",
        "channel_id": f"channel {number % 7}",
        "sds_id": f"id {number}",
        "sender_id": "alice",
        "event_time": 1_767_225_600_000_000,
        "ingest_time": 1_767_225_600_000_000,
        "kafka_topic": "waku.envelopes",
        "kafka_partition": number % 3,
        "kafka_offset": number,
        "sub_order": 0,
        "row_kind": "message",
        "job": "reassembly",
        "query_id": "query",
        "batch_id": 0,
        "key": f"{number}",
        "reason": "empty_content_topic",
        "attempt": 1,
    }


def _id(table: str) -> str:
    from deltalake import DeltaTable

    return str(DeltaTable(table).metadata().id)


def _checkpoint(directory: Path, table_id: str | None, version: int) -> None:
    """Write a checkpoint like Spark's: the id of the query, and offsets and commits of one micro-batch."""
    conf = {"batchWatermarkMs": 0, "batchTimestampMs": 1_767_225_600_000, "conf": {}}
    if table_id is None:
        source: dict[str, object] = {"waku.envelopes": {"0": version, "1": version, "2": version}}
    else:
        source = {"sourceVersion": 1, "reservoirId": table_id, "reservoirVersion": version, "index": -1}
    for folder in ("offsets", "commits"):
        (directory / folder).mkdir(parents=True)
    (directory / "metadata").write_text(json.dumps({"id": "query"}), encoding="utf-8")
    (directory / "offsets" / "0").write_text("\n".join(["v1", json.dumps(conf), json.dumps(source)]), encoding="utf-8")
    (directory / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}', encoding="utf-8")
