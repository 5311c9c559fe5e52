"""Finds the overdue segment sets whose missing segments are to be requested from store nodes.

The SDS ids of missing segments are unknown unless a later message names them, and those that are named are requested by
``refetch_requests``. So a set is requested by content topic and time, and its segments are recognised by its
``entire_message_hash``. Each row ``overdue`` of ``incomplete_messages`` is one request, for the hour before it: a range
back to the request before would let one envelope of a stranger make every run read half a day of a store.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from reliable_channel.config import Settings
from reliable_channel.lake.read import dataset_of, exists, in_our_time, open_table
from reliable_channel.lake.tables import CHANNEL_KEY, INCOMPLETE_MESSAGES, REASSEMBLED_MESSAGES
from reliable_channel.pipeline.lookup import Lookup, is_among

PURPOSE = "set"
"""The ``store_presence.purpose`` of such a request; its ``detail`` is the set's hash in hex unless the node failed."""

_SET = (*CHANNEL_KEY, "entire_message_hash")


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


def open_sets(settings: Settings, answers: Iterable[Mapping[str, Any]], limit: int) -> list[OverdueSet]:
    """Return at most ``limit`` overdue sets that are neither rebuilt nor given up since, and whose newest request no
    node has answered yet, the oldest first. A request that only failed is repeated until the set is given up.

    ``answers``: rows of ``store_presence``."""
    if not exists(settings.paths, INCOMPLETE_MESSAGES):
        return []
    columns = [*_SET, "event_time", "status"]
    rows = in_our_time(dataset_of(open_table(settings.paths, INCOMPLETE_MESSAGES)).to_table(columns=columns))
    requests: dict[tuple[Any, ...], list[dt.datetime]] = {}
    ended: dict[tuple[Any, ...], dt.datetime] = {}
    for row in rows.drop_null().to_pylist():
        key, at = tuple(row[name] for name in _SET), row["event_time"]
        if row["status"] == "overdue":
            requests.setdefault(key, []).append(at)
        else:
            ended[key] = max(at, ended.get(key, at))
    done = {
        (row["pubsub_topic"], row["content_topic"], row["channel_id"], row["detail"], row["attempt"])
        for row in answers
        if row["purpose"] == PURPOSE and row["outcome"] != "error"
    }
    wanted = [
        OverdueSet(
            **dict(zip(_SET, key, strict=True)),
            attempt=len(times),
            event_time=max(times),
        )
        for key, times in requests.items()
        if max(times) > ended.get(key, dt.datetime.min.replace(tzinfo=dt.UTC))
        and (*key[:3], key[3].hex(), len(times)) not in done
    ]
    rebuilt = _read_rebuilt(settings, {each.entire_message_hash for each in wanted})
    open_ = [each for each in wanted if not any(at >= each.event_time for at in rebuilt.get(_key(each), ()))]
    return sorted(open_, key=lambda each: (each.event_time, each.entire_message_hash))[:limit]


def _key(one: OverdueSet) -> tuple[Any, ...]:
    return one.pubsub_topic, one.content_topic, one.channel_id, one.entire_message_hash


def _read_rebuilt(settings: Settings, hashes: set[bytes]) -> dict[tuple[Any, ...], list[dt.datetime]]:
    """When messages with these hashes were rebuilt."""
    if not hashes or not exists(settings.paths, REASSEMBLED_MESSAGES):
        return {}
    look_up = Lookup.of(settings.paths, REASSEMBLED_MESSAGES)
    rows = look_up.rows([*_SET, "event_time"], hashes, is_among("entire_message_hash", hashes))
    times: dict[tuple[Any, ...], list[dt.datetime]] = {}
    for row in in_our_time(rows).to_pylist():
        times.setdefault(tuple(row[name] for name in _SET), []).append(row["event_time"])
    return times
