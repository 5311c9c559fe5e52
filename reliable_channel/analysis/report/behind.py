"""Tells which participants are behind the others, by what they show themselves (the view ``participant_views``)."""

from __future__ import annotations

import datetime as dt

from reliable_channel.analysis import text
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import Window
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.tables.views import participant_views_sql

NAMED = 3
"""How many participants are named."""
LOOKED_AT = dt.timedelta(hours=1)
"""The time before the newest message that is examined. The cost of the view grows with it."""


def tell_behind(lake: TableSnapshot, window: Window) -> list[str]:
    """A sentence about the participants that provably lack most messages in the last hour of a window; none if nobody
    lacks any."""
    where, given = window.where()
    try:
        (newest,) = lake.select(f"SELECT max(event_time) AS at FROM sds_messages WHERE {where}", given)  # noqa: S608
        if newest["at"] is None:
            return []
        given["hour"] = newest["at"] - LOOKED_AT
        rows = lake.select(
            f"""SELECT channel_id, participant, lacks, lacks_since, count(*) OVER () AS everybody
                FROM ({participant_views_sql(f"{where} AND event_time > $hour")}) WHERE lacks > 0
                ORDER BY lacks DESC, lacks_since, channel_id, participant LIMIT {NAMED}""",  # noqa: S608 - our own
            given,
        )
    except EnvironmentFault as fault:
        return [f"Who is behind is not known: {fault.cause}"]
    if not rows:
        return []
    behind = [
        f"{text.name(row['participant'])} lacks {text.pluralize(row['lacks'], 'messages')} of"
        f" {text.name(row['channel_id'])} since {text.time(row['lacks_since'])}"
        for row in rows
    ]
    more = rows[0]["everybody"] - len(rows)
    return [f"{', '.join(behind)} (UTC){f', and {more:,} more lack some' if more else ''}."]
