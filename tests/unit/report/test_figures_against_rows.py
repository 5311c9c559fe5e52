"""The figures of random small tables, on every surface, in every window, are those that Python counts of the rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.analysis import figures
from reliable_channel.analysis.alerts.measure import measure_rule
from reliable_channel.analysis.alerts.rules import LossRate, QuarantineRate
from reliable_channel.analysis.dashboard import channels, overview
from reliable_channel.analysis.dashboard import figures as pictures
from reliable_channel.analysis.dashboard.windows import window
from reliable_channel.analysis.report import delivery, loss, notebook
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.analysis.report.summary import collect
from reliable_channel.config import PathSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CHANNEL_KEY, CLOCK, DELIVERED_MESSAGES, DELIVERY_STATUS, ENVELOPES, QUARANTINE
from tests.support.examples import examples
from tests.support.sample_values import HOSTILE

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
CLOCK_MINUTES = 180
CLAIMED = ("unknown", "claimed_by_one")
OUTCOMES = [("delivered", None), ("delivered", "late"), ("missing", None), ("missing", "never_sent"),
            ("unknown", "unsettled"), CLAIMED, None]  # fmt: skip
"""Verdict and cause; ``None``: delivered, and not judged yet."""
CHANNELS = [("/p", "/a/1/x/proto", "talk"), ("/p", "/a/1/y/proto", "talk"), ("/p", "/a/1/x/proto", HOSTILE[1])]
MINUTES = st.integers(1, CLOCK_MINUTES)
VERDICTS = ("messages", "delivered", "late", "missing", "unknown", "claimed")


@dataclass(frozen=True)
class Message:
    channel: tuple[str, str, str]
    sender: str
    outcome: tuple[str, str | None] | None
    minute: int
    waited: int
    is_odd: bool

    @property
    def came(self) -> int | None:
        """The minute of its delivery."""
        is_here = self.outcome is None or self.outcome[0] == "delivered"
        return min(self.minute + self.waited, CLOCK_MINUTES) if is_here else None


@dataclass(frozen=True)
class Record:
    is_envelope: bool
    refusals: tuple[str, ...]
    minute: int


MESSAGES = st.builds(
    Message, st.sampled_from(CHANNELS), st.sampled_from(["alice", "bob", HOSTILE[0]]), st.sampled_from(OUTCOMES),
    MINUTES, st.sampled_from([0, 1, 59, 60]), st.booleans(),
)  # fmt: skip
RECORDS = st.builds(
    Record, st.booleans(), st.lists(st.sampled_from(["dropped", "kept", "requeued"]), max_size=3).map(tuple), MINUTES
)  # fmt: skip
Holds = Callable[[int], bool]
"""Whether a minute is in a window."""


def at(minute: int) -> dt.datetime:
    return START + dt.timedelta(minutes=minute)


def micros(minute: int) -> int:
    return int(at(minute).timestamp()) * 10**6


def write(place: Path, messages: list[Message], records: list[Record]) -> TableSnapshot:
    paths = PathSettings(data_dir=str(place))
    rows: dict[Any, list[dict[str, Any]]] = {DELIVERY_STATUS: [], DELIVERED_MESSAGES: [], ENVELOPES: [], QUARANTINE: []}
    for number, message in enumerate(messages):
        common = dict(zip(CHANNEL_KEY, message.channel, strict=True))
        common |= {"sender_id": message.sender, "first_seen": micros(message.minute)}
        if message.outcome is not None:
            verdict, cause = message.outcome
            judged = {"message_key": str(number), "verdict": verdict, "cause": cause, "settled": cause != "unsettled"}
            rows[DELIVERY_STATUS].append({**common, **judged, "as_of": micros(CLOCK_MINUTES)})
        if message.came is not None:
            sent = 5 if message.is_odd else micros(message.minute) * 1000 - 10**9
            late = message.outcome == ("delivered", "late")
            bare = {"delivery_seq": number, "payload_bytes": number, "sender_timestamp_ns": sent, "late": late}
            rows[DELIVERED_MESSAGES].append({**common, **bare, "event_time": micros(message.came)})
    for offset, record in enumerate(records):
        place_ = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": offset, "event_time": micros(record.minute)}
        if record.is_envelope or not record.refusals:
            rows[ENVELOPES].append(place_)
        rows[QUARANTINE] += [{**place_, "reason": str(n), "disposition": d} for n, d in enumerate(record.refusals)]
    now = {"event_time": micros(CLOCK_MINUTES), "recorded_at": micros(CLOCK_MINUTES)}
    rows[CLOCK] = [{"kafka_topic": "t", "kafka_partition": 0, "query_id": "q", "batch_id": 0, "kind": "batch", **now}]
    create_tables(paths, tuple(rows))
    for table, some in rows.items():
        if some:
            append_rows(paths, table, as_arrow(some, table))
    return TableSnapshot(paths)


def count(messages: Iterable[Message]) -> dict[str, int]:
    outcomes = [message.outcome for message in messages if message.outcome is not None]
    counted = [outcome for outcome in outcomes if outcome != CLAIMED]
    verdicts = [verdict for verdict, _ in counted]
    return {
        **{name: verdicts.count(name) for name in ("delivered", "missing", "unknown")},
        "messages": len(counted),
        "late": counted.count(("delivered", "late")),
        "claimed": len(outcomes) - len(counted),
    }


def count_channel(seen: list[Message]) -> dict[str, int]:
    """Of a channel without verdicts, what was delivered counts."""
    if any(message.outcome for message in seen):
        return count(seen)
    return count(replace(message, outcome=("delivered", None)) for message in seen)


def by_channel(messages: list[Message], holds: Holds) -> dict[tuple[str, str], dict[str, int]]:
    """Of each (content topic, channel id) with a message or a delivery in the window."""

    def is_delivered(message: Message) -> bool:
        return message.came is not None and holds(message.came)

    keys = {m.channel[1:] for m in messages if (m.outcome and holds(m.minute)) or is_delivered(m)}
    seen = [m for m in messages if holds(m.minute) and (m.outcome or is_delivered(m))]
    return {key: count_channel([m for m in seen if m.channel[1:] == key]) for key in keys}


def check_report(lake: TableSnapshot, chosen: Window, messages: list[Message], records: list[Record]) -> None:
    def holds(minute: int) -> bool:
        since, until = chosen.since or START, chosen.until or at(CLOCK_MINUTES + 1)
        return since <= at(minute) < until

    mine = [
        message for message in messages
        if chosen.channel_id in (None, message.channel[2]) and chosen.content_topic in (None, message.channel[1])
    ]  # fmt: skip
    seen = [message for message in mine if holds(message.minute)]
    came = [message for message in mine if message.came is not None and holds(message.came)]
    source = TableWindow(lake, chosen)
    expected = count(seen)
    report = collect(source, at(CLOCK_MINUTES))
    totals = report["totals"]
    assert {name: totals[name] for name in VERDICTS} == expected
    settled = expected["missing"] + expected["delivered"]
    assert totals["loss"] == (pytest.approx(expected["missing"] / settled) if settled else None)
    assert (report["conclusion"] is None) == (settled == 0)
    assert totals["delivered_rows"] == sum(holds(message.minute) for message in came)
    judged = {message.sender for message in seen if message.outcome not in (None, CLAIMED)}
    assert totals["senders"] == len(judged | {message.sender for message in came})
    listed = {(row["content_topic"], row["channel_id"]): row for row in report["channels"]}
    true = by_channel(mine, holds)
    assert totals["channels"] == len(true)
    assert listed.keys() == true.keys()
    for key, row in listed.items():
        assert {name: row[name] for name in VERDICTS[:-1]} == {name: true[key][name] for name in VERDICTS[:-1]}
    undelivered = expected["missing"] + expected["unknown"]
    assert sum(row["messages"] for row in report["causes"]) == undelivered + expected["claimed"]
    assert loss.losses_over_time(source)["messages"].sum() == undelivered
    assert notebook.choices(source)["messages"].sum() == expected["messages"]
    assert report["latency_ms"]["messages"] == sum(not message.is_odd for message in came)
    assert delivery.waiting(source)["messages"].sum() == delivery.rate(source)["messages"].sum() == len(came)
    if chosen.channel_id is None and chosen.content_topic is None:
        inside = [record for record in records if holds(record.minute)]
        refused = sum("dropped" in record.refusals for record in inside)
        assert (report["records"]["records"], report["records"]["refused"]) == (len(inside), refused)


def check_pages(lake: TableSnapshot, last: Any, least: int, messages: list[Message], records: list[Record]) -> None:
    """Of the minutes after ``least``."""
    span = window(lake, last)
    seen = [message for message in messages if message.minute > least]
    came = [message for message in messages if message.came is not None and message.came > least]
    inside = [record for record in records if record.minute > least]
    expected = count(seen) | {
        "records": len(inside),
        "refused": sum("dropped" in record.refusals for record in inside),
        "channels": len({m.channel for m in came} | {m.channel for m in seen if m.outcome}),
    }
    shown = overview.figures(lake, span)
    assert {name: shown[name] for name in expected} == expected
    assert sum(row["messages"] for row in overview.verdicts(lake, span)["bins"]) == expected["messages"]
    assert sum(row[-1] for row in pictures.rate(lake, span).rows) == len(came)
    listed = channels.channels(lake, span, "", "name", 1).rows
    true = by_channel(messages, lambda minute: minute > least)
    for row in listed:
        of_row = true[row["content_topic"], row["channel_id"]]
        assert {name: row[name] for name in VERDICTS[:-1]} == {name: of_row[name] for name in VERDICTS[:-1]}
    assert len(listed) == len(true)
    metrics = figures.outcome(lake, (CLOCK_MINUTES - least) // 60)
    assert metrics.verdicts == {name: expected[name] for name in ("delivered", "missing", "unknown")}
    assert sum(metrics.causes.values()) == expected["missing"]
    common: dict[str, Any] = {"above": 0.0, "window_ms": (CLOCK_MINUTES - least) * 60_000, "at_least": 1}
    now = at(CLOCK_MINUTES)
    settled = expected["missing"] + expected["delivered"]
    rule = LossRate(alert="lost", kind="loss_rate", per="all", **common)
    values = [reading.value for reading in measure_rule(lake, rule, now, now)]
    assert values == ([pytest.approx(expected["missing"] / settled)] if settled else [])
    refused = QuarantineRate(alert="refused", kind="quarantine_rate", **common)
    shares = [reading.value for reading in measure_rule(lake, refused, now, now)]
    assert shares == ([pytest.approx(expected["refused"] / len(inside))] if inside else [])


@settings(max_examples=examples(16))
@given(messages=st.lists(MESSAGES, max_size=12), records=st.lists(RECORDS, max_size=4))
def test_every_surface_shows_what_the_rows_hold(
    messages: list[Message], records: list[Record], tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = write(tmp_path_factory.mktemp("tables"), messages, records)
    hour = Window(at(CLOCK_MINUTES - 60), at(CLOCK_MINUTES))
    for chosen in (Window(), hour, Window(channel_id="talk"), replace(hour, content_topic="/a/1/x/proto")):
        check_report(lake, chosen, messages, records)
    for last, least in (("1h", CLOCK_MINUTES - 60), ("24h", 0)):
        check_pages(lake, last, least, messages, records)
