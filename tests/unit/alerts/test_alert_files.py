"""The files for Prometheus and Grafana ask only for series and metrics that the pipeline serves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reliable_channel.analysis.alerts.rules import load_rules
from reliable_channel.pipeline.runner.measures import measures
from reliable_channel.pipeline.runner.metrics import PrometheusMetrics
from reliable_channel.pipeline.runner.queries import CHAIN

CONF = Path(__file__).parents[3] / "conf"
GROUPS: list[dict[str, Any]] = yaml.safe_load((CONF / "prometheus-rules.yml").read_text(encoding="utf-8"))["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((CONF / "grafana-dashboard.json").read_text(encoding="utf-8"))
TARGETS: list[str] = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
VARIABLES: list[str] = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]

each_expression = pytest.mark.parametrize("expression", [*(rule["expr"] for rule in RULES), *TARGETS, *VARIABLES])


def served() -> set[str]:
    """The names of the series, with the labels that a scrape adds nothing to."""
    families = PrometheusMetrics().registry.collect()
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


def written() -> set[str]:
    """The names of metrics that a query with every feature writes."""
    kafka = {"endOffset": {"t": {"0": 1}}, "latestOffset": {"t": {"0": 2}}}
    table = {"endOffset": {"reservoirVersion": 3}, "description": "DeltaSource[file:/x/sds_messages]"}
    state = {"numRowsTotal": 1, "memoryUsedBytes": 1, "commitTimeMs": 1}
    progress = {"sources": [kafka, table], "stateOperators": [state], "durationMs": {"triggerExecution": 1}}
    return set(measures(progress, {"quarantined_rows": 1, "failed_rows": 0}, lambda name, version: 0))


@each_expression
def test_only_series_that_are_served_are_asked_for(expression: str) -> None:
    names = set(re.findall(r"\breliable_channel_\w+", expression))
    assert names and names <= served()


@each_expression
def test_only_metrics_and_queries_that_exist_are_selected(expression: str) -> None:
    assert set(re.findall(r'metric="(\w+)"', expression)) <= written()
    queries = {name for found in re.findall(r'query=~?"([a-z|]+)"', expression) for name in found.split("|")}
    assert queries <= {query.name for query in CHAIN}
    totals = re.findall(r'_rows_total\{[^}]*metric="(\w+)"', expression)
    assert set(totals) <= {"input_rows", "quarantined_rows", "failed_rows"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_every_rule_says_what_is_wrong_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule.get("labels", {"severity": "critical"})["severity"] in {"warning", "critical"}
    assert rule["annotations"]["summary"] and rule["annotations"]["description"].endswith(".")


def test_no_threshold_of_the_rules_over_the_tables_is_said_again() -> None:
    (passed_on,) = (rule for rule in RULES if "reliable_channel_open_alerts" in rule["expr"])
    assert "labels" not in passed_on, "severity is a label of the series"
    others = " ".join(rule["expr"] for rule in RULES if rule is not passed_on)
    assert not re.findall("|".join(rule.metric for rule in load_rules() if rule.kind == "metric"), others)


def test_the_panels_have_places_of_their_own_and_the_datasource_is_a_variable() -> None:
    panels = DASHBOARD["panels"]
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
