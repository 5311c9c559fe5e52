"""A short soak: traffic, maintenance, verdicts and alerts beside one another, and the tables match the truth in the
end. ``make soak`` runs longer."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.faults]


def test_a_minute_of_everything_at_a_time_leaves_true_tables(tmp_path: Path) -> None:
    place = tmp_path / "soak"
    command = [sys.executable, "-m", "scripts.soak", "--seconds", "60", "--rate", "40", "--beside", "15"]
    command += ["--dir", str(place)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads((place / "result.json").read_text(encoding="utf-8"))
    assert result["differences"] == []
    assert result["conversations"] >= 2 and result["records"] > 500
    assert result["rows_deleted"], "retention had something to do"
