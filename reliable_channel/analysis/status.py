"""Collects the state of the pipeline from tables and checkpoints in well under two seconds, without Spark.

``collect`` gives plain values, ready for JSON; :mod:`.status_text` prints them. Row counts come from the Delta logs;
of the data only narrow columns of small tables are read. Strings that came from the network stay as they are here:
JSON escapes them, and so does the printing.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deltalake import DeltaTable

from reliable_channel.analysis.alerts.heartbeat import find_stopped
from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake import tables
from reliable_channel.lake.checkpoints import Checkpoint, read_checkpoints
from reliable_channel.lake.history import read_unread
from reliable_channel.lake.open_hashes import JOB, OpenHashes, read_open_hashes
from reliable_channel.lake.read import open_tables, select

KAFKA_PATIENCE_S = 1.0
"""How long the newest Kafka offsets may take, from the start on; an unreachable broker must not delay the rest."""

HISTORY_LIMIT = 1_000
"""Commits examined per table; a job further behind is at least that far behind."""

_DEPENDENCY = [*tables.CHANNEL_KEY, "sds_id"]

Newest = Callable[[str], Mapping[int, int]]
"""Kafka topic → partition → the offset that the next record will get."""


def collect(settings: Settings, newest: Newest | None = None) -> dict[str, Any]:
    """The state of the pipeline as plain values. Times are ISO 8601 in UTC, or ``None``.

    ``newest`` queries Kafka in the background; without an answer in time the values are ``None``."""
    checkpoints = read_checkpoints(settings.paths)
    # First, so that Kafka answers while the tables are read.
    broker_offsets = _BrokerOffsets(newest, [topic for c in checkpoints for topic in c.offsets.kafka])
    opened = open_tables(settings.paths)
    by_id = {str(table.metadata().id): name for name, table in opened.items()}
    known = {
        "open_sets": _count_open_sets(settings.paths, checkpoints),
        "quarantine": _count_quarantined(opened.get(tables.QUARANTINE.name)),
        "missing_dependencies": _find_missing_dependencies(opened),
    }
    return {
        "data_dir": settings.paths.data_dir,
        "checkpoint_dir": settings.paths.checkpoint_dir,
        "tables": [_describe_table(name, table) for name, table in opened.items()],
        "stopped": [
            {"part": part.part, "since": part.since.isoformat(timespec="seconds"), "effect": part.effect}
            for part in find_stopped(opened.get)
        ],
        "missing_tables": [table.name for table in tables.TABLES if table.name not in opened],
        "jobs": [
            _describe_job(c, opened, by_id, broker_offsets) for c in checkpoints
        ],  # when Kafka has had time to answer
        **known,
    }


def _describe_table(name: str, table: DeltaTable) -> dict[str, Any]:
    actions = table.get_add_actions(flatten=True)
    last = table.history(1)
    return {
        "name": name,
        "rows": sum(rows or 0 for rows in actions.column("num_records").to_pylist()),
        "files": actions.num_rows,
        "bytes": sum(actions.column("size_bytes").to_pylist()),
        "version": table.version(),
        "last_write": _to_iso(last[0].get("timestamp")) if last else None,
    }


def _describe_job(
    checkpoint: Checkpoint, opened: Mapping[str, DeltaTable], by_id: Mapping[str, str], broker_offsets: _BrokerOffsets
) -> dict[str, Any]:
    sources: list[dict[str, Any]] = []
    for table_id, next_version in checkpoint.offsets.delta.items():
        name = by_id.get(table_id)
        if name is None:
            sources.append({"source": "a table that is not here", "behind": None, "unit": "rows"})
            continue
        behind = read_unread(opened[name], next_version, HISTORY_LIMIT)
        rows = [commit.rows for commit in behind]
        known = sum(r for r in rows if r is not None) if None not in rows else None
        since = _to_iso(behind[0].time_ms) if behind else None
        lag = {"source": name, "behind": known, "unit": "rows", "commits": len(behind), "since": since}
        sources.append({**lag, "at_least": opened[name].version() + 1 - next_version > HISTORY_LIMIT})
    for topic, offsets in checkpoint.offsets.kafka.items():
        end = broker_offsets.answer(topic)
        behind_records = None if end is None else sum(max(0, end[p] - offsets.get(p, 0)) for p in end)
        sources.append({"source": f"kafka {topic}", "behind": behind_records, "unit": "records"})
    return {
        "job": checkpoint.query,
        "micro_batch": checkpoint.committed,
        "at": _to_iso(checkpoint.offsets.batch_time_ms),
        "interrupted": checkpoint.interrupted,
        "sources": sources,
    }


def _count_open_sets(paths: PathSettings, checkpoints: Sequence[Checkpoint]) -> dict[str, Any]:
    """The number of open sets of segments, by payload hash, and the earliest timer of one."""
    committed = next((c.committed for c in checkpoints if c.query == JOB and c.committed is not None), -1)
    try:
        open_hashes = read_open_hashes(paths, committed)
    except EnvironmentFault:  # of another version of this program, or removed since by the running job
        open_hashes = OpenHashes()
    due_us = open_hashes.next_due_us
    return {"count": open_hashes.count, "next_due": _to_iso(due_us and due_us // 1000)}


def _count_quarantined(table: DeltaTable | None) -> dict[str, int]:
    """Reason → rows, most frequent first."""
    if table is None:
        return {}
    counts = select("select reason, count(*) as rows from quarantine group by reason", quarantine=table)
    return {str(row["reason"]): row["rows"] for row in sorted(counts, key=lambda r: (-r["rows"], str(r["reason"])))}


def _find_missing_dependencies(opened: Mapping[str, DeltaTable]) -> dict[str, Any]:
    """Requested dependencies that neither arrived nor were given up: how many, and the oldest."""
    if tables.REFETCH_REQUESTS.name not in opened:
        return {"count": 0, "oldest": None}
    settled = [name for name in (tables.LOST_DEPENDENCIES.name, tables.DELIVERIES.name) if name in opened]
    joins = [
        f"left anti join {name} on " + " and ".join(f"asked.{c} = {name}.{c}" for c in _DEPENDENCY) for name in settled
    ]
    wanted = {name: opened[name] for name in (tables.REFETCH_REQUESTS.name, *settled)}
    columns = ", ".join(_DEPENDENCY)
    # Each dependency once before it is looked for: it is asked for many times, and a join looks at every pair.
    asked = f"select {columns}, min(event_time) as since from {tables.REFETCH_REQUESTS.name} group by {columns}"  # noqa: S608 - names of our own only
    waiting = f"select asked.* from ({asked}) asked {' '.join(joins)}"  # noqa: S608
    counted = f"select *, count(*) over () as waiting from ({waiting}) order by since, {columns} limit 1"  # noqa: S608
    oldest = next(iter(select(counted, **wanted)), None)
    if oldest is None:
        return {"count": 0, "oldest": None}
    named = {c: oldest[c] for c in _DEPENDENCY} | {"asked_since": oldest["since"].isoformat()}
    return {"count": oldest["waiting"], "oldest": named}


class _BrokerOffsets:
    """The newest Kafka offsets, asked for in the background from the start."""

    def __init__(self, newest: Newest | None, topics: list[str]) -> None:
        self._answers: dict[str, Mapping[int, int]] = {}
        self._thread: threading.Thread | None = None
        self._until = time.monotonic() + KAFKA_PATIENCE_S
        if newest is not None and topics:
            self._thread = threading.Thread(target=self._ask, args=(newest, topics), daemon=True)
            self._thread.start()

    def _ask(self, newest: Newest, topics: list[str]) -> None:
        for topic in topics:
            try:
                self._answers[topic] = newest(topic)
            except Exception:  # noqa: S112 - whatever a broker does wrong, the lag is then unknown
                continue

    def answer(self, topic: str) -> Mapping[int, int] | None:
        if self._thread is not None:
            self._thread.join(max(0.0, self._until - time.monotonic()))
        return self._answers.get(topic)


def _to_iso(unix_ms: int | None) -> str | None:
    return None if not unix_ms else dt.datetime.fromtimestamp(unix_ms / 1000, dt.UTC).isoformat(timespec="seconds")
