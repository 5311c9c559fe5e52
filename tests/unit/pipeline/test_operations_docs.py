"""docs/operations.md tells the truth: its commands exist, its configuration loads, its metrics are those we write."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from reliable_channel.cli import main
from reliable_channel.config import load
from reliable_channel.pipeline.maintenance.rebuild import CARRIED_OVER
from reliable_channel.pipeline.runner import metrics
from reliable_channel.pipeline.runner.measures import measures
from reliable_channel.pipeline.runner.queries import CHAIN
from tests.support.progress import PROGRESS

PAGE = (Path(__file__).parents[3] / "docs" / "operations.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ reliable-channel (.+)$", PAGE, re.MULTILINE)
STATUS = [command for command in COMMANDS if command.startswith("status")]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_and_option_exists(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, *arguments = command.split()
    text = run(capsys, name, "--help")
    for option in (argument for argument in arguments if argument.startswith("--")):
        assert option in text


@pytest.mark.parametrize("command", STATUS)
def test_status_where_nothing_is_says_so_and_fails(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(command.split())
    out, err = capsys.readouterr()
    assert ended.value.code == 1
    assert f"There are no Delta tables under {tmp_path}" in err
    assert json.loads(out)["tables"] == [] if "--json" in command else out == ""


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL))
def test_the_configuration_is_valid_and_says_the_defaults(block: str) -> None:
    given = yaml.safe_load(block)
    assert load("local", **given) == load("local")


def test_the_metrics_named_are_those_we_write() -> None:
    named = set(re.findall(r"`([a-z_]+)`", PAGE.split("| metric |")[1].split("\n\n")[0]))
    kafka = {"endOffset": {"t": {"0": 1}}, "latestOffset": {"t": {"0": 2}}}
    everything = {**PROGRESS, "inputRowsPerSecond": 1.0, "sources": [*PROGRESS["sources"], kafka]}
    written = set(
        measures(everything, {"quarantined_rows": 1, "failed_rows": 0, "turn_wait_ms": 1}, lambda table, version: 0)
    )
    assert named - {"quarantine", "channel_events", "row_failed"} <= written
    assert written - named == {"query_planning_ms"}, "Spark's phases stand for all: …"


def test_the_series_named_are_those_we_serve() -> None:
    served = {
        name
        for family in metrics.PrometheusMetrics().registry.collect()
        for name in [family.name + ("_total" if family.type == "counter" else "")]
    }
    assert set(re.findall(r"^\| `(reliable_channel_\w+)`", PAGE, re.MULTILINE)) == served


def test_the_ports_named_are_those_of_the_jobs() -> None:
    from reliable_channel.pipeline.runner.job import _find_port_offset

    first = load("local").metrics.port
    named = re.findall(r"(ingest|reassembly|ack) (\d{4})", PAGE)
    assert [(query.name, str(first + _find_port_offset(query))) for query in CHAIN] == named


def test_the_tables_that_a_rebuild_carries_over_are_those_of_the_program() -> None:
    (named,) = re.findall(r"^\* \*Carried over\*.*?: (.*?) and the rows", PAGE, re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`(\w+)`", named)) == {table.name for table in CARRIED_OVER}
