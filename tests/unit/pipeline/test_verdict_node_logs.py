"""What the logs of nodes show of a message that its sender reported, but that did not arrive, counts in its verdict."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.pipeline.verdict.in_duckdb import evidence_query
from reliable_channel.pipeline.verdict.judge import judge_message
from reliable_channel.pipeline.verdict.touched import COLUMNS
from tests.support.simulated_tables import write

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/a/1/b/proto", "channel_id": "c"}
ENVELOPE = b"e" * 32
AT_US = 1_767_225_600_000_000
LATER = dt.datetime.fromtimestamp(AT_US / 1_000_000 + 86_400, dt.UTC)


def judge(place: Path, event: str, *sightings: tuple[str, str], absent: bool = False) -> dict[str, Any]:
    """The verdict on a message whose sender reports ``event``, with sightings (node, what it did) of its envelope."""
    sent = {**CHANNEL, "sender_id": "alice", "sds_id": "m", "event_time": AT_US}
    rows: dict[tables.Table, list[dict[str, Any]]] = {table: [] for table in COLUMNS}
    rows[tables.SENDER_EVENTS] = [
        {**sent, "event": "queued", "entire_message_hash": b"p" * 32},
        {**sent, "event": event, "envelope_hash": ENVELOPE},
    ]
    rows[tables.SIGHTINGS] = [
        {"message_hash": ENVELOPE, "vantage": vantage, "source": source, "seen_at": AT_US}
        for vantage, source in sightings
    ]
    if absent:
        rows[tables.STORE_PRESENCE] = [{"node": "n", "message_hash": ENVELOPE, "outcome": "absent", "asked_at": AT_US}]
    for table, some in rows.items():
        write(place, table, some)
    lake = TableSnapshot(PathSettings(data_dir=str(place)))
    (row,) = lake.select(evidence_query(False), {"suspected": [], "ids": ["m"], **CHANNEL})
    return judge_message(row, LATER, 60_000, [], followed=True, ask_stores=False)


@pytest.mark.parametrize(("event", "cause"), [("failed", "never_sent"), ("rate_limited", "rate_limited")])
def test_what_a_node_has_was_sent_whatever_its_sender_reports(tmp_path: Path, event: str, cause: str) -> None:
    assert judge(tmp_path / "without", event)["cause"] == cause
    seen = judge(tmp_path / "with", event, ("amber", "received"), ("birch", "rejected"), ("birch", "received"))
    assert (seen["verdict"], seen["cause"]) == ("missing", None)
    assert seen["detail"].endswith("; in the log of amber, birch")


@pytest.mark.parametrize("did", ["publishing", "failed"])
def test_a_node_that_could_not_send_it_shows_nothing(tmp_path: Path, did: str) -> None:
    row = judge(tmp_path, "failed", ("amber", did))
    assert row["cause"] == "never_sent"
    assert "amber" not in row["detail"]


def test_what_nodes_had_and_no_store_has_propagated(tmp_path: Path) -> None:
    row = judge(tmp_path, "failed", *((name, "relayed") for name in "vwxyz"), absent=True)
    assert row["cause"] == "propagated_not_stored"
    assert row["detail"].endswith("; no store node that was asked has it; in the log of v, w, x, 2 more")


def test_sightings_of_bridges_are_no_logs(tmp_path: Path) -> None:
    assert judge(tmp_path, "failed", ("north", "relay"))["cause"] == "never_sent"
