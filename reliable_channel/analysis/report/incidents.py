"""Finds what went wrong at certain times: splits, times in which stores kept little, and floods of new names."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache
from typing import Any

import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.figures import COUNTED
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.analysis.report.splits import Split, find_splits, read_contacts, sum_known

EVERY_MS = 60_000
BIN_S = 300
"""Width of a bin of time (seconds)."""
KEPT_LITTLE, LEAST_QUERIED = 0.25, 10
"""Stores that have less than this share of a bin's messages kept little, if they were asked for so many."""
MANY_NAMES = 20
"""More senders of a single message than this in one bin are a flood."""


def list_splits(source: TableWindow) -> pd.DataFrame:
    """The splits of the busiest channels: channel, groups (participants that were in touch), since, healed (or none),
    and the messages of the channel that are missing from that time."""
    rows = []
    for key, _, splits in _read_channels(source.snapshot, source.window):
        for split in splits:
            since, healed = _to_time(split.since_ms), _to_time(split.healed_ms or split.shown_ms)
            missing = source.query(
                f"""SELECT count(*) AS missing FROM delivery_status WHERE {key.where()} AND verdict = 'missing'
                    AND first_seen BETWEEN $since AND $healed""",  # noqa: S608 - names of columns; values are bound
                **key.parameters,
                since=since,
                healed=healed,
            )["missing"][0]
            groups = [" ".join(sorted(group)) for group in split.groups]
            rows.append(
                {"channel": key.channel_id, "groups": groups, "since": since, "healed": healed, "missing": missing}
            )
    return pd.DataFrame(rows, columns=["channel", "groups", "since", "healed", "missing"])


def list_known(source: TableWindow) -> pd.DataFrame:
    """Of the largest channel with a split, else the largest: in bins of a minute, how many of the
    others' messages (``settled``) each participant knew (``known``)."""
    channels = _read_channels(source.snapshot, source.window)
    _, rows, _ = max(channels, key=lambda channel: (bool(channel[2]), len(channel[1])), default=(None, [], []))
    return pd.DataFrame(sum_known(rows, EVERY_MS // 1000), columns=["time", "participant", "known", "settled"])


Channels = list[tuple[ChannelFilter, list[dict[str, Any]], list[Split]]]


@lru_cache(maxsize=1)  # each cell of a notebook asks for it; of several snapshots, only the last is held in memory
def _read_channels(lake: TableSnapshot, window: Window) -> Channels:
    """Each channel of the window with its rows of :func:`read_contacts` and its splits."""
    contacts = read_contacts(lake, *window.where(), EVERY_MS)
    return [(key, rows, find_splits(lake, key, rows, EVERY_MS)) for key, rows in contacts.items()]


def list_store_answers(source: TableWindow) -> pd.DataFrame:
    """In bins of the time of the messages that stores were asked for: how many of their SDS messages a store has
    (``present``) and has not (``absent``), and how many of the messages are missing. What one participant alone claims
    is none of them: no store has what somebody invented."""
    frame = source.query(
        f"""
        WITH asked AS (
            SELECT node, sds_id, channel_id, content_topic, bool_or(outcome = 'present') AS present FROM store_presence
            WHERE sds_id IS NOT NULL AND outcome IN ('present', 'absent') GROUP BY ALL),
        ids AS (SELECT content_topic, channel_id, message_key, unnest(sds_ids) AS sds_id, first_seen, verdict
                FROM delivery_status WHERE {COUNTED})
        SELECT time_bucket(to_seconds($seconds), first_seen) AS time, count(*) FILTER (present) AS present,
               count(*) FILTER (NOT present) AS absent,
               count(DISTINCT (content_topic, channel_id, message_key)) FILTER (verdict = 'missing') AS missing
        FROM ids JOIN asked USING (content_topic, channel_id, sds_id) WHERE first_seen IS NOT NULL GROUP BY 1 ORDER BY 1
        """,  # noqa: S608 - constants of our own
        seconds=BIN_S,
    )
    frame["share"] = frame["present"] / (frame["present"] + frame["absent"])
    return frame


def list_new_names(source: TableWindow) -> pd.DataFrame:
    """In bins of time: the senders that sent a single SDS message ever, in any channel, however many copies came."""
    in_window, values = source.window.where()
    counted = source.snapshot.arrow(
        f"""
        WITH firsts AS (SELECT min(event_time) AS event_time, any_value(channel_id) AS channel_id,
                               any_value(content_topic) AS content_topic
                        FROM sds_messages GROUP BY sender_id HAVING min(sds_id) = max(sds_id))
        SELECT time_bucket(to_seconds($seconds), event_time) AS time, count(*) AS senders
        FROM firsts WHERE {in_window} GROUP BY 1 ORDER BY 1
        """,  # noqa: S608 - names of columns; values are bound
        {**values, "seconds": BIN_S},
    )
    frame: pd.DataFrame = counted.to_pandas()
    return frame


def describe(source: TableWindow) -> str:
    """The incidents in words, one sentence each."""
    sentences = []
    for split in list_splits(source).itertuples():
        sides = " and ".join(text.printable(group, 200) for group in split.groups)
        sentences.append(
            f"{text.name(split.channel)} was split from {text.time(split.since)} to {text.time(split.healed)}: {sides}."
            f" Missing of that time: {text.pluralize(split.missing, 'messages')}."
        )
    answers = list_store_answers(source)
    asked = answers["present"] + answers["absent"]
    little = answers[(answers["share"] < KEPT_LITTLE) & (asked >= LEAST_QUERIED)]
    if not little.empty:
        until = little["time"].max() + pd.Timedelta(seconds=BIN_S)
        then, ever = text.count(little["missing"].sum()), text.count(answers["missing"].sum())
        missing = f"{then} of the {ever} missing messages among them are of that time"
        if ever == "0":
            missing = "none of the messages is missing"
        sentences.append(
            f"Stores had next to nothing of what they were asked for from {text.time(little['time'].min())} to"
            f" {text.time(until)}: {missing}."
        )
    names = list_new_names(source)
    flood = names[names["senders"] > MANY_NAMES]
    if not flood.empty:
        senders, since = text.count(flood["senders"].sum()), text.time(flood["time"].min())
        sentences.append(
            f"{senders} senders of a single message appeared from {since} on: a flood of invented names. What only they"
            " refer to is not counted as missing."
        )
    return "\n".join(sentences) or "No split, no outage of a store and no flood in this window."


def _to_time(ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC)
