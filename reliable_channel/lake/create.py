"""Creates the Delta tables of :mod:`reliable_channel.lake.tables`, and refuses those that jobs must not write.

delta-rs creates and writes every table, without Spark. A raw commit of files ignores requirements of a table (a CHECK
constraint, a renamed column, a deletion vector), so such tables are refused when a job starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike

import pyarrow.fs as pafs
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.files import columns_with_statistics
from reliable_channel.lake.read import open_at, refuse_empty_commit
from reliable_channel.lake.schema import arrow_schema, file_schema
from reliable_channel.lake.tables import DAY_MS, Table

LOG_KEPT_MS = 7 * DAY_MS
"""How long entries of a table's log stay, at least (``maintain`` removes them): as long as replaced files, by default.
Who opens or updates a table lists them all, and a commit every ten seconds makes 260 000 in Delta's 30 days."""
PROPERTIES = {
    # Else every commit removes expired entries, also those that a stream has still to read; maintenance knows which.
    # The property, not the option of each commit: OPTIMIZE of delta-rs 1.6 ignores the option.
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": f"interval {LOG_KEPT_MS // DAY_MS} days",
    # Plain readers (delta-rs, DuckDB, Polars) refuse deletion vectors (docs/decisions.md).
    "delta.enableDeletionVectors": "false",
    # lake/append.py writes the log's checkpoints. A writer in Spark would take seconds for one.
    "delta.checkpointInterval": "1000000",
}
"""Properties of every table; :func:`properties` adds the columns with statistics."""

_HARMLESS_FEATURES = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",
        "generatedColumns",
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
    }
)
"""Features of the table's protocol that have no effect on writers unless a property or column uses them."""

_READ_FEATURES = frozenset({"timestampNtz"})
"""Features of the table's protocol for readers that delta-rs reads as Arrow. It refuses a table with any other, whether
one of its files uses it or not."""

_STATISTICS = "delta.dataSkippingStatsColumns"

_SWITCHES = {
    "delta.appendOnly": "append-only",
    "delta.enableDeletionVectors": "deletion vectors",
    "delta.enableChangeDataFeed": "change data feed",
}
_COLUMN_MARKS = {
    "delta.invariants": "a column invariant",
    "delta.generationExpression": "a generated column",
    "delta.identity.start": "an identity column",
}
_REBUILD = "Run `reliable-channel rebuild`, which derives the tables again."


def create_tables(paths: PathSettings, tables: Iterable[Table]) -> None:
    """Create those of ``tables`` that do not exist yet; existing ones are left unchanged.

    Raises ``ConfigurationError`` if this version cannot write an existing one: it has other columns, or features that
    the jobs do not honour. Raises ``EnvironmentFault`` if a table cannot be created or read."""
    for table in tables:
        if not check_existing(paths, table):
            _create(paths, table)


def check_existing(paths: PathSettings, table: Table) -> bool:
    """Whether the table exists. Raises as :func:`create_tables` does if this version cannot write it."""
    existing = open_at(paths.table(table.name))
    if existing is None:
        return False
    _refuse_empty_commits(paths.table(table.name))
    refuse_features(table.name, find_unsupported_features(existing))
    refuse_another_version(table, existing.schema().fields)
    refuse_features(table.name, _find_other_statistics(table, existing))
    return True


def properties(table: Table) -> dict[str, str]:
    """The properties that a table is created with."""
    indexed = ",".join(column.name for column in columns_with_statistics(table))
    return {**PROPERTIES, _STATISTICS: indexed}


def create_table(location: str | PathLike[str], table: Table) -> None:
    """Create an empty Delta table at ``location``; an existing one is left unchanged."""
    DeltaTable.create(
        str(location),
        arrow_schema(table),
        mode="ignore",
        description=table.comment,
        configuration=properties(table),
    )


def _refuse_empty_commits(location: str) -> None:
    """Raise ``EnvironmentFault`` if any commit in a table's log is empty; readers look at the newest one only."""
    files, root = filesystem(location)
    for file in files.get_file_info(pafs.FileSelector(f"{root}/_delta_log")):
        if file.base_name.endswith(".json"):
            refuse_empty_commit(location, file)


def refuse_another_version(table: Table, fields: Sequence[Field]) -> None:
    """Compare the columns of an existing table with its definition.

    Raises ``ConfigurationError`` if columns are missing or of another type, or if further ones may not be null, because
    an append would then fail in the middle of a micro-batch. Other additional columns do no harm."""
    types, wanted = _name_types(fields), _name_types(Schema.from_arrow(file_schema(table)).fields)
    differs = {
        "missing": [name for name in wanted if name not in types],
        "of another type": [name for name, type_ in wanted.items() if types.get(name, type_) != type_],
        "unknown to this one and never null": [f.name for f in fields if f.name not in wanted and not f.nullable],
    }
    if any(differs.values()):
        what = " and ".join(f"{', '.join(names)} {how}" for how, names in differs.items() if names)
        raise ConfigurationError(
            f"The table {table.name} was made by another version of this program: {what}.", _REBUILD
        )


def _name_types(fields: Sequence[Field]) -> dict[str, str]:
    return {field.name: field.type.type for field in fields}


def refuse_features(name: str, unsupported: Iterable[str]) -> None:
    """Raise ``ConfigurationError``, naming all of them, if a table has features that the jobs do not honour."""
    if features := sorted({*unsupported}):
        raise ConfigurationError(
            f"The table {name} has {', '.join(features)}, which jobs do not honour when they write.",
            "Remove them with ALTER TABLE, or run `reliable-channel rebuild`, which derives the tables again.",
        )


def find_unsupported_features(table: DeltaTable) -> Iterator[str]:
    """The names of the features of a table that the jobs do not honour: known ones in use, and unknown ones."""
    configuration = table.metadata().configuration
    for key, value in configuration.items():
        if key.startswith("delta.constraints."):
            yield f"the constraint {key.removeprefix('delta.constraints.')} (CHECK {value})"
    if configuration.get("delta.columnMapping.mode", "none") != "none":
        yield "column mapping"
    if partitions := table.metadata().partition_columns:
        yield f"partitions by {', '.join(partitions)}"  # whose values readers take from the log, where jobs write none
    yield from (what for key, what in _SWITCHES.items() if configuration.get(key, "false").lower() == "true")
    for field in json.loads(table.schema().to_json())["fields"]:
        yield from (what for key, what in _COLUMN_MARKS.items() if key in field["metadata"])
    protocol = table.protocol()
    # Version 6 brought only identity columns, with which delta-rs commits nothing, whether a column is one or not.
    implied = {"identityColumns"} if protocol.min_writer_version == 6 else set[str]()
    unknown = {*(protocol.writer_features or ()), *implied} - _HARMLESS_FEATURES
    unreadable = {*(protocol.reader_features or ())} - _READ_FEATURES
    for feature in unknown | unreadable:
        yield f"the table feature {feature}"


def _find_other_statistics(table: Table, existing: DeltaTable) -> Iterator[str]:
    """The columns of which other writers, and maintenance, would keep statistics that readers misread: they take a
    missing bound of a flag for one that excludes every row (:func:`columns_with_statistics`)."""
    indexed = existing.metadata().configuration.get(_STATISTICS)
    unsafe = {*table.names()} - {column.name for column in columns_with_statistics(table)}
    if indexed is None:
        yield "statistics of all columns"
    elif others := sorted(unsafe.intersection(name.strip("` ") for name in indexed.split(","))):
        yield f"statistics of {', '.join(others)}"


def _create(paths: PathSettings, table: Table) -> None:
    try:
        create_table(paths.table(table.name), table)
    except (OSError, DeltaError) as error:
        raise EnvironmentFault(
            f"The table {table.name} could not be created under {paths.data_dir}.",
            "Check that the disk is not full and that the place can be written to.",
        ) from error
