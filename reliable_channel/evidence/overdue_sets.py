"""Finds the overdue segment sets whose missing segments are to be requested from store nodes.

The SDS ids of missing segments are unknown unless a later message names them, and those that are named are requested by
``refetch_requests``. So a set is requested by content topic and time, and its segments are recognised by its
``entire_message_hash``. Each row ``overdue`` of ``incomplete_messages`` is one request, for the hour before it: a range
back to the request before would let one envelope of a stranger make every run read half a day of a store.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.lake.read import dataset_of, exists, in_our_time, open_table
from reliable_channel.lake.tables import CHANNEL_KEY, INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES
from reliable_channel.pipeline.lookup import Lookup, is_among

PURPOSE = "set"
"""The ``store_presence.purpose`` of such a request; its ``detail`` is the set's hash in hex unless the node failed."""

_SET = (*CHANNEL_KEY, "entire_message_hash")
_key_of = attrgetter(*_SET)
_NEVER = dt.datetime.min.replace(tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class OverdueSet:
    """The newest request for the segments of one payload in a channel. ``attempt`` is the number of its overdue rows,
    ``event_time`` the time of the last one."""

    pubsub_topic: str
    content_topic: str
    channel_id: str
    entire_message_hash: bytes
    attempt: int
    event_time: dt.datetime


def find_open_sets(settings: Settings, answers: pa.Table, limit: int) -> list[OverdueSet]:
    """Return at most ``limit`` overdue sets that are neither rebuilt nor given up since, and whose newest request no
    node has answered yet, the oldest first. A request that only failed is repeated until the set is given up.

    ``answers``: rows of ``store_presence``."""
    if not exists(settings.paths, INCOMPLETE_MESSAGES):
        return []
    columns = [*_SET, "event_time", "status"]
    rows = in_our_time(dataset_of(open_table(settings.paths, INCOMPLETE_MESSAGES)).to_table(columns=columns))
    wanted = [OverdueSet(**row) for row in _find_unanswered(rows.drop_null(), answers).to_pylist()]
    rebuilt = _read_rebuilt(settings, {each.entire_message_hash for each in wanted})
    # By event time: a set may be rebuilt after it was reported, in the same micro-batch or in another
    # (docs/decisions.md, *A silent sender is not a dead one*).
    still_open = [each for each in wanted if rebuilt.get(_key_of(each), _NEVER) < each.event_time]
    return sorted(still_open, key=lambda each: (each.event_time, each.entire_message_hash))[:limit]


def _find_unanswered(rows: pa.Table, answers: pa.Table) -> pa.Table:
    """The newest requests that have no answer, of sets that were not given up since. Almost all have one, also those of
    weeks ago, and a stranger can open a set with one segment, so they are compared in Arrow."""
    is_overdue = pc.equal(rows["status"], "overdue")
    times = rows.filter(is_overdue).group_by([*_SET]).aggregate([("event_time", "max"), ("event_time", "count")])
    requests = times.rename_columns([*_SET, "event_time", "attempt"])
    last = rows.filter(pc.invert(is_overdue)).group_by([*_SET]).aggregate([("event_time", "max")])
    ended = last.rename_columns([*_SET, "ended"])
    both = requests.join(ended, [*_SET], join_type="left outer", use_threads=False)
    still_open = both.filter(pc.greater(both["event_time"], both["ended"]).fill_null(True))
    detail = pa.array([hash_.hex() for hash_ in still_open["entire_message_hash"].to_pylist()], pa.string())
    named = still_open.append_column("detail", detail)
    answered = pc.and_(pc.equal(answers["purpose"], PURPOSE), pc.not_equal(answers["outcome"], "error"))
    done = answers.filter(answered).select(_REQUEST)
    done = done.set_column(_REQUEST.index("attempt"), "attempt", done["attempt"].cast(pa.int64()))
    return named.join(done, _REQUEST, join_type="left anti", use_threads=False).drop_columns(["detail", "ended"])


_REQUEST = [*CHANNEL_KEY, "detail", "attempt"]
"""The columns that name a request in ``store_presence``, for joins."""


def _read_rebuilt(settings: Settings, hashes: set[bytes]) -> dict[tuple[Any, ...], dt.datetime]:
    """When a message with each of these hashes was last rebuilt. Anybody can complete one payload in any number."""
    latest: dict[tuple[Any, ...], dt.datetime] = {}
    if not hashes or not exists(settings.paths, REASSEMBLED_MESSAGES):
        return latest
    for rows in Lookup.of(settings.paths, REASSEMBLED_MESSAGES).iterate([*_SET, "event_time"], hashes):
        of_these = in_our_time(rows.filter(is_among("entire_message_hash", hashes)).drop_null())
        for row in of_these.group_by([*_SET]).aggregate([("event_time", "max")]).to_pylist():
            key = tuple(row[name] for name in _SET)
            latest[key] = max(row["event_time_max"], latest.get(key, _NEVER))
    return latest
