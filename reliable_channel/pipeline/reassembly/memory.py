"""Looks up earlier completed sends in ``reassembled_messages``.

A set that was completed without state leaves no state behind, but a late segment of it must neither open a new set nor
join the next send of the same payload. A row of ``reassembled_messages`` has all that a Reassembler remembers of a
completed send, so a Reassembler that starts from these rows continues like the one that completed them.

A task caches eight bytes of every recently rebuilt hash, and reads only files that may contain one of its own hashes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import CompletedSend
from reliable_channel.lake.follow import list_files_since, read_files
from reliable_channel.lake.read import in_our_time, open_table
from reliable_channel.lake.tables import CHANNEL_KEY, REASSEMBLED_MESSAGES, RECORD_KEY
from reliable_channel.pipeline.clock import EPOCH, TopicPartition


@dataclass(frozen=True, slots=True)
class Done:
    """A send that was completed by a record of the Kafka partition ``place``."""

    topic_partition: TopicPartition
    send: CompletedSend


Prefixes = npt.NDArray[np.uint64]

_SCOPE = (*CHANNEL_KEY, "family", "sender_id")
_COLUMNS = [*RECORD_KEY, "event_time", *_SCOPE, "entire_message_hash", "sds_ids", "data_count"]
_COLUMNS += ["first_lamport_timestamp", "send", "one_send"]
_record, _scope = itemgetter(*RECORD_KEY), itemgetter(*_SCOPE)
_MASK = (1 << 20) - 1


_prefixes: dict[str, Prefixes] = {}
"""The prefixes of the hashes in each file of the last look-up of this process: 8 MB for a million messages within
``completed_memory_ms``. Data files never change, and each has a name of its own."""


def read_completed(paths: PathSettings, hashes: Collection[bytes], since_us: int) -> pa.Table:
    """The messages with one of ``hashes`` that were completed at ``since_us`` (event time, µs) or later."""
    files = list_files_since(open_table(paths, REASSEMBLED_MESSAGES), "event_time", since_us)
    for gone in _prefixes.keys() - {*files}:
        del _prefixes[gone]
    for path in files:
        if path not in _prefixes:
            column = read_files(paths, REASSEMBLED_MESSAGES, [path], ["entire_message_hash"])["entire_message_hash"]
            _prefixes[path] = prefixes(column.drop_null().to_pylist())
    wanted = sorted(hashes)
    holding = _find_holding(files, prefixes(wanted))
    of_these = pc.field("entire_message_hash").isin(wanted)
    rows = read_files(paths, REASSEMBLED_MESSAGES, holding, _COLUMNS, of_these)
    since = pa.scalar(EPOCH + dt.timedelta(microseconds=max(since_us, 0)), pa.timestamp("us", tz="UTC"))
    return rows.filter(pc.greater_equal(rows["event_time"], since))


def _find_holding(files: Sequence[str], wanted: Prefixes) -> list[str]:
    """The files that may contain one of the ``wanted`` prefixes. Twenty bits of each are compared first."""
    marked = np.zeros(_MASK + 1, bool)
    marked[wanted & np.uint64(_MASK)] = True
    near = ((path, _prefixes[path][marked[_prefixes[path] & np.uint64(_MASK)]]) for path in files)
    return [path for path, some in near if np.isin(some, wanted).any()]


def prefixes(hashes: Collection[bytes]) -> Prefixes:
    """The first eight bytes of each hash."""
    return np.frombuffer(b"".join(hash_[:8].ljust(8, b"\0") for hash_ in hashes), np.uint64)


def find_completed(
    paths: PathSettings, hashes: Collection[bytes], since_us: int, batch: Collection[tuple[str, int, int]]
) -> dict[bytes, list[Done]]:
    """Hash → the sends completed since ``since_us`` (event time, µs) by records of other micro-batches, in the order of
    completion.

    ``batch``: the Kafka coordinates of the micro-batch's records. A replay finds its own messages already written, and
    recognises them by the record that completed them."""
    rows = read_completed(paths, hashes, since_us)
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
