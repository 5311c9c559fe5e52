"""Logs that simulated nodes wrote, in every format and one by a wrong clock, show what happened to every message."""

from __future__ import annotations

from itertools import cycle
from typing import Any, NamedTuple

import pytest

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.evidence.log_files import read_logs
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import DELIVERY_STATUS, SENDER_EVENTS, SIGHTINGS
from reliable_channel.simulation.evidence import sender_events
from reliable_channel.simulation.presets import demo_scenario
from reliable_channel.simulation.world import World, simulate
from tests.support.node_log_lines import FORMATS, Logged, log_conversation
from tests.support.simulated_tables import write

WITHOUT_LOG = {"grace", "heidi"}
"""Their channel has no other participants, so what they sent there is in no log."""
AHEAD_MS = {"frank": 90_000, "bob": -3_000}


class Played(NamedTuple):
    """A conversation, what its nodes logged, and the tables that the logs became."""

    world: World
    logs: dict[str, list[Logged]]
    paths: PathSettings
    lake: TableSnapshot


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    place = tmp_path_factory.mktemp("node_logs")
    world = simulate(demo_scenario())
    paths = PathSettings(run_dir=str(place), data_dir=str(place / "tables"))
    logs = {who: lines for who, lines in log_conversation(world).items() if who not in WITHOUT_LOG}
    for (who, lines), form in zip(sorted(logs.items()), cycle(FORMATS)):
        text = [form(at + AHEAD_MS.get(who, 0), kind, digest, f"16U*{who}", "16U*other1") for at, kind, digest in lines]
        (place / who).write_text("\n".join([*text, ""]), encoding="utf-8")
        read_logs(paths, [place / who], who)
    sent_events = [row for row in sender_events(world.journals) if row["event"] == "sent"]
    rows = [
        {
            **{name: row.get(name) for name in SENDER_EVENTS.names()},
            "envelope_hash": bytes.fromhex(row["envelope_hash"]),
            "entire_message_hash": None,
            "event_time": row["at_ms"] * 1000,
        }
        for row in sent_events
    ]
    write(place / "tables", SENDER_EVENTS, rows)
    status = [
        {
            "pubsub_topic": journal.plan.pubsub_topic,
            "content_topic": journal.plan.content_topic,
            "channel_id": journal.plan.channel_id,
            "message_key": str(number),
            "sds_ids": list(message.sds_ids),
        }
        for journal in world.journals
        for number, message in journal.messages.items()
    ]
    write(place / "tables", DELIVERY_STATUS, status)
    return Played(world, logs, paths, TableSnapshot(paths))


def test_the_table_has_what_the_nodes_did_and_when_by_their_clocks(played: Played) -> None:
    rows = rows_of(open_table(played.paths, SIGHTINGS))
    found = {(r["vantage"], r["message_hash"], round(r["seen_at"].timestamp() * 1000)) for r in rows}
    true = {
        (who, line.message_hash, line.at_ms + AHEAD_MS.get(who, 0))
        for who, lines in played.logs.items()
        for line in lines
    }
    assert len(played.logs) >= len(FORMATS)
    assert found == true


def test_the_errors_of_the_clocks_are_found(played: Played) -> None:
    rows = played.lake.select("SELECT vantage, max(clock_error_ms) AS error FROM node_logs GROUP BY vantage")
    errors = {row["vantage"]: row["error"] - AHEAD_MS.get(row["vantage"], 0) for row in rows}
    assert errors.keys() == played.logs.keys()
    assert all(abs(error) <= 1_000 for error in errors.values()), errors


def envelopes_of(played: Played, channel_id: str, key: str) -> dict[bytes, int]:
    """The envelopes of a message that its sender dispatched → when first, by the true clock."""
    (journal,) = [journal for journal in played.world.journals if journal.plan.channel_id == channel_id]
    message = journal.messages[int(key)]
    sent: dict[bytes, int] = {}
    for dispatch in journal.dispatches:
        if dispatch.sds_id in message.sds_ids and dispatch.by == message.sender:
            sent[dispatch.envelope_hash] = min(dispatch.at_ms, sent.get(dispatch.envelope_hash, dispatch.at_ms))
    return sent


def test_of_each_message_the_nodes_are_named_that_had_it_and_that_did_not(played: Played) -> None:
    logged = {who: {line.message_hash for line in lines} for who, lines in played.logs.items()}
    rows: list[dict[str, Any]] = played.lake.select("SELECT * FROM message_logs")
    assert len(rows) > 1_000
    for row in rows:
        sent = envelopes_of(played, row["channel_id"], row["message_key"])
        assert 0 < row["envelopes"] <= len(sent)
        if row["envelopes"] == len(sent):
            assert row["logged"] == len(sent.keys() & logged[row["vantage"]]), row


def test_what_was_sent_and_no_log_shows_is_exactly_that(played: Played) -> None:
    rows = played.lake.select(
        """SELECT channel_id, message_key FROM message_logs GROUP BY content_topic, channel_id, message_key
           HAVING max(logged) = 0"""
    )
    unlogged = {(row["channel_id"], row["message_key"]) for row in rows}
    anywhere = {line.message_hash for lines in played.logs.values() for line in lines}
    begin = max(lines[0].at_ms for lines in played.logs.values()) + 1_500
    end = min(lines[-1].at_ms for lines in played.logs.values()) - 11_500
    covered = {
        (journal.plan.channel_id, str(number))
        for journal in played.world.journals
        for number in journal.messages
        if (sent := envelopes_of(played, journal.plan.channel_id, str(number)))
        and all(begin < at < end for at in sent.values())
    }
    true = {each for each in covered if not anywhere & envelopes_of(played, *each).keys()}
    assert true == unlogged & covered
    assert {channel for channel, _ in true} == {"video"}
    assert all(not anywhere & envelopes_of(played, *each).keys() for each in unlogged)
