"""Finds splits: groups of participants of a channel each of which has its own group's newer messages and none of the
other's.

Two participants are **apart** when each is cut off from the other (``cut_off_from`` of the view ``participant_views``):
its Bloom filter proves that it lacks all of the other's newest messages. They are **in touch** when one has a message
that the other made since the split began. The groups are who is in touch; there is a split when two groups are left.
Somebody who hears everything, or of whom nothing is proven, is in no group.

Names are free: only participants that have acknowledged each other before are ever apart, so nobody splits a channel by
inventing participants. Who writes in the names of the participants themselves can (docs/security.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import combinations, groupby
from typing import Any, NamedTuple

from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables.views import participant_views_sql

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


class _Contact(NamedTuple):
    last_had_ms: int | None
    cut_off_ms: int | None


_Contacts = dict[str, dict[str, _Contact]]
"""Participant → sender → what its newest message shows about the sender's."""


def read_contacts(
    lake: TableSnapshot, where: str, parameters: dict[str, Any], every_ms: int
) -> dict[ChannelFilter, list[dict[str, Any]]]:
    """What each participant shows about each sender over time, by channel (columns: ``participant_views_sql``)."""
    rows = lake.select(f"{participant_views_sql(where, every_ms)} ORDER BY made_ms, participant", parameters)
    by_channel: dict[ChannelFilter, list[dict[str, Any]]] = {}
    for row in rows:
        key = ChannelFilter(*(row[name] for name in ChannelFilter._fields))
        by_channel.setdefault(key, []).append(row)
    return by_channel


def find_splits(lake: TableSnapshot, key: ChannelFilter, rows: list[dict[str, Any]], every_ms: int) -> list[Split]:
    """The splits of a channel, oldest first, from its rows of :func:`read_contacts`."""
    apart = {pair for at in _follow(rows, every_ms) for pair in _list_apart(at[1], lambda _: True)}
    if not apart:
        return []
    met = {
        (row["acknowledged_by"], row["sender_id"])
        for row in lake.select(
            f"SELECT DISTINCT acknowledged_by, sender_id FROM acks WHERE {key.where()}",  # noqa: S608 - our own
            key.parameters,
        )
    }
    splits: list[Split] = []
    current: Split | None = None
    for now_ms, contacts in _follow(rows, every_ms):
        current = _continue(current, contacts, now_ms, lambda pair: pair in met and pair[::-1] in met)
        if current and splits and splits[-1].since_ms == current.since_ms:
            splits.pop()
        if current:
            splits.append(current)
            current = None if current.healed_ms else current
    return splits


def _follow(rows: list[dict[str, Any]], every_ms: int) -> Iterable[tuple[int, _Contacts]]:
    """The newest evidence of each participant, after each time in which there was any."""
    newest: dict[str, tuple[int, dict[str, _Contact]]] = {}
    for _, together in groupby(rows, lambda row: row["made_ms"] // every_ms):
        now_ms = 0
        for (now_ms, who), about in groupby(together, lambda row: (row["made_ms"], row["participant"])):
            newest[who] = now_ms, {r["sender_id"]: _Contact(r["last_had_ms"], r["cut_off_ms"]) for r in about}
        yield now_ms, {who: about for who, (made_ms, about) in newest.items() if made_ms > now_ms - STALE_MS}


def _list_apart(contacts: _Contacts, have_met: Callable[[tuple[str, str]], bool]) -> dict[tuple[str, str], list[int]]:
    """The pairs that are cut off from each other, and since when each of the two is."""
    pairs = {}
    for one, other in combinations(sorted(contacts), 2):
        since = [
            contact.cut_off_ms
            for contact in (contacts[one].get(other), contacts[other].get(one))
            if contact is not None and contact.cut_off_ms is not None
        ]
        if len(since) == 2 and have_met((one, other)):
            pairs[one, other] = since
    return pairs


def _continue(
    current: Split | None, contacts: _Contacts, now_ms: int, have_met: Callable[[tuple[str, str]], bool]
) -> Split | None:
    """The split as of this evidence: a new one, the current one with what is new, healed, or ``None``."""
    apart = _list_apart(contacts, have_met)
    groups = _find_groups(contacts, apart)
    if len(groups) > 1:
        if current is None:
            return Split(groups, min(min(since) for since in apart.values()), now_ms)
        most = max(groups, current.groups, key=lambda several: sum(map(len, several)))
        return Split(most, current.since_ms, now_ms)
    if current is None:
        return None
    if any(
        _are_in_touch(contacts, one, other, current.since_ms)
        for here, there in combinations(current.groups, 2)
        for one in here
        for other in there
    ):
        return Split(current.groups, current.since_ms, current.shown_ms, now_ms)
    return current if now_ms < current.shown_ms + STALE_MS else None


def _find_groups(contacts: _Contacts, apart: dict[tuple[str, str], list[int]]) -> tuple[Group, ...]:
    """The groups of those who are apart from anybody, with the listeners of each; one or none if there is no split."""
    if not apart:
        return ()
    since_ms = max(max(since) for since in apart.values())
    groups = _join(
        [frozenset({who}) for pair in apart for who in pair],
        lambda here, there: any(_are_in_touch(contacts, p, q, since_ms) for p in here for q in there),
    )
    groups = _join(
        groups, lambda here, there: not any((p in here) != (q in here) and {p, q} <= here | there for p, q in apart)
    )
    if len(groups) < 2:
        return ()
    listeners: dict[Group, set[str]] = {group: set() for group in groups}
    for who in contacts.keys() - frozenset().union(*groups):
        heard = [group for group in groups if any(_are_in_touch(contacts, who, p, since_ms) for p in group)]
        if len(heard) == 1:
            listeners[heard[0]].add(who)
    return tuple(sorted((group | listeners[group] for group in groups), key=sorted))


def _join(groups: list[Group], belong_together: Callable[[Group, Group], bool]) -> list[Group]:
    """Unite groups until no two of them belong together."""
    united: list[Group] = []
    for group in groups:
        joined = [other for other in united if group & other or belong_together(group, other)]
        united = [other for other in united if other not in joined] + [group.union(*joined)]
    return united if len(united) == len(groups) else _join(united, belong_together)


def _are_in_touch(contacts: _Contacts, one: str, other: str, since_ms: int) -> bool:
    """Whether one of the two has a message that the other made at that time or later."""
    return any(
        contact is not None and contact.last_had_ms is not None and contact.last_had_ms >= since_ms
        for contact in (contacts.get(one, {}).get(other), contacts.get(other, {}).get(one))
    )
