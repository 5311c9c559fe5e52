"""Drops reports of segment sets whose message was already rebuilt or already given up.

A store may return a few segments again a day or a year later. Their message is looked up by its hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.tables import INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES, Table
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.pipeline.reassembly.set_results import OVERDUE, SCOPE

_SET = (*SCOPE, "entire_message_hash")
_COMPARED = (*_SET, "sds_ids", "event_time")


def drop_already_reported(reported: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[Mapping[str, Any]]:
    """Keep the reports that no row of the tables, and no other report, covers."""
    hashes = sorted({_set_of(each)[-1] for each in reported})
    of_these = is_among("entire_message_hash", hashes)
    rebuilt = _look_up_rows(paths, REASSEMBLED_MESSAGES, _COMPARED, hashes, of_these)
    ended = of_these & (pc.field("status") != OVERDUE)
    before = _look_up_rows(paths, INCOMPLETE_MESSAGES, (*_COMPARED, "status"), hashes, ended)
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
            final[_set_of(row)].append((row["event_time"], set(row["sds_ids"])))
    return [
        each
        for each in reported
        if not any(at < each["event_time"] and ids.issuperset(each["sds_ids"]) for at, ids in final[_set_of(each)])
    ]


def _look_up_rows(
    paths: PathSettings, table: Table, columns: Sequence[str], hashes: Sequence[bytes], where: pc.Expression
) -> list[dict[str, Any]]:
    """Look up rows of a table without nulls in these columns (jobs write none); times are in µs."""
    rows = Lookup.of(paths, table).rows(columns, hashes, where)
    index = rows.schema.get_field_index("event_time")
    return list(rows.set_column(index, "event_time", rows["event_time"].cast(pa.int64())).drop_null().to_pylist())


def _set_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The channel, sender and hash of a set; the hash is last."""
    return tuple(row[name] for name in _SET)
