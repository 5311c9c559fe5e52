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
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import CompletedSend
from reliable_channel.lake.follow import list_files_since
from reliable_channel.lake.read import in_our_time, open_table
from reliable_channel.lake.tables import EPOCH, REASSEMBLED_MESSAGES, RECORD_KEY, TopicPartition
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.pipeline.reassembly.set_results import SCOPE


@dataclass(frozen=True, slots=True)
class Done:
    """A send that was completed by a record of a Kafka partition."""

    topic_partition: TopicPartition
    send: CompletedSend


_COLUMNS = [*RECORD_KEY, "event_time", *SCOPE, "entire_message_hash", "sds_ids", "data_count"]
_COLUMNS += ["first_lamport_timestamp", "send", "one_send"]
_record, _scope = itemgetter(*RECORD_KEY), itemgetter(*SCOPE)


def read_completed(
    paths: PathSettings, hashes: Collection[bytes], since_us: int, index_in: str | None = None
) -> pa.Table:
    """The messages with one of ``hashes`` that were completed at ``since_us`` (event time, µs) or later.

    ``index_in``: a directory for the index; by default that of the files of the Spark application on this machine."""
    files = list_files_since(open_table(paths, REASSEMBLED_MESSAGES), "event_time", since_us)
    # Of several tables of an application, each has an index of its own.
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
    completion.

    ``batch``: the Kafka coordinates of the micro-batch's records. A replay finds its own messages already written, and
    recognises them by the record that completed them. ``index_in``: as for :func:`read_completed`."""
    rows = read_completed(paths, hashes, since_us, index_in)
    whole = rows.filter(pc.and_(rows["sds_ids"].is_valid(), rows["data_count"].is_valid()))  # no job writes null here
    by_hash: dict[bytes, list[Done]] = {}
    for row in sorted(
        in_our_time(whole).to_pylist(), key=lambda row: (row["event_time"], row["kafka_partition"], row["kafka_offset"])
    ):
        if _record(row) not in batch:
            by_hash.setdefault(row["entire_message_hash"], []).append(parse_done(row))
    return by_hash


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
    return Done((row["kafka_topic"], row["kafka_partition"]), send)
