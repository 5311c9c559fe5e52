"""Rebuilds every derived table from a snapshot of ``envelopes``, in record order (docs/operations.md *Rebuild*).

It serves a new schema, new names, a corrected decoder or rule, a key that came later, or damaged tables. The functions
of the jobs process the recorded bytes with the recorded times and ticks, so they give the same tables. Tables that
cannot be derived (the clock, gaps, reports of senders and stores, metrics) are copied. The new tables are written
beside the old ones and replace them at the end, with new checkpoints.
"""

from __future__ import annotations

import datetime as dt
import heapq
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import or_
from pathlib import Path
from typing import NamedTuple

import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, Transaction
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.lake import tables
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.checkpoints import filesystem, read_checkpoint, read_text
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import parse_json_lines
from reliable_channel.lake.read import exists, open_table
from reliable_channel.lake.tables import Table, TopicPartition
from reliable_channel.pipeline.delta import append_frame, conform, read_table, write_rows
from reliable_channel.pipeline.ingest.admission import QuotaGate
from reliable_channel.pipeline.ingest.stream import admit, limit_record_time, select_coordinates
from reliable_channel.pipeline.runner.queries import CHAIN, INGEST, start
from reliable_channel.pipeline.runner.run import wait_for
from reliable_channel.pipeline.runner.settings_guard import refuse_other_copies
from reliable_channel.pipeline.verdict import verdicts

CARRIED_OVER = (
    tables.SOURCE_GAPS,
    tables.CLOCK,
    tables.SENDER_EVENTS,
    tables.SIGHTINGS,
    tables.STORE_PRESENCE,
    tables.SENT_ROWS,
    tables.PIPELINE_METRICS,
    tables.ALERTS,
)
"""The tables that cannot be derived from ``envelopes``."""

_READ_AGAIN = (tables.SENDER_EVENTS, tables.SIGHTINGS)
"""Until 29 November 2026 rebuilds forgot how far the evidence topic was read: it became rows of these again."""

_SINK = "rebuild"
_COMMITS_AT_ONCE = 100
"""How many commits the other jobs read at once: they read whatever there is in one micro-batch."""


@dataclass(frozen=True, slots=True)
class RebuildResult:
    """``envelopes``: the number of envelopes read. ``older_rows``: rows of ``delivered_messages`` older than the oldest
    envelope, which only the old tables have. ``old_tables``: the new place of the old tables; ``None`` if they were not
    moved."""

    envelopes: int
    older_rows: int
    old_tables: str | None


def rebuild(
    spark: SparkSession,
    settings: Settings,
    *,
    target: PathSettings | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> RebuildResult:
    """Derive all tables again and replace the old ones; with ``target``, write there and keep the old ones.

    The jobs must not run. Raises ``LocalError`` if ``target`` has tables, or if it is missing and the tables are in an
    object store. Raises ``EnvironmentFault`` if there is nothing to rebuild from, if ingest was interrupted, or if it
    ran in the meantime."""
    paths = settings.paths
    beside = target or choose_staging(paths)
    version = _fit_to_rebuild(paths)
    if target is None:
        _remove(beside)  # what a rebuild left that was killed
    elif exists(beside, tables.ENVELOPES):
        raise LocalError(f"There are tables in {beside.data_dir} already.", "Choose an empty place.")
    try:
        count, older = _derive_tables(spark, settings, beside, version, say)
    except BaseException:
        if target is None:  # the next one starts anew, and on a full disk the jobs could not go on beside this one's
            _remove(beside)
        raise
    return RebuildResult(count, older, swap(paths, beside) if target is None else None)


def _remove(paths: PathSettings) -> None:
    """Remove the tables and checkpoints under ``paths``."""
    for directory in (paths.data_dir, paths.checkpoint_dir):
        shutil.rmtree(directory, ignore_errors=True)


def _derive_tables(
    spark: SparkSession, settings: Settings, beside: PathSettings, version: int, say: Callable[[str], None]
) -> tuple[int, int]:
    """Write all tables and checkpoints anew under ``beside``, from ``version`` of ``envelopes``; returns how many
    envelopes were read, and how many rows of ``delivered_messages`` are older than they."""
    paths, there = settings.paths, settings.model_copy(update={"paths": beside})
    is_readable = find_tables(paths, say)
    create_tables(beside, {*INGEST.tables, *(table for table in CARRIED_OVER if is_readable.get(table))})
    rows = read_table(spark, paths, tables.ENVELOPES, version)
    # A row without these is not a Kafka record.
    snapshot = rows.dropna(subset=[*tables.RECORD_KEY, "event_time", "ingest_time"])
    say("carrying over what cannot be derived")
    _carry_over(spark, paths, beside, snapshot, is_readable)

    def derive() -> None:
        for query in CHAIN[1:]:
            say(query.name)
            wait_for(start(spark, there, query, once=True))

    count = _decode_again(settings, beside, snapshot, _collect_ticks(spark, paths, is_readable), say, derive)
    derive()
    if tables.DELIVERY_STATUS in is_readable:
        say("verdict")
        verdicts.run(spark, there)
    _copy_checkpoint(paths, beside, INGEST.name)
    if open_table(paths, tables.ENVELOPES).version() != version:
        raise EnvironmentFault("Ingest wrote while the tables were rebuilt.", "Stop the jobs, and rebuild again.")
    return count, _count_older_rows(spark, paths, snapshot) if is_readable.get(tables.DELIVERED_MESSAGES) else 0


def find_tables(paths: PathSettings, say: Callable[[str], None]) -> dict[Table, bool]:
    """The tables that exist → whether they can be read. A damaged one is derived again where that is possible, and
    stays with the old tables. Raises ``EnvironmentFault`` if it is one from which the others are derived."""
    is_readable = {}
    for table in tables.TABLES:
        try:
            if exists(paths, table):
                is_readable[table] = True
        except EnvironmentFault as fault:
            if table in (tables.ENVELOPES, tables.CLOCK):
                raise
            is_readable[table] = False
            say(f"{fault.cause} It stays with the old tables.")
    return is_readable


def choose_staging(paths: PathSettings) -> PathSettings:
    """The paths for the new tables and checkpoints, beside the old ones: where symbolic links lead, since the disk of a
    link may be small. Raises ``LocalError`` if they are not local, or the roots of file systems, which cannot be
    renamed."""
    for directory in (paths.data_dir, paths.checkpoint_dir):
        if "://" in directory or os.path.ismount(os.path.realpath(directory)):
            raise LocalError(
                f"{directory} cannot be replaced in one step.",
                "Rebuild into new places with --data-dir and --checkpoint-dir, then set paths.* to them.",
            )
    changed = {name: f"{os.path.realpath(getattr(paths, name))}.rebuild" for name in ("data_dir", "checkpoint_dir")}
    return PathSettings(**{**paths.model_dump(), **changed})


def swap(paths: PathSettings, new: PathSettings) -> str:
    """Replace the old directories by the new ones; the old ones stay as ``….before-<time>``. Returns the path of the
    old tables.

    Four renames. A crash between them leaves every directory complete under one of these names."""
    stamp = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%S")
    old_tables, old_checkpoints = map(os.path.realpath, (paths.data_dir, paths.checkpoint_dir))
    for old, fresh in ((old_tables, new.data_dir), (old_checkpoints, new.checkpoint_dir)):
        if Path(old).exists():
            Path(old).rename(f"{old}.before-{stamp}")
        Path(fresh).rename(old)
    return f"{old_tables}.before-{stamp}"


def _fit_to_rebuild(paths: PathSettings) -> int:
    """The version of ``envelopes`` to rebuild from. Raises ``EnvironmentFault`` if ingest was interrupted, and
    ``ConfigurationError`` if its checkpoint, which is kept, is not of the same time."""
    version = open_table(paths, tables.ENVELOPES).version()
    checkpoint = read_checkpoint(paths, INGEST.name)
    if checkpoint is not None and checkpoint.interrupted:
        raise EnvironmentFault(
            "Ingest was interrupted in a micro-batch: some of its rows may be written and others not.",
            "Run ingest once (`jobs/ingest.py --once`), which finishes it, and rebuild then. If this version refuses"
            " its tables, do that with the version that was interrupted.",
        )
    if checkpoint is not None:
        refuse_other_copies(paths, checkpoint, (tables.ENVELOPES, tables.CLOCK), ())
    return version


def _carry_over(
    spark: SparkSession, old: PathSettings, new: PathSettings, snapshot: DataFrame, is_readable: Mapping[Table, bool]
) -> None:
    """Copy the tables that cannot be derived, and of ``quarantine`` the records that are no envelopes: the snapshot
    lacks them."""
    for table in CARRIED_OVER:
        if is_readable.get(table):
            rows = conform(read_table(spark, old, table), table)
            append_frame(new, table, _drop_doubles(rows) if table in _READ_AGAIN else rows)
            # Positions in the topic of evidence are among them: its rows would be added a second time.
            copy_transactions(old, new, table)
    if is_readable.get(tables.QUARANTINE):
        never_envelopes = read_table(spark, old, tables.QUARANTINE).join(
            snapshot.select(*tables.RECORD_KEY), [*tables.RECORD_KEY], "left_anti"
        )
        append_frame(new, tables.QUARANTINE, conform(never_envelopes, tables.QUARANTINE))


def _drop_doubles(rows: DataFrame) -> DataFrame:
    """Each record of evidence once; of two rows that differ only in ``send_id``, an earlier version wrote the one
    without."""
    if "send_id" not in rows.columns:
        return rows.distinct()
    return rows.groupBy(*(name for name in rows.columns if name != "send_id")).agg(F.max("send_id").alias("send_id"))


def copy_transactions(old: PathSettings, new: PathSettings, table: Table) -> None:
    """Record the application transactions of a table in the new one, in a commit without rows.

    delta-rs looks one up only by its application id, so they are read from the log. What this program records for an id
    only grows, so the largest version in any file of the log counts."""
    files, root = filesystem(old.table(table.name))
    newest: dict[str, int] = {}
    for file in files.get_file_info(pafs.FileSelector(f"{root}/_delta_log")):
        recorded = []
        if file.extension == "json":
            recorded = [action.get("txn") for action in parse_json_lines(read_text(files, file.path) or "")]
        elif file.extension == "parquet":  # a checkpoint of the log
            recorded = pq.read_table(file.path, filesystem=files, columns=["txn"])["txn"].to_pylist()
        for each in filter(None, recorded):
            newest[each["appId"]] = max(each["version"], newest.get(each["appId"], 0))
    if newest:
        to = open_table(new, table)
        properties = CommitProperties(app_transactions=[Transaction(*each) for each in newest.items()])
        to.create_write_transaction([], "append", to.schema(), commit_properties=properties)


def _decode_again(
    settings: Settings,
    new: PathSettings,
    snapshot: DataFrame,
    ticks: DataFrame,
    say: Callable[[str], None],
    derive: Callable[[], None],
) -> int:
    """Write ``envelopes``, ``sds_messages`` and ``quarantine`` again, in commits of about as many records as ingest
    reads in a micro-batch; after every :data:`_COMMITS_AT_ONCE`, ``derive`` what follows. Returns the number of
    envelopes."""
    per_commit = settings.spark.max_offsets_per_trigger
    ranges = _measure_ranges(snapshot, per_commit // 10 or 1)
    ends = choose_ends(ranges, per_commit)
    admission = QuotaGate(settings.quotas, settings.channels)
    for number, (low, high) in enumerate(zip([None, *ends], [*ends, None], strict=True)):
        say(f"decoding {number + 1} of {len(ends) + 1}")
        # What comes after the last end is in the last commit, also of partitions that have no envelope.
        inside = F.lit(True) if high is None else _is_before(high)
        if low is not None:
            inside = inside & ~_is_before(low)
        sink = BatchSink(new, _SINK, number)
        result = admit(_make_records(settings, snapshot.where(inside)), settings, new, {}, admission)
        sink.add_files(tables.ENVELOPES, result.files)
        tick_files = write_rows(ticks.where(inside), new, tables.SDS_MESSAGES)
        sink.add_files(tables.SDS_MESSAGES, [*result.files, *tick_files])
        sink.add_files(tables.QUARANTINE, result.files)
        if number % _COMMITS_AT_ONCE == _COMMITS_AT_ONCE - 1:
            derive()
    return sum(each.records for each in ranges)


class OffsetRange(NamedTuple):
    """Consecutive records of a Kafka partition: the offset after them, their earliest ``ingest_time`` (µs), their
    number."""

    topic_partition: TopicPartition
    end: int
    ingested_us: int
    records: int


def _measure_ranges(snapshot: DataFrame, offsets: int) -> list[OffsetRange]:
    """The envelopes of each partition in ranges of so many ``offsets``, in their order."""
    topic_partition = ["kafka_topic", "kafka_partition"]
    number = F.floor(F.col("kafka_offset") / offsets).alias("number")
    earliest = F.min(F.unix_micros("ingest_time"))
    rows = snapshot.groupBy(*topic_partition, number).agg(earliest, F.count("*"))
    return [
        OffsetRange((topic, partition), (number + 1) * offsets, us, count)
        for topic, partition, number, us, count in rows.orderBy(*topic_partition, "number").collect()
    ]


def choose_ends(ranges: Iterable[OffsetRange], per_commit: int) -> list[dict[TopicPartition, int]]:
    """Divide records into commits of ``per_commit`` or a range more; returns where each commit but the last ends: the
    offset after it, by partition.

    A partition's ranges stay in their order, whatever their times: the wall clock may have been set back meanwhile.
    Those of several partitions are merged by time."""
    partitions = [list(of_one) for _, of_one in groupby(ranges, lambda each: each.topic_partition)]
    ends: list[dict[TopicPartition, int]] = []
    reached: dict[TopicPartition, int] = {}
    records = 0
    for each in heapq.merge(*partitions, key=lambda each: each.ingested_us):
        if records >= per_commit:
            ends.append(dict(reached))
            records = 0
        reached[each.topic_partition] = each.end
        records += each.records
    return ends


def _is_before(ends: Mapping[TopicPartition, int]) -> Column:
    """Whether a row's record comes before these offsets."""
    topic, partition, offset = map(F.col, tables.RECORD_KEY)
    each = [(topic == name) & (partition == number) & (offset < end) for (name, number), end in ends.items()]
    return reduce(or_, each)


def _make_records(settings: Settings, envelopes: DataFrame) -> DataFrame:
    """Envelopes in the form of the records that ingest reads from Kafka, with the recorded times."""
    time = limit_record_time(F.col("record_time"), F.col("ingest_time"), settings.pipeline)
    records = envelopes.select(
        *select_coordinates(),
        "record_time",
        "event_time",
        "ingest_time",
        F.unix_micros(time).alias("time_us"),
        "value",
        F.col("pubsub_topic").cast("binary").alias("pubsub_header"),
        F.col("source").cast("binary").alias("source_header"),
    )
    # One file per Kafka partition, in its order, as ingest writes them: of two copies the first one counts.
    return records.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")


def _collect_ticks(spark: SparkSession, paths: PathSettings, is_readable: Mapping[Table, bool]) -> DataFrame:
    """The recorded clock as rows of ``sds_messages``: the existing ones, and missing ones from ``clock``."""
    existing = None
    directory = [*tables.RECORD_KEY, "event_time"]
    if is_readable.get(tables.SDS_MESSAGES):
        existing = read_table(spark, paths, tables.SDS_MESSAGES).where("sds_kind = 'tick'")
        existing = conform(existing, tables.SDS_MESSAGES)
    recorded = read_table(spark, paths, tables.CLOCK).where("next_offset >= 0")
    recorded = recorded.select(
        "kafka_topic",
        "kafka_partition",
        (F.col("next_offset") - 1).alias("kafka_offset"),
        "event_time",
        F.col("recorded_at").alias("ingest_time"),
        F.lit("tick").alias("sds_kind"),
    )
    ticks = conform(recorded, tables.SDS_MESSAGES).dropDuplicates(directory)
    if existing is None:
        return ticks
    return existing.unionByName(
        ticks.join(existing.select(*directory), directory, "left_anti").select(*tables.SDS_MESSAGES.names())
    )


def _copy_checkpoint(old: PathSettings, new: PathSettings, query: str) -> None:
    """Copy a query's checkpoint, so that ingest continues at its position in Kafka."""
    if read_checkpoint(old, query) is None:
        return
    source, source_path = filesystem(old.checkpoint(query))
    destination, path = filesystem(new.checkpoint(query))
    destination.create_dir(path, recursive=True)
    pafs.copy_files(source_path, path, source_filesystem=source, destination_filesystem=destination)


def _count_older_rows(spark: SparkSession, paths: PathSettings, snapshot: DataFrame) -> int:
    oldest = snapshot.agg(F.min("event_time").alias("oldest"))
    delivered = read_table(spark, paths, tables.DELIVERED_MESSAGES).select("event_time")
    return delivered.join(oldest, F.col("event_time") < F.col("oldest")).count()
