"""``demo --slow``: senders who are away or wait for epochs, through a real broker, the jobs and the check against the
truth."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.e2e.demo_runs import COMMAND, ROOT
from tests.support.delta_tables import read_table
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def test_sets_are_overdue_and_completed_late_or_given_up(tmp_path: Path) -> None:
    command = [*COMMAND[:-1], "--slow", "--dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout
    assert "The tables match the truth exactly." in done.stdout
    tables = tmp_path / "run" / "tables"
    sets = read_table(tables, "incomplete_messages", ["status"])["status"].to_pylist()
    assert {*sets} == {"overdue", "given_up"}
    verdicts = read_table(tables, "delivery_status", ["verdict", "cause"]).to_pylist()
    assert {"verdict": "delivered", "cause": "late"} in verdicts
    assert {"verdict": "missing", "cause": "segment_missing"} in verdicts
