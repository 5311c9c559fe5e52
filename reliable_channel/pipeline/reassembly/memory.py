"""Looks up earlier completed sends in ``reassembled_messages``.

A set that was completed without state leaves no state behind, but a late segment of it must neither open a new set nor
join the next send of the same payload. A row of ``reassembled_messages`` has all that a Reassembler remembers of a
completed send, so a Reassembler that starts from these rows continues like the one that completed them.

A task caches eight bytes of every recently rebuilt hash, and reads only files that may contain one of its own hashes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import CompletedSend
from reliable_channel.lake.follow import DataFile, DeltaFollower, PerQuery
from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.tables import CHANNEL_KEY, REASSEMBLED_MESSAGES, RECORD_KEY
from reliable_channel.pipeline.clock import EPOCH, TopicPartition
from reliable_channel.pipeline.delta import running


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


class CompletedSends:
    """Finds the recent files of ``reassembled_messages`` that contain given hashes."""

    def __init__(self, paths: PathSettings, query_id: str = "") -> None:
        """``query_id``: the calling query; a rebuild has new queries and new tables at the same path."""
        self._table = DeltaFollower(paths, REASSEMBLED_MESSAGES, "event_time")
        self._files: dict[str, DataFile] = {}
        self._prefixes: dict[str, Prefixes] = {}
        self._all: Prefixes = np.empty(0, np.uint64)
        self._numbers: npt.NDArray[np.int32] = np.empty(0, np.int32)

    def rows(self, hashes: Collection[bytes], since_us: int) -> pa.Table:
        """The messages with one of ``hashes`` that were completed at ``since_us`` (event time, µs) or later."""
        self._follow(since_us)
        wanted = pc.field("entire_message_hash").isin(sorted(hashes))
        tables = [self._table.read(file, _COLUMNS, wanted) for file in self._holding(prefixes(sorted(hashes)))]
        if not tables:
            return pa.table({name: [] for name in _COLUMNS})
        rows = pa.concat_tables(tables)
        since = pa.scalar(EPOCH + dt.timedelta(microseconds=max(since_us, 0)), pa.timestamp("us", tz="UTC"))
        return rows.filter(pc.greater_equal(rows["event_time"], since))

    def _follow(self, since_us: int) -> None:
        """Read new files, and forget those that were compacted away or are too old."""
        files = {file.path: file for file in self._table.files(since_us)}
        if files.keys() == self._files.keys():
            return
        self._files = files
        for path in self._prefixes.keys() - files.keys():
            del self._prefixes[path]
        for path in files.keys() - self._prefixes.keys():
            column = self._table.read(files[path], ["entire_message_hash"])["entire_message_hash"]
            self._prefixes[path] = prefixes([hash_ for hash_ in column.to_pylist() if hash_ is not None])
        known = self._prefixes.values()
        self._all = np.concatenate([*known]) if known else np.empty(0, np.uint64)
        self._numbers = np.repeat(np.arange(len(known), dtype=np.int32), [len(each) for each in known])

    def _holding(self, wanted: Prefixes) -> list[DataFile]:
        """The files that may contain one of the ``wanted`` prefixes. Twenty bits of each are compared first."""
        marked = np.zeros(_MASK + 1, bool)
        marked[wanted & np.uint64(_MASK)] = True
        near = np.flatnonzero(marked[self._all & np.uint64(_MASK)])
        hits = near[np.isin(self._all[near], wanted)]
        names = [*self._prefixes]
        return [self._files[names[number]] for number in np.unique(self._numbers[hits]).tolist()]


def prefixes(hashes: Collection[bytes]) -> Prefixes:
    """The first eight bytes of each hash."""
    return np.frombuffer(b"".join(hash_[:8].ljust(8, b"\0") for hash_ in hashes), np.uint64)


_completed_sends = PerQuery(CompletedSends)


def find_completed(
    paths: PathSettings, hashes: Collection[bytes], since_us: int, batch: Collection[tuple[str, int, int]]
) -> dict[bytes, list[Done]]:
    """Hash → the sends completed since ``since_us`` (event time, µs) by records of other micro-batches, in the order of
    completion.

    ``batch``: the Kafka coordinates of the micro-batch's records. A replay finds its own messages already written, and
    recognises them by the record that completed them."""
    query_id, _ = running() or ("", 0)
    rows = _completed_sends.get(paths, query_id).rows(hashes, since_us)
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
