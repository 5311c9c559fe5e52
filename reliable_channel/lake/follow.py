"""Follows a Delta table: reads its log from where this process stopped, and then only the new files.

The more files a table has, the more it costs to open it and plan a scan. Spark's Python workers are long-lived, so a
task caches what it has read (:class:`DeltaFollower`), and the cost of a look-up does not grow with the table. The
verdict job reads the rows appended since its last round (:func:`list_added_files`).
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.lake.checkpoints import filesystem, read_text
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import Table

_KEPT = 8
"""The most objects that a :class:`PerQuery` caches: a local session runs all queries in the same workers."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table: its path inside the table, and the bounds of the followed column if the writer recorded
    readable ones (times in µs). ``also``: the bounds of further columns."""

    path: str
    least: int | None
    largest: int | None
    also: tuple[tuple[int | None, int | None], ...] = ()


class DeltaFollower:
    """Lists the files of one table by the bounds of a column that grows with the log."""

    def __init__(self, paths: PathSettings, table: Table, column: str, also: Sequence[str] = ()) -> None:
        self._paths, self._of = paths, table
        self._columns = (column, *also)
        self._filesystem, self._root = filesystem(paths.table(table.name))
        self._files: dict[str, DataFile] = {}
        self._floor = self._version = 0
        self._open()

    def files(self, at_least: int) -> list[DataFile]:
        """The files that may contain a value of the column that is ``at_least`` this large. Others are forgotten: a
        later call with a smaller value opens the table again."""
        if at_least < self._floor:
            self._open()
        while (actions := _commit(self._filesystem, self._root, self._version + 1)) is not None:
            self._version += 1
            self._take(actions)
        # The log always keeps its newest commit: if the last one read is gone, later ones were removed unread.
        if self._filesystem.get_file_info(_commit_path(self._root, self._version)).type is pafs.FileType.NotFound:
            self._open()
        for path in [f.path for f in self._files.values() if f.largest is not None and f.largest < at_least]:
            del self._files[path]
        self._floor = at_least
        return [*self._files.values()]

    def read(self, file: DataFile, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        """Read some columns of one file, all nullable, because writers differ in nullability. They also differ in the
        type of times, so ``where`` cannot compare times."""
        return _read(self._filesystem, f"{self._root}/{file.path}", columns, where)

    def _open(self) -> None:
        table = open_table(self._paths, self._of)
        self._version, self._floor = table.version(), -(1 << 63)
        adds = pa.table(table.get_add_actions(flatten=True))
        nothing = [None] * adds.num_rows
        bounds = [
            [
                adds[name].to_pylist() if (name := f"{end}.{column}") in adds.column_names else nothing
                for end in ("min", "max")
            ]
            for column in self._columns
        ]
        pairs = zip(*(zip(*ends, strict=True) for ends in bounds), strict=True)
        files = zip(adds["path"].to_pylist(), pairs, strict=True)
        self._files = {unquote(path): _data_file(path, statistics) for path, statistics in files}

    def _take(self, actions: Iterable[dict[str, Any]]) -> None:
        for action in actions:
            if (gone := action.get("remove")) is not None:
                self._files.pop(unquote(gone["path"]), None)
            elif (new := action.get("add")) is not None:
                statistics = json.loads(new.get("stats") or "{}")
                least, largest = statistics.get("minValues", {}), statistics.get("maxValues", {})
                bounds = [(least.get(column), largest.get(column)) for column in self._columns]
                self._files[unquote(new["path"])] = _data_file(new["path"], bounds)


class AddedFile(NamedTuple):
    """A data file: its path inside the table, and its number of rows."""

    path: str
    rows: int


def list_files(opened: DeltaTable) -> list[AddedFile]:
    """All files of a table at the version at which it was ``opened``."""
    adds = pa.table(opened.get_add_actions(flatten=True))
    files = zip(adds["path"].to_pylist(), adds["num_records"].to_pylist(), strict=True)
    return [AddedFile(unquote(path), rows or 0) for path, rows in files]


def list_added_files(paths: PathSettings, table: Table, opened: DeltaTable, version: int) -> list[AddedFile] | None:
    """The files that commits after ``version`` appended, up to the version at which the table was ``opened``.

    ``None`` if they are not the whole difference: rows were changed or deleted, or a commit is no longer in the log.
    Compaction changes no rows; the deletion of the oldest rows by retention does not count either."""
    files, root = filesystem(paths.table(table.name))
    added: list[AddedFile] = []
    for number in range(version + 1, opened.version() + 1):
        actions = _commit(files, root, number)
        appended = None if actions is None else _list_appended(table, actions)
        if appended is None:
            return None
        added += appended
    return added if version <= opened.version() else None


def read_files(
    paths: PathSettings,
    table: Table,
    file_paths: Iterable[str],
    columns: Sequence[str],
    where: pc.Expression | None = None,
) -> pa.Table:
    """Read some columns from files of a table: of all rows, or of the rows ``where`` (which cannot compare times).
    Raises ``FileNotFoundError`` if VACUUM has removed a file since."""
    files, root = filesystem(paths.table(table.name))
    wanted = arrow_schema(table)
    schema = pa.schema([wanted.field(name).with_nullable(True).remove_metadata() for name in columns])
    read = [_read(files, f"{root}/{file_path}", columns, where).cast(schema) for file_path in file_paths]
    return pa.concat_tables(read) if read else schema.empty_table()


def _commit_path(root: str, version: int) -> str:
    return f"{root}/_delta_log/{version:020d}.json"


def _commit(files: Any, root: str, version: int) -> list[dict[str, Any]] | None:
    """The actions of one commit in the log of the table at ``root``; ``None`` if it does not exist."""
    commit = read_text(files, _commit_path(root, version))
    return None if commit is None else [json.loads(line) for line in commit.splitlines() if line]


def _list_appended(table: Table, actions: Sequence[dict[str, Any]]) -> list[AddedFile] | None:
    """The files that a commit with these actions appended; ``None`` if it changed or deleted rows."""
    adds = [action["add"] for action in actions if action.get("add", {}).get("dataChange")]
    if not any(action.get("remove", {}).get("dataChange") for action in actions):
        return [
            AddedFile(unquote(add["path"]), json.loads(add.get("stats") or "{}").get("numRecords", 0)) for add in adds
        ]
    about: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    parameters, metrics = about.get("operationParameters", {}), about.get("operationMetrics", {})
    deletes = about.get("operation") == "DELETE" or (
        parameters.get("mode") == "Overwrite" and metrics.get("num_added_rows") == 0
    )
    expired = str(parameters.get("predicate", "")).startswith(f"{table.retention_column} < ")
    return [] if deletes and expired else None


def _read(files: Any, file_path: str, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
    """Read columns of one Parquet file, in the same form for all writers. Spark writes times as INT96, which lack the
    time zone (UTC in every table), and does not keep nullability."""
    rows = pq.read_table(
        file_path,
        columns=list(columns),
        filters=where,
        filesystem=files,
        partitioning=None,
        coerce_int96_timestamp_unit="us",
    )
    for number, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is None:
            times = rows[field.name].cast(pa.timestamp("us")).cast(pa.int64()).cast(pa.timestamp("us", tz="UTC"))
            rows = rows.set_column(number, field.name, times)
    return rows.cast(pa.schema([field.with_nullable(True) for field in rows.schema]))


def _data_file(path: str, bounds: Sequence[tuple[Any, Any]]) -> DataFile:
    (least, largest), *also = ((_number(low), _largest(high)) for low, high in bounds)
    return DataFile(unquote(path), least, largest, tuple(also))


def _largest(bound: Any) -> int | None:
    """The upper bound of a column in µs. Spark truncates the times in its statistics to ms."""
    high = _number(bound)
    return high if high is None or isinstance(bound, int) else high + 999


def _number(bound: Any) -> int | None:
    """A number unchanged, a time (or its text in a log) in µs; ``None`` for a text outside Python's calendar."""
    if bound is None or isinstance(bound, int):
        return bound
    try:
        moment = dt.datetime.fromisoformat(bound) if isinstance(bound, str) else bound
    except ValueError:  # written by a foreign writer, before year 1 or after 9999
        return None
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


class PerQuery(Generic[T]):
    """Caches one ``T`` per query and its tables in this process; the least recently used is discarded.

    The query is part of the key, because after ``rebuild`` new queries read new tables at the same path."""

    def __init__(self, make: Callable[..., T]) -> None:
        self._make = make
        self._kept: dict[tuple[str, ...], T] = {}

    def get(self, paths: PathSettings, *of: str) -> T:
        """The object for ``of``, which are the arguments of ``make`` after the tables' ``paths``."""
        key = (paths.data_dir, *of)
        one = self._kept.pop(key, None) or self._make(paths, *of)
        self._kept[key] = one
        while len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return one
