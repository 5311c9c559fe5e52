"""Rows of equal rank have an order: the same tables give the same page, in whatever order their rows were written."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from reliable_channel.analysis.dashboard.messages import MessageFilter, newest
from reliable_channel.analysis.dashboard.windows import window
from reliable_channel.analysis.report import depth, loss
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow

AT = 1_767_225_600_000_000
Row = dict[str, Any]


def rows() -> dict[tables.Table, list[Row]]:
    """Rows of every table that differ in one column each, at the same time."""
    channels = [
        {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": topic, "channel_id": channel}
        for topic, channel in itertools.product(("/a/1/b/proto", "/a/1/c/proto"), ("c", "d"))
    ]
    common = {"event_time": AT, "first_seen": AT, "as_of": AT, "settled": True, "entire_message_hash": b"h" * 32}
    status = [
        {**channel, **common, "message_key": f"{verdict} {cause} {sender}", "sender_id": sender}
        | {"verdict": verdict, "cause": cause}
        for channel in channels
        for verdict, cause in (("missing", "late"), ("unknown", "late"), ("missing", None))
        for sender in ("alice", "bob")
    ]
    incomplete = [
        {**channel, **common, "sender_id": sender, "data_count": 3, "sds_ids": [sds_id], "reason": "expired"}
        | {"status": "given_up"}
        | {"data_held": [], "parity_held": [], "data_missing": [missing]}
        for channel in channels
        for sender in ("alice", "bob")
        for sds_id, missing in (("x", 1), ("y", 2))
    ]
    presence = [
        {**channel, "node": node, "message_hash": b"m" * 32, "outcome": outcome, "asked_at": AT, "purpose": "refetch"}
        | {"sds_id": sds_id, "attempt": 1}
        for channel in channels
        for sds_id in ("x", "y")
        for node, outcome in (("n", "present"), ("n", "absent"), ("m", "absent"))
    ]
    messages = [
        {**channel, "event_time": AT, "sds_id": sds_id, "sds_kind": "content", "lamport_timestamp": 1}
        | {"causal_history": []}
        | {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": number}
        for number, (channel, sds_id) in enumerate(itertools.product(channels, ("x", "y")))
    ]
    return {
        tables.DELIVERY_STATUS: status,
        tables.INCOMPLETE_MESSAGES: incomplete,
        tables.STORE_PRESENCE: presence,
        tables.SDS_MESSAGES: messages,
    }


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> list[TableWindow]:
    """The same rows, written one by one from the first to the last, and the other way round."""
    opened = []
    for step in (1, -1):
        paths = PathSettings(run_dir=str(tmp_path_factory.mktemp("tables")))
        for table, found in rows().items():
            create_tables(paths, (table,))
            append_rows(paths, table, as_arrow(found[::step], table))
        opened.append(TableWindow(Path(paths.data_dir)))
    return opened


@pytest.mark.parametrize(
    "frame",
    [
        loss.causes,
        loss.causes_by_channel,
        loss.missing,
        loss.losses_over_time,
        loss.bursts,
        loss.incomplete,
        loss.stores,
        loss.store_disagreement,
        lambda source: pd.DataFrame(newest(source.snapshot, window(source.snapshot, "all"), MessageFilter(), 1).rows),
        lambda source: depth.causal_depth(source, 5),
        lambda source: depth.depth_by_channel(depth.causal_depth(source)),
    ],
    ids=lambda frame: getattr(frame, "__name__", "frame"),
)
def test_the_order_in_which_rows_were_written_is_never_seen(
    windows: list[TableWindow], frame: Callable[[TableWindow], pd.DataFrame]
) -> None:
    first, second = (frame(window) for window in windows)
    assert len(first)
    pd.testing.assert_frame_equal(first, second)
