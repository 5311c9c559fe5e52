"""How the pipeline stands, read from tables and checkpoints in well under two seconds, without Spark.

``collect`` gives plain values, ready for JSON; :mod:`~.status_text` prints them. Row counts come from the Delta logs;
of the data only narrow columns of small tables are read. Strings that came from the network stay as they are here:
JSON escapes them, and so does the printing.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from reliable_channel.config import PathSettings, Settings
from reliable_channel.pipeline.checkpoints import Checkpoint, read_checkpoints
from reliable_channel.pipeline.commits import unread_of
from reliable_channel.pipeline.tables import (
    BY_NAME,
    DELIVERIES,
    LOST_DEPENDENCIES,
    OPEN_KEYS,
    QUARANTINE,
    REFETCH_REQUESTS,
    TABLES,
)

KAFKA_PATIENCE_S = 0.8
"""How long the newest Kafka offsets are waited for; a broker that is away must not hold up the rest."""

HISTORY_LIMIT = 1_000
"""Commits looked at per table; a job further behind is at least that far behind."""

_DEPENDENCY = ["pubsub_topic", "content_topic", "channel_id", "sds_id"]

Newest = Callable[[str], Mapping[int, int]]
"""Kafka topic → partition → the offset that the next record will get."""


def collect(settings: Settings, newest: Newest | None = None) -> dict[str, Any]:
    """The state of the pipeline as plain values. Times are ISO 8601 in UTC, or ``None``.

    ``newest`` asks Kafka, in the background; what does not answer in time is ``None``."""
    checkpoints = read_checkpoints(settings.paths)
    asked = _Asked(newest, [topic for c in checkpoints for topic in c.offsets.kafka])
    opened = open_tables(settings.paths)
    by_id = {str(table.metadata().id): name for name, table in opened.items()}
    return {
        "data_dir": settings.paths.data_dir,
        "tables": [_table(name, table) for name, table in opened.items()],
        "missing_tables": [table.name for table in TABLES if table.name not in opened],
        "jobs": [_job(c, opened, by_id, asked) for c in checkpoints],
        "open_keys": _open_keys(opened.get(OPEN_KEYS.name), {c.query_id for c in checkpoints}),
        "quarantine": _quarantine(opened.get(QUARANTINE.name)),
        "missing_dependencies": _missing_dependencies(opened),
    }


def open_tables(paths: PathSettings) -> dict[str, DeltaTable]:
    """The tables that exist, by name, in the order of the data flow."""

    def opened(name: str) -> DeltaTable | None:
        try:
            return DeltaTable(paths.table(name))
        except TableNotFoundError:
            return None

    with ThreadPoolExecutor(8) as pool:
        return {name: t for name, t in zip(BY_NAME, pool.map(opened, BY_NAME), strict=True) if t is not None}


def _table(name: str, table: DeltaTable) -> dict[str, Any]:
    actions = pa.table(table.get_add_actions(flatten=True))
    last = table.history(1)
    return {
        "name": name,
        "rows": pc.sum(actions["num_records"]).as_py() or 0,
        "files": actions.num_rows,
        "bytes": pc.sum(actions["size_bytes"]).as_py() or 0,
        "version": table.version(),
        "last_write": _iso(last[0].get("timestamp")) if last else None,
    }


def _job(
    checkpoint: Checkpoint, opened: Mapping[str, DeltaTable], by_id: Mapping[str, str], asked: _Asked
) -> dict[str, Any]:
    sources: list[dict[str, Any]] = []
    for table_id, next_version in checkpoint.offsets.delta.items():
        name = by_id.get(table_id)
        if name is None:
            sources.append({"source": "a table that is not here", "behind": None, "unit": "rows"})
            continue
        behind = unread_of(opened[name], next_version, HISTORY_LIMIT)
        rows = [commit.rows for commit in behind]
        known = sum(r for r in rows if r is not None) if None not in rows else None
        since = _iso(behind[0].time_ms) if behind else None
        sources.append({"source": name, "behind": known, "unit": "rows", "commits": len(behind), "since": since})
    for topic, offsets in checkpoint.offsets.kafka.items():
        end = asked.answer(topic)
        behind_records = None if end is None else sum(max(0, end[p] - offsets.get(p, 0)) for p in end)
        sources.append({"source": f"kafka {topic}", "behind": behind_records, "unit": "records"})
    return {
        "job": checkpoint.query,
        "micro_batch": checkpoint.committed,
        "at": _iso(checkpoint.offsets.batch_time_ms),
        "interrupted": checkpoint.interrupted,
        "sources": sources,
    }


def _open_keys(table: DeltaTable | None, query_ids: set[str | None]) -> dict[str, Any]:
    """Per job: keys with a timer (open sets of segments, channels that wait for something) and the earliest timer."""
    if table is None:
        return {}
    rows = table.to_pyarrow_table()
    rows = rows.filter(pc.is_in(rows["query_id"], pa.array([q for q in query_ids if q], pa.string())))
    last: dict[tuple[Any, ...], dt.datetime | None] = {}
    for row in rows.sort_by("batch_id").to_pylist():
        last[row["job"], row["key"], row["kafka_topic"], row["kafka_partition"]] = row["due"]
    found: dict[str, Any] = {}
    for (job, *_), due in last.items():
        entry = found.setdefault(job, {"open": 0, "next_due": None})
        if due is not None:
            entry["open"] += 1
            entry["next_due"] = min(filter(None, (entry["next_due"], due.isoformat())))
    return dict(sorted(found.items()))


def _quarantine(table: DeltaTable | None) -> dict[str, int]:
    """Reason → rows, most frequent first."""
    if table is None:
        return {}
    counts: Counter[str] = Counter()
    for batch in table.to_pyarrow_dataset().to_batches(columns=["reason"]):
        for entry in pc.value_counts(batch["reason"]).to_pylist():
            counts[str(entry["values"])] += entry["counts"]
    return dict(counts.most_common())


def _missing_dependencies(opened: Mapping[str, DeltaTable]) -> dict[str, Any]:
    """Dependencies asked for that neither came nor were given up: how many, and the oldest."""
    requests = opened.get(REFETCH_REQUESTS.name)
    asked = None if requests is None else requests.to_pyarrow_table(columns=[*_DEPENDENCY, "event_time"])
    if asked is None or asked.num_rows == 0:
        return {"count": 0, "oldest": None}
    first = asked.group_by(_DEPENDENCY).aggregate([("event_time", "min")])
    waiting = {tuple(row[c] for c in _DEPENDENCY): row["event_time_min"] for row in first.to_pylist()}
    for name in (LOST_DEPENDENCIES.name, DELIVERIES.name):
        if name in opened and waiting:
            wanted = pc.field("sds_id").isin([key[3] for key in waiting])
            settled = opened[name].to_pyarrow_dataset().to_table(columns=_DEPENDENCY, filter=wanted)
            for row in settled.to_pylist():
                waiting.pop(tuple(row[c] for c in _DEPENDENCY), None)
    if not waiting:
        return {"count": 0, "oldest": None}
    key, since = min(waiting.items(), key=lambda item: (item[1], item[0]))
    oldest = dict(zip(_DEPENDENCY, key, strict=True)) | {"asked_since": since.isoformat()}
    return {"count": len(waiting), "oldest": oldest}


class _Asked:
    """The newest Kafka offsets, asked for in the background from the start."""

    def __init__(self, newest: Newest | None, topics: list[str]) -> None:
        self._answers: dict[str, Mapping[int, int]] = {}
        self._thread: threading.Thread | None = None
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
            self._thread.join(KAFKA_PATIENCE_S)
        return self._answers.get(topic)


def _iso(unix_ms: int | None) -> str | None:
    return None if not unix_ms else dt.datetime.fromtimestamp(unix_ms / 1000, dt.UTC).isoformat(timespec="seconds")
