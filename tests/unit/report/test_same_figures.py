"""Every surface that shows a figure shows the same number of the same tables."""

from __future__ import annotations

import datetime as dt
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from reliable_channel.analysis import figures, text
from reliable_channel.analysis.alerts.measure import measure_rule
from reliable_channel.analysis.alerts.rules import LossRate, QuarantineRate
from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.dashboard.channels import channels as channels_of
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.report import delivery
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.cli.app import build
from reliable_channel.cli.commands.run import summarize_tables
from reliable_channel.config import PathSettings, load
from tests.support.sample_values import PUBSUB_TOPIC, topic_of

ALWAYS_MS = 100 * 365 * 86_400_000
FOREVER = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def lake(sample_tables: Path) -> TableSnapshot:
    return TableSnapshot(PathSettings(data_dir=str(sample_tables)))


@pytest.fixture(scope="module")
def expected(lake: TableSnapshot) -> dict[str, Any]:
    """The figures by their definitions, without anything between."""
    sql = f"""SELECT *, {figures.LOSS} AS loss, {figures.records()} AS records, {figures.drops()} AS refused,
        (SELECT {figures.REPAIRED} FROM reassembled_messages) AS repaired
        FROM (SELECT {figures.VERDICTS} FROM delivery_status)"""  # noqa: S608 - text of our own
    (row,) = lake.select(sql)
    assert min(row[name] for name in ("delivered", "late", "missing", "unknown", "refused", "repaired")) > 0, row
    return row


@pytest.fixture(scope="module")
def report(sample_tables: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(command(sample_tables, "report", "--json"))
    return found


@pytest.fixture(scope="module")
def client(sample_tables: Path) -> TestClient:
    return TestClient(create_app(PathSettings(data_dir=str(sample_tables))), base_url="http://127.0.0.1")


def command(tables: Path, *arguments: str) -> str:
    done = CliRunner().invoke(build(arguments[0]), [*arguments, "--tables", str(tables)])
    assert done.exit_code == 0, done.output
    return done.stdout


def tiles(client: TestClient, address: str) -> dict[str, tuple[str, str]]:
    """Label → value and the words below it."""
    page = client.get(address).text
    found = re.findall(r"<dt>([^<]+)</dt><dd>([^<]*)(?:<small>([^<]*)</small>)?</dd></div>", page)
    return {label: (value, html.unescape(about)) for label, value, about in found}


def test_the_report_as_json_has_them(report: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ("messages", "delivered", "late", "missing", "unknown", "repaired"):
        assert report["totals"][name] == expected[name], name
    assert report["totals"]["loss"] == pytest.approx(expected["loss"])
    assert (report["records"]["records"], report["records"]["refused"]) == (expected["records"], expected["refused"])


def test_its_tables_add_up_to_its_totals(report: dict[str, Any], expected: dict[str, Any]) -> None:
    for name in ("messages", "delivered", "late", "missing", "unknown", "repaired"):
        assert sum(row[name] for row in report["channels"]) == expected[name], name
    assert sum(row["messages"] for row in report["parity"] if row["outcome"] == "repaired") == expected["repaired"]
    assert sum(row["messages"] for row in report["causes"] if row["verdict"] == "missing") == expected["missing"]
    assert len(report["missing"]) == expected["missing"]


def test_a_message_is_in_one_window_whatever_the_channel_delivers_in_another(lake: TableSnapshot) -> None:
    (last,) = lake.select(
        "SELECT max(first_seen) AS seen, max(event_time) AS came FROM delivered_messages WHERE channel_id = 'quiet'"
    )
    assert last["seen"] < last["came"]
    for since in last.values():
        source = TableWindow(lake, Window(since))
        (totals,), channels = delivery.totals(source).to_dict("records"), delivery.by_channel(source)
        listed = channels_of(
            lake, TimeWindow("1h", since - dt.timedelta(microseconds=1), FOREVER, None, None), "", "name", 1
        )
        for name in ("messages", "delivered", "late", "missing", "unknown"):
            assert channels[name].sum() == totals[name] == sum(row[name] for row in listed.rows), name
        assert len(channels) == totals["channels"] == len(listed.rows)


def test_the_report_as_text_and_page_has_them(sample_tables: Path, expected: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    words = " ".join(command(sample_tables, "report", "--html", str(page)).split())
    shown = re.findall(r'<div class="tile"><dt>([^<]+)</dt><dd>([^<]*)</dd></div>', page.read_text(encoding="utf-8"))
    of_page = {label: html.unescape(value) for label, value in shown}
    wanted = {name: text.count(expected[name]) for name in ("messages", "delivered", "missing", "repaired")}
    wanted["loss"] = text.percent(expected["loss"])
    wanted["records quarantined"] = text.percent(expected["refused"] / expected["records"])
    for label, value in wanted.items():
        assert of_page[label] == value
        assert f"{value} {label}" in words


def test_the_overview_has_them(client: TestClient, expected: dict[str, Any]) -> None:
    shown = tiles(client, "/?last=all")
    settled = expected["delivered"] + expected["missing"]
    assert shown["Delivered"][1] == f"{expected['delivered']:,} of {settled:,} settled"
    assert shown["Missing"] == (str(expected["missing"]), f"{100 * expected['loss']:.1f} % of what is settled")
    assert shown["Not known yet"][0] == str(expected["unknown"])
    assert shown["Records"][0] == f"{expected['records']:,}"
    share = text.share(expected["refused"], expected["records"])
    assert shown["Quarantined"] == (str(expected["refused"]), f"{share} of the records")


@pytest.mark.parametrize("channel", ["talk", "files"])
def test_the_pages_of_channels_have_those_of_the_report(
    client: TestClient, report: dict[str, Any], channel: str
) -> None:
    row = next(row for row in report["channels"] if row["channel_id"] == channel)
    key = f"pubsub_topic={PUBSUB_TOPIC}&content_topic={topic_of(channel)}&channel_id={channel}"
    shown = tiles(client, f"/channel?{key}&last=all")
    assert shown["Missing"][0] == str(row["missing"])
    assert (shown["Repaired"][0], shown["Late"][0]) == (str(row["repaired"]), str(row["late"]))
    assert shown["Senders"][1] == f"last heard {text.time(row['last_seen'])}"
    listed = client.get("/channels?last=all").text.split(f"<bdi>{channel}</bdi>")[1].split("</tr>")[0]
    cells = [re.sub(r"<[^>]+>", "", cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", listed, re.DOTALL)]
    for name in ("messages", "delivered", "missing", "late", "repaired"):
        assert str(row[name]) in cells, (name, cells)


def test_alerts_measure_them(lake: TableSnapshot, expected: dict[str, Any]) -> None:
    clock = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    common: dict[str, Any] = {"above": 0.0, "window_ms": ALWAYS_MS, "at_least": 1}
    lost = LossRate(alert="lost", kind="loss_rate", per="all", **common)
    refused = QuarantineRate(alert="refused", kind="quarantine_rate", **common)
    assert measure_rule(lake, lost, clock, clock)[0].value == pytest.approx(expected["loss"])
    assert measure_rule(lake, refused, clock, clock)[0].value == pytest.approx(
        expected["refused"] / expected["records"]
    )


def test_the_last_line_of_a_run_has_them(sample_tables: Path, expected: dict[str, Any]) -> None:
    line = summarize_tables(load("local", paths={"data_dir": str(sample_tables)}))
    assert f"{expected['records']:,} records, {expected['delivered']:,} messages delivered" in line
    assert f"{expected['missing']:,} missing ({text.percent(expected['loss'])})" in line


def test_a_question_in_sql_gives_them(sample_tables: Path, expected: dict[str, Any]) -> None:
    question = "SELECT verdict, count(*) AS messages FROM delivery_status GROUP BY ALL"
    found = {row["verdict"]: row["messages"] for row in json.loads(command(sample_tables, "sql", question, "--json"))}
    assert found == {name: expected[name] for name in ("delivered", "missing", "unknown")}
