"""What the tables say about each kind of rule, over real Delta tables."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from reliable_channel.analysis.alerts.measure import LONGEST_SUBJECT, Reading, measure_rule
from reliable_channel.analysis.alerts.rules import Rule, load_rules, parse_rules
from reliable_channel.analysis.figures import read_clock
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME
from tests.support.alert_rows import CHANNEL, NOON, bridge_row, clock, minutes, place
from tests.support.sample_values import HOSTILE, at

TALK = json.dumps(["/p", "/c", "talk"])
Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """``write(table, *rows)``: rows with only the columns that matter."""

    def put(name: str, *rows: dict[str, Any]) -> None:
        schema = arrow_schema(BY_NAME[name])
        complete = [{column: row.get(column) for column in schema.names} for row in rows]
        write_deltalake(str(tmp_path / name), pa.Table.from_pylist(complete, schema=schema), mode="append")

    return put


def rule(text: str) -> Rule:
    return parse_rules(f"rules:\n - {{alert: it, {text}}}\n", "test")[0]


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., list[Reading]]:
    """``measured(rule)``: its readings at noon on the recorded clock."""

    def measure(text: str, now: dt.datetime = NOON) -> list[Reading]:
        return measure_rule(TableSnapshot(PathSettings(data_dir=str(tmp_path))), rule(text), NOON, now)

    return measure


def test_loss_counts_settled_messages_of_the_window_per_channel(write: Write, measured: Any) -> None:
    def judged(verdict: str, count: int, at: float = -10, settled: bool = True, **more: Any) -> list[dict[str, Any]]:
        row = {**CHANNEL, "verdict": verdict, "settled": settled, "first_seen": minutes(at), **more}
        return [{**row, "message_key": str(number)} for number in range(count)]

    write(
        "delivery_status",
        *judged("delivered", 6),
        *judged("missing", 1),
        *judged("missing", 1, at=3),  # which only its sender told, later than all that was read
        *judged("missing", 5, at=-61),
        *judged("missing", 5, settled=False),
        *judged("unknown", 5),
        *judged("missing", 1, channel_id="few"),
    )
    (reading,) = measured("kind: loss_rate, above: 0.01, at_least: 8")
    assert reading == Reading(TALK, 0.25, "2 of 8 settled messages are missing")
    (overall,) = measured("kind: loss_rate, above: 0.01, at_least: 8, per: all")
    assert (overall.subject, overall.value) == ("pipeline", 3 / 9)
    assert measured("kind: loss_rate, above: 0.01, at_least: 10") == []


def test_quarantine_counts_records_once_whether_they_were_envelopes_or_not(write: Write, measured: Any) -> None:
    def refused(offset: int, reason: str, disposition: str = "dropped") -> dict[str, Any]:
        return {**place(offset), "event_time": minutes(-1), "reason": reason, "disposition": disposition}

    write("envelopes", *({**place(n), "event_time": minutes(-1)} for n in range(8)))
    write("envelopes", {**place(90), "event_time": minutes(-90)})
    write(
        "quarantine",
        refused(0, "malformed_sds"),
        refused(0, "over_quota"),
        refused(8, "null_value"),
        refused(9, "malformed_envelope"),
        refused(1, "segment_index", "kept"),
        refused(2, "undecryptable", "requeued"),
    )
    (reading,) = measured("kind: quarantine_rate, above: 0.05, at_least: 10")
    assert reading == Reading("pipeline", 0.3, "3 of 10 records quarantined")
    (quota,) = measured("kind: quarantine_rate, above: 0, reasons: [over_quota], at_least: 1")
    assert quota == Reading("pipeline", 0.1, "1 of 10 records quarantined (over_quota)")
    assert measured("kind: quarantine_rate, above: 0.05, at_least: 11") == []


def test_a_channel_is_silent_by_the_clock_of_its_own_partition(write: Write, measured: Any) -> None:
    write("clock", clock(minutes(0)), clock(minutes(-28), partition=1), {**clock(minutes(60)), "kind": "closing"})
    write(
        "sds_messages",
        *(bridge_row(n, minutes(-30)) for n in range(3)),
        *(bridge_row(n, minutes(-30), partition=1, channel_id="behind") for n in range(3)),
        bridge_row(9, minutes(-30), channel_id="hardly known"),
        *(bridge_row(20 + n, minutes(-1500), channel_id="long gone") for n in range(3)),
        {**bridge_row(30, minutes(0)), "sds_kind": "tick", "channel_id": None},
    )
    found = {r.subject: r for r in measured("kind: silent_channel, above_ms: 1, at_least: 3")}
    assert found[TALK] == Reading(TALK, 30 * 60_000.0, "nothing for 30 min, after 3 SDS messages")
    assert {json.loads(subject)[2]: r.value for subject, r in found.items()} == {"talk": 1.8e6, "behind": 1.2e5}


def test_what_a_store_returns_after_the_closing_tick_lets_no_time_pass(
    write: Write, measured: Any, tmp_path: Path
) -> None:
    write("clock", clock(minutes(-5)), {**clock(minutes(60)), "kind": "closing"}, clock(minutes(60)))
    write("sds_messages", bridge_row(1, minutes(-30)), bridge_row(2, minutes(60), channel_id="other"))
    assert read_clock(TableSnapshot(PathSettings(data_dir=str(tmp_path)))) == minutes(-5)
    (silent,) = measured("kind: silent_channel, above_ms: 1, at_least: 1")
    assert (silent.subject, silent.value) == (TALK, 25 * 60_000)
    write("clock", clock(minutes(61)))
    assert read_clock(TableSnapshot(PathSettings(data_dir=str(tmp_path)))) == minutes(61)


def test_a_content_topic_in_two_partitions_is_seen_and_ticks_are_not(write: Write, measured: Any) -> None:
    ticks = ({**bridge_row(n, minutes(-1), partition=n), "sds_kind": "tick", "content_topic": None} for n in range(3))
    write("sds_messages", bridge_row(1, minutes(-1)), bridge_row(2, minutes(-1), partition=1), *ticks)
    write("sds_messages", bridge_row(3, minutes(-1), content_topic="/once"))
    found = measured("kind: topic_in_partitions")
    assert found == [Reading("/c", 2.0, "in 2 partitions"), Reading("/once", 1.0, "in 1 partition")]


def test_the_budget_is_that_of_the_busiest_sender_in_its_fullest_epoch(write: Write, measured: Any) -> None:
    def sent(number: int, who: str, at: float, **more: Any) -> dict[str, Any]:
        stamp = int(minutes(at).timestamp()) * 10**9
        row = {
            **bridge_row(number, minutes(at)),
            "sender_id": who,
            "sds_id": f"{number}",
            "envelope_hash": bytes([number]),
        }
        return {**row, "sender_timestamp_ns": stamp, **more}

    assert measured("kind: budget, messages_per_epoch: 4, above: 0.5") == []
    write(
        "sds_messages",
        *(sent(n, "alice", -15 + n) for n in range(3)),  # 11:45 to 11:47, one epoch
        *(sent(n, "alice", -5) for n in (10, 11)),
        *(sent(n, "bob", -15, sds_kind="sync") for n in (20, 21)),
        *(sent(n, "carol", -100) for n in range(30, 39)),  # before the window
        sent(40, "dave", -3, channel_id="another"),
        {**sent(50, "", -3), "sds_kind": "tick"},
    )
    another = json.dumps(["/p", "/c", "another"])
    assert measured("kind: budget, messages_per_epoch: 4, above: 0.5") == [
        Reading(TALK, 0.75, "a sender used 3 of 4 envelopes in an epoch of 10 min"),
        Reading(another, 0.25, "a sender used 1 of 4 envelopes in an epoch of 10 min"),
    ]
    assert measured("kind: budget, messages_per_epoch: 4, above: 0.5, of: control") == [
        Reading(TALK, 0.5, "a sender used 2 of 4 envelopes of control traffic in an epoch of 10 min"),
    ]


def test_senders_of_a_channel_in_two_families_are_counted_on_the_smaller_side(write: Write, measured: Any) -> None:
    def sent(first: int, who: str, family: str, count: int = 3, at: float = -1, **more: Any) -> list[dict[str, Any]]:
        names = {"sender_id": who, "family": family, **more}
        return [{**bridge_row(first + number, minutes(at)), **names} for number in range(count)]

    write(
        "sds_messages",
        *(*sent(0, "alice", "spec"), *sent(10, "bob", "spec"), *sent(20, "carol", "nim")),
        *(*sent(30, "dave", "spec", channel_id="one"), *sent(40, "erin", "nim", at=-90, channel_id="one")),
        *(*sent(50, "frank", "nim", channel_id="few"), *sent(60, "grace", "spec", count=2, channel_id="few")),
        *sent(70, "", "nim", sds_kind="tick"),
    )
    detail = "1 sender of family nim and 2 of the other cannot read each other"
    assert measured("kind: mixed_families") == [Reading(TALK, 1.0, detail)]
    (few, _) = sorted(measured("kind: mixed_families, at_least: 2"), key=lambda reading: reading.subject)
    assert json.loads(few.subject)[2] == "few"


def test_senders_of_a_channel_in_two_encryption_layers_are_counted_too(write: Write, measured: Any) -> None:
    def sent(first: int, who: str, layer: str | None, **more: Any) -> list[dict[str, Any]]:
        names = {"sender_id": who, "family": "nim", "encryption_layer": layer, **more}
        return [{**bridge_row(first + number, minutes(-1)), **names} for number in range(3)]

    write(
        "sds_messages",
        *(*sent(0, "alice", "around_sds"), *sent(10, "bob", "inside_sds"), *sent(20, "carol", "inside_sds")),
        *sent(30, "bob", None, sds_kind="sync"),
        *(*sent(40, "dave", "inside_sds", channel_id="one"), *sent(50, "erin", None, channel_id="one")),
    )
    detail = "1 sender of encryption layer around_sds and 2 of the other cannot read each other"
    assert measured("kind: mixed_families") == [Reading(TALK, 1.0, detail)]


def test_metrics_are_taken_per_query_newest_sum_or_largest(write: Write, measured: Any) -> None:
    def metric(query: str, batch: int, value: float, at: float, name: str = "lag_offsets") -> dict[str, Any]:
        row = {"query": query, "query_id": "q", "run_id": "r", "batch_id": batch, "metric": name}
        return {**row, "value": value, "recorded_at": minutes(at)}

    write(
        "pipeline_metrics",
        metric("ingest", 1, 500, -200),
        metric("ingest", 2, 7, -50),
        metric("ingest", 3, 3, -40),
        metric("ack", 9, 2, -40),
        metric("ack", 9, 99, 0, name="other"),
    )

    def values(take: str, more: str = "") -> dict[str, float]:
        return {
            r.subject: r.value for r in measured(f"kind: metric, metric: lag_offsets, above: 1, take: {take}{more}")
        }

    assert values("newest") == {"ingest": 3, "ack": 2}
    assert values("sum") == {"ingest": 10, "ack": 2}
    assert values("max") == {"ingest": 7, "ack": 2}
    assert values("max", ", queries: [ack]") == {"ack": 2}
    assert values("age") == {"ingest": 40 * 60_000, "ack": 40 * 60_000}


def test_a_job_of_cron_that_does_not_come_any_more_is_raised_however_long_ago_it_came(
    write: Write, measured: Any
) -> None:
    row = {"query_id": "q", "run_id": "r", "batch_id": 0, "metric": "failing", "value": 0.0}
    ended = [{**row, "query": "verdict", "recorded_at": minutes(at)} for at in (-305, -300)]
    write("pipeline_metrics", *ended, {**row, "query": "maintain", "recorded_at": minutes(-1)})
    readings = measured("kind: metric, metric: failing, queries: [verdict], take: age, above: 1800000")
    assert readings == [Reading("verdict", 300 * 60_000, "failing was last recorded 5 h ago")]


def test_a_stopped_clock_is_measured_by_the_wall_clock(write: Write, measured: Any) -> None:
    assert measured("kind: clock_stopped, above_ms: 1") == []
    write("clock", clock(minutes(-500), recorded_at=minutes(-3)))
    (reading,) = measured("kind: clock_stopped, above_ms: 1")
    assert reading == Reading("pipeline", 180_000.0, "ingest wrote its clock 3 min ago")


def test_what_a_clock_wrote_that_was_a_day_ahead_is_not_the_newest(write: Write, measured: Any) -> None:
    row = {"query_id": "q", "run_id": "r", "query": "ingest", "metric": "lag_offsets"}
    times = ((0, minutes(-9), 1.0), (1, minutes(1_440), 5.0), (2, minutes(-3), 2.0))
    write("pipeline_metrics", *({**row, "batch_id": n, "recorded_at": at, "value": lag} for n, at, lag in times))
    write("clock", *(clock(minutes(-500), recorded_at=at) for _, at, _ in times))
    (reading,) = measured("kind: clock_stopped, above_ms: 1")
    assert reading.value == 180_000.0
    readings = [measured(f"kind: metric, metric: lag_offsets, take: {take}, above: 0") for take in ("newest", "age")]
    assert [reading.value for (reading,) in readings] == [2.0, 180_000.0]


def test_a_subject_of_any_length_is_bounded_and_stays_distinct(write: Write, measured: Any) -> None:
    write("sds_messages", bridge_row(1, minutes(-1), content_topic="x" * 9_000 + "1"))
    write("sds_messages", bridge_row(2, minutes(-1), content_topic="x" * 9_000 + "2"))
    subjects = {r.subject for r in measured("kind: topic_in_partitions")}
    assert len(subjects) == 2
    assert all(len(subject) <= LONGEST_SUBJECT for subject in subjects)


def test_where_nothing_is_nothing_is_measured(tmp_path: Path) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    assert read_clock(lake) is None
    assert [measure_rule(lake, rule, None, NOON) for rule in load_rules()] == [[] for _ in load_rules()]


def test_hostile_names_are_subjects_as_they_are_and_no_detail_holds_them(sample_tables: Path) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    assert read_clock(lake) == at(3_600), "the closing tick, an hour later, is no time that passed"
    silent = measure_rule(lake, rule("kind: silent_channel, above_ms: 1, at_least: 1"), at(3_600), NOON)
    assert {json.loads(r.subject)[2] for r in silent} >= {text for text in HOSTILE if len(text) < 500}
    assert not any(text in r.detail for r in silent for text in HOSTILE)
