"""Looks up earlier completed sends in ``reassembled_messages``.

A set that was completed without state leaves no state behind, but a late segment of it must neither open a new set nor
join the next send of the same payload. A row of ``reassembled_messages`` has all that a Reassembler remembers of a
completed send, so a Reassembler that starts from these rows continues like the one that completed them.

A task reads only the files that contain one of its own hashes (:mod:`~reliable_channel.pipeline.file_index`).
"""

from __future__ import annotations

import datetime as dt
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import SparkFiles

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import CompletedSend
from reliable_channel.lake.follow import list_files_since, read_files
from reliable_channel.lake.read import in_our_time, open_table
from reliable_channel.lake.tables import CHANNEL_KEY, REASSEMBLED_MESSAGES, RECORD_KEY
from reliable_channel.pipeline.clock import EPOCH, TopicPartition
from reliable_channel.pipeline.file_index import FileIndex


@dataclass(frozen=True, slots=True)
class Done:
    """A send that was completed by a record of a Kafka partition."""

    topic_partition: TopicPartition
    send: CompletedSend


_SCOPE = (*CHANNEL_KEY, "family", "sender_id")
_COLUMNS = [*RECORD_KEY, "event_time", *_SCOPE, "entire_message_hash", "sds_ids", "data_count"]
_COLUMNS += ["first_lamport_timestamp", "send", "one_send"]
_record, _scope = itemgetter(*RECORD_KEY), itemgetter(*_SCOPE)


def read_completed(
    paths: PathSettings, hashes: Collection[bytes], since_us: int, index_in: str | None = None
) -> pa.Table:
    """The messages with one of ``hashes`` that were completed at ``since_us`` (event time, µs) or later.

    ``index_in``: a directory for the index; by default that of the files of the Spark application on this machine."""
    files = list_files_since(open_table(paths, REASSEMBLED_MESSAGES), "event_time", since_us)
    name = f"rebuilt-{zlib.crc32(paths.table(REASSEMBLED_MESSAGES.name).encode()):08x}"
    index = FileIndex(f"{index_in or SparkFiles.getRootDirectory()}/{name}", partial(_hashes_in, paths))
    of_these = pc.field("entire_message_hash").isin(sorted(hashes))
    rows = read_files(paths, REASSEMBLED_MESSAGES, sorted(index.files_with(files, hashes)), _COLUMNS, of_these)
    since = pa.scalar(EPOCH + dt.timedelta(microseconds=max(since_us, 0)), pa.timestamp("us", tz="UTC"))
    return rows.filter(pc.greater_equal(rows["event_time"], since))


def _hashes_in(paths: PathSettings, file: str) -> pa.Array:
    rows = read_files(paths, REASSEMBLED_MESSAGES, [file], ["entire_message_hash"])
    return rows["entire_message_hash"].combine_chunks()


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
