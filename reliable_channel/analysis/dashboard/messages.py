"""Builds the list of messages: the newest ones, filtered by verdict, cause and channel, or those that a hash or id
matches."""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from typing import Any, Literal

from reliable_channel.analysis.dashboard.sections import PAGE_ROWS, Rows, section
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import NO_CAUSE, SEEN
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.investigate import MessageFacts, find, select_judged
from reliable_channel.analysis.report.snapshot import TableSnapshot

TABLES = ("clock", "delivery_status", "sds_messages", "sender_events", "lost_dependencies", "refetch_requests")
VerdictFilter = Literal["", "delivered", "missing", "unknown"]
MOST_FOUND = 50
MOST_NAMES = 5_000
LONGEST_LIKE = 40
"""Longer names are hashes, or hostile: to compare one with another of few letters takes the cube of their length."""
MOST_CHOICES = 200
"""The number of causes and channels that can be selected; others are reached by their page."""


@dataclass(frozen=True)
class MessageFilter:
    """The filter of listed messages that have a verdict; an empty text is no condition. ``channel`` is the whole
    channel id."""

    verdict: VerdictFilter = ""
    cause: str = ""
    channel: str = ""


def page(lake: TableSnapshot, window: TimeWindow, wanted: str, chosen: MessageFilter, number: int) -> dict[str, Any]:
    """The parts of the page: the matches, or the newest messages and the available filters."""
    if wanted:
        matches = section(lake, ("sds_messages",), lambda: search(lake, wanted))
        like = [] if matches.data else section(lake, ("delivery_status",), lambda: names_like(lake, wanted)).data
        return {"found": matches, "messages": None, "choices": None, "like": like}
    return {
        "found": None,
        "messages": section(lake, ("delivery_status",), lambda: newest(lake, window, chosen, number)),
        "choices": section(lake, ("delivery_status",), lambda: choices(lake, window, chosen)),
    }


def search(lake: TableSnapshot, wanted: str) -> list[MessageFacts]:
    """Messages with this id or hash, or whose id or hash begins with it, or else the newest of a channel or sender of
    this name."""
    matches = find(lake, wanted, MOST_FOUND)
    is_of = "channel_id = $name OR sender_id = $name"
    return matches or select_judged(lake, is_of, {"name": wanted, "limit": MOST_FOUND})


def names_like(lake: TableSnapshot, wanted: str) -> list[str]:
    """Channels and senders with a similar name, the most similar first; none for a name that nobody types."""
    wanted = wanted.strip().lower()
    if len(wanted) > LONGEST_LIKE:
        return []
    rows = lake.select(
        f"""SELECT channel_id AS name FROM delivery_status UNION SELECT sender_id FROM delivery_status
            ORDER BY name LIMIT {MOST_NAMES}"""  # noqa: S608 - constants of our own
    )
    known = {row["name"].lower(): row["name"] for row in rows if row["name"]}
    return [known[name] for name in difflib.get_close_matches(wanted, known, n=3)]


def choices(lake: TableSnapshot, window: TimeWindow, chosen: MessageFilter) -> dict[str, list[str]]:
    """The causes and channels of the window's messages with the chosen verdict, those with most messages first."""

    def names(column: str) -> list[str]:
        rows = lake.select(
            f"""
            SELECT {column} AS name FROM delivery_status
            WHERE {SEEN} AND ($verdict = '' OR verdict = $verdict)
                  AND {column} IS NOT NULL
            GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {MOST_CHOICES}
            """,  # noqa: S608 - text of our own
            {**window.bounds, "verdict": chosen.verdict},
        )
        return [row["name"] for row in rows]

    return {"causes": names(f"coalesce(cause, '{NO_CAUSE}')"), "channels": names("channel_id")}


def newest(
    lake: TableSnapshot,
    window: TimeWindow,
    chosen: MessageFilter,
    number: int,
    key: ChannelFilter | None = None,
    per_page: int = PAGE_ROWS,
) -> Rows:
    """Messages that have a verdict, of one channel or of all, newest first."""
    return Rows.of(
        lake,
        f"""
        SELECT pubsub_topic, content_topic, channel_id, message_key, sender_id, verdict, cause, detail, first_seen,
               delivered_at, len(acknowledged_by) AS acknowledged
        FROM delivery_status
        WHERE {SEEN} AND {key.where() if key else "true"} AND ($verdict = '' OR verdict = $verdict)
              AND ($cause = '' OR coalesce(cause, '{NO_CAUSE}') = $cause) AND ($channel = '' OR channel_id = $channel)
        ORDER BY first_seen DESC, message_key, content_topic, channel_id, pubsub_topic
        """,  # noqa: S608 - names of columns; values are bound
        {**window.bounds, **asdict(chosen), **(key.parameters if key else {})},
        number,
        per_page,
    )
