"""Which verdicts a round looks at again where one payload was sent often, such as a sign of life."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict import verdicts

AT_MS = 1_767_225_600_000
CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/c/proto", "channel_id": "c"}
SAID = {**CHANNEL, "sender_id": "alice", "entire_message_hash": b"p" * 32}
BEFORE = 20
"""Sends before the round in question, a minute apart."""


class Evidence:
    """Appends evidence, and runs rounds of verdicts. A send has two data segments and one of parity."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def append(self, table: tables.Table, rows: Sequence[dict[str, Any]]) -> None:
        append_rows(self.settings.paths, table, as_arrow(rows, table))

    def segments(self, send: int, *parts: int) -> None:
        rows = [
            {**SAID, **place(send), "event_time": at_us(send), "sds_id": f"{send}/{part}", "sds_kind": "content"}
            | {"segment_kind": "data" if part < 2 else "parity", "data_count": 2, "segment_index": part % 2}
            | {"lamport_timestamp": at_us(send) // 1000 + part}
            for part in parts or (0, 1)
        ]
        self.append(tables.SDS_MESSAGES, rows)

    def reassembled(self, send: int) -> None:
        ids = [f"{send}/0", f"{send}/1", None]
        row = {**SAID, **place(send), "event_time": at_us(send), "sds_ids": ids, "data_count": 2}
        self.append(tables.REASSEMBLED_MESSAGES, [row])

    def delivered(self, send: int) -> None:
        row = {**SAID, **place(send), "event_time": at_us(send), "first_seen": at_us(send), "row_kind": "message"}
        row |= {"first_sds_id": f"{send}/0", "first_lamport_timestamp": at_us(send) // 1000, "data_count": 2}
        self.append(tables.DELIVERIES, [row])

    def recorded(self, send: int, *parts: int, of_one_send: bool = True, **columns: Any) -> None:
        """The rows of the sender, of all segments at once unless ``columns`` have another ``event_time``."""
        row = {**SAID, "event": "queued", "event_time": at_us(send), **columns}
        row |= {"send_id": f"{send}/0"} if of_one_send else {}
        self.append(tables.SENDER_EVENTS, [{**row, "sds_id": f"{send}/{part}"} for part in parts])

    def clock(self, send: int) -> None:
        row = {"kafka_topic": "t", "kafka_partition": 0, "query_id": "q", "batch_id": send, "kind": "batch"}
        self.append(tables.CLOCK, [{**row, "event_time": at_us(send + 60), "next_offset": send}])

    def judge(self) -> int:
        """The number of messages that a round judges; without Spark, which one over everything would need."""
        return verdicts.run(None, self.settings)  # type: ignore[arg-type]

    def ids_of(self, send: int) -> list[str]:
        return list(self.status_of(f"{send}/0")["sds_ids"])

    def status_of(self, sds_id: str) -> dict[str, Any]:
        rows = rows_of(open_table(self.settings.paths, tables.DELIVERY_STATUS))
        [row] = [row for row in rows if sds_id in row["sds_ids"]]
        return row


def at_us(send: int) -> int:
    return (AT_MS + send * 60_000) * 1000


def place(send: int) -> dict[str, Any]:
    return {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": send}


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tables after the sends before the round in question."""
    place = tmp_path_factory.mktemp("before")
    evidence = Evidence(load("local", paths={"run_dir": str(place)}))
    create_tables(evidence.settings.paths, (*verdicts.TABLES_READ, tables.DELIVERY_STATUS))
    for send in range(BEFORE):
        evidence.segments(send)
        evidence.reassembled(send)
        evidence.delivered(send)
        evidence.recorded(send, 0, 1)
    evidence.clock(BEFORE)
    assert evidence.judge() == BEFORE
    return place


@pytest.fixture
def evidence(before: Path, tmp_path: Path) -> Evidence:
    shutil.copytree(before, tmp_path, dirs_exist_ok=True)
    return Evidence(load("local", paths={"run_dir": str(tmp_path)}))


def test_another_send_leaves_the_verdicts_on_those_before(evidence: Evidence) -> None:
    evidence.segments(BEFORE)
    evidence.reassembled(BEFORE)
    evidence.delivered(BEFORE)
    evidence.recorded(BEFORE, 0, 1)
    assert evidence.judge() == 1


def test_a_segment_that_comes_late_is_of_the_send_with_its_lamport_timestamp(evidence: Evidence) -> None:
    evidence.segments(3, 2)
    assert evidence.judge() == 1
    assert evidence.ids_of(3) == ["3/0", "3/1", "3/2"]


def test_a_segment_that_its_sender_records_later_is_of_the_send_that_it_states(evidence: Evidence) -> None:
    evidence.recorded(3, 2, event_time=at_us(4))  # the rate limit held it back meanwhile
    assert evidence.judge() == 1
    assert evidence.ids_of(3) == ["3/0", "3/1", "3/2"]


@pytest.mark.parametrize(("event", "cause"), [("queued", None), ("sent", None), ("failed", "never_sent")])
def test_a_lost_send_is_not_taken_for_the_one_before_with_the_same_payload(
    evidence: Evidence, event: str, cause: str | None
) -> None:
    evidence.recorded(BEFORE, 0, 1, event=event, event_time=at_us(3) + 500_000)
    evidence.clock(BEFORE + 60)
    assert evidence.judge() == 1
    lost = evidence.status_of(f"{BEFORE}/0")
    assert (lost["sds_ids"], lost["verdict"], lost["cause"]) == ([f"{BEFORE}/0", f"{BEFORE}/1"], "missing", cause)
    assert evidence.status_of("3/0")["verdict"] == "delivered"


def test_sends_whose_rows_state_nothing_more_are_one_each(evidence: Evidence) -> None:
    for send in (BEFORE, BEFORE + 1):
        evidence.recorded(send, 0, of_one_send=False, event_time=at_us(BEFORE))
    assert evidence.judge() == 2


def test_the_rows_of_a_send_may_come_in_any_order(evidence: Evidence) -> None:
    for part in (2, 1, 0):
        evidence.recorded(BEFORE, part)
        assert evidence.judge() == 1
    evidence.recorded(3, 2)
    evidence.append(tables.ACKS, [{**CHANNEL, "sds_id": "3/2", "acknowledged_by": "bob", "certainty": "certain"}])
    assert evidence.judge() == 1
    assert evidence.ids_of(BEFORE) == [f"{BEFORE}/0", f"{BEFORE}/1", f"{BEFORE}/2"]
    assert evidence.ids_of(3) == ["3/0", "3/1", "3/2"]


@pytest.mark.parametrize("name", [*CHANNEL, "entire_message_hash"])
def test_a_row_that_does_not_name_its_message_adds_none(evidence: Evidence, name: str) -> None:
    evidence.recorded(BEFORE, 0, **{name: None})
    assert evidence.judge() == 0


def test_a_delivery_brings_the_ids_of_the_message_that_its_record_completed(evidence: Evidence) -> None:
    evidence.segments(BEFORE, 0)
    evidence.reassembled(BEFORE)
    assert evidence.judge() == 1
    evidence.delivered(BEFORE)
    assert evidence.judge() == 1
    assert evidence.ids_of(BEFORE) == [f"{BEFORE}/0", f"{BEFORE}/1"]


def test_what_was_reported_incomplete_is_of_the_send_whose_further_segment_its_sender_records(
    evidence: Evidence,
) -> None:
    """No row of the sender is about the first segment."""
    evidence.recorded(BEFORE, 1)
    assert evidence.judge() == 1
    row = {**SAID, "event_time": at_us(BEFORE), "first_seen": at_us(BEFORE), "sds_ids": [f"{BEFORE}/0"]}
    evidence.append(tables.INCOMPLETE_MESSAGES, [{**row, "data_count": 2, "status": "given_up", "reason": "expired"}])
    assert evidence.judge() == 1
    assert evidence.ids_of(BEFORE) == [f"{BEFORE}/0", f"{BEFORE}/1"]
