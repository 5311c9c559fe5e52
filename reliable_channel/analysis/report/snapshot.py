"""Provides consistent snapshots of the Delta tables: SQL with bound parameters by DuckDB over Arrow, without Spark.

For queries about a few rows of large tables, from several threads: filters skip files, and nothing is loaded in
advance. For many queries about the same rows there is :mod:`reliable_channel.analysis.report.source`, which loads a
window of a snapshot once.

A :class:`TableSnapshot` is one consistent snapshot: a table is opened once, at its newest version then. A table that
does not exist has no rows (its columns come from :mod:`reliable_channel.lake.tables`), because a job that has not run
yet is not a fault; one that cannot be read is an ``EnvironmentFault`` that names it. Queries are bounded in memory and
time and can reach nothing but the tables.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.schema import PrimitiveType
from duckdb.func import FunctionNullHandling

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.lake.read import in_our_time, no_tables_fault, open_at, public_dataset, unreadable
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME
from reliable_channel.lake.tables.views import DUCKDB_MACROS, EVIDENCE_MACROS, FUNCTIONS, VIEWS, View
from reliable_channel.runtime.interrupts import run_interruptibly

MEMORY_LIMIT = "1GB"
PATIENCE_S = 20.0
"""The longest time of a user's query, which is then interrupted."""

_NAMES = re.compile(r"\b(" + "|".join(BY_NAME) + r")\b")
_VIEWS = re.compile(
    r"(?:\b(?:from|join|describe|summarize)\s+|,\s*)\"?(?:main\.)?(" + "|".join(VIEWS) + r")\b", re.IGNORECASE
)
"""A view where a table may be named; elsewhere its name is that of a column."""
_REPEATED = frozenset(
    {
        "kafka_topic",
        "pubsub_topic",
        "sender_id",
        "acknowledged_by",
        "evidence",
        "certainty",
        "verdict",
        "cause",
        "sds_kind",
        "segment_kind",
        "stage",
        "reason",
        "disposition",
        "node",
        "outcome",
        "purpose",
        "query",
        "run_id",
        "metric",
    }
)
"""Columns of few different strings in many rows: read as dictionaries, in a third of the time and memory. Not content
topics and channel ids, for whose rows most queries ask: by a dictionary Arrow skips no file."""

_STRING = PrimitiveType("string")
_idle: deque[duckdb.DuckDBPyConnection] = deque(maxlen=4)
"""Connections that can be used again: one more costs 15 ms of CPU time, and most queries cost 2."""
_DUCKDB_TYPES = {"BINARY": "BLOB", "ARRAY<STRING>": "VARCHAR[]", "DOUBLE": "DOUBLE"}
_CATALOG = re.compile(r"\bshow\b|\bdescribe\b|\binformation_schema\b|\bduckdb_\w+|\bpg_catalog\b", re.IGNORECASE)
"""What asks for the tables themselves."""
_UNKNOWN_NAME = re.compile("^Catalog Error: Table|^Binder Error: Referenced (?:column|table)")
"""How DuckDB begins to say that there is no such table or column."""


def find_names(sql: str) -> tuple[list[str], list[View]]:
    """The tables that ``sql`` reads, also through views, and the views that it names; rather too many than too few."""
    views = [VIEWS[name] for name in sorted({name.lower() for name in _VIEWS.findall(sql)})]
    return sorted({*_NAMES.findall(sql), *(table.name for view in views for table in view.tables)}), views


def create_views(connection: duckdb.DuckDBPyConnection, views: Iterable[View]) -> None:
    """Create views over registered tables, with the functions that they call and DuckDB does not have."""
    connection.execute(DUCKDB_MACROS + EVIDENCE_MACROS)
    for name, (function, arguments, returned) in FUNCTIONS.items():
        # SPECIAL: they are called for NULL, too.
        types: list[Any] = [_DUCKDB_TYPES[kind] for kind in (*arguments, returned)]
        connection.create_function(name, function, types[:-1], types[-1], null_handling=FunctionNullHandling.SPECIAL)
    for view in views:
        connection.execute(view.create())


def _connect() -> duckdb.DuckDBPyConnection:
    """A connection that knows the functions of views, and can reach nothing."""
    config: dict[str, Any] = {"threads": 2, "memory_limit": MEMORY_LIMIT}
    if not os.access(Path(), os.W_OK):  # the place of what exceeds the memory, unless another is named
        config["temp_directory"] = f"{tempfile.gettempdir()}/reliable-channel-{secrets.token_hex(8)}"
    connection = duckdb.connect(config=config)
    # Without replacements, else an unknown table is looked for among the variables of the calling Python code.
    connection.execute("SET TimeZone = 'UTC'; SET python_enable_replacements = false")
    create_views(connection, ())
    # Last: a user's query may be any SELECT, which must neither read a file or address nor undo this.
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    return connection


@contextmanager
def _register(sources: Mapping[str, Any], views: Iterable[View]) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that has these tables and views, for one query. If it fails, the connection is closed."""
    try:
        connection = _idle.pop()
    except IndexError:
        connection = _connect()
    try:

        def prepare() -> None:
            for name, source in sources.items():
                connection.register(name, source)
            for view in views:
                connection.execute(view.create())

        run_interruptibly(prepare, connection.interrupt)
        yield connection
        for view in views:
            connection.execute(f"DROP VIEW {view.name}")
        for name in sources:
            connection.unregister(name)
    except BaseException:
        connection.close()  # it may still have tables of this snapshot, which nobody else must read
        raise
    _idle.append(connection)


def read_dataset(table: DeltaTable) -> ds.Dataset:
    """The files of a table as a data set, with dictionaries for :data:`_REPEATED` columns."""
    repeated = {f.name for f in table.schema().fields if f.name in _REPEATED and f.type == _STRING}
    return public_dataset(table, repeated)


def with_whole_sums(rows: pa.Table) -> pa.Table:
    """DuckDB sums whole numbers in 128 bits, which Arrow has as decimals: as integers where 64 bits hold them."""
    for at, field in enumerate(rows.schema):
        if field.type == pa.decimal128(38, 0):
            with suppress(pa.ArrowInvalid):
                rows = rows.set_column(at, field.name, rows.column(at).cast(pa.int64()))
    return rows


class TableSnapshot:
    """The tables under ``paths.data_dir`` as they were when each was first requested. Safe for several threads."""

    def __init__(self, paths: PathSettings, patience_s: float | None = None) -> None:
        self._paths, self._patience_s = paths, PATIENCE_S if patience_s is None else patience_s
        self._opened: dict[str, DeltaTable | None] = {}
        self._datasets: dict[str, ds.Dataset] = {}
        self._lock = threading.Lock()

    @property
    def data_dir(self) -> str:
        """Where the tables are."""
        return self._paths.data_dir

    def table(self, name: str) -> DeltaTable | None:
        """The snapshot of a table, ``None`` when there is none. Raises ``EnvironmentFault`` when it cannot be read."""
        with self._lock:
            if name not in self._opened:
                self._opened[name] = open_at(self._paths.table(name))
            return self._opened[name]

    def dataset(self, name: str) -> ds.Dataset | None:
        """The files of a table, ``None`` when there is none. Raises as :meth:`table`, and what delta-rs raises."""
        table = self.table(name)
        if table is None:
            return None
        with self._lock:
            if name not in self._datasets:
                self._datasets[name] = read_dataset(table)
            return self._datasets[name]

    def has_tables(self) -> bool:
        """Whether there is one table of the pipeline, readable or not."""
        return any(self.states([name])[name] != "absent" for name in BY_NAME)

    def require_any(self) -> None:
        """Raise ``EnvironmentFault`` when there is not one table."""
        if not self.has_tables():
            raise no_tables_fault(self.data_dir)

    def states(self, names: Sequence[str] = tuple(BY_NAME)) -> dict[str, str]:
        """Name → what identifies the state of the table: its id and version, ``absent``, or ``unreadable``."""
        by_name: dict[str, str] = {}
        for name in names:
            try:
                table = self.table(name)
                by_name[name] = "absent" if table is None else f"{table.metadata().id}@{table.version()}"
            except EnvironmentFault as fault:
                by_name[name] = f"unreadable {fault}"
        return by_name

    def select(self, sql: str, parameters: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
        """The rows of ``sql``, which refers to tables by name and to bound parameters as ``$name``. Times are UTC.

        Never put a value into the text. Raises ``EnvironmentFault`` when a table cannot be read, or it takes long."""
        rows: list[dict[str, Any]] = self.arrow(sql, parameters).to_pylist()
        return rows

    def arrow(self, sql: str, parameters: Mapping[str, Any] | None = None, *, with_catalog: bool = False) -> pa.Table:
        """As :meth:`select`, as an Arrow table. Times are cut to what Python and pandas can hold. ``with_catalog``: the
        names and columns of all tables are known, too."""
        names, views = find_names(sql)
        try:
            sources = {name: self._source(name) for name in names}
            if with_catalog:
                views = [*VIEWS.values()]
                sources = {name: arrow_schema(BY_NAME[name]).empty_table() for name in sorted(BY_NAME)} | sources
            with _register(sources, views) as connection:
                timer = threading.Timer(self._patience_s, connection.interrupt)
                timer.start()
                try:
                    query = connection.sql
                    rows = run_interruptibly(
                        lambda: query(sql, params=dict(parameters or {})).to_arrow_table(), connection.interrupt
                    )
                    return with_whole_sums(in_our_time(rows))
                finally:
                    timer.cancel()
                    timer.join()  # so that it interrupts no other query of this connection
        except duckdb.InterruptException:
            raise EnvironmentFault(
                f"The query took more than {self._patience_s:.0f} s.", "Narrow the time range or the channel."
            ) from None
        except duckdb.OutOfMemoryException:
            raise EnvironmentFault(
                f"The query needs more than {MEMORY_LIMIT} of memory.", "Narrow the time range or the channel."
            ) from None
        except (duckdb.BinderException, duckdb.CatalogException) as error:
            raise make_version_fault(self._list_older() or names, _first_line(error)) from error
        except (duckdb.IOException, duckdb.InvalidInputException, OSError, pa.ArrowException) as error:
            raise unreadable(" or ".join(names), error) from error

    def ask(self, sql: str) -> pa.Table:
        """The rows of a query that a user typed. Raises ``LocalError`` with the error in it, and ``EnvironmentFault``
        as :meth:`select`."""
        try:
            with _register({}, ()) as connection:  # to parse only, and then to answer: one more takes 25 ms
                statements = connection.extract_statements(sql)
        except duckdb.Error as error:
            raise LocalError(f"This is not valid SQL: {_first_line(error)}.", "See docs/questions.md.") from None
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise LocalError("Only a single SELECT is allowed; the tables are read-only.", "Write one.")
        try:
            return self.arrow(sql, with_catalog=_CATALOG.search(sql) is not None)
        except EnvironmentFault as fault:
            if isinstance(fault.__cause__, duckdb.BinderException | duckdb.CatalogException):
                if not _UNKNOWN_NAME.search(str(fault.__cause__)):
                    raise _refuse(fault.__cause__) from None
                if self._list_older():  # a view may need the column, and docs/tables.md has it
                    raise
                raise LocalError(
                    f"No such table or column: {_first_line(fault.__cause__)}.",
                    "`reliable-channel tables list` names the tables, docs/tables.md their columns.",
                ) from None
            raise
        except duckdb.Error as error:
            raise _refuse(error) from None

    def absent(self) -> list[str]:
        """The tables that were read and that no job has created yet."""
        return sorted(name for name, table in self._opened.items() if table is None)

    def _list_older(self) -> list[str]:
        """The tables that were read and lack a column."""
        with self._lock:
            opened = [(name, table.schema().fields) for name, table in self._opened.items() if table is not None]
        return [name for name, fields in opened if set(BY_NAME[name].names()) - {field.name for field in fields}]

    def newest(self) -> TableSnapshot:
        """The same tables at their newest versions now."""
        return TableSnapshot(self._paths, self._patience_s)

    def _source(self, name: str) -> Any:
        dataset = self.dataset(name)
        return arrow_schema(BY_NAME[name]).empty_table() if dataset is None else dataset


def make_version_fault(names: Iterable[str], what: str) -> EnvironmentFault:
    """The error for one of these tables, which lacks a column that is read."""
    return EnvironmentFault(
        f"The table {' or '.join(names)} was made by another version ({what}).",
        "`reliable-channel rebuild` derives the tables again.",
    )


def _refuse(error: BaseException) -> LocalError:
    return LocalError(f"This query failed: {_first_line(error)}.", "Change the query.")


def _first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 200 characters, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200].rstrip(".!")
