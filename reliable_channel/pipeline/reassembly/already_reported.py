"""Drops reports of segment sets whose message was already rebuilt or already given up.

A store may return a few segments again a day or a year later. Their message is looked up by its hash.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.tables import INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES, SDS_MESSAGES, Table
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.pipeline.reassembly.set_results import GIVEN_UP, OVERDUE, SCOPE

_SET = (*SCOPE, "entire_message_hash")
_COMPARED = (*_SET, "sds_ids", "event_time")

Arrivals = Mapping[tuple[tuple[Any, ...], str], int]
"""Set and SDS id of a segment → when it first came, µs."""


def drop_already_reported(reported: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[Mapping[str, Any]]:
    """Keep the reports that no row of the tables, and no other report, covers."""
    rebuilt = _read_sets(REASSEMBLED_MESSAGES, reported, paths)
    ended = [row | {"status": GIVEN_UP} for row in _read_sets(INCOMPLETE_MESSAGES, reported, paths)]
    kept = drop_covered(reported, (*rebuilt, *ended))
    whole = {_set_of(row) for row in rebuilt}
    ids = sorted({sds_id for each in kept if _set_of(each) in whole for sds_id in each["sds_ids"]})
    if not ids:
        return kept
    return drop_covered(reported, (*rebuilt, *ended), list_arrivals(_read_arrivals(ids, paths)))


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


def _read_sets(table: Table, reported: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[dict[str, Any]]:
    """The sets of a table that may cover a report, with times in µs. Anybody can complete or begin any number of sets
    of one payload, so of those that have the same of the reported ids there is one row, with these ids and the earliest
    time."""
    ids = frozenset(sds_id for each in reported for sds_id in each["sds_ids"])
    hashes, senders = (sorted({each[name] for each in reported}) for name in ("entire_message_hash", "sender_id"))
    wanted = is_among("entire_message_hash", hashes) & is_among("sender_id", senders)
    columns = _COMPARED
    if table is INCOMPLETE_MESSAGES:
        wanted, columns = wanted & (pc.field("status") != OVERDUE), (*columns, "status")
    earliest: dict[tuple[tuple[Any, ...], frozenset[str]], int] = {}
    for rows in Lookup.of(paths, table).iterate(columns, hashes):
        for row in _list_by_ids(_read_times(rows.filter(wanted)), ids):
            key = _set_of(row), ids.intersection(row["sds_ids"])
            earliest[key] = min(row["event_time"], earliest.get(key, row["event_time"]))
    return [
        dict(zip(_SET, of, strict=True)) | {"sds_ids": held, "event_time": at} for (of, held), at in earliest.items()
    ]


def _list_by_ids(rows: pa.Table, ids: Set[str]) -> Iterator[dict[str, Any]]:
    """The rows with one of ``ids``, and of those of each set that have none the earliest, without its ids."""
    lists = rows["sds_ids"].combine_chunks()
    has_one = pc.is_in(pc.list_flatten(lists), pa.array(sorted(ids), pa.string()))
    numbers = pc.unique(pc.list_parent_indices(lists).filter(has_one))
    yield from rows.take(numbers).to_pylist()
    others = rows.filter(pc.invert(pc.is_in(pa.array(range(rows.num_rows), pa.int64()), numbers.cast(pa.int64()))))
    for row in others.group_by([*_SET]).aggregate([("event_time", "min")]).to_pylist():
        yield row | {"sds_ids": (), "event_time": row["event_time_min"]}


def _read_arrivals(ids: Sequence[str], paths: PathSettings) -> Iterator[dict[str, Any]]:
    """When segments with these ids came first. A stranger can repeat one in any number."""
    for rows in Lookup.of(paths, SDS_MESSAGES).iterate((*_SET, "sds_id", "event_time"), ids):
        copies = _read_times(rows.filter(is_among("sds_id", ids))).group_by([*_SET, "sds_id"])
        for row in copies.aggregate([("event_time", "min")]).to_pylist():
            yield row | {"event_time": row["event_time_min"]}


def _read_times(rows: pa.Table) -> pa.Table:
    """The rows without nulls (jobs write none), with times in µs."""
    index = rows.schema.get_field_index("event_time")
    return rows.set_column(index, "event_time", rows["event_time"].cast(pa.int64())).drop_null()


def _set_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The channel, sender and hash of a set; the hash is last."""
    return tuple(row[name] for name in _SET)
