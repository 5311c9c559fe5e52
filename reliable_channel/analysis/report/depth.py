"""Measures the depth of causal pasts: chains of causal histories among the segments that arrived (LIP-109)."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from reliable_channel.analysis.report.dimensions import bin_width
from reliable_channel.analysis.report.source import TableWindow

NEWEST = 100_000
"""The number of newest segment rows that are examined, because walking a graph is slower than SQL."""


def causal_depth(source: TableWindow, newest: int = NEWEST) -> pd.DataFrame:
    """One row per SDS message among the ``newest`` rows of segments: time (UTC), content_topic, channel_id, sds_id,
    named (how many ids it names), depth: the longest chain of messages before it, each naming the one before; 0 names
    nothing that is here."""
    narrow = _of_newest(source, newest)
    rows = narrow.query(
        """
        SELECT min(event_time) AS time, content_topic, channel_id, sds_id,
               coalesce(arg_min(list_ids(causal_history), (event_time, kafka_partition, kafka_offset)), []) AS history,
               min(lamport_timestamp) AS lamport
        FROM (SELECT * FROM sds_messages WHERE sds_kind = 'content' AND lamport_timestamp IS NOT NULL
              ORDER BY event_time DESC, lamport_timestamp DESC, sds_id, content_topic, channel_id LIMIT $newest)
        GROUP BY content_topic, channel_id, sds_id
        """,
        newest=newest,
    )
    # A message names only what it has seen, so that its Lamport timestamp is larger; who lies here shortens a chain.
    rows = rows.sort_values(["lamport", "sds_id", "content_topic", "channel_id"], ignore_index=True)
    depths: dict[tuple[str, str, str], int] = {}
    depth_by_row: list[int] = []
    for topic, channel, sds_id, history in zip(
        rows["content_topic"], rows["channel_id"], rows["sds_id"], rows["history"], strict=True
    ):
        before = [depths.get((topic, channel, name), -1) for name in history]
        depth = max(before, default=-1) + 1
        depths[topic, channel, sds_id] = depth
        depth_by_row.append(depth)
    return rows.drop(columns=["history", "lamport"]).assign(named=rows["history"].map(len), depth=depth_by_row)


def _of_newest(source: TableWindow, newest: int) -> TableWindow:
    """The window from the time on at which its ``newest`` messages begin: their histories are most of what is read."""
    first = source.query(
        """SELECT event_time AS time FROM sds_messages WHERE sds_kind = 'content' AND lamport_timestamp IS NOT NULL
           ORDER BY event_time DESC LIMIT 1 OFFSET $newest""",
        newest=newest,
    )
    if first.empty:
        return source
    return TableWindow(source.snapshot, replace(source.window, since=first["time"][0]))


def depth_over_time(depths: pd.DataFrame) -> pd.DataFrame:
    """The deepest chain by channel and bin: time, channel_id, depth, from the rows of :func:`causal_depth`. A line that
    rises as fast as messages arrive is a chain; a flat one means many concurrent senders, or a sender who names
    nothing."""
    if depths.empty:
        return depths[["time", "channel_id", "depth"]]
    width = bin_width((depths["time"].max() - depths["time"].min()).total_seconds())
    time = depths["time"].dt.floor(f"{width}s")
    return depths.assign(time=time).groupby(["time", "channel_id"], as_index=False)["depth"].max()


def depth_by_channel(depths: pd.DataFrame) -> pd.DataFrame:
    """Per channel: channel_id, messages, depth, named_mean (ids a message names), parallel (messages per step of the
    longest chain: 1 is strictly one after the other)."""
    grouped = depths.groupby("channel_id", as_index=False).agg(
        messages=("sds_id", "count"), depth=("depth", "max"), named_mean=("named", "mean")
    )
    grouped["parallel"] = grouped["messages"] / (grouped["depth"] + 1)
    return grouped.sort_values(["messages", "channel_id"], ascending=[False, True], ignore_index=True)
