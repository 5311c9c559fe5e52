"""Drops reports of segment sets whose message was already rebuilt or already given up.

A store may return a few segments again a day or a year later. Their message is looked up by its hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.tables import INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES, SDS_MESSAGES, Table
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.pipeline.reassembly.set_results import OVERDUE, SCOPE

_SET = (*SCOPE, "entire_message_hash")
_COMPARED = (*_SET, "sds_ids", "event_time")

Arrivals = Mapping[tuple[tuple[Any, ...], str], int]
"""Set and SDS id of a segment → when it first came, µs."""


def drop_already_reported(reported: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[Mapping[str, Any]]:
    """Keep the reports that no row of the tables, and no other report, covers."""
    hashes = sorted({_set_of(each)[-1] for each in reported})
    of_these = is_among("entire_message_hash", hashes)
    rebuilt = _look_up_rows(paths, REASSEMBLED_MESSAGES, _COMPARED, hashes, of_these)
    ended = of_these & (pc.field("status") != OVERDUE)
    before = _look_up_rows(paths, INCOMPLETE_MESSAGES, (*_COMPARED, "status"), hashes, ended)
    kept = drop_covered(reported, (*rebuilt, *before))
    whole = {_set_of(row) for row in rebuilt}
    ids = sorted({sds_id for each in kept if _set_of(each) in whole for sds_id in each["sds_ids"]})
    if not ids:
        return kept
    came = _look_up_rows(paths, SDS_MESSAGES, (*_SET, "sds_id", "event_time"), ids, is_among("sds_id", ids))
    return drop_covered(reported, (*rebuilt, *before), list_arrivals(came))


def drop_covered(
    reported: Sequence[Mapping[str, Any]], rows: Iterable[Mapping[str, Any]], arrivals: Arrivals = MappingProxyType({})
) -> list[Mapping[str, Any]]:
    """Keep the reports with a segment that no earlier rebuilt or given-up row of their message contains, among ``rows``
    and the reports. Times are µs.

    An overdue row covers nothing: each later one is another request for the missing segments, and the set may be given
    up yet. *Earlier* is by event time: a set that is rebuilt after it was overdue, in the same micro-batch or in a
    later one, was overdue.

    A segment that came when its message was rebuilt already, like most parity, is in no row. By ``arrivals`` it had
    come before the set of the report began: with nothing given up that contains it, it belongs to what was rebuilt."""
    rebuilt: dict[tuple[Any, ...], list[tuple[int, set[str]]]] = defaultdict(list)
    ended: dict[tuple[Any, ...], list[tuple[int, set[str]]]] = defaultdict(list)
    for row in (*rows, *reported):
        if row.get("status") != OVERDUE:
            by_set = ended if row.get("status") else rebuilt
            by_set[_set_of(row)].append((row["event_time"], set(row["sds_ids"])))

    def is_covered(report: Mapping[str, Any]) -> bool:
        key, at, ids = _set_of(report), report["event_time"], set(report["sds_ids"])
        given_up = [each for time, each in ended[key] if time < at]
        surplus = {each for each in ids if arrivals.get((key, each), at) < report["first_seen"]}.difference(*given_up)
        whole = (each | surplus for time, each in rebuilt[key] if time < at)
        return any(ids <= each for each in (*given_up, *whole))

    return [each for each in reported if not is_covered(each)]


def list_arrivals(rows: Iterable[Mapping[str, Any]]) -> Arrivals:
    """The first arrival of each segment in rows of ``sds_messages``, with times in µs."""
    arrivals: dict[tuple[tuple[Any, ...], str], int] = {}
    for row in rows:
        key = (_set_of(row), row["sds_id"])
        arrivals[key] = min(arrivals.get(key, row["event_time"]), row["event_time"])
    return arrivals


def _look_up_rows(
    paths: PathSettings, table: Table, columns: Sequence[str], values: Sequence[str | bytes], where: pc.Expression
) -> list[dict[str, Any]]:
    """Look up rows of a table without nulls in these columns (jobs write none); times are in µs."""
    rows = Lookup.of(paths, table).rows(columns, values, where)
    index = rows.schema.get_field_index("event_time")
    return list(rows.set_column(index, "event_time", rows["event_time"].cast(pa.int64())).drop_null().to_pylist())


def _set_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The channel, sender and hash of a set; the hash is last."""
    return tuple(row[name] for name in _SET)
