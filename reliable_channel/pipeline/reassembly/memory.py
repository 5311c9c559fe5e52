"""Looks up earlier completed sends in ``reassembled_messages``.

A set that was completed without state leaves no state behind, but a late segment of it must neither open a new set nor
join the next send of the same payload. A row of ``reassembled_messages`` has all that a Reassembler remembers of a
completed send, so a Reassembler that starts from these rows continues like the one that completed them.

A task reads only the files that contain one of its own hashes (:mod:`~reliable_channel.pipeline.lookup`).
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Collection, Mapping
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import CompletedSend
from reliable_channel.core.segmentation.held import MAX_COMPLETED_PER_KEY
from reliable_channel.lake.follow import list_files_since
from reliable_channel.lake.read import in_our_time, open_table
from reliable_channel.lake.tables import EPOCH, REASSEMBLED_MESSAGES, RECORD_KEY, TopicPartition
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.pipeline.reassembly.set_results import SCOPE

MAX_COMPLETED_OF_HASH = 256
"""The number of completed sends of one hash that are remembered. Each micro-batch with a segment of the hash restores
them, and anybody can send its segments again under as many names as they like: under 4 000 it took 0.4 s."""


Done = tuple[TopicPartition, CompletedSend]
"""A send, and the Kafka partition of the record that completed it."""


_COLUMNS = [*RECORD_KEY, "event_time", *SCOPE, "entire_message_hash", "sds_ids", "data_count"]
_COLUMNS += ["first_lamport_timestamp", "send", "one_send"]
_scope = itemgetter(*SCOPE)


def read_completed(
    paths: PathSettings, hashes: Collection[bytes], since_us: int, index_in: str | None = None
) -> pa.Table:
    """The messages with one of ``hashes`` that were completed at ``since_us`` (event time, µs) or later.

    ``index_in``: a directory for the index; by default that of the files of the Spark application on this machine."""
    files = list_files_since(open_table(paths, REASSEMBLED_MESSAGES), "event_time", since_us)
    # By their place: an application may read the tables of several pipelines, each with an index of its own.
    index_in = f"{index_in or SparkFiles.getRootDirectory()}/{zlib.crc32(paths.data_dir.encode()):08x}"
    look_up = Lookup(paths, REASSEMBLED_MESSAGES, files, index_in)
    rows = look_up.rows(_COLUMNS, hashes, is_among("entire_message_hash", hashes))
    since = pa.scalar(EPOCH + dt.timedelta(microseconds=max(since_us, 0)), pa.timestamp("us", tz="UTC"))
    return rows.filter(pc.greater_equal(rows["event_time"], since))


def find_completed(
    paths: PathSettings,
    hashes: Collection[bytes],
    since_us: int,
    batch: Collection[tuple[str, int, int]],
    index_in: str | None = None,
) -> dict[bytes, list[Done]]:
    """Hash → the sends completed since ``since_us`` (event time, µs) by records of other micro-batches, in the order of
    completion: of each at least the :data:`MAX_COMPLETED_OF_HASH` newest that :class:`~.sets.HashSets` remembers.

    ``batch``: the Kafka coordinates of the micro-batch's records. A replay finds its own messages already written, and
    recognises them by the record that completed them. ``index_in``: as for :func:`read_completed`."""
    rows = read_completed(paths, hashes, since_us, index_in)
    whole = rows.filter(pc.and_(rows["sds_ids"].is_valid(), rows["data_count"].is_valid()))  # no job writes null here
    records = zip(*(whole[name].to_pylist() for name in RECORD_KEY), strict=True)
    earlier = whole.filter(pa.array([record not in batch for record in records], pa.bool_()))
    in_order = earlier.sort_by([(name, "ascending") for name in ("event_time", "kafka_partition", "kafka_offset")])
    by_hash: dict[bytes, list[Done]] = {}
    for row in in_our_time(_select_newest(in_order)).to_pylist():
        by_hash.setdefault(row["entire_message_hash"], []).append(parse_done(row))
    return by_hash


def _select_newest(completed: pa.Table) -> pa.Table:
    """Of rows in the order of completion, those that can be among the newest that :class:`~.sets.HashSets` remembers:
    it counts by the ms, so twice as many."""
    if completed.num_rows <= MAX_COMPLETED_OF_HASH:
        return completed
    keys = completed.select(["entire_message_hash", *SCOPE]).to_pandas()
    keys = keys[keys.groupby([*keys], dropna=False).cumcount(ascending=False) < MAX_COMPLETED_PER_KEY]
    keys = keys[keys.groupby("entire_message_hash").cumcount(ascending=False) < 2 * MAX_COMPLETED_OF_HASH]
    return completed.take(pa.array(keys.index))


def parse_done(row: Mapping[str, Any]) -> Done:
    """Convert a row of ``reassembled_messages`` to a completed send."""
    send = CompletedSend(
        _scope(row),
        row["entire_message_hash"],
        row["send"],
        row["data_count"],
        row["first_lamport_timestamp"] if row["one_send"] else None,
        (row["event_time"] - EPOCH) // dt.timedelta(milliseconds=1),
        tuple(row["sds_ids"]),
    )
    return (row["kafka_topic"], row["kafka_partition"]), send
