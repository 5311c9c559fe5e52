"""Extracts metrics from the progress of a streaming query, which Spark reports as JSON. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from reliable_channel.lake.checkpoints import as_object

UnreadCommits = Callable[[str, int], int | None]
"""(table name, next commit to read) → number of unread appending commits; ``None`` if unknown."""

_TABLE = re.compile(r"^DeltaSource\[.*/([a-z_]+)/?\]$")
"""How Delta describes a source in a progress; its offsets have only the id of the table."""


def measures(
    progress: Mapping[str, Any], counted: Mapping[str, int], unread: UnreadCommits | None = None
) -> dict[str, float]:
    """Map metric names to values for one micro-batch.

    ``progress`` is ``StreamingQueryProgress`` as Spark prints it, ``counted`` the writer's own counts. Names end in
    their unit: ``_rows``, ``_ms``, ``_bytes``, ``_offsets``, ``_commits``. Metrics that Spark does not report are left
    out. Times and rates exclude ``turn_wait_ms``."""
    measures: dict[str, float] = {
        "input_rows": _parse_number(progress.get("numInputRows")) or 0.0,
        **{name: float(value) for name, value in counted.items()},
    }
    for name, key in (
        ("input_rows_per_second", "inputRowsPerSecond"),
        ("processed_rows_per_second", "processedRowsPerSecond"),
    ):
        if (rate := _parse_number(progress.get(key))) is not None:
            measures[name] = rate
    for phase, took in (progress.get("durationMs") or {}).items():
        if (number := _parse_number(took)) is not None:
            measures[f"{_to_snake_case(phase)}_ms"] = number
    _subtract_wait(measures)
    measures |= _measure_lag(progress.get("sources") or [], unread)
    return measures | _sum_state(progress.get("stateOperators") or [])


def _subtract_wait(measures: dict[str, float]) -> None:
    """Subtract the wait for a turn, which a query spends inside ``addBatch``, from its working times."""
    wait = measures.get("turn_wait_ms", 0.0)
    for phase in ("add_batch_ms", "trigger_execution_ms"):
        if phase in measures:
            measures[phase] = max(0.0, measures[phase] - wait)
    if wait and (took := measures.get("trigger_execution_ms")):
        measures["processed_rows_per_second"] = measures["input_rows"] * 1000 / took


def _measure_lag(sources: list[Mapping[str, Any]], unread: UnreadCommits | None) -> dict[str, float]:
    """How far the micro-batch's end is behind the source; with several sources (a table read twice) the largest
    value."""
    lag: dict[str, float] = {}

    def note(name: str, value: float | None) -> None:
        if value is not None:
            lag[name] = max(value, lag.get(name, value))

    for source in sources:
        end, newest = _parse_offset(source.get("endOffset")), _parse_offset(source.get("latestOffset"))
        if "reservoirVersion" in end:
            table = _TABLE.match(str(source.get("description", "")))
            if table and unread is not None:
                note("lag_commits", unread(table[1], int(end["reservoirVersion"])))
        else:
            behind = [
                max(0, int(offset) - int(end.get(topic, {}).get(partition, 0)))
                for topic, partitions in newest.items()
                if isinstance(partitions, Mapping) and isinstance(end.get(topic), Mapping)
                for partition, offset in partitions.items()
            ]
            note("lag_offsets", float(sum(behind)) if behind else None)
    return lag


def _sum_state(operators: list[Mapping[str, Any]]) -> dict[str, float]:
    """The state metrics, summed over all stateful operators of the query."""
    if not operators:
        return {}
    wanted = {
        "state_rows": "numRowsTotal",
        "state_updated_rows": "numRowsUpdated",
        "state_memory_bytes": "memoryUsedBytes",
        "state_commit_ms": "commitTimeMs",
    }
    sums = {name: sum(_parse_number(op.get(key)) or 0.0 for op in operators) for name, key in wanted.items()}
    sst = [_parse_number((op.get("customMetrics") or {}).get("rocksdbSstFileSize")) for op in operators]
    if any(size is not None for size in sst):
        sums["state_disk_bytes"] = sum(size or 0.0 for size in sst)
    return sums


def _parse_number(value: Any) -> float | None:
    """A finite number, else ``None``; Spark reports rates of instantaneous batches as infinity or NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) < float("inf") else None


def _parse_offset(value: Any) -> dict[str, Any]:
    """Parse an offset: it is JSON text in a progress object, and JSON itself in the printed form."""
    content = as_object(value) if isinstance(value, str) else value
    return content if isinstance(content, dict) else {}


def _to_snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
