"""Finds splits: groups of participants of a channel each of which has its own group's newer messages and none of the
other's.

Two participants are **apart** when each is cut off from the other (``cut_off_from`` of the view ``participant_views``):
its Bloom filter proves that it lacks all of the other's newest messages. They are **in touch** when one has a message
that the other made since they are apart. The groups are who is in touch, directly or through others; there is a split
when somebody of one group is apart from somebody of another.

Names are free. So only the channel's **circle** counts: the participants that have acknowledged each other's messages,
directly or through others, since the first acknowledgement that is known. Nobody splits a channel by inventing
participants that the others never acknowledged (docs/security.md: what a stranger can do).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import Any, NamedTuple

from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables import CHANNEL_KEY
from reliable_channel.lake.tables.views import participant_views_sql

MOST_CHANNELS = 200
"""In which splits are looked for, the busiest first, because strangers can create channels."""
STALE_MS = 900_000
"""Evidence older than this shows nothing about now."""
Group = frozenset[str]


@dataclass(frozen=True, slots=True)
class Split:
    """``since_ms``: when the oldest message was made that another group lacks; ``shown_ms``: when the newest evidence
    of the split was made; ``healed_ms``: of the first evidence that a message crossed, or ``None``."""

    groups: tuple[Group, ...]
    since_ms: int
    shown_ms: int
    healed_ms: int | None = None

    def is_open(self, now_ms: float) -> bool:
        """Whether it is shown by evidence that is new enough, and not healed."""
        return self.healed_ms is None and now_ms < self.shown_ms + STALE_MS


class _Contact(NamedTuple):
    last_had_ms: int | None
    cut_off_ms: int | None


_Contacts = dict[str, dict[str, _Contact]]
"""Participant → sender → what its newest message shows about the sender's."""


def read_contacts(
    lake: TableSnapshot, where: str, parameters: dict[str, Any], every_ms: int
) -> dict[ChannelFilter, list[dict[str, Any]]]:
    """What each participant shows about each sender over time, by channel (columns: ``participant_views_sql``), for the
    :data:`MOST_CHANNELS` busiest channels."""
    key_columns = ", ".join(CHANNEL_KEY)
    busiest = f"""({key_columns}) IN (
        SELECT ({key_columns}) FROM sds_messages WHERE {where} AND sds_kind <> 'tick'
        GROUP BY {key_columns} ORDER BY count(*) DESC, {key_columns} LIMIT {MOST_CHANNELS})"""  # noqa: S608 - our own
    views = participant_views_sql(f"{where} AND {busiest}", every_ms)
    rows = lake.select(f"{views} ORDER BY made_ms, participant", parameters)
    by_channel: dict[ChannelFilter, list[dict[str, Any]]] = {}
    for row in rows:
        key = ChannelFilter(*(row[name] for name in ChannelFilter._fields))
        by_channel.setdefault(key, []).append(row)
    return by_channel


def sum_known(rows: Iterable[dict[str, Any]], seconds: int) -> list[tuple[dt.datetime, str, int, int]]:
    """Of a channel's rows of :func:`read_contacts`, in bins of ``seconds``: time, participant, how many of the others'
    messages it knew, and of how many."""
    bins: dict[tuple[int, str], list[int]] = {}
    for row in rows:
        numbers = bins.setdefault((row["made_ms"] // 1000 // seconds * seconds, row["participant"]), [0, 0])
        numbers[0] += row["known"]
        numbers[1] += row["settled"]
    return [
        (dt.datetime.fromtimestamp(second, dt.UTC), who, known, settled)
        for (second, who), (known, settled) in bins.items()
        if settled
    ]


def find_splits(lake: TableSnapshot, key: ChannelFilter, rows: list[dict[str, Any]], every_ms: int) -> list[Split]:
    """The splits of a channel, oldest first, from its rows of :func:`read_contacts`."""
    if not any(_list_apart(contacts) for _, contacts in _follow(rows, every_ms)):
        return []
    acknowledgements = lake.select(
        f"""SELECT acknowledged_by, sender_id FROM acks WHERE {key.where()}
            GROUP BY ALL ORDER BY min(event_time), acknowledged_by""",  # noqa: S608 - our own
        key.parameters,
    )
    circle = find_circle((row["acknowledged_by"], row["sender_id"]) for row in acknowledgements)
    splits: list[Split] = []
    for now_ms, contacts in _follow(rows, every_ms):
        last = splits.pop() if splits and splits[-1].is_open(now_ms) else None
        split = _update(last, {who: about for who, about in contacts.items() if who in circle}, now_ms)
        splits += [split] if split else []
    return splits


def find_circle(acknowledgements: Iterable[tuple[str, str]]) -> Group:
    """The participants that acknowledged each other, directly or through others, from pairs (acknowledged by, sender)
    in the order of their times: of several such circles the oldest."""
    pairs = dict.fromkeys(acknowledgements)
    mutual: dict[str, list[str]] = {}
    for one, other in pairs:
        if (other, one) in pairs:
            mutual.setdefault(one, []).append(other)
    # The oldest: a stranger can invent participants that acknowledge each other, but not before the first that did.
    circle, waiting = set[str](), [*mutual][:1]
    while waiting:
        if (who := waiting.pop()) not in circle:
            circle.add(who)
            waiting += mutual[who]
    return frozenset(circle)


def _follow(rows: list[dict[str, Any]], every_ms: int) -> Iterator[tuple[int, _Contacts]]:
    """The newest evidence of each participant, after each time in which there was any."""
    newest: dict[str, tuple[int, dict[str, _Contact]]] = {}
    for _, together in groupby(rows, lambda row: row["made_ms"] // every_ms):
        now_ms = 0
        for (now_ms, who), about in groupby(together, lambda row: (row["made_ms"], row["participant"])):
            newest[who] = now_ms, {r["sender_id"]: _Contact(r["last_had_ms"], r["cut_off_ms"]) for r in about}
        yield now_ms, {who: about for who, (made_ms, about) in newest.items() if made_ms > now_ms - STALE_MS}


def _update(split: Split | None, contacts: _Contacts, now_ms: int) -> Split | None:
    """The open split, or a new one, as of this evidence; ``None`` if there is none."""
    apart = _list_apart(contacts)
    groups = _find_groups(contacts, apart)
    if groups and split is None:
        return Split(groups, min(map(min, apart.values())), now_ms)
    if split is None:
        return None
    if groups:
        most = max(groups, split.groups, key=lambda several: sum(map(len, several)))
        return replace(split, groups=most, shown_ms=now_ms)
    has_healed = any(_make_touch_test(contacts, split.since_ms)(*pair) for pair in combinations(split.groups, 2))
    return replace(split, healed_ms=now_ms) if has_healed else split


def _list_apart(contacts: _Contacts) -> dict[Group, tuple[int, int]]:
    """The pairs that are cut off from each other, and since when each of the two is."""
    pairs = {}
    for one, other in combinations(contacts, 2):
        here, there = contacts[one].get(other), contacts[other].get(one)
        if here and there and here.cut_off_ms is not None and there.cut_off_ms is not None:
            pairs[frozenset({one, other})] = here.cut_off_ms, there.cut_off_ms
    return pairs


def _find_groups(contacts: _Contacts, apart: dict[Group, tuple[int, int]]) -> tuple[Group, ...]:
    """Two or more groups, or none if there is no split."""
    if not apart:
        return ()
    in_touch = _join([frozenset({who}) for who in contacts], _make_touch_test(contacts, max(map(max, apart.values()))))
    # Those of whom nothing is proven are in no group; groups that nobody is known to be apart from stay together.
    known = [group for group in in_touch if any(group & pair for pair in apart)]
    groups = _join(known, lambda here, there: not any(pair & here and pair & there for pair in apart))
    return tuple(sorted(groups, key=sorted)) if len(groups) > 1 else ()


def _make_touch_test(contacts: _Contacts, since_ms: int) -> Callable[[Group, Group], bool]:
    """Whether anybody of one group has a message that anybody of the other made at that time or later."""

    def are_in_touch(here: Group, there: Group) -> bool:
        pairs = [(one, other) for one in here for other in there]
        for one, other in [*pairs, *((other, one) for one, other in pairs)]:
            contact = contacts.get(one, {}).get(other)
            if contact and contact.last_had_ms is not None and contact.last_had_ms >= since_ms:
                return True
        return False

    return are_in_touch


def _join(groups: list[Group], belong_together: Callable[[Group, Group], bool]) -> list[Group]:
    """Unite groups until no two of them belong together."""
    united: list[Group] = []
    for group in groups:
        joined = [other for other in united if belong_together(group, other)]
        united = [other for other in united if other not in joined] + [group.union(*joined)]
    return united if len(united) == len(groups) else _join(united, belong_together)
