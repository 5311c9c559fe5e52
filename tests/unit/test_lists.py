"""Whatever lists something does so in JSON as well; and the line that says how a continuous run stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from reliable_channel.cli import main
from reliable_channel.cli.app import build
from reliable_channel.cli.commands import files_of_package
from reliable_channel.cli.commands.run import format_status
from reliable_channel.pipeline.runner.metrics import PrometheusMetrics

LISTS = {
    "alerts check", "alerts rules", "bridge", "channel status", "config show", "files", "jars",
    "kafka status", "kafka topics", "listen", "report", "send", "sql", "status", "tables list",
    "what-if",
}  # fmt: skip
ACTS = {
    "api serve", "dashboard", "demo", "evidence bundle", "evidence logs", "evidence verify", "kafka start",
    "kafka stop", "maintain",
    "notebooks", "rebuild", "requeue", "run", "setup", "simulate", "store serve",
}  # fmt: skip
"""Commands that do something, and say in a line that it is done."""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(path), command
        return
    for name, one in inner.items():
        yield from commands(one, (*path, name))


ALL = dict(commands(typer.main.get_command(build())))


def test_every_command_lists_or_acts() -> None:
    assert set(ALL) == LISTS | ACTS


@pytest.mark.parametrize("name", sorted(LISTS))
def test_what_lists_does_so_in_json_too(name: str) -> None:
    assert "--json" in {option for parameter in ALL[name].params for option in parameter.opts}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("config show", 0), ("files", 0), ("tables list", 0),
        ("alerts rules", 0), ("kafka status", 3),
    ],
)  # fmt: skip
def test_what_needs_nothing_prints_json(
    line: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main([*line.split(), "--json"])
    assert (ended.value.code or 0) == code
    assert json.loads(capsys.readouterr().out)


def test_every_file_of_the_package_has_a_name_of_its_own_and_is_named_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [file.name for file in files_of_package()]
    assert {"ingest.py", "loss.ipynb", "grafana-dashboard.json"} <= set(names) and len(set(names)) == len(names)
    with pytest.raises(SystemExit):
        main(["files", "ingest.py"])
    assert Path(capsys.readouterr().out.strip()).is_file()


def test_a_file_that_is_not_in_the_package_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["files", "../pyproject.toml"])
    assert ended.value.code and "There is no file" in capsys.readouterr().err


def test_the_line_of_a_continuous_run_says_what_was_read_and_when_each_job_last_did_something(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = PrometheusMetrics()
    assert format_status(metrics, 0) == (
        "0 records read; last micro-batch: ingest never, reassembly never, ack never; no verdicts yet"
    )
    monkeypatch.setattr("time.time", lambda: 1_000.0)
    metrics.progress("ingest", {"input_rows": 1_234.0})
    metrics.progress("ack", {})
    metrics.record_verdicts({"delivered": 300, "missing": 35}, {}, {}, None)
    assert format_status(metrics, 1_007) == (
        "1,234 records read; last micro-batch: ingest 7 s ago, reassembly never, ack 7 s ago;"
        " 300 messages delivered and 35 missing in 24 h"
    )
