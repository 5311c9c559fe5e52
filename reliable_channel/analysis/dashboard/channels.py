"""Builds the list of channels: filtered by text, sorted and paged, all by parameters of the address."""

from __future__ import annotations

from typing import Any, Literal

from reliable_channel.analysis.dashboard.sections import Rows, section
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import CAME, SEEN, by_channel
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables import CHANNEL_KEY

TABLES = ("clock", "delivery_status", "delivered_messages", "reassembled_messages")

Order = Literal["missing", "loss", "messages", "heard", "name"]
_ORDERS: dict[Order, str] = {
    "missing": "missing DESC, messages DESC",
    "loss": "loss DESC NULLS LAST, missing DESC",
    "messages": "messages DESC",
    "heard": "last_seen DESC",
    "name": "channel_id",
}


def page(lake: TableSnapshot, window: TimeWindow, text: str, order: Order, number: int) -> dict[str, Any]:
    """The parts of the page."""
    return {
        "channels": section(
            lake, ("delivery_status", "delivered_messages"), lambda: channels(lake, window, text, order, number)
        )
    }


def channels(lake: TableSnapshot, window: TimeWindow, text: str, order: Order, number: int) -> Rows:
    """One row per channel key that has verdicts or deliveries in the window, with both."""
    rows = by_channel(CHANNEL_KEY, seen=SEEN, came=CAME)
    return Rows.of(
        lake,
        f"""SELECT * FROM ({rows})
            WHERE $text = '' OR contains(lower(channel_id), lower($text))
                  OR contains(lower(content_topic), lower($text))
            ORDER BY {_ORDERS[order]}, channel_id, content_topic, pubsub_topic""",  # noqa: S608 - text of our own
        {**window.bounds, "text": text},
        number,
    )
