"""Provides the tables to the analyses without Spark: a window of a snapshot, in memory, queried in SQL by DuckDB.

A :class:`TableWindow` loads each table of its :class:`TableSnapshot` at most once, only the columns that analyses use
and only the rows of its :class:`Window`, so that the many queries of a report read no file twice. The window goes to
the reader as values, never as SQL text. A table that does not exist yet counts as empty, so that a report can say what
is missing. All times are UTC.
"""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake.exceptions import DeltaError

from reliable_channel.analysis.figures import BEFORE
from reliable_channel.analysis.report.snapshot import TableSnapshot, make_version_fault, with_whole_sums
from reliable_channel.config import PathSettings
from reliable_channel.lake.read import in_our_time, unreadable
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.lake.tables.views import DUCKDB_MACROS
from reliable_channel.runtime.interrupts import run_interruptibly

_WORD = re.compile(r"[a-z_]+")
_TEXT = re.compile(r"'[^']*'")
_READ = re.compile(r"\b(?:from|join)\s+([a-z_]+)", re.IGNORECASE)

TIME_COLUMN: Mapping[str, str] = {
    "delivery_status": "first_seen",
    "store_presence": "asked_at",
    "sightings": "seen_at",
    "pipeline_metrics": "recorded_at",
    "alerts": "recorded_at",
    "clock": "event_time",
}
"""The column a window restricts; ``event_time`` where none is named. ``delivery_status`` uses the first trace of the
message, so that a window holds the messages of that time whatever their later outcome. A row of ``source_gaps`` is a
span of time, in every window that it reaches into, however late it was recorded."""

AFTER = dt.timedelta(hours=1)
"""How long after a window it is looked for what became of its requests and sets."""

LEFT_OUT: Mapping[str, frozenset[str]] = {
    "envelopes": frozenset({"value"}),
    "sds_messages": frozenset({"content", "bloom_filter", "content_digest"}),
    "ordered_sds_messages": frozenset({"bloom_filter", "content_digest"}),
    "reassembled_messages": frozenset({"payload"}),
    "delivered_messages": frozenset({"payload"}),
    "quarantine": frozenset({"raw", "raw_digest"}),
}
"""Columns that are read only if named, because they would fill the memory."""


@dataclass(frozen=True, slots=True)
class Window:
    """Rows with ``since`` ≤ time < ``until`` of one channel and sender; ``None`` means no bound. Times with a time
    zone."""

    since: dt.datetime | None = None
    until: dt.datetime | None = None
    channel_id: str | None = None
    content_topic: str | None = None
    sender_id: str | None = None

    def rows(self, table: str, columns: Sequence[str]) -> ds.Expression | None:
        """The restriction as an expression of values, for a table with these columns."""
        wanted: list[ds.Expression] = []
        is_span = table == "source_gaps"
        first, last = ("from_time", "to_time") if is_span else (TIME_COLUMN.get(table, "event_time"),) * 2
        if first in columns:
            if self.since is not None:
                wanted.append(ds.field(last) >= pa.scalar(self.since, pa.timestamp("us", tz="UTC")))
            if self.until is not None:
                before = ds.field(first) < pa.scalar(self.until, pa.timestamp("us", tz="UTC"))
                wanted.append(before | ds.field(first).is_null() if is_span else before)
        for name in ("channel_id", "content_topic", "sender_id"):
            if getattr(self, name) is not None and name in columns:
                wanted.append(ds.field(name) == getattr(self, name))
        return reduce(operator.and_, wanted) if wanted else None

    def where(self, time: str = "event_time") -> tuple[str, dict[str, Any]]:
        """The restriction of a column of time and of the channel as SQL, with its parameters. The sender is none of it:
        what others did shows what he did."""
        bounds = {
            "since": (f"{time} >= $since", self.since),
            "until": (f"{time} < $until", self.until),
            "channel": ("channel_id = $channel", self.channel_id),
            "topic": ("content_topic = $topic", self.content_topic),
        }
        given = {name: value for name, (_, value) in bounds.items() if value is not None}
        return " AND ".join(bounds[name][0] for name in given) or "true", given


class TableWindow:
    """One window of a snapshot, or of the newest tables in a directory. Not thread-safe; cheap to make: one per
    request. Raises :class:`EnvironmentFault` when a table cannot be read, or lacks a column."""

    def __init__(self, tables: TableSnapshot | str | Path, window: Window | None = None) -> None:
        if not isinstance(tables, TableSnapshot):
            tables = TableSnapshot(PathSettings(data_dir=str(tables)))
        self.snapshot = tables
        self.window = window or Window()
        self._loaded: dict[str, pa.Table] = {}
        self._kept: set[str] = set()
        self._answers: dict[tuple[str, str], pd.DataFrame] = {}
        self._wider: dict[Window, TableWindow] = {}
        self._engine = duckdb.connect()
        # Without access to anything outside, DuckDB neither installs nor loads an extension.
        self._engine.execute(f"SET TimeZone = 'UTC'; SET enable_external_access = false; {DUCKDB_MACROS}")

    def choose(self, window: Window) -> None:
        """Provide the same tables in another window from now on."""
        for name in self._kept:
            self._engine.execute(f"DROP TABLE {name}")
        for known in (self._loaded, self._kept, self._answers, self._wider):
            known.clear()
        self.window = window

    def aftermath(self) -> TableWindow:
        """The tables in the window and the hour after it, which show what became of requests and sets at its end."""
        until = self.window.until
        return self._widen(replace(self.window, until=until + AFTER if until and until.year < dt.MAXYEAR else None))

    def beforehand(self) -> TableWindow:
        """The tables in the window and the hour before it, which show what is not the first of its kind."""
        since = self.window.since
        return self._widen(replace(self.window, since=since - BEFORE if since and since.year > dt.MINYEAR else None))

    def _widen(self, window: Window) -> TableWindow:
        if window == self.window:
            return self
        if window not in self._wider:
            self._wider[window] = TableWindow(self.snapshot, window)
        return self._wider[window]

    def rows(self, name: str, columns: Collection[str] | None = None) -> pa.Table:
        """The rows of a table in the window, at least with these ``columns``, by default with all but those of
        :data:`LEFT_OUT`; none when the table is not there. Each column is read once."""
        known = [c for c in BY_NAME[name].names() if c not in LEFT_OUT.get(name, ())]
        wanted = known if columns is None else [c for c in BY_NAME[name].names() if c in columns] or known[:1]
        have = self._loaded.get(name)
        missing = [c for c in wanted if have is None or c not in have.column_names]
        if missing or have is None:
            read = self._read(name, missing, lambda columns: self.window.rows(name, columns))
            if have is not None:
                for column in have.column_names:
                    read = read.append_column(have.schema.field(column), have[column])
            self._loaded[name] = read
            self._run(lambda: self._engine.register(name, read))
        return self._loaded[name]

    def read_whole(self, table: Table, columns: Sequence[str], where: ds.Expression | None = None) -> pa.Table:
        """Some columns of the rows ``where``, whatever the window; none when the table is not there."""
        return self._read(table.name, columns, lambda _: where)

    def query(self, sql: str, /, **values: Any) -> pd.DataFrame:
        """The result of ``sql``, which names tables of the pipeline and takes ``values`` as parameters ``$name``. Only
        columns that are named are read: ``SELECT *`` of a table returns no more than those. The same query runs
        once."""
        question = sql, repr(sorted(values.items()))  # JSON and charts of a report need many of the same
        if question in self._answers:
            return self._answers[question].copy()  # callers add columns
        self._load_what_is_named(sql)
        frame: pd.DataFrame = self._run(lambda: self._engine.execute(sql, values or None).df())
        self._answers[question] = frame
        return frame.copy()

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of ``sql`` as Python values, as :meth:`TableSnapshot.select` gives them, of this window."""
        self._load_what_is_named(sql)
        rows = self._run(lambda: self._engine.sql(sql, params=dict(parameters or {})).to_arrow_table())
        values: list[dict[str, Any]] = with_whole_sums(rows).to_pylist()
        return values

    def keep(self, name: str, sql: str) -> None:
        """Run ``sql`` once; later queries can refer to its rows as ``name``."""
        if name not in self._kept:
            self._load_what_is_named(sql)
            self._run(lambda: self._engine.execute(f"CREATE TEMP TABLE {name} AS {sql}"))
            self._kept.add(name)

    def _run(self, call: Callable[[], Any]) -> Any:
        return run_interruptibly(call, self._engine.interrupt)

    def _load_what_is_named(self, sql: str) -> None:
        words = set(_WORD.findall(_TEXT.sub("", sql)))
        for name in set(_READ.findall(sql)) & set(BY_NAME):
            self.rows(name, words)

    def _read(
        self, name: str, columns: Sequence[str], where: Callable[[Sequence[str]], ds.Expression | None]
    ) -> pa.Table:
        schema = arrow_schema(BY_NAME[name])
        try:
            data = self.snapshot.dataset(name)
            if data is None:
                return pa.schema([schema.field(column) for column in columns]).empty_table()
            if absent := [column for column in columns if column not in data.schema.names]:
                raise make_version_fault([name], f"{', '.join(absent)} missing")
            return in_our_time(data.to_table(columns=list(columns), filter=where(data.schema.names)))
        except (DeltaError, pa.ArrowException, OSError) as error:
            raise unreadable(name, error) from error
