"""Every question of docs/questions.md has an answer in the sample tables, of the shape that the page promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliable_channel.analysis.report import delivery, loss
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from tests.support.questions import PAGE, Question, questions, with_sample_answers, write_polite


@pytest.fixture(scope="module")
def lake(sample_tables: Path) -> TableSnapshot:
    return TableSnapshot(PathSettings(data_dir=str(sample_tables)))


AT = 1_767_225_600_000_000


def answer(lake: TableSnapshot, number: int) -> list[dict[str, Any]]:
    return lake.select(questions()[number - 1].duckdb)


def write(place: Path, rows: dict[tables.Table, list[dict[str, Any]]]) -> TableSnapshot:
    paths = PathSettings(data_dir=str(place))
    for table, added in rows.items():
        create_tables(paths, (table,))
        append_rows(paths, table, as_arrow(added, table))
    return TableSnapshot(paths)


def test_there_are_at_least_twenty() -> None:
    assert len(questions()) >= 20
    assert [int(question.title.split(".")[0]) for question in questions()] == list(range(1, len(questions()) + 1))


@pytest.mark.parametrize("question", questions(), ids=str)
def test_duckdb_answers_in_the_shape_that_the_page_promises(question: Question, lake: TableSnapshot) -> None:
    answer = lake.arrow(question.duckdb)
    assert tuple(answer.column_names) == question.columns
    assert answer.num_rows > 0


def test_the_sample_answers_are_those_of_the_sample_tables(tmp_path: Path) -> None:
    """``python -m tests.support.questions`` writes them anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_sample_answers(page, write_polite(tmp_path)) == page


def test_the_loss_of_a_channel_is_that_of_the_report(lake: TableSnapshot) -> None:
    channels = delivery.by_channel(TableWindow(lake)).dropna(subset="loss")
    reported = {row.channel_id: round(100 * row.loss, 2) for row in channels.itertuples()}
    assert {row["channel_id"]: row["loss_percent"] for row in answer(lake, 3)} == reported


def test_the_stores_that_disagree_are_those_of_the_report(lake: TableSnapshot) -> None:
    reported = set(loss.store_disagreement(TableWindow(lake))["message_hash"])
    assert {row["message"].lower() for row in answer(lake, 13)} == reported
    assert all(0 < row["have_it"] < row["asked"] for row in answer(lake, 13))


def test_a_message_that_never_arrived_has_one_row_and_one_that_arrived_none(lake: TableSnapshot) -> None:
    named = lake.select("SELECT sds_id, bool_or(status = 'recovered') AS here FROM lost_dependencies GROUP BY sds_id")
    assert {row["here"] for row in named} == {True, False}
    assert sorted(row["sds_id"] for row in answer(lake, 12)) == sorted(
        row["sds_id"] for row in named if not row["here"]
    )
    assert sum(row["delivered_without"] for row in answer(lake, 12)) == 1


def test_nobody_is_asked_for_acknowledgements_of_another_channel_or_of_ephemeral_messages(tmp_path: Path) -> None:
    here, there = ({"pubsub_topic": "/p", "content_topic": topic, "channel_id": "talk"} for topic in ("/a", "/b"))
    sent = [(here, "alice", False), (here, "bob", True), (there, "carol", False)]
    rows = [
        {
            **{
                **channel,
                "sender_id": sender,
                "entire_message_hash": sender.encode(),
                "event_time": AT,
                "first_seen": AT,
            },
            **{"family": "spec", "delivery_seq": number, "causal_lamport": number, "ephemeral": ephemeral},
            **{"as_of": AT, "verdict": "delivered", "settled": True, "acknowledged_by": [], "sds_ids": []},
            "message_key": f"{sender.encode().hex()}-{number}",
        }
        for number, (channel, sender, ephemeral) in enumerate(sent, 1)
    ]
    lake = write(tmp_path, {tables.DELIVERED_MESSAGES: rows, tables.DELIVERY_STATUS: rows})
    assert answer(lake, 8) == [{"channel_id": "talk", "participant": "bob", "not_acknowledged": 1}]


def test_copies_of_a_request_are_one_request(tmp_path: Path) -> None:
    channel = {
        "pubsub_topic": "/p",
        "content_topic": "/a",
        "channel_id": "talk",
        "requested_by": "bob",
        "event_time": AT,
    }
    copies = [{**channel, "sds_id": "x", "request_sds_id": "s", "held_here": held} for held in (False, True)]
    lake = write(tmp_path, {tables.REPAIR_REQUESTS: copies})
    assert answer(lake, 16) == [
        {"channel_id": "talk", "requested_by": "bob", "requests": 1, "messages": 1, "held_here": 1}
    ]


def test_a_segment_counts_once_by_what_its_sender_recorded_and_not_by_what_others_gave_up(tmp_path: Path) -> None:
    recorded = [
        *[("a", event) for event in ("queued", "rate_limited", "sent", "resent", "resent", "lost")],
        *[("b", event) for event in ("queued", "delayed", "dropped")],
        *[("c", event) for event in ("queued", "lost")],
    ]
    channel = {"pubsub_topic": "/p", "content_topic": "/a", "channel_id": "talk", "sender_id": "alice"}
    rows = [
        {**channel, "sds_id": sds_id, "event": event, "event_time": AT + number}
        for number, (sds_id, event) in enumerate(recorded)
    ]
    lake = write(tmp_path, {tables.SENDER_EVENTS: rows})
    assert [(row["outcome"], row["segments"]) for row in answer(lake, 19)] == [("dropped", 1), ("sent", 1)]
