"""``reliable-channel report`` over the sample tables: what it prints, writes and exits with."""

from __future__ import annotations

import datetime as dt
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reliable_channel.analysis import text
from reliable_channel.analysis.dashboard import overview
from reliable_channel.analysis.dashboard.windows import window
from reliable_channel.analysis.report import layout, loss, summary, terminal
from reliable_channel.analysis.report.charts import loss as loss_charts
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.analysis.report.summary import SCHEMA, SECTIONS
from reliable_channel.analysis.report.thresholds import Check, Thresholds, checks, share
from reliable_channel.analysis.report.times import duration_ms
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    ACKS,
    CHANNEL_KEY,
    CLOCK,
    DELIVERED_MESSAGES,
    DELIVERY_STATUS,
    RECORD_KEY,
    SDS_MESSAGES,
)
from tests.support.reports import CONTROL, report
from tests.support.sample_rows import Story
from tests.support.sample_values import HOSTILE

# JSON


def test_json_counts_what_the_tables_hold(as_json: dict[str, Any], the_story: Story) -> None:
    verdicts = [row["verdict"] for row in the_story.rows["delivery_status"]]
    totals = as_json["totals"]
    assert as_json["schema"] == SCHEMA
    assert (totals["messages"], totals["delivered"]) == (len(verdicts), verdicts.count("delivered"))
    lost = verdicts.count("missing")
    assert totals["loss"] == pytest.approx(lost / (lost + totals["delivered"]))
    assert sum(row["messages"] for row in as_json["channels"]) == len(verdicts)
    assert as_json["latency_ms"]["max"] == pytest.approx(400_100)
    assert as_json["window"] == {"from": None, "to": None, "channel": None, "content_topic": None}


def test_json_counts_in_whole_numbers(as_json: dict[str, Any]) -> None:
    """What is behind and the size of the state were ``4.0``."""
    counts = [row[name] for row in as_json["pipeline"] for name in ("micro_batches", "rows", "lag", "state_bytes")]
    assert {type(count) for count in counts} == {int}


def test_json_has_every_documented_section_in_plain_types(as_json: dict[str, Any]) -> None:
    guide = (Path(__file__).parents[3] / "docs" / "report.md").read_text(encoding="utf-8")
    assert set(SECTIONS) < set(as_json)
    for key in as_json:
        assert f"`{key}`" in guide, f"{key} is not in docs/report.md"
    for section in layout.SECTIONS:
        assert as_json[section.key], section.key
        assert all({c.key for c in section.columns} <= set(row) for row in as_json[section.key])
    times = [row["last_seen"] for row in as_json["channels"]]
    assert all(dt.datetime.fromisoformat(t).tzinfo is not None for t in times)


def test_json_holds_hostile_strings_as_they_are_in_ascii(
    everything: tuple[str, str, Path], as_json: dict[str, Any]
) -> None:
    assert set(HOSTILE) <= {row["channel_id"] for row in as_json["channels"]}
    assert everything[0].isascii() and not CONTROL.search(everything[0])


# One message


def test_a_missing_message_is_one_line_of_80_columns(as_json: dict[str, Any]) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    terminal.render_missing(console, as_json)
    lines = [line for line in console.export_text().splitlines() if not line.startswith("•")]
    assert max(map(len, lines)) <= 80
    for row in as_json["missing"]:
        assert sum(line.count(text.short(row["message_key"])) for line in lines) == 1
    assert sum("came" in line for line in lines) == 0
    assert len([line for line in lines if "11-01 1" in line]) == len(as_json["missing"])


def test_one_message_is_shown_with_the_logs_that_have_or_lack_it(sample_tables: Path) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    rows = lake.select("SELECT message_key, sum(logged) AS logged FROM message_logs GROUP BY ALL ORDER BY logged")
    shown = report(sample_tables, "--message", rows[0]["message_key"]).stdout
    assert "sent, but seen by no log: amber, birch, cedar" in shown
    (whole,) = json.loads(report(sample_tables, "--message", rows[-1]["message_key"], "--json").stdout)
    many = rows[-1]["logged"] // 3
    assert whole["node_logs"] == [
        f"{name}: {many} of {many} envelopes (received)" for name in ("amber", "birch", "cedar")
    ]


def test_one_message_is_shown_with_all_that_is_known(sample_tables: Path, as_json: dict[str, Any]) -> None:
    (row,) = [row for row in as_json["missing"] if row["detail"].startswith("1 of 4")]
    shown = report(sample_tables, "--message", row["message_key"][:12]).stdout
    assert re.search(r"^data_missing +\[1, 2, 3\]$", shown, re.MULTILINE) and row["detail"] in shown
    (whole,) = json.loads(report(sample_tables, "--message", row["message_key"], "--json").stdout)
    assert whole["message_key"] == row["message_key"] and whole["segments_seen"] == 1
    (envelope, *_) = TableSnapshot(PathSettings(data_dir=str(sample_tables))).select(
        "SELECT hex(envelope_hash) AS hash FROM sds_messages WHERE list_contains($ids, sds_id)",
        {"ids": whole["sds_ids"]},
    )
    by_envelope = json.loads(report(sample_tables, "--message", envelope["hash"][:12], "--json").stdout)
    assert by_envelope == [whole], "by whatever the page of messages finds it"
    unknown = report(sample_tables, "--message", "\x1b[2Jnobody")
    assert isinstance(unknown.exception, LocalError) and "\x1b" not in str(unknown.exception)


def test_one_message_needs_no_file_of_other_channels_only(sample_tables: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    shutil.copytree(sample_tables, tables)
    paths = PathSettings(data_dir=str(tables))
    (row, *_) = TableSnapshot(paths).select("SELECT message_key FROM delivery_status")
    for table in (ACKS, DELIVERED_MESSAGES, SDS_MESSAGES):
        before = set((tables / table.name).glob("*.parquet"))
        other = dict.fromkeys(CHANNEL_KEY, "~") | dict.fromkeys(RECORD_KEY, 1) | {"kafka_topic": "t"}
        known = {name: value for name, value in other.items() if name in table.names()}
        append_rows(paths, table, as_arrow([known], table))
        for file in set((tables / table.name).glob("*.parquet")) - before:
            file.unlink()
    assert row["message_key"] in report(tables, "--message", row["message_key"]).stdout


# The window


def test_a_window_restricts_every_section(sample_tables: Path) -> None:
    answer = json.loads(
        report(sample_tables, "--from", "2026-11-01T12:00", "--to", "2026-11-01T12:10", "--json").stdout
    )
    assert 0 < answer["totals"]["messages"] < 40
    assert answer["window"]["to"] == "2026-11-01T12:10:00Z"


@pytest.mark.parametrize("channel", ["quiet", HOSTILE[7]])
def test_one_channel(sample_tables: Path, channel: str) -> None:
    answer = json.loads(report(sample_tables, "--channel", channel, "--json").stdout)
    assert {row["channel_id"] for row in answer["channels"]} == {channel}


def test_a_window_without_messages_says_when_they_are(sample_tables: Path) -> None:
    (note,) = json.loads(report(sample_tables, "--to", "2020-01-01", "--json").stdout)["notes"]
    assert re.fullmatch(
        r"No message is known in this window\. Those in the tables are from 2026-11-01 12:\S+ to \S+ 1\S+ \(UTC\)\.",
        note,
    )


def test_losses_without_a_cause_are_no_riddle(as_json: dict[str, Any]) -> None:
    unexplained = sum(row["messages"] for row in as_json["causes"] if row["cause"] == "unexplained")
    assert unexplained
    assert f"Of {unexplained} missing messages the cause is not known: no evidence names one." in as_json["notes"]


def test_an_unknown_channel_is_said_with_those_like_it(sample_tables: Path) -> None:
    answer = report(sample_tables, "--channel", "tlk")
    assert isinstance(answer.exception, LocalError)
    assert str(answer.exception) == "There is no channel 'tlk' in the tables. Known channels: talk."


def test_a_channel_that_was_silent_in_the_window_is_no_error(sample_tables: Path) -> None:
    answer = report(sample_tables, "--channel", "quiet", "--from", "2026-11-01T12:30")
    assert answer.exit_code == 0 and "No message is known in this window." in answer.stdout


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--from", "yesterday"], "'yesterday' is not a time"),
        (["--from", "2026-11-02", "--to", "2026-11-01"], "is not before"),
        (["--max-loss", "many"], "'many' is not a share"),
        (["--max-loss", "101%"], "is not a share"),
        (["--max-latency", "soon"], "is not a length of time"),
        (["--max-latency", "9" * 400], "is not a length of time"),
    ],
)
def test_wrong_usage_is_one_sentence_with_a_remedy(sample_tables: Path, options: list[str], cause: str) -> None:
    answer = report(sample_tables, *options)
    assert isinstance(answer.exception, LocalError) and cause in answer.exception.cause and answer.exception.remedy


def test_no_tables_are_said_with_what_to_do(tmp_path: Path) -> None:
    answer = report(tmp_path)
    assert isinstance(answer.exception, EnvironmentFault) and "reliable-channel demo" in answer.exception.remedy


# Thresholds


@pytest.mark.parametrize(
    ("limits", "crossed"),
    [
        (Thresholds(loss=0.001), True),
        (Thresholds(loss=0.9), False),
        (Thresholds(latency_ms=1_000), True),
        (Thresholds(latency_ms=600_000), False),
        (Thresholds(quarantine=0.01), True),
        (Thresholds(quarantine=0.5), False),
        (Thresholds(lag_records=10), True),
        (Thresholds(lag_records=500), False),
        (Thresholds(loss=0.9, lag_records=10), True),
        (Thresholds(messages=1), False),
        (Thresholds(messages=10**9), True),
        (Thresholds(age_ms=1_000), True),
        (Thresholds(age_ms=1e15), False),
    ],
)
def test_a_threshold_is_crossed_by_what_the_tables_say(
    as_json: dict[str, Any], limits: Thresholds, crossed: bool
) -> None:
    assert any(check.crossed for check in checks(limits, as_json)) is crossed


def test_a_threshold_that_is_kept_exits_with_0(sample_tables: Path) -> None:
    answer = report(sample_tables, "--channel", "quiet", "--max-loss", "0%", "--max-latency", "10s", "--max-lag", "500")
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.count(": kept (") == 3


def test_a_pipeline_without_a_message_crosses_what_asks_for_one(sample_tables: Path) -> None:
    options = ["--from", "2001-01-01", "--to", "2001-01-02"]
    assert report(sample_tables, *options, "--max-loss", "1%").exit_code == 0, "no message lost is none of many lost"
    answer = report(sample_tables, *options, "--min-messages", "1", "--max-age", "1h")
    assert answer.exit_code == 3
    assert "--min-messages 1: crossed (0)" in answer.stdout
    assert "--max-age 60 min: crossed (no message at all)" in answer.stdout
    found = json.loads(report(sample_tables, *options, "--max-age", "1h", "--json").stdout)
    assert found["thresholds"][0] | {"limit": 0} == {
        "name": "max_age", "limit": 0, "value": None, "unit": "ms", "crossed": True,
    }  # fmt: skip


def test_missing_messages_are_listed_with_cause_and_evidence(sample_tables: Path, as_json: dict[str, Any]) -> None:
    listed = json.loads(report(sample_tables, "--missing", "--json").stdout)
    assert len(listed) == as_json["totals"]["missing"] > 0
    assert {row["cause"] for row in listed} == {r["cause"] for r in as_json["causes"] if r["verdict"] == "missing"}
    shown = report(sample_tables, "--missing").stdout
    assert all(text.short(row["message_key"]) in shown for row in listed)
    assert f"{len(listed):,} of {as_json['totals']['messages']:,} messages are missing" in shown
    assert not CONTROL.search(shown)


def test_a_crossed_threshold_stands_in_json(as_json: dict[str, Any]) -> None:
    (check,) = as_json["thresholds"]
    assert check == {"name": "max_loss", "limit": 0.001, "value": check["value"], "unit": "share", "crossed": True}


def test_messages_that_no_round_of_verdicts_has_judged_are_counted(sample_tables: Path, tmp_path: Path) -> None:
    """Those of the last 15 minutes may still get their verdict."""
    note = "newer messages, delivered 15 min ago or earlier: no round of verdicts has ended since"
    assert note not in report(sample_tables).stdout
    shutil.copytree(sample_tables, tmp_path, dirs_exist_ok=True)
    paths = PathSettings(data_dir=str(tmp_path))
    lake = TableSnapshot(paths)
    tick = lake.select("SELECT * FROM clock WHERE kind = 'batch' ORDER BY event_time DESC LIMIT 1")[0]
    message = lake.select("SELECT * FROM delivered_messages ORDER BY first_seen DESC LIMIT 1")[0]
    now = message["first_seen"] + dt.timedelta(hours=2)
    append_rows(paths, CLOCK, as_arrow([tick | {"event_time": now}], CLOCK))
    new = [message | {"first_seen": now - dt.timedelta(minutes=before)} for before in (17, 16, 14)]
    append_rows(paths, DELIVERED_MESSAGES, as_arrow(new, DELIVERED_MESSAGES))
    assert f"• There is no verdict on 2 {note}" in report(tmp_path).stdout


def test_silence_does_not_pass_for_health(sample_tables: Path, tmp_path: Path) -> None:
    for name in ("delivered_messages", "deliveries"):
        (tmp_path / name).symlink_to(sample_tables / name)
    for options, cause in ((["--max-loss", "1%"], "no verdicts"), (["--max-lag", "5"], "has no rows of ingest")):
        answer = report(tmp_path, *options)
        assert isinstance(answer.exception, EnvironmentFault) and cause in answer.exception.cause
    said = report(tmp_path).stdout
    assert "There are no verdicts in this window" in said
    assert not re.search(r"\b0 messages", said), "what was delivered are messages"
    assert "No verdict names a loss." in said
    assert {c["loss"] for c in json.loads(report(tmp_path, "--json").stdout)["channels"]} == {None}


def test_what_was_first_seen_before_the_window_needs_no_verdict_in_it(sample_tables: Path) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    (last,) = lake.select(
        "SELECT max(first_seen) AS seen, max(event_time) AS came FROM delivered_messages WHERE channel_id = 'quiet'"
    )
    assert last["seen"] < last["came"]
    options = ["--channel", "quiet", "--from", last["came"].isoformat(), "--max-loss", "1%", "--json"]
    answer = report(sample_tables, *options)
    assert answer.exit_code == 0, answer.output
    shown = json.loads(answer.stdout)
    assert (shown["totals"]["delivered_rows"], shown["latency_ms"]["messages"]) == (0, 1)
    assert not any("There are no verdicts" in note for note in shown["notes"])


def judge(place: Path, verdicts: list[tuple[str, str | None]]) -> None:
    rows = [
        {
            **{"pubsub_topic": "/p", "content_topic": "/c", "channel_id": "talk", "message_key": f"{number}"},
            **{"verdict": verdict, "cause": cause, "settled": True, "sds_ids": [], "acknowledged_by": []},
            **{"first_seen": 1_767_225_600_000_000, "as_of": 1_767_225_600_000_000},
        }
        for number, (verdict, cause) in enumerate(verdicts)
    ]
    paths = PathSettings(data_dir=str(place))
    create_tables(paths, (DELIVERY_STATUS,))
    append_rows(paths, DELIVERY_STATUS, as_arrow(rows, DELIVERY_STATUS))


def test_what_is_unknown_is_no_loss_of_nought(tmp_path: Path) -> None:
    judge(tmp_path, [("unknown", "source_gap")] * 3 + [("unknown", "unsettled"), ("unknown", "claimed_by_one")])
    answer = json.loads(report(tmp_path, "--json", "--max-loss", "1%", "--max-quarantine", "1%").stdout)
    assert (answer["totals"]["loss"], answer["records"]["refused_share"], answer["conclusion"]) == (None, None, None)
    assert [check["value"] for check in answer["thresholds"]] == [None, None]
    said = " ".join(report(tmp_path).stdout.split())
    assert "– loss" in said and "– records quarantined" in said
    assert "was delivered" not in json.dumps(loss_charts.bursts(loss.bursts(TableWindow(tmp_path))).to_dict())
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    drawn = overview.verdicts(lake, window(lake, "all"))["bins"]
    assert sum(row["messages"] for row in drawn) == answer["totals"]["messages"] == 4, (
        "what one alone claims is no message"
    )
    assert "Neither delivered nor missing, but unknown: 4 messages (3 source gap, 1 unsettled)." in said


def test_missing_messages_beyond_the_bound_are_counted(tmp_path: Path) -> None:
    judge(tmp_path, [("missing", None)] * 1_050)
    answer = json.loads(report(tmp_path, "--json").stdout)
    assert (len(answer["missing"]), answer["left_out"]) == (1_000, {"missing": 50})
    assert "and 1,035 more; --json and --csv have the first 1,000" in report(tmp_path).stdout


def test_the_sentence_that_sums_up_goes_by_all_channels(tmp_path: Path) -> None:
    """That one of a thousand misses three of ten may be no chance where that of one of two thousand is."""
    missing = [3] + [1] * 90 + [0] * 1_909
    rows = [
        {
            **{"pubsub_topic": "/p", "content_topic": "/c", "channel_id": f"{channel}", "message_key": f"{number}"},
            **{"verdict": "missing" if number < lost else "delivered", "settled": True},
            **{"first_seen": 1_767_225_600_000_000, "as_of": 1_767_225_600_000_000},
        }
        for channel, lost in enumerate(missing)
        for number in range(10)
    ]
    paths = PathSettings(data_dir=str(tmp_path))
    create_tables(paths, (DELIVERY_STATUS,))
    append_rows(paths, DELIVERY_STATUS, as_arrow(rows, DELIVERY_STATUS))
    lake = TableSnapshot(paths)
    (said,) = {
        summary.collect(TableWindow(lake), dt.datetime.now(dt.UTC))["conclusion"],
        overview.page(lake, window(lake, "all"))["conclusion"].data,
    }
    assert said == "0.46 % of 20,000 settled messages are missing. 93 of the 93: cause unknown."


@pytest.mark.parametrize(("words", "value"), [("0.1%", 0.001), ("0.001", 0.001), ("0", 0), ("100 %", 1), ("1", 1)])
def test_a_share(words: str, value: float) -> None:
    assert share(words) == pytest.approx(value)


@pytest.mark.parametrize(
    ("words", "ms"), [("500ms", 500), ("30s", 30_000), ("2", 2_000), ("1.5min", 90_000), ("1h", 3.6e6)]
)
def test_a_length_of_time(words: str, ms: float) -> None:
    assert duration_ms(words) == ms


def test_a_value_at_the_limit_keeps_it() -> None:
    assert not Check("max_loss", 0.1, 0.1, "share").crossed
    assert Check("max_loss", 0.1, 0.1000001, "share").crossed
    assert not Check("max_latency", 1, None, "ms").crossed
