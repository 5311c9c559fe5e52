"""Checks whether the tables know the requested channel."""

from __future__ import annotations

import difflib

from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.analysis.text import name
from reliable_channel.core.errors import LocalError

TABLES = ("delivery_status", "deliveries", "sds_messages")


def require_channel(source: TableWindow) -> None:
    """Raise :class:`LocalError` with the known channels when the window names a channel that is in no table at any
    time. A channel that was only silent in the window is not an error."""
    wanted = source.window.channel_id
    if wanted is None or any(source.rows(table, ["channel_id"]).num_rows for table in TABLES):
        return
    everything = TableWindow(source.snapshot)
    query = " UNION ".join(f"SELECT channel_id FROM {table} WHERE channel_id IS NOT NULL" for table in TABLES)  # noqa: S608
    known = sorted(everything.query(query)["channel_id"])
    if wanted in known:
        return
    like = difflib.get_close_matches(wanted, known, n=3) or known[:5]
    raise LocalError(
        f"There is no channel {name(wanted)!r} in the tables.",
        f"Known channels: {', '.join(name(channel) for channel in like)}."
        if like
        else "There is no channel in them yet.",
    )
