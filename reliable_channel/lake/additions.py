"""Finds the rows that were appended to a table since one of its versions, from Delta's log, without Spark."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.lake.checkpoints import filesystem, read_text
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import Table


class AddedFile(NamedTuple):
    """A data file: its path inside the table, and how many rows it has."""

    path: str
    rows: int


def added_since(paths: PathSettings, table: Table, opened: DeltaTable, version: int) -> list[AddedFile] | None:
    """The files that commits after ``version`` appended, up to the version at which the table was ``opened``.

    ``None`` when they do not tell everything: rows were changed or deleted, or a commit is not in the log any more.
    Compaction changes no rows; that retention deleted the oldest ones is no change either."""
    files, root = filesystem(paths.table(table.name))
    found: list[AddedFile] = []
    for number in range(version + 1, opened.version() + 1):
        commit = read_text(files, f"{root}/_delta_log/{number:020d}.json")
        if commit is None:
            return None
        appended = _appended(table, [json.loads(line) for line in commit.splitlines() if line])
        if appended is None:
            return None
        found += appended
    return found if version <= opened.version() else None


def read_added(paths: PathSettings, table: Table, added: Iterable[AddedFile], columns: Sequence[str]) -> pa.Table:
    """Some columns of files of a table. Raises ``FileNotFoundError`` when VACUUM has removed one since."""
    files, root = filesystem(paths.table(table.name))
    wanted = arrow_schema(table)
    schema = pa.schema([wanted.field(name).with_nullable(True).remove_metadata() for name in columns])
    read = [
        pq.read_table(f"{root}/{file.path}", columns=[*columns], filesystem=files, partitioning=None).cast(schema)
        for file in added
    ]
    return pa.concat_tables(read) if read else schema.empty_table()


def _appended(table: Table, actions: Sequence[dict[str, Any]]) -> list[AddedFile] | None:
    """The files that a commit with these actions appended; ``None`` when it changed or deleted rows."""
    adds = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
    if not any(action.get("remove", {}).get("dataChange") for action in actions):
        return [
            AddedFile(unquote(add["path"]), json.loads(add.get("stats") or "{}").get("numRecords", 0)) for add in adds
        ]
    about: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    expired = str(about.get("operationParameters", {}).get("predicate", "")).startswith(f"{table.retention_column} < ")
    return [] if about.get("operation") == "DELETE" and expired else None
