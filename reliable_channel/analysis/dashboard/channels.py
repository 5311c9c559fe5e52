"""Builds the list of channels: filtered by text, sorted and paged, all by parameters of the address."""

from __future__ import annotations

from typing import Any, Literal

from reliable_channel.analysis.dashboard.sections import Rows, section
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import REPAIRED, VERDICTS
from reliable_channel.analysis.report.snapshot import TableSnapshot

TABLES = ("clock", "delivery_status", "deliveries", "reassembled_messages")

Order = Literal["missing", "loss", "messages", "heard", "name"]
_ORDERS: dict[Order, str] = {
    "missing": "missing DESC, messages DESC",
    "loss": "loss DESC NULLS LAST, missing DESC",
    "messages": "messages DESC",
    "heard": "heard DESC",
    "name": "channel_id",
}


def page(lake: TableSnapshot, window: TimeWindow, text: str, order: Order, number: int) -> dict[str, Any]:
    """The parts of the page."""
    return {
        "channels": section(
            lake, ("delivery_status", "deliveries"), lambda: channels(lake, window, text, order, number)
        )
    }


def channels(lake: TableSnapshot, window: TimeWindow, text: str, order: Order, number: int) -> Rows:
    """One row per channel key that has verdicts or deliveries in the window, with both."""
    return Rows.of(
        lake,
        f"""
        WITH judged AS (
            SELECT pubsub_topic, content_topic, channel_id, {VERDICTS}, max(first_seen) AS heard
            FROM delivery_status WHERE first_seen > $since AND first_seen <= $until GROUP BY ALL),
        came AS (
            SELECT pubsub_topic, content_topic, channel_id, count(*) AS delivered, count(*) FILTER (late) AS late,
                   count(DISTINCT sender_id) AS senders, string_agg(DISTINCT family, ', ' ORDER BY family) AS families,
                   max(first_seen) AS heard
            FROM deliveries WHERE row_kind = 'message' AND event_time > $since AND event_time <= $until GROUP BY ALL),
        whole AS (
            SELECT pubsub_topic, content_topic, channel_id, {REPAIRED} AS repaired
            FROM reassembled_messages WHERE event_time > $since AND event_time <= $until GROUP BY ALL)
        SELECT coalesce(j.pubsub_topic, c.pubsub_topic) AS pubsub_topic,
               coalesce(j.content_topic, c.content_topic) AS content_topic,
               coalesce(j.channel_id, c.channel_id) AS channel_id, j.messages IS NOT NULL AS judged,
               coalesce(j.messages, c.delivered) AS messages, coalesce(j.delivered, c.delivered) AS delivered,
               coalesce(j.missing, 0) AS missing, coalesce(j.unknown, 0) AS unknown, coalesce(j.late, c.late) AS late,
               coalesce(repaired, 0) AS repaired, coalesce(senders, 0) AS senders, families,
               j.missing / nullif(j.missing + j.delivered, 0) AS loss, greatest(j.heard, c.heard) AS heard
        FROM judged j FULL JOIN came c ON j.pubsub_topic IS NOT DISTINCT FROM c.pubsub_topic
             AND j.content_topic IS NOT DISTINCT FROM c.content_topic
             AND j.channel_id IS NOT DISTINCT FROM c.channel_id
        LEFT JOIN whole w ON w.pubsub_topic IS NOT DISTINCT FROM coalesce(j.pubsub_topic, c.pubsub_topic)
             AND w.content_topic IS NOT DISTINCT FROM coalesce(j.content_topic, c.content_topic)
             AND w.channel_id IS NOT DISTINCT FROM coalesce(j.channel_id, c.channel_id)
        WHERE $text = '' OR contains(lower(coalesce(j.channel_id, c.channel_id)), lower($text))
              OR contains(lower(coalesce(j.content_topic, c.content_topic)), lower($text))
        ORDER BY {_ORDERS[order]}, 3, 2, 1
        """,  # noqa: S608 - the order is one of five of our own
        {**window.bounds, "text": text},
        number,
    )
