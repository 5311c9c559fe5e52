"""Selects some files of a Delta table, and reads only these: those appended since a version, or those whose statistics
allow what is looked up. Opening a table of 10 000 files takes 15 ms; planning a scan of them takes longer.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.lake.checkpoints import filesystem, read_text
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import Table

RESTORE = "RESTORE"
"""The operation that makes an older version of a table the newest one (:mod:`.restored`)."""

ROWS_AT_ONCE, LONG_ROWS, NAMING_ROWS = 10_000, 128, 512
"""The number of rows that are read at a time; of rows with the bytes of undecodable records, and with causal histories
of up to a thousand ids, the number of these. A whole column of a compacted file can take a hundred times the file's
size: causal histories compress well."""


def list_files_since(opened: DeltaTable, column: str, since_us: int) -> list[str]:
    """The paths of the files that may hold a time of ``column`` at ``since_us`` (µs) or later, by their statistics."""
    adds = pa.table(opened.get_add_actions(flatten=True))
    if (name := f"max.{column}") in adds.column_names:
        # Spark truncates the times in its statistics to ms.
        latest = pc.add(adds[name].cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()), 999)
        adds = adds.filter(pc.greater_equal(latest, since_us).fill_null(True))
    return _decode_paths(adds)


def list_files_of_records(opened: DeltaTable, offsets: Mapping[int, Sequence[int]]) -> list[str]:
    """The paths of the files that may hold one of some Kafka records, by their statistics. ``offsets``: partition →
    offsets in ascending order."""
    adds = pa.table(opened.get_add_actions(flatten=True))
    # Without statistics of any file, as in a table of another writer, every file may hold it.
    if "min.kafka_offset" not in adds.column_names or "min.kafka_partition" not in adds.column_names:
        return _decode_paths(adds)

    def bounds(column: str) -> tuple[Any, Any]:
        least, largest = adds[f"min.{column}"].fill_null(-1), adds[f"max.{column}"].fill_null(_LARGEST[column])
        return least.to_numpy(), largest.to_numpy()

    (first, last), (low, high) = bounds("kafka_partition"), bounds("kafka_offset")
    may_hold = np.zeros(adds.num_rows, bool)
    for partition, some in offsets.items():
        within = np.searchsorted(some, low, "left") < np.searchsorted(some, high, "right")
        may_hold |= within & (first <= partition) & (partition <= last)
    return _decode_paths(adds.filter(pa.array(may_hold)))


def _decode_paths(adds: pa.Table) -> list[str]:
    """The paths of files, which Delta's log stores in URL encoding."""
    return [unquote(path) for path in adds["path"].to_pylist()]


_LARGEST = {"kafka_partition": 2**31 - 1, "kafka_offset": 2**63 - 1}


def list_added_files(paths: PathSettings, table: Table, opened: DeltaTable, version: int) -> dict[str, int] | None:
    """The files that commits after ``version`` appended, up to the version at which the table was ``opened``: their
    paths, and how many rows each has.

    ``None`` if they are not the whole difference: rows were changed or deleted, or a commit is no longer in the log.
    Compaction changes no rows; the deletion of the oldest rows by retention does not count either."""
    files, root = filesystem(paths.table(table.name))
    added: dict[str, int] = {}
    for number in range(version + 1, opened.version() + 1):
        actions = read_commit(files, root, number)
        appended = None if actions is None else list_appended(table, actions)
        if appended is None:
            return None
        added |= appended
    return added if version <= opened.version() else None


def list_next_files(paths: PathSettings, table: Table, opened: DeltaTable, version: int) -> list[str]:
    """The paths of the files of the first commit from ``version`` on that appends rows; empty if there is none."""
    files, root = filesystem(paths.table(table.name))
    for number in range(version, opened.version() + 1):
        if appended := list_appended(table, read_commit(files, root, number) or []):
            return [*appended]
    return []


def read_files(
    paths: PathSettings,
    table: Table,
    file_paths: Iterable[str],
    columns: Sequence[str],
    where: pc.Expression | None = None,
) -> pa.Table:
    """Read some columns from files of a table: of all rows, or of the rows ``where``, which compares these columns
    alone. Raises ``FileNotFoundError`` if VACUUM has removed a file since."""
    pieces = iterate_rows(paths, table, file_paths, columns)
    read = [*pieces] if where is None else [rows.filter(where) for rows in pieces]
    return pa.concat_tables([_make_nullable_schema(table, columns).empty_table(), *read])


def read_payloads(
    paths: PathSettings,
    table: Table,
    file_paths: Iterable[str],
    columns: Sequence[str],
    keys: Sequence[str],
    where: pc.Expression,
) -> pa.Table:
    """Read some columns, large ones among them, of the few rows ``where``, which compares the columns ``keys`` alone.

    Only row groups with such a row are read, a few rows at a time: a row group of payloads that compress well may have
    a thousand times its size. Arrow's scanner reads those ahead whose statistics allow one: all of a compacted file of
    100 MB, in 266 MB of memory instead of 11 and with four times the CPU. Raises as :func:`read_files`."""
    files, root = filesystem(paths.table(table.name))
    schema, key_schema = _make_nullable_schema(table, columns), _make_nullable_schema(table, keys)
    read = []
    for file_path in file_paths:
        with pq.ParquetFile(f"{root}/{file_path}", filesystem=files) as opened:
            for group in range(opened.num_row_groups):
                # One thread, here and below: a task has one core (docs/measurements-history.md, *Why workers grew*).
                compared = opened.read_row_group(group, keys, use_threads=False).select(keys).cast(key_schema)
                numbered = compared.append_column("number", pa.array(np.arange(compared.num_rows)))
                wanted, begin = numbered.filter(where)["number"].to_numpy(), 0
                for batch in opened.iter_batches(LONG_ROWS, [group], columns, use_threads=False) if wanted.size else ():
                    inside = wanted[(wanted >= begin) & (wanted < begin + batch.num_rows)] - begin
                    if inside.size:
                        read.append(pa.Table.from_batches([batch]).select(columns).cast(schema).take(inside))
                    begin += batch.num_rows
                    if begin > wanted[-1]:
                        break
    return pa.concat_tables(read) if read else schema.empty_table()


def iterate_rows(
    paths: PathSettings, table: Table, file_paths: Iterable[str], columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Read some columns from files of a table, some rows at a time. Raises as :func:`read_files`."""
    files, root = filesystem(paths.table(table.name))
    schema = _make_nullable_schema(table, columns)
    at_once = LONG_ROWS if "raw" in columns else NAMING_ROWS if "causal_history" in columns else ROWS_AT_ONCE
    for file_path in file_paths:
        # Spark writes times as INT96, which have no time zone: the cast makes them UTC, as they are in every table.
        with pq.ParquetFile(f"{root}/{file_path}", filesystem=files, coerce_int96_timestamp_unit="us") as opened:
            for batch in opened.iter_batches(at_once, columns=[*columns], use_threads=False):
                # Other writers store views, which Arrow does not compare: the cast replaces them.
                yield pa.Table.from_batches([batch]).select(columns).cast(schema)


def _make_nullable_schema(table: Table, columns: Sequence[str]) -> pa.Schema:
    """The types of some columns, which all may be null: other writers do not keep nullability."""
    whole = arrow_schema(table)
    return pa.schema([whole.field(name).with_nullable(True).remove_metadata() for name in columns])


def read_commit(files: Any, root: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of one commit in the log of the table at ``root``; ``None`` if it does not exist."""
    commit = read_text(files, f"{root}/_delta_log/{version:020d}.json")
    return None if commit is None else parse_json_lines(commit)


def parse_json_lines(text: str) -> list[dict[str, Any]]:
    """Parse one JSON object per line.

    Only ``\\n`` ends a line. ``str.splitlines`` also splits at U+0085 and U+2028, which JSON texts hold as they are:
    here in statistics, which repeat names that strangers chose."""
    return [json.loads(line) for line in text.split("\n") if line]


def get_commit_info(actions: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The information that a commit has of itself; empty if it has none."""
    return next((action["commitInfo"] for action in actions if "commitInfo" in action), {})


def list_appended(table: Table, actions: Sequence[dict[str, Any]]) -> dict[str, int] | None:
    """The files that a commit with these actions appended, and their rows; ``None`` if it changed or deleted rows."""
    adds = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
    about = get_commit_info(actions)
    if about.get("operation") == RESTORE:
        return None
    if not any(action.get("remove", {}).get("dataChange") for action in actions):
        return {unquote(add["path"]): json.loads(add.get("stats") or "{}").get("numRecords", 0) for add in adds}
    parameters, metrics = about.get("operationParameters", {}), about.get("operationMetrics", {})
    deletes = about.get("operation") == "DELETE" or (
        parameters.get("mode") == "Overwrite" and metrics.get("num_added_rows") == 0
    )
    expired = str(parameters.get("predicate", "")).startswith(f"{table.retention_column} < ")
    return {} if deletes and expired else None
