"""The rules file: what is shipped is valid, and what is wrong is refused by the name of the rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reliable_channel.analysis.alerts.rules import KINDS, load_rules, parse_rules
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.tables.operations import FAILING
from reliable_channel.pipeline.runner.measures import measures

ROOT = Path(__file__).parents[3]
SHIPPED = load_rules()


def test_the_shipped_rules_cover_what_operators_fear() -> None:
    kinds = {rule.alert: rule.kind for rule in SHIPPED}
    assert set(KINDS) - set(kinds.values()) == {"clock_stopped", "budget"}, "not for everybody, so comments"
    text = (ROOT / "conf" / "alerts.yaml").read_text(encoding="utf-8")
    with_comments = parse_rules(re.sub(r"^  # (?=- |  )", "  ", text, flags=re.MULTILINE), "conf/alerts.yaml")
    assert {rule.kind for rule in with_comments} == set(KINDS)
    metrics = {rule.metric for rule in SHIPPED if rule.kind == "metric"}
    assert metrics == {"lag_offsets", "lag_commits", "failed_rows", FAILING}


def test_the_shipped_rules_name_metrics_that_are_written() -> None:
    kafka = {"endOffset": {"t": {"0": 1}}, "latestOffset": {"t": {"0": 2}}}
    table = {"endOffset": {"reservoirVersion": 3}, "description": "DeltaSource[file:/x/segments]"}
    state = {"numRowsTotal": 1}
    written = measures(
        {"sources": [kafka, table], "stateOperators": [state]}, {"failed_rows": 0}, lambda table, version: 0
    )
    assert {rule.metric for rule in SHIPPED if rule.kind == "metric"} <= {*written, FAILING}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("{alert: x, kind: loss_rate, above: 1.5}", "rule 'x': above: Input should be less than 1"),
        ("{alert: x, kind: loss_rate}", "rule 'x': above is missing"),
        (
            f"{{alert: x, kind: silent_channel, above_ms: 1, window_ms: {10**18}}}",
            "rule 'x': window_ms: Input should be less",
        ),
        ("{alert: x, kind: loss_rate, above: 0.1, window: 5}", "rule 'x': unknown key window"),
        (
            "{alert: x, kind: losses, above: 0.1}",
            "rule 'x': there is no kind 'losses', only loss_rate, quarantine_rate",
        ),
        ("{alert: x, above: 0.1}", "rule 'x': kind is missing"),
        ("{kind: loss_rate, above: 0.1}", "rule number 2: alert is missing"),
        ("{alert: X Y, kind: loss_rate, above: 0.1}", "rule 'X Y': alert: String should match"),
        (
            "{alert: x, kind: quarantine_rate, above: 0, reasons: [sunspots]}",
            "rule 'x': reasons: no such reason: sunspots",
        ),
        ("{alert: x, kind: metric, metric: 'a b', above: 0}", "rule 'x': metric: String should match"),
        ("{alert: x, kind: metric, metric: m, above: .inf}", "rule 'x': above: Input should be a finite number"),
        ("{alert: x, kind: silent_channel, above_ms: 0}", "rule 'x': above_ms: Input should be greater than 0"),
        ("{alert: good, kind: loss_rate, above: 0.1}", "two rules have the name good"),
        ("just text", "rule number 2: it: "),
    ],
)
def test_a_wrong_rule_is_refused_by_name(rule: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_rules(f"rules:\n - {{alert: good, kind: loss_rate, above: 0.1}}\n - {rule}\n", "my.yaml")
    assert str(refused.value).startswith("my.yaml: ")
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("rules: [", "my.yaml, line 2, column 1: not valid YAML"),
        ("rules: [{alert: a, kind: loss_rate, above: 0.1, above: 0.9}]", "above appears twice"),
        ("", "there must be one key, rules"),
        ("rules: {}", "there must be one key, rules"),
        ("rules: []\nmore: 1", "there must be one key, rules"),
        ("rules: [" + "{}," * 201 + "]", "more than 200 rules"),
    ],
)
def test_a_wrong_file_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        parse_rules(text + "\n", "my.yaml")


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        load_rules(str(tmp_path / "none.yaml"))
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        load_rules(str(tmp_path / "binary.yaml"))
