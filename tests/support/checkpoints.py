"""Checkpoints and rows of their queries, in the form in which Spark 4.2 and the jobs write them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa

from reliable_channel.config import Settings
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.checkpoints import (
    RECORD,
)
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    Table,
)
from reliable_channel.pipeline.runner.settings_guard import list_frozen_settings

PARTITIONS = "spark.sql.shuffle.partitions"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SESSION = {PARTITIONS: "4", PROVIDER: "org.apache.x.RocksDBStateStoreProvider"}


def batch(*sources: dict[str, object], **conf: str) -> str:
    """An entry of the offset log, in the form of Spark 4.2 (taken from a real checkpoint)."""
    metadata = {"batchWatermarkMs": 0, "batchTimestampMs": 1795262323497, "conf": {PARTITIONS: "4", **conf}}
    return "\n".join(["v1", json.dumps(metadata), *map(json.dumps, sources)])


def delta(version: int, table: str = "19dd145e") -> dict[str, object]:
    return {
        "sourceVersion": 1,
        "reservoirId": table,
        "reservoirVersion": version,
        "index": -1,
        "isStartingVersion": False,
    }


def write_checkpoint(settings: Settings, query: str, offsets: list[str], commits: int, operators: int = 1) -> Path:
    root = Path(settings.paths.checkpoint(query))
    for part in ("offsets", "commits", *(f"state/{number}" for number in range(operators))):
        (root / part).mkdir(parents=True, exist_ok=True)
    (root / "metadata").write_text('{"id":"b6cfcac8"}')
    version = list_frozen_settings(settings, query, {}).get("state_version")
    if version is not None and not (root / RECORD).exists():
        (root / RECORD).write_text(json.dumps({"state_version": version}))
    for number, text in enumerate(offsets):
        (root / "offsets" / str(number)).write_text(text)
        (root / "offsets" / f".{number}.crc").write_bytes(b"crc\x00")
    for number in range(commits):
        (root / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return root


def append_batch(settings: Settings, table: Table, batch_id: int) -> None:
    """One micro-batch of the checkpoint that :func:`write_checkpoint` makes."""
    BatchSink(settings.paths, "b6cfcac8", batch_id).append_small(make_row(table), table)


def make_row(table: Table, **more: str) -> pa.Table:
    values = {"STRING": "x", "INT": 0, "BIGINT": 0, "TIMESTAMP": 0}
    return as_arrow([{c.name: values[c.type] for c in table.columns if c.type in values} | more], table)
