"""Drops expired sets that hold nothing new: late segments of a message that was rebuilt or reported incomplete before.

A store may bring a few segments back a day or a year later. Their message is looked up in ``reassembled_messages``
among the files of about the same Lamport timestamps, and in ``incomplete_messages``, which is small, by its hash.
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

Range = tuple[int, int]
"""Lamport timestamps (ms) from, to, inclusive."""

SPREAD_MS = 3_600_000
"""How far the segments of one send may be from each other: a sender's rate limit can hold the later ones."""

MAX_RANGES = 32

_SCOPE = [*CHANNEL_KEY, "sender_id", "entire_message_hash"]
_ALWAYS = -1 << 63


def without_already_reported(given_up: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[Mapping[str, Any]]:
    """The results of kind ``incomplete`` that hold a segment which no earlier row of their message names."""
    hashes = sorted({_scope(each)[-1] for each in given_up})
    sent_at = [
        (each["oldest_lamport"], each["newest_lamport"]) for each in given_up if each["oldest_lamport"] is not None
    ]
    sent, of_these = pc.field("first_lamport_timestamp"), pc.field("entire_message_hash").isin(hashes)
    at_about = reduce(or_, [(sent >= low) & (sent <= high) for low, high in merged(sent_at)], sent.is_null())
    rebuilt = _rows(paths, REASSEMBLED_MESSAGES, [*_SCOPE, "sds_ids"], of_these & at_about)
    reported_before = _rows(paths, INCOMPLETE_MESSAGES, [*_SCOPE, "sds_ids", "event_time"], of_these)
    known: dict[tuple[Any, ...], list[tuple[int, set[str]]]] = defaultdict(list)
    for row in (*rebuilt, *reported_before, *given_up):
        known[_scope(row)].append((row.get("event_time", _ALWAYS), set(row["sds_ids"])))
    return [
        each
        for each in given_up
        if not any(at < each["event_time"] and ids.issuperset(each["sds_ids"]) for at, ids in known[_scope(each)])
    ]


def _rows(paths: PathSettings, table: Table, columns: list[str], wanted: pc.Expression) -> list[dict[str, Any]]:
    """Rows of a table that have all of these columns, as every row of a job has; times are in µs."""
    found = dataset_of(open_table(paths, table)).to_table(columns=columns, filter=wanted)
    if "event_time" in columns:
        place = found.schema.get_field_index("event_time")
        found = found.set_column(place, "event_time", found["event_time"].cast(pa.int64()))
    return list(found.drop_null().to_pylist())


def _scope(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Whose set it is; the last is the hash."""
    return tuple(row[name] for name in _SCOPE)


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The ranges, each wider by ``SPREAD_MS`` at both ends, joined where they touch; ``MAX_RANGES`` at most."""
    found: list[Range] = []
    for low, high in sorted((low - SPREAD_MS, high + SPREAD_MS) for low, high in ranges):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    while len(found) > MAX_RANGES:
        gaps = [(after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(found))]
        _, number = min(gaps)
        found[number : number + 2] = [(found[number][0], found[number + 1][1])]
    return found
