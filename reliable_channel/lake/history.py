"""Lists the commits of a table that a stream has not read yet, from the table's history, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reliable_channel.lake.commit import REPLACED_FILES

if TYPE_CHECKING:
    from deltalake import DeltaTable

MAINTENANCE = frozenset(
    {
        *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "COMPUTE STATS"),
        *("DELETE", "UPDATE", "TRUNCATE"),
        *("CREATE TABLE", "CLUSTER BY", "UPGRADE PROTOCOL", "DROP FEATURE"),
        *("ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS", "RENAME COLUMN", "DROP COLUMNS"),
        *("ADD CONSTRAINT", "DROP CONSTRAINT", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES"),
    }
)
"""Operations that never append: streams with ``skipChangeCommits`` skip their commits."""

_ROWS = ("numOutputRows", "num_added_rows")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit that appends. ``time_ms``: when it was written, Unix ms; ``rows``: ``None`` if unknown."""

    version: int
    time_ms: int
    rows: int | None


def read_unread(table: DeltaTable, next_version: int, limit: int | None = None) -> list[Commit]:
    """The appending commits of a table from ``next_version`` on, oldest first, among the newest ``limit`` commits.

    Reads one small file per examined commit, and none if there is nothing to read."""
    behind = table.version() + 1 - next_version
    if behind <= 0:
        return []
    return select_unread(table.history(behind if limit is None else min(behind, limit)), next_version)


def select_unread(history: Iterable[Mapping[str, Any]], next_version: int) -> list[Commit]:
    """The appending commits from ``next_version`` on, oldest first. ``history`` is the result of
    ``DeltaTable.history()``."""
    commits = [
        Commit(int(entry["version"]), int(entry.get("timestamp") or 0), _count_rows(entry))
        for entry in history
        if int(entry["version"]) >= next_version and appends(entry)
    ]
    return sorted(commits, key=lambda commit: commit.version)


def appends(entry: Mapping[str, Any]) -> bool:
    """Whether a stream reads the commit, by its information."""
    replaces_rows = (entry.get("operationParameters") or {}).get("mode") == "Overwrite"
    return entry.get("operation") not in MAINTENANCE and not entry.get(REPLACED_FILES) and not replaces_rows


def overwrites(entry: Mapping[str, Any]) -> bool:
    """Whether the commit replaced all rows of the table, by its information. Overwrites of jobs have a predicate."""
    parameters = entry.get("operationParameters") or {}
    return parameters.get("mode") == "Overwrite" and not parameters.get("predicate")


def _count_rows(entry: Mapping[str, Any]) -> int | None:
    metrics = entry.get("operationMetrics")
    counts = (str(metrics.get(name, "")) for name in _ROWS) if isinstance(metrics, Mapping) else ()
    return next((int(count) for count in counts if count.isdigit()), None)
