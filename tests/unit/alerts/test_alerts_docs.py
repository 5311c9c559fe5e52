"""docs/alerts.md tells the truth: rules, kinds, keys, configuration, payload, commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from reliable_channel.analysis.alerts.rules import Rule, load_rules, parse_rules
from reliable_channel.analysis.alerts.webhook import PAGE
from reliable_channel.cli import main
from reliable_channel.config import load
from reliable_channel.lake.create import create_table
from reliable_channel.lake.tables import ALERTS, CLOCK

DOCS = Path(__file__).parents[3] / "docs"
TEXT = next(DOCS.rglob("alerts.md")).read_text(encoding="utf-8")
COMMON = {"alert", "kind", "severity", "window_ms"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table that begins with ``heading``."""
    body = TEXT.split(heading, 1)[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def test_every_shipped_rule_is_explained() -> None:
    assert [row[0].strip("`") for row in rows("| alert | raised when |")] == [rule.alert for rule in load_rules()]


def test_every_kind_is_explained_with_its_keys() -> None:
    models = {get_args(m.model_fields["kind"].annotation)[0]: set(m.model_fields) - COMMON for m in get_args(Rule)}
    # Values in parentheses are no keys.
    keys = {row[0].strip("`"): set(re.findall(r"`(\w+)`", re.sub(r"\(.*?\)", "", row[3]))) for row in rows("| kind |")}
    assert keys == models


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_every_example_of_rules_is_valid(block: str) -> None:
    assert parse_rules(block, "docs")


def test_the_payload_has_the_columns_of_the_table() -> None:
    (payload,) = (json.loads(block) for block in re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL))
    assert list(payload["alerts"][0]) == ["id", *ALERTS.names()[1:]]
    assert f"up to {PAGE} changes" in TEXT


def test_the_variables_are_read_and_stay_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in re.findall(r"^export (\w+)=(.*)$", TEXT, re.MULTILINE):
        monkeypatch.setenv(name, value)
    alerts = load("local").alerts
    assert alerts.webhook_url is not None and alerts.webhook_token is not None
    assert "hooks.example" not in load("local").to_yaml()


def test_numbers_named_are_the_defaults() -> None:
    alerts = load("local").alerts
    assert f"at most {alerts.most_open} alerts of a rule" in TEXT
    assert f"({alerts.webhook_attempts} attempts)" in TEXT


@pytest.mark.parametrize("command", re.findall(r"^\$ reliable-channel (.+)$", TEXT, re.MULTILINE))
def test_every_command_runs_where_nothing_has_come_yet(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    create_table(tmp_path / "tables" / CLOCK.name, CLOCK)
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    assert ended.value.code == 0, capsys.readouterr().err
