"""Replaces verdicts in ``delivery_status`` by rewriting only the files that contain changed ones.

Few verdicts are compared in the driver (:func:`replace_verdicts`), because a Spark job would take longer than that; all
of them in Spark (:func:`replace_all_verdicts`). Tasks or the driver write the files, and the same commit replaces them.

Rows are written in time order. So the file with the youngest messages, whose verdicts change most, is nearly always the
only one that a round rewrites.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import write_log_checkpoint
from reliable_channel.lake.commit import TableFile, data_files, discard_on_conflict, replace_files
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.follow import read_files
from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.tables import DELIVERY_STATUS
from reliable_channel.pipeline.delta import read_table, write_rows
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.pipeline.verdict.judge import KEY

Key = tuple[Any, ...]
Verdict = Mapping[str, Any]
_NAMES = DELIVERY_STATUS.names()
_COMPARED = [name for name in _NAMES if name != "as_of"]

ROWS_OF_A_FILE = 50_000
"""The most rows of a file: a changed verdict rewrites its whole file."""


def replace_verdicts(
    paths: PathSettings,
    to: DeltaTable,
    look_up: Lookup,
    before: pa.Table,
    judged: pa.Table,
    since: dt.datetime,
    metadata: Mapping[str, str],
) -> None:
    """Replace the verdicts ``before`` by the verdicts ``judged`` on the same messages, in one commit with ``metadata``.

    A verdict without a successor was on ids that now belong to another message. It is deleted, unless it is *delivered*
    or on a message first seen before ``since``. ``look_up`` looks up rows in ``to``, the table as it was opened.

    Raises ``CommitFailedError`` if another writer (compaction, another round) committed since the table was opened."""
    new = index_by_key(judged)
    old = index_by_key(before)
    missing = {key[-1] for key in new.keys() - old.keys() if key[-1] is not None}
    known = index_by_key(look_up.rows(_NAMES, missing, is_among("message_key", missing)))
    old |= {key: row for key, row in known.items() if key in new}
    gone, changed = find_changes(old, new, since)
    removed = gone | (changed & old.keys())
    texts = {key[-1] for key in removed}
    there = data_files(to)
    kept, dirty = [judged.filter(pa.array([key in changed for key in list_keys(judged)], pa.bool_()))], []
    for path in look_up.files_with(texts):
        rows = read_files(paths, DELIVERY_STATUS, [path], _NAMES)
        stays = drop_keys(rows, removed, texts)
        if stays.num_rows < rows.num_rows:
            kept.append(stays)
            dirty.append(there[path])
    files = _write(paths, pa.concat_tables(part.select(_NAMES) for part in kept))
    _commit(paths, to, dirty, files, metadata)


def replace_all_verdicts(
    spark: SparkSession,
    paths: PathSettings,
    to: DeltaTable,
    judged: DataFrame,
    since: dt.datetime,
    metadata: Mapping[str, str],
) -> None:
    """Do the same as :func:`replace_verdicts` for ``judged`` verdicts on all messages, compared with the whole table.

    ``judged`` is computed three times: it should be a checkpoint."""
    old, new = read_table(spark, paths, DELIVERY_STATUS, to.version()), judged.withColumn("_judged", F.lit(True))
    old = old.withColumn("_file", F.col("_metadata.file_path"))
    both = old.alias("old").join(
        new.alias("new"), [F.col(f"old.{n}").eqNullSafe(F.col(f"new.{n}")) for n in KEY], "full"
    )
    differs = " or ".join(f"not (old.{name} <=> new.{name})" for name in _COMPARED)
    is_changed = F.expr(f"_judged and (_file is null or not old.settled or {differs})")
    is_gone = F.expr("_judged is null and old.verdict <> 'delivered'") & (F.col("old.first_seen") >= F.lit(since))
    rows = both.select(
        "_file",
        F.coalesce(is_changed, F.lit(False)).alias("_changed"),
        F.coalesce(is_gone, F.lit(False)).alias("_gone"),
        *(F.when(is_changed, F.col(f"new.{name}")).otherwise(F.col(f"old.{name}")).alias(name) for name in _NAMES),
    )
    counts = rows.groupBy("_file").agg(F.expr("sum(int(_changed or _gone)) as outdated"), F.count("*").alias("rows"))
    by_file = {each["_file"]: each for each in counts.collect()}
    fresh = by_file.pop(None, None)
    rewritten = {file_path: each for file_path, each in by_file.items() if each["outdated"]}
    most = sum(each["rows"] for each in rewritten.values()) + (fresh["rows"] if fresh else 0)
    there = {path.rpartition("/")[2]: file for path, file in data_files(to).items()}
    dirty = [there[file_path.rpartition("/")[2]] for file_path in rewritten]
    files: list[WrittenFile] = []
    if most:
        wanted = rows.where(~F.col("_gone") & (F.col("_changed") | F.col("_file").isin([*rewritten])))
        ordered = wanted.repartitionByRange(-(-most // ROWS_OF_A_FILE), "first_seen").sortWithinPartitions("first_seen")
        files = write_rows(ordered.select(*_NAMES), paths, DELIVERY_STATUS)
    _commit(paths, to, dirty, files, metadata)


def _commit(
    paths: PathSettings,
    to: DeltaTable,
    dirty: Sequence[TableFile],
    files: Sequence[WrittenFile],
    metadata: Mapping[str, str],
) -> None:
    with discard_on_conflict(paths, files):
        # Once: after another writer's commit the files of changed verdicts may be others, so the round is repeated
        # (``verdicts.run``).
        replace_files(to, dirty, files, metadata, attempts=1)
    write_log_checkpoint(paths, DELIVERY_STATUS, to.version())


def find_changes(
    old: Mapping[Key, Verdict], new: Mapping[Key, Verdict], since: dt.datetime
) -> tuple[set[Key], set[Key]]:
    """The keys of old verdicts to delete, and of new verdicts to write."""
    gone = {
        k for k, row in old.items() if k not in new and row["verdict"] != "delivered" and row["first_seen"] >= since
    }
    changed = {
        key
        for key, row in new.items()
        if (was := old.get(key)) is None or not was["settled"] or any(row[name] != was[name] for name in _COMPARED)
    }
    return gone, changed


def index_by_key(rows: pa.Table) -> dict[Key, Verdict]:
    """Map the key of each verdict to the verdict."""
    verdicts: Iterable[Verdict] = in_our_time(rows).to_pylist()
    return {tuple(row[name] for name in KEY): row for row in verdicts}


def list_keys(rows: pa.Table) -> Iterable[Key]:
    """The key of each row."""
    return zip(*(rows[name].to_pylist() for name in KEY), strict=True)


def drop_keys(rows: pa.Table, keys: set[Key], texts: set[str]) -> pa.Table:
    """``rows`` without those of ``keys``; ``texts`` are the message keys among them, without their channels."""
    may_be = pc.is_in(rows["message_key"], pa.array(sorted(texts), pa.string()))
    numbers = pc.indices_nonzero(may_be)
    dropped = [at for at, key in zip(numbers.to_pylist(), list_keys(rows.take(numbers)), strict=True) if key in keys]
    return rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows)), pa.array(dropped, pa.int64()))))


def _write(paths: PathSettings, rows: pa.Table) -> list[WrittenFile]:
    ordered = rows.sort_by("first_seen")
    files: list[WrittenFile] = []
    for start in range(0, ordered.num_rows, ROWS_OF_A_FILE):
        with TaskFiles(paths) as file:
            file.add(DELIVERY_STATUS, ordered.slice(start, ROWS_OF_A_FILE))
            files += file.finish()
    return files
