"""``reliable-channel demo`` as a user runs it: a whole process, a real broker, Spark, Delta, and a checked report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from nbclient import NotebookClient

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.check.tables import read_observed, read_verdicts
from reliable_channel.simulation.truth import MessageOutcome, Truth
from tests.e2e.demo_runs import COMMAND, ROOT, DemoRun
from tests.support.delta_tables import read_table

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka]


def test_ctrl_c_ends_it_and_everything_it_started(demo_interrupted: DemoRun) -> None:
    run = demo_interrupted
    assert run.returncode == 130, run.output + run.errors
    assert "Traceback" not in run.output + run.errors
    assert run.left_behind == []


def test_it_then_ends_by_itself_with_a_report_that_matches_the_truth(demo: DemoRun) -> None:
    assert demo.returncode == 0, demo.output + demo.errors
    assert "The tables match the truth exactly." in demo.output
    assert "segment missing" in demo.output
    assert demo.left_behind == []


def test_it_says_what_takes_its_time_and_shows_no_stack_trace(demo: DemoRun) -> None:
    for step in ("Starting the Kafka broker", "Writing to Kafka", "Running the jobs"):
        assert step in demo.errors
    assert "Traceback" not in demo.errors


def test_the_check_is_no_formality(demo: DemoRun, tmp_path: Path) -> None:
    """One row taken out of a copy of the tables, by a plain Delta writer, is found."""
    tables, truth = tmp_path / "tables", Truth.load(demo.place / "truth")
    shutil.copytree(demo.place / "tables", tables)
    assert check(truth, read_observed(tables)) == []
    rows = read_table(tables, "delivered_messages").to_pylist()
    shutil.rmtree(tables / "delivered_messages")
    write_deltalake(str(tables / "delivered_messages"), pa.Table.from_pylist(rows[:3] + rows[4:]))
    found = [str(difference) for difference in check(truth, read_observed(tables))]
    assert any("is not delivered" in line for line in found)


def test_the_printed_question_command_asks_the_tables(demo: DemoRun) -> None:
    line = re.search(r"^  \S*reliable-channel sql +(--tables \S+)", demo.output, re.MULTILINE)
    assert line is not None, demo.output
    question = "SELECT vantage, count(*) AS seen FROM sightings GROUP BY vantage"
    command = [sys.executable, "-m", "reliable_channel", "sql", question, *line[1].split(), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert {row["vantage"] for row in json.loads(done.stdout)} == {"east", "west"}


def test_two_stores_answered_and_every_loss_has_its_cause(demo: DemoRun) -> None:
    nodes = read_table(demo.place / "tables", "store_presence").to_pylist()
    assert len({row["node"] for row in nodes}) == 2
    assert {row["outcome"] for row in nodes} == {"present", "absent"}
    judged = read_verdicts(demo.place / "tables")
    assert [row for row in judged if row.verdict == "missing"]
    assert not [row for row in judged if row.verdict == "missing" and row.cause is None]
    assert "cause unknown" not in demo.output


def test_no_channel_counts_as_silent_by_the_ticks_that_fire_the_timers(demo: DemoRun) -> None:
    lake = TableSnapshot(PathSettings(data_dir=str(demo.place / "tables")))
    assert lake.select("SELECT alert, detail FROM alerts WHERE alert = 'silent_channel'") == []


def test_the_notebooks_run_on_the_tables(demo: DemoRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """All in one kernel, one after the other, each from an empty name space."""
    everything = nbformat.v4.new_notebook()
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        everything.cells += nbformat.read(file, as_version=4).cells
        everything.cells.append(nbformat.v4.new_code_cell("%reset -f"))
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(demo.place / "tables"))
    NotebookClient(everything, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
    outputs = [o for c in everything.cells for o in c.get("outputs", [])]
    assert sum("image/svg+xml" in o.get("data", {}) for o in outputs) >= 25
    assert not [o for o in outputs if o.output_type == "stream" and o.name == "stderr"]


def test_the_report_says_the_same_as_the_truth(demo: DemoRun, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    command = [sys.executable, "-m", "reliable_channel", "report", "--tables", str(demo.place / "tables")]
    done = subprocess.run(
        [*command, "--json", "--html", str(page), "--max-loss", "0.1%"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    totals = json.loads(done.stdout)["totals"]
    truth = Truth.load(demo.place / "truth")
    assert totals["messages"] == len(truth.messages)
    assert totals["delivered"] == sum(m.outcome == MessageOutcome.DELIVERED for m in truth.messages)
    assert "data:image/svg+xml" in page.read_text(encoding="utf-8")


def test_a_directory_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = subprocess.run(
        [*COMMAND, "--dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert "was not made by a demo" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"
