"""Drops reports of segment sets whose message was already rebuilt or already given up.

A store may return a few segments again a day or a year later. Their message is looked up in ``reassembled_messages``,
in files with about the same Lamport timestamps, and by its hash in ``incomplete_messages``, which is small.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.tables import CHANNEL_KEY, INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES, Table
from reliable_channel.pipeline.reassembly.set_results import OVERDUE

Range = tuple[int, int]
"""The first and last Lamport timestamp (ms) of a range, inclusive."""

SPREAD_MS = 3_600_000
"""The maximum Lamport distance (ms) between segments of one send: the sender's rate limit can delay the later ones."""

MAX_RANGES = 32

_SCOPE = [*CHANNEL_KEY, "family", "sender_id", "entire_message_hash"]


def drop_already_reported(reported: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[Mapping[str, Any]]:
    """Keep the reports that no row of the tables, and no other report, covers."""
    hashes = sorted({_scope(each)[-1] for each in reported})
    sent_at = [
        (each["oldest_lamport"], each["newest_lamport"]) for each in reported if each["oldest_lamport"] is not None
    ]
    sent, of_these = pc.field("first_lamport_timestamp"), pc.field("entire_message_hash").isin(hashes)
    at_about = reduce(or_, [(sent >= low) & (sent <= high) for low, high in merge(sent_at)], sent.is_null())
    columns = [*_SCOPE, "sds_ids", "event_time"]
    rebuilt = _rows(paths, REASSEMBLED_MESSAGES, columns, of_these & at_about)
    before = _rows(paths, INCOMPLETE_MESSAGES, columns, of_these & (pc.field("status") != OVERDUE))
    return drop_covered(reported, (*rebuilt, *before))


def drop_covered(reported: Sequence[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Keep the reports with a segment that no earlier rebuilt or given-up row of their message contains, among ``rows``
    and the reports. Times are µs.

    An overdue row covers nothing: each later one is another request for the missing segments, and the set may be given
    up yet. *Earlier* is by event time: a set that is rebuilt after it was overdue, in the same micro-batch or in a
    later one, was overdue."""
    final: dict[tuple[Any, ...], list[tuple[int, set[str]]]] = defaultdict(list)
    for row in (*rows, *reported):
        if row.get("status") != OVERDUE:
            final[_scope(row)].append((row["event_time"], set(row["sds_ids"])))
    return [
        each
        for each in reported
        if not any(at < each["event_time"] and ids.issuperset(each["sds_ids"]) for at, ids in final[_scope(each)])
    ]


def _rows(paths: PathSettings, table: Table, columns: list[str], wanted: pc.Expression) -> list[dict[str, Any]]:
    """Read rows of a table without nulls in these columns (jobs write none); times are in µs."""
    rows = dataset_of(open_table(paths, table)).to_table(columns=columns, filter=wanted)
    index = rows.schema.get_field_index("event_time")
    return list(rows.set_column(index, "event_time", rows["event_time"].cast(pa.int64())).drop_null().to_pylist())


def _scope(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The channel, sender and hash of a set; the hash is last."""
    return tuple(row[name] for name in _SCOPE)


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Widen each range by ``SPREAD_MS`` at both ends, and merge overlapping ones, then the closest ones down to
    ``MAX_RANGES``."""
    merged: list[Range] = []
    for low, high in sorted((low - SPREAD_MS, high + SPREAD_MS) for low, high in ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    while len(merged) > MAX_RANGES:
        gaps = [(after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(merged))]
        _, number = min(gaps)
        merged[number : number + 2] = [(merged[number][0], merged[number + 1][1])]
    return merged
