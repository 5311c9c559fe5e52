"""``reliable-channel demo`` as a user runs it: a whole process, a real broker, Spark, Delta, and a checked report."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from deltalake import DeltaTable
from nbclient import NotebookClient

from reliable_channel.report.check import check
from reliable_channel.report.tables import read_observed
from reliable_channel.simulation.truth import Truth

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka]

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "reliable_channel.cli", "demo", "--small"]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One run of the small demo: its directory and what it printed."""
    place = tmp_path_factory.mktemp("demo") / "run"
    done = subprocess.run(
        [*COMMAND, "--dir", str(place)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    return place, done


def processes_of(place: Path) -> list[str]:
    """Command lines of living processes that name the directory of a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in line and "pytest" not in line:
            found.append(line)
    return found


def test_it_ends_by_itself_with_a_report_that_matches_the_truth(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = demo
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The tables match the truth exactly." in done.stdout
    assert "[injected: segment_missing]" in done.stdout


def test_it_leaves_no_process_behind(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert processes_of(demo[0]) == []


def test_it_says_what_takes_its_time_and_shows_no_stack_trace(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, done = demo
    assert "Starting the Kafka broker" in done.stderr
    assert "Writing to Kafka" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_check_is_no_formality(demo: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """One row taken out of a copy of the tables, by a plain Delta writer, is found."""
    place, _ = demo
    shutil.copytree(place / "tables", tmp_path / "tables")
    truth = Truth.load(place / "truth")
    assert check(truth, read_observed(tmp_path / "tables")) == []
    DeltaTable(str(tmp_path / "tables" / "delivered_messages")).delete("channel_id = 'files' AND delivery_seq = 3")
    found = [str(difference) for difference in check(truth, read_observed(tmp_path / "tables"))]
    assert any("is not delivered" in line for line in found)


def test_the_printed_lines_query_the_tables(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Both one-liners, with and without Spark, run as they are printed."""
    place, done = demo
    for kind, expected in (("without Spark", "alice"), ("with Spark", "files")):
        line = re.search(rf"^  {kind}: +\S+python (.*)$", done.stdout, re.MULTILINE)
        assert line is not None, done.stdout
        answer = subprocess.run(
            ["sh", "-c", f"{sys.executable} {line[1]}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={**os.environ, "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(place / "query")},
        )
        assert answer.returncode == 0, answer.stderr
        assert expected in answer.stdout


def test_the_notebook_runs_on_the_tables(
    demo: tuple[Path, subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = demo
    notebook = nbformat.read(ROOT / "notebooks" / "delivery.ipynb", as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells), "kept without outputs"
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(place / "tables"))
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(ROOT)}}).execute()
    pictures = [o for c in notebook.cells for o in c.get("outputs", []) if "image/svg+xml" in o.get("data", {})]
    assert len(pictures) == 5


def test_a_directory_that_is_not_its_own_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    done = subprocess.run(
        [*COMMAND, "--dir", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "was not made by a demo" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_ctrl_c_ends_it_and_everything_it_started(tmp_path: Path) -> None:
    """Interrupted while the jobs run: one line, exit code 130, no process left; and then it runs again."""
    place = tmp_path / "run"
    process = subprocess.Popen(
        [*COMMAND, "--dir", str(place)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    checkpoints = place / "checkpoints"
    deadline = time.monotonic() + 240
    while not (checkpoints.is_dir() and any(checkpoints.iterdir())):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the jobs did not start"
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert processes_of(place) == []
    again = subprocess.run(
        [*COMMAND, "--dir", str(place)], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert again.returncode == 0, again.stdout + again.stderr
