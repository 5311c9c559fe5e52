"""The evidence of a round, gathered in DuckDB. `tests/spark/test_verdict_rounds.py` compares its verdicts with those of
Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Set
from typing import Any

import pyarrow as pa
import pytest

from reliable_channel.lake import tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CHANNEL_KEY
from reliable_channel.pipeline.verdict.gather import READ
from reliable_channel.pipeline.verdict.in_duckdb import gather_evidence
from reliable_channel.pipeline.verdict.judge import judge_message

CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/a/1/b/proto", "channel_id": "c"}
AT_US = 1_767_225_600_000_000


def gather(
    ids: list[dict[str, Any]], rows: dict[tables.Table, list[dict[str, Any]]], suspected: Set[str] = frozenset()
) -> list[dict[str, Any]]:
    given = {table: as_arrow(rows.get(table, []), table) for table in READ}
    about = pa.table({name: pa.array([each[name] for each in ids], pa.string()) for name in (*CHANNEL_KEY, "sds_id")})
    return gather_evidence(given, about, suspected, None).to_pylist()


def segment(sds_id: str, **columns: Any) -> dict[str, Any]:
    said = {**CHANNEL, "sds_id": sds_id, "sds_kind": "content", "segment_kind": "bare", "sender_id": "alice"}
    return {**said, "entire_message_hash": b"h" * 32, "event_time": AT_US, **columns}


def test_only_the_ids_that_are_asked_for_in_their_channels() -> None:
    nowhere = {**CHANNEL, "pubsub_topic": None}
    rows = [segment("m"), segment("m", **nowhere), segment("other"), segment("m", channel_id="d")]
    gathered = gather([{**CHANNEL, "sds_id": "m"}, {**nowhere, "sds_id": "m"}], {tables.SDS_MESSAGES: rows})
    assert {(row["pubsub_topic"], row["channel_id"], *row["ids"], row["received"]) for row in gathered} == {
        (None, "c", "m", 1),
        (CHANNEL["pubsub_topic"], "c", "m", 1),
    }


def test_an_undecodable_record_is_evidence_about_the_id_in_it() -> None:
    rows = {tables.SDS_MESSAGES: [segment("m"), segment("n")]}
    gathered = gather([{**CHANNEL, "sds_id": sds_id} for sds_id in "mn"], rows, {"m"})
    assert {row["ids"][0]: row["undecodable"] for row in gathered} == {"m": True, "n": False}


def test_of_two_last_reports_of_a_set_the_one_counts_that_counts_in_spark() -> None:
    report = {**CHANNEL, "sds_ids": ["m"], "sender_id": "alice", "entire_message_hash": b"h" * 32}
    report |= {"event_time": AT_US, "first_seen": AT_US, "status": "overdue", "reason": "expired"}
    for reports in ([3, None], [None, 3]):
        rows = {tables.INCOMPLETE_MESSAGES: [{**report, "data_count": count} for count in reports]}
        (row,) = gather([{**CHANNEL, "sds_id": "m"}], rows)
        assert row["needed"] is None, "null comes first"


BITS = {"BIGINT": 63, "TIMESTAMP": 63, "INT": 31}


@pytest.mark.parametrize("extreme", ["least", "most"])
def test_no_number_or_time_of_a_row_makes_it_fail(extreme: str) -> None:
    def fill(table: tables.Table) -> dict[str, Any]:
        row: dict[str, Any] = {**CHANNEL, "sds_id": "m", "sds_ids": ["m"], "sender_id": "a\0", "row_kind": "message"}
        row |= {"sds_kind": "content", "segment_kind": "parity", "event": "queued", "entire_message_hash": b"h" * 32}
        for column in table.columns:
            if (bits := BITS.get(column.type)) is not None:
                row[column.name] = -(2**bits) if extreme == "least" else 2**bits - 1
        return row

    rows = {table: [fill(table), {**fill(table), "segment_kind": None, "sds_id": "n"}] for table in READ}
    honest = {**CHANNEL, "row_kind": "message", "first_sds_id": "x", "sds_id": "x", "segment_kind": "bare"}
    rows[tables.DELIVERIES].append({**honest, "sender_id": "alice", "entire_message_hash": b"x" * 32})
    rows[tables.DELIVERIES][-1] |= {"event_time": AT_US, "first_seen": AT_US, "first_lamport_timestamp": 5}
    gathered = gather([{**CHANNEL, "sds_id": sds_id} for sds_id in "mnx"], rows)
    assert [row["sender_id"] for row in gathered if row["ids"] == ["x"]] == ["alice"]


def test_no_evidence_gives_no_message() -> None:
    assert gather([{**CHANNEL, "sds_id": "m"}], {}) == []


OF_ALICE = {**CHANNEL, "sender_id": "alice", "entire_message_hash": b"h" * 32}


def part(sds_id: str, index: int, *history: str, **columns: Any) -> dict[str, Any]:
    """A data segment of Alice's message of four, or as ``columns`` say; the history names messages of its sender."""
    sender = columns.get("sender_id", "alice")
    named = [{"sds_id": each, "retrieval_hint": None, "sender_id": sender} for each in history]
    said = {"segment_kind": "data", "segment_index": index, "data_count": 4, "lamport_timestamp": 1_000 + index}
    return segment(sds_id, causal_history=named, **{**said, **columns})


def rebuilt(first_lamport: int, *sds_ids: str | None) -> dict[tables.Table, list[dict[str, Any]]]:
    """The rows of Alice's message, rebuilt from some segments."""
    at = {"kafka_topic": "k", "kafka_partition": 0, "kafka_offset": first_lamport}
    message = {"row_kind": "message", "first_lamport_timestamp": first_lamport, "data_count": 4, "late": False}
    message |= {"first_seen": AT_US, "event_time": AT_US}
    return {
        tables.DELIVERIES: [{**OF_ALICE, **at, **message}],
        tables.REASSEMBLED_MESSAGES: [{**OF_ALICE, **at, "sds_ids": [*sds_ids]}],
    }


def messages(rows: dict[tables.Table, list[dict[str, Any]]]) -> list[tuple[str, int, list[str]]]:
    """Source, received segments and ids of each message."""
    ids = {row["sds_id"] for some in rows.values() for row in some if "sds_id" in row}
    gathered = gather([{**CHANNEL, "sds_id": each} for each in sorted(ids)], rows)
    return sorted((row["source"], row["received"], row["ids"]) for row in gathered)


def test_a_segment_that_arrives_after_its_message_was_rebuilt_belongs_to_it_whatever_its_id() -> None:
    """Its id cannot be recomputed. It was one more message, and missing: 1 of 4 needed segments arrived."""
    rows = rebuilt(1_000, "a", None, "c", "d", None, "f")
    rows[tables.SDS_MESSAGES] = [part("a", 0), part("c", 2), part("d", 3), part("f", 1, segment_kind="parity")]
    rows[tables.SDS_MESSAGES] += [part("b", 1), part("e", 0, segment_kind="parity", data_count=None)]
    rows[tables.ACKS] = [{**CHANNEL, "sds_id": each, "acknowledged_by": "bob"} for each in "abce"]
    assert messages(rows) == [("delivered", 6, [*"abcdef"])]


@pytest.mark.parametrize("first_lamport", [900, 1_001, 700, 10_000])
def test_a_segment_of_another_send_of_the_payload_does_not(first_lamport: int) -> None:
    rows = rebuilt(first_lamport, "a", "b", "c", "d")
    rows[tables.SDS_MESSAGES] = [part("x", 0, lamport_timestamp=first_lamport + 257), part("a", 0)]
    rows[tables.SDS_MESSAGES][1]["lamport_timestamp"] = first_lamport
    rows[tables.SDS_MESSAGES].append(part("w", 0, lamport_timestamp=first_lamport - 1))
    assert [ids for _, _, ids in messages(rows)] == [["a"], ["w", "x"]]


INCOMPLETE = {**OF_ALICE, "event_time": AT_US, "first_seen": AT_US, "data_count": 4, "status": "overdue"}


def lost(sds_id: str, sender_id: str | None = "alice") -> dict[str, Any]:
    return {**CHANNEL, "sds_id": sds_id, "sender_id": sender_id, "status": "lost", "event_time": AT_US}


@pytest.mark.parametrize("source", ["incomplete", "waiting", "delivered"])
def test_a_lost_segment_that_the_next_ones_name_belongs_to_their_message(source: str) -> None:
    """It was one more missing message, although only one was lost."""
    rows = rebuilt(1_000, "a", None, None, "d") if source == "delivered" else {}
    rows[tables.SDS_MESSAGES] = [part("a", 0, "old"), part("d", 3, "b", "c")]
    if source == "incomplete":
        rows[tables.INCOMPLETE_MESSAGES] = [{**INCOMPLETE, "sds_ids": ["a", "d"]}]
    rows[tables.LOST_DEPENDENCIES] = [lost("b"), lost("c", None), lost("old")]
    assert messages(rows) == sorted([(source, 2, [*"abcd"]), ("named", 0, ["old"])])


@pytest.mark.parametrize(
    "named_by",
    [
        pytest.param(part("m", 1, "b", sender_id="mallory", entire_message_hash=b"m" * 32), id="another sender"),
        pytest.param(part("m", 0, "b"), id="a first segment"),
        pytest.param(segment("m"), id="a message of one segment"),
    ],
)
def test_a_lost_message_that_others_name_stays_one_of_its_own(named_by: dict[str, Any]) -> None:
    rows = {tables.SDS_MESSAGES: [named_by], tables.LOST_DEPENDENCIES: [lost("b")]}
    assert ("named", 0, ["b"]) in messages(rows)


@pytest.mark.parametrize(
    ("detail", "is_refused"),
    [
        ("lamport_too_far 3600000 ms ahead", True),
        ("older_than_log", True),
        ("filter_size", False),
        ("not_causal x", False),
    ],
)
def test_a_message_that_sds_refused_wholly_is_refused(detail: str, is_refused: bool) -> None:
    event = {**CHANNEL, "sds_id": "m", "event": "refused", "detail": detail}
    rows = {tables.SDS_MESSAGES: [segment("m")], tables.CHANNEL_EVENTS: [event]}
    assert [bool(row["refused"]) for row in gather([{**CHANNEL, "sds_id": "m"}], rows)] == [is_refused]


def delivery(
    sender_id: str, lamport: int, content: bytes = b"h", family: str = "spec", **columns: Any
) -> dict[str, Any]:
    """A delivered message of one segment with the id ``m``."""
    by = {"sender_id": sender_id, "family": family, "first_lamport_timestamp": lamport, "segment_kind": "bare"}
    at = {"first_seen": AT_US + lamport, "event_time": AT_US + lamport, "row_kind": "message", "late": False}
    return {**CHANNEL, **by, **at, "sds_id": "m", "entire_message_hash": content * 32, **columns}


def test_every_send_of_a_text_whose_id_is_its_hash_is_a_message() -> None:
    sends = [delivery("alice", 1), delivery("alice", 5), delivery("bob", 7)]
    gathered = gather([{**CHANNEL, "sds_id": "m"}], {tables.DELIVERIES: sends})
    keys = sorted((row["sender_id"], row["message_key"].rpartition("-")[-1]) for row in gathered)
    assert keys == [("alice", "1"), ("alice", "5"), ("bob", "7")]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(delivery("mallory", 0, b"m"), id="another content under its id"),
        pytest.param(delivery("mallory", 0, family="nim"), id="in another wire family"),
    ],
)
def test_a_message_under_the_proven_id_of_another_is_none(other: dict[str, Any]) -> None:
    rows = {tables.DELIVERIES: [other, delivery("alice", 1, sender_verified=True)]}
    assert [row["sender_id"] for row in gather([{**CHANNEL, "sds_id": "m"}], rows)] == ["alice"]


def test_who_sends_an_equal_text_does_not_acknowledge_its_own() -> None:
    acks = [{**CHANNEL, "sds_id": "m", "acknowledged_by": who} for who in ("alice", "bob", "carol")]
    rows = {tables.DELIVERIES: [delivery("alice", 1), delivery("bob", 7)], tables.ACKS: acks}
    at = dt.datetime(2027, 1, 1, tzinfo=dt.UTC)
    judged = [
        judge_message(row, at, 0, [], followed=True, ask_stores=False)
        for row in gather([{**CHANNEL, "sds_id": "m"}], rows)
    ]
    acknowledged = {row["sender_id"]: row["acknowledged_by"] for row in judged}
    assert acknowledged == {"alice": ["bob", "carol"], "bob": ["alice", "carol"]}


@pytest.mark.parametrize(("status", "is_late"), [("lost", True), ("before_observation", False)])
def test_a_message_that_came_behind_the_first_of_its_channel_was_not_given_up(status: str, is_late: bool) -> None:
    rows = {
        tables.DELIVERIES: [delivery("alice", 1, late=True)],
        tables.LOST_DEPENDENCIES: [{**lost("m"), "status": status}],
    }
    assert [row["late"] for row in gather([{**CHANNEL, "sds_id": "m"}], rows)] == [is_late]
