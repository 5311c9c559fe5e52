"""Measures the report over a million rows, as a user waits for it: whole processes, from start to exit, without Spark.

delta-rs writes the tables here with the schemas of the pipeline: 100 channels, a day, 3 % of messages lost.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake

from bench.registry import SIZES, Result, bench
from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME, TABLES

_SHARES = {"delivery_status": 0.2, "delivered_messages": 0.2, "sds_messages": 0.2, "deliveries": 0.1, "acks": 0.3}
_CHANNELS = 100
_TARGET = 3.0
"""The report / a process that reads the same tables into memory, in wall time, also its page with twenty charts."""


@bench
def a_million_rows() -> Iterator[Result]:
    """Measure the seconds of ``reliable-channel report``, the fastest of three, beside a process that only reads the
    tables."""
    rows = SIZES.scale_count(1_000_000)
    with tempfile.TemporaryDirectory(prefix="bench-report-") as directory:
        data = Path(directory) / "tables"
        make_tables(data, rows)
        read = min(_seconds(*READ, str(data)) for _ in range(SIZES.count_repetitions(3)))
        yield Result(f"reading the tables into memory, {rows:,} rows", read, "s")
        for name, options in (
            ("terminal", []),
            ("--json", ["--json"]),
            ("--html", ["--html", str(Path(directory) / "report.html")]),
            ("one channel of 100", ["--channel", "channel 7", "--from", "2026-11-01T06:00"]),
        ):
            command = ("-m", "reliable_channel", "report", "--tables", str(data), *options)
            took = min(_seconds(*command) for _ in range(SIZES.count_repetitions(3)))
            yield Result(f"report {name}, {rows:,} rows", took, "s")
            what = f"report {name} / reading the tables"
            yield Result(what, took / read, "ratio", _TARGET, True, "a process that reads the tables")
        # Only collecting it: these rows have no envelopes, which the command would find.
        took = min(_seconds(*COLLECT, str(data), f"{rows // 10:040x}") for _ in range(SIZES.count_repetitions(3)))
        yield Result(f"evidence bundle of one message, {rows:,} rows", took, "s")
        what = "evidence bundle / reading the tables"
        yield Result(what, took / read, "ratio", _TARGET, True, "a process that reads the tables")


COLLECT = (
    "-c",
    """
import sys
from reliable_channel.analysis.bundle.collect import collect
from reliable_channel.config import load
collect(load("local", paths={"data_dir": sys.argv[1]}), sys.argv[2])
""",
)
READ = (
    "-c",
    """
import sys
from pathlib import Path
from deltalake import DeltaTable
from reliable_channel.lake.read import dataset_of
tables = [dataset_of(DeltaTable(directory)).to_table() for directory in Path(sys.argv[1]).iterdir()]
""",
)


def _seconds(*arguments: str) -> float:
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300
    )
    return time.perf_counter() - started


def make_tables(directory: Path, rows: int, commits: int = 10) -> None:
    """Write the tables of a day under ``directory``, each in ``commits`` commits; tables without rows are empty."""
    for table in TABLES:
        create_table(directory / table.name, table)
    for number, (name, share) in enumerate(_SHARES.items()):
        schema = arrow_schema(BY_NAME[name])
        count = int(rows * share)
        for part in np.array_split(np.arange(count), commits):
            columns = _columns(part, count, np.random.default_rng(number * 1_000 + int(part[0])))
            arrays = [_array(field, columns, len(part)) for field in schema]
            write_deltalake(str(directory / name), pa.Table.from_arrays(arrays, schema=schema), mode="append")


def _array(field: pa.Field, columns: dict[str, pa.Array], count: int) -> pa.Array:
    column = columns.get(field.name)
    if column is None:
        return pa.nulls(count, field.type)
    # A column may have a name in one table and a list of names in another.
    if pa.types.is_list(field.type) and not pa.types.is_list(column.type):
        column = pa.ListArray.from_arrays(pa.array(range(count + 1), pa.int32()), column)
    return column.cast(field.type)


def _columns(numbers: np.ndarray, count: int, random: np.random.Generator) -> dict[str, pa.Array]:
    """Return columns by name, of which each table uses its own; the same number is the same message in every table."""
    start = int(dt.datetime(2026, 11, 1, tzinfo=dt.UTC).timestamp() * 1e6)
    size = len(numbers)
    seen = start + numbers * (86_400_000_000 // count)
    lost = numbers % 33 == 0
    ids = pa.array([f"{n:040x}" for n in numbers])
    channels = pa.array([f"channel {n % _CHANNELS}" for n in numbers])
    times = pa.array(seen, pa.timestamp("us", tz="UTC"))
    after = pa.array(seen + random.integers(10_000, 5_000_000, size), pa.timestamp("us", tz="UTC"))
    hashes = pa.array([int(n).to_bytes(32, "big") for n in numbers])
    history = [[{"sds_id": f"{max(0, n - _CHANNELS):040x}", "retrieval_hint": None, "sender_id": "a"}] for n in numbers]
    return {
        "kafka_topic": pa.array(["waku.envelopes"] * size),
        "kafka_partition": pa.array(numbers % 4),
        "kafka_offset": pa.array(numbers),
        "pubsub_topic": pa.array(["/waku/2/rs/1/0"] * size),
        "content_topic": pa.array([f"/bench/1/{n % _CHANNELS}/proto" for n in numbers]),
        "channel_id": channels,
        "sender_id": pa.array([f"sender {n % 7}" for n in numbers]),
        "acknowledged_by": pa.array([f"sender {(n + 1) % 7}" for n in numbers]),
        "sds_id": ids,
        "message_key": ids,
        "sds_ids": pa.array([[f"{n:040x}"] for n in numbers]),
        "entire_message_hash": hashes,
        "message_hash": hashes,
        "sds_kind": pa.array(["content"] * size),
        "segment_kind": pa.array(["bare"] * size),
        "lamport_timestamp": pa.array(seen // 1000),
        "causal_history": pa.array(history) if size else None,
        "event_time": after,
        "first_seen": times,
        "as_of": pa.array([start + 90_000_000_000] * size, pa.timestamp("us", tz="UTC")),
        "sender_timestamp_ns": pa.array(seen * 1000),
        "payload_bytes": pa.array(random.integers(1, 200_000, size)),
        "repaired_segments": pa.array((numbers % 50 == 0).astype(int)),
        "late": pa.array(numbers % 100 == 0),
        "verdict": pa.array(np.where(lost, "missing", "delivered")),
        "cause": pa.array(["segment_missing" if is_lost else None for is_lost in lost]),
        "settled": pa.array([True] * size),
        "evidence": pa.array(np.where(numbers % 3 == 0, "filter", "causal_history")),
        "certainty": pa.array(np.where(numbers % 3 == 0, "probable", "certain")),
        "evidence_sds_id": ids,
        "latency_ms": pa.array(random.integers(50, 60_000, size)),
        "row_seq": pa.array(numbers),
        "row_kind": pa.array(["message"] * size),
        "delivery_seq": pa.array(numbers),
    }
