"""Counts who has acknowledged whom: per sender and participant, how many of the sender's SDS messages were
acknowledged."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot

MOST_NAMES = 24
"""The maximum of rows and columns, the most active first, because a stranger can invent participants."""


@dataclass(frozen=True, slots=True)
class Cell:
    """SDS messages of a sender that a participant acknowledged: with certain and with weaker evidence only."""

    certain: int
    weaker: int
    p50_ms: float | None


@dataclass(frozen=True)
class Matrix:
    """``senders``: name → SDS messages delivered here; ``participants``: those that acknowledge; ``more``: number of
    names left out."""

    senders: dict[str | None, int]
    participants: list[str | None]
    cells: dict[tuple[str | None, str | None], Cell]
    more: int


def acks_matrix(lake: TableSnapshot, key: ChannelFilter, since: dt.datetime, until: dt.datetime) -> Matrix:
    """The matrix of one channel, of SDS messages delivered in the window.

    Each message counts once per participant, by its strongest evidence; latency is that of the first evidence, ms."""
    parameters = {**key.parameters, "since": since, "until": until}
    sent = lake.select(
        f"""
        SELECT sender_id, count(DISTINCT sds_id) AS messages FROM deliveries
        WHERE segment_kind IS NOT NULL AND sds_kind <> 'ephemeral' AND {key.where()}
          AND event_time > $since AND event_time <= $until
        GROUP BY ALL ORDER BY messages DESC, sender_id
        """,  # noqa: S608 - names of our own only
        parameters,
    )
    rows = lake.select(
        f"""
        WITH sent AS (
            SELECT DISTINCT sender_id, sds_id FROM deliveries
            WHERE segment_kind IS NOT NULL AND sds_kind <> 'ephemeral' AND {key.where()}
              AND event_time > $since AND event_time <= $until),
        confirmed AS (
            SELECT sds_id, acknowledged_by, bool_or(certainty = 'certain') AS certain, min(latency_ms) AS latency_ms
            FROM acks WHERE {key.where()} GROUP BY ALL)
        SELECT sender_id, acknowledged_by, count(*) FILTER (certain) AS certain,
               count(*) FILTER (NOT certain) AS weaker, median(latency_ms) AS p50_ms
        FROM sent JOIN confirmed USING (sds_id) GROUP BY ALL ORDER BY count(*) DESC, acknowledged_by, sender_id
        """,  # noqa: S608 - names of our own only
        parameters,
    )
    senders = {row["sender_id"]: row["messages"] for row in sent[:MOST_NAMES]}
    totals: dict[str | None, int] = {}
    for row in rows:
        totals[row["acknowledged_by"]] = totals.get(row["acknowledged_by"], 0) + row["certain"] + row["weaker"]
    # Senders first, in their order, so that the diagonal is one.
    participants = [name for name in senders if name in totals]
    participants += sorted((name for name in totals if name not in senders), key=lambda name: -totals[name])
    shown = participants[:MOST_NAMES]
    cells = {
        (row["sender_id"], row["acknowledged_by"]): Cell(row["certain"], row["weaker"], row["p50_ms"])
        for row in rows
        if row["sender_id"] in senders and row["acknowledged_by"] in shown
    }
    return Matrix(senders, shown, cells, max(0, len(sent) - len(senders)) + len(participants) - len(shown))
