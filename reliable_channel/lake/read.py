"""Reads Delta tables without Spark: opens them through delta-rs, and returns their files as an Arrow dataset.

The jobs read whole tables (:func:`dataset_of`). All other readers read them without the rows of the recorded clock
(:func:`public_dataset`). :func:`select` runs SQL in the engine of delta-rs, without Arrow's datasets: those import
pandas, which takes as long as all of ``status``. Repeated reads of a growing table use :mod:`.follow`.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as fs
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError, TableNotFoundError

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.tables import BY_NAME, EPOCH, Table

if TYPE_CHECKING:
    import pyarrow.dataset as ds

TIMES = tuple(calendar.timegm((year, 1, 1, 0, 0, 0)) * 1_000_000 for year in (1950, 2200))
"""The limits to which times are clipped when read (µs). pandas covers 292 years around 1970, Python no year above
9999."""
_LONGEST = 300
"""The number of characters of a delta-rs error that are shown."""
_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|[][\\^|\x00-\x1f\x7f\ud800-\udfff]")
_FORBIDDEN = re.compile(r"Permission denied|Os { code: 13")
_NAMED_BY_ENGINES = re.compile(r"part-\d{5}-")
_A_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_Rows = TypeVar("_Rows", pa.Table, pa.RecordBatch)


def refuse_location(location: str) -> None:
    """Raise ``ConfigurationError`` for a local path that delta-rs reads as another one (it decodes percent signs, and
    takes a backslash for a slash, so a table would be in two places), or with which some of its functions panic."""
    if "://" not in location and _MISREAD.search(location):
        named = location.encode("utf-8", "backslashreplace").decode()
        raise ConfigurationError(
            f"Delta tables cannot be in {named}: delta-rs takes no path with"
            " \\ [ ] ^ |, a control character, or %20 and the like.",
            "Rename the directory, or set paths.data_dir to another one.",
        )


def open_at(location: str) -> DeltaTable | None:
    """Open the table at ``location`` through delta-rs, without Spark; ``None`` if there is none. Raises
    ``EnvironmentFault`` if its log cannot be read or is gone, and as :func:`refuse_location`."""
    refuse_location(location)
    try:
        try:
            table = DeltaTable(location)
        except TableNotFoundError as error:
            if not (_FORBIDDEN.search(str(error)) or _has_data_files(location)):
                return None
            table = DeltaTable(location)  # it may just have been made
    except TableNotFoundError as error:
        if _FORBIDDEN.search(str(error)):
            raise unreadable(location, error) from None
        # A new table in its place would hide the files, and the next vacuum would remove them.
        raise EnvironmentFault(f"{_cannot_be_read(location)}: it has files and no log.", _CHECK_LOG) from None
    except Exception as error:  # delta-rs has no common error for logs that are torn, foreign or forbidden
        raise unreadable(location, error) from error
    with suppress(OSError, pa.ArrowInvalid):  # a file system that only delta-rs knows
        files, root = filesystem(location)
        refuse_empty_commit(location, files.get_file_info(f"{root}/_delta_log/{table.version():020d}.json"))
    return table


def refuse_empty_commit(location: str, commit: fs.FileInfo) -> None:
    """Raise ``EnvironmentFault`` if a commit in the log of a table is an empty file, which a power failure can leave
    behind. delta-rs and Spark read it as an empty commit, so the rows of its files would be lost."""
    if commit.size == 0:  # None if it does not exist: the log's checkpoint holds it
        raise EnvironmentFault(f"{_cannot_be_read(location)}: its commit {commit.base_name} is empty.", _CHECK_LOG)


_CHECK_LOG = "Check whether its _delta_log is complete; `reliable-channel rebuild` derives the tables again."


def unreadable(location: str, error: BaseException) -> EnvironmentFault:
    """The error for a table whose log or files cannot be read. ``location``, or its name."""
    if _FORBIDDEN.search(str(error)):
        return EnvironmentFault(
            f"{_cannot_be_read(location)}: this user has no permission.",
            "Run the command as the user who runs the jobs, or let others read the directory of the tables.",
        )
    first_line = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(": ParsedLogPath {")[0]
    remedies = {
        "Unsupported": "Upgrade this package, or read it with the engine that wrote it last.",
        "Expected a filesystem path": "It is a shallow clone, whose files are elsewhere: read the original, or a copy.",
        "No such file": "VACUUM may have removed a file meanwhile: read it again. If that fails, restore it.",
        "these reader features": "Run `reliable-channel rebuild`, which derives the tables again without them.",
    }
    remedy = next((remedy for words, remedy in remedies.items() if words in first_line), _CHECK_LOG)
    return EnvironmentFault(f"{_cannot_be_read(location)}: {first_line[:_LONGEST].rstrip('.')}.", remedy)


def _cannot_be_read(location: str) -> str:
    return f"The Delta table {location.rstrip('/').rpartition('/')[2]} cannot be read"


def _has_data_files(location: str) -> bool:
    with suppress(OSError):
        files, root = filesystem(location)
        infos = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return any(info.base_name.endswith(".parquet") for info in infos)
    return False


def open_table(paths: PathSettings, table: Table) -> DeltaTable:
    """Open a table. Raises ``EnvironmentFault`` if it does not exist or its log cannot be read."""
    there = open_at(paths.table(table.name))
    if there is None:
        raise EnvironmentFault(
            f"The table {table.name} does not exist under {paths.data_dir}.", "Run the pipeline first."
        )
    return there


def no_table_fault(location: str) -> EnvironmentFault:
    """The error when one table does not exist."""
    return EnvironmentFault(f"There is no Delta table at {location}.", _RUN_FIRST)


def no_tables_fault(data_dir: str) -> EnvironmentFault:
    """The error when no table of the pipeline exists: a wrong location must not look like an idle pipeline."""
    return EnvironmentFault(f"There are no Delta tables under {data_dir}.", _RUN_FIRST)


_RUN_FIRST = "Run the pipeline (`reliable-channel run --verdicts`) or `reliable-channel demo` first."


def exists(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists."""
    return open_at(paths.table(table.name)) is not None


def holds_rows(paths: PathSettings, table: Table) -> bool:
    """Whether a table exists and has at least one data file."""
    there = open_at(paths.table(table.name))
    return there is not None and len(there.file_uris()) > 0


def open_tables(paths: PathSettings) -> dict[str, DeltaTable]:
    """The existing tables by name, in the order of the data flow."""

    with ThreadPoolExecutor(8) as pool:
        opened = zip(BY_NAME, pool.map(open_at, map(paths.table, BY_NAME)), strict=True)
        return {name: table for name, table in opened if table is not None}


def dataset_of(table: DeltaTable, dictionaries: Collection[str] = ()) -> ds.Dataset:
    """The files of ``table`` at its version as a dataset, with dictionary encoding for the columns ``dictionaries``.
    Raises ``EnvironmentFault`` if another engine gave it a feature that delta-rs cannot read."""
    import pyarrow.dataset as ds

    # Arrow's own file system if the table is on this machine. The default of delta-rs calls Python from Arrow's
    # threads; if one does so while the interpreter ends, the process aborts ("terminate called without an active
    # exception", code -6): 23 of 100 processes that read two small tables as their last act, none of 100 this way.
    here = unquote(urlsplit(table.table_uri).path) if table.table_uri.startswith("file:") else None
    own = fs.SubTreeFileSystem(here, fs.LocalFileSystem()) if here is not None else None

    def read_with(columns: Collection[str]) -> ds.Dataset:
        # Spark writes times as INT96. Arrow would read them as ns, which cannot represent every year.
        options = ds.ParquetReadOptions(dictionary_columns=columns, coerce_int96_timestamp_unit="us")
        return table.to_pyarrow_dataset(filesystem=own, parquet_read_options=options)

    try:
        whole = read_with(dictionaries)
    except DeltaProtocolError as error:
        raise unreadable(table.table_uri, error) from error
    views = _find_views(whole)
    if not views:
        return whole
    # Arrow cannot compare a filter's text with a view, but reads dictionaries whatever the file says. The schema stays:
    # they are cast.
    again = read_with({*dictionaries, *views})
    return ds.FileSystemDataset([*again.get_fragments()], whole.schema, again.format, again.filesystem)


def _find_views(whole: ds.Dataset) -> set[str]:
    """The columns that a file has as views of texts or bytes: DELETE, UPDATE and MERGE of delta-rs write them so."""
    views: set[str] = set()
    for file in whole.get_fragments():
        # Not those of the jobs, which are many. Otherwise the foot of a file would be read that no query needs.
        if _NAMED_BY_ENGINES.match(file.path.rpartition("/")[2]):
            with suppress(OSError, pa.ArrowInvalid):  # torn or gone: whoever reads it reports that
                views.update(f.name for f in file.physical_schema if f.type in (pa.string_view(), pa.binary_view()))
    return views


def public_dataset(table: DeltaTable, dictionaries: Collection[str] = ()) -> ds.Dataset:
    """The files of ``table`` without the rows of the recorded clock, which only the jobs use."""
    whole = dataset_of(table, dictionaries)
    definition = BY_NAME.get(unquote(urlsplit(table.table_uri).path).rstrip("/").rpartition("/")[2])
    if definition is None or not definition.clock_rows:
        return whole
    kind = pc.field(definition.clock_rows)
    return whole.filter(kind.is_null() | (kind != "tick"))


def rows_of(table: DeltaTable, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Read all rows of ``table``, or their ``columns``, with times :func:`in_our_time`; for tables that fit into
    memory."""
    rows: list[dict[str, Any]] = in_our_time(dataset_of(table).to_table(columns=columns)).to_pylist()
    return rows


def in_our_time(rows: _Rows) -> _Rows:
    """Limit every time in ``rows`` to :data:`TIMES`, so that a foreign writer's row cannot make reading fail."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            first, last = (moment * _A_SECOND[field.type.unit] // 1_000_000 for moment in TIMES)
            times = rows.column(at).cast(pa.int64())
            bounds = pc.min_max(times).as_py()
            if bounds["min"] is None or first <= bounds["min"] <= bounds["max"] <= last:
                continue  # also because with values to compare pyarrow imports pandas
            times = pc.max_element_wise(times, first, skip_nulls=False)
            times = pc.min_element_wise(times, last, skip_nulls=False)
            rows = rows.set_column(at, field, times.cast(field.type))
    return rows


def select(query: str, **tables: DeltaTable) -> list[dict[str, Any]]:
    """Run a SQL query over tables by name, and return its rows. Raises ``EnvironmentFault`` if their files cannot be
    read."""
    engine = QueryBuilder()
    for name, table in tables.items():
        engine = engine.register(name, table)
    try:
        rows = engine.execute(query).read_all()
    except Exception as error:  # delta-rs has no error of its own for files that are torn or gone
        raise unreadable(", ".join(tables), error) from error
    result = in_our_time(as_table(rows))
    columns = [_to_values(result[name]) for name in result.column_names]
    return [dict(zip(result.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def quote(text: str) -> str:
    """A text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def as_table(stream: Any) -> pa.Table:
    """A result of delta-rs as an Arrow table. ``pa.table`` would import pandas."""
    return pa.RecordBatchReader.from_stream(stream).read_all()


def _to_values(column: pa.ChunkedArray) -> list[Any]:
    """A column as Python values. Times are converted through integers, because Arrow would import pandas for them."""
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    micros = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).to_pylist()
    return [None if at is None else EPOCH + dt.timedelta(microseconds=at) for at in micros]
