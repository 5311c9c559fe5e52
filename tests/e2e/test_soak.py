"""A short soak: traffic, maintenance, verdicts and alerts beside one another, and the tables match the truth in the
end. ``make soak`` runs longer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.faults]

SECONDS = float(os.environ.get("SOAK_SECONDS", "600"))
"""How long traffic is sent: ten minutes, in CI less."""


def test_everything_at_a_time_leaves_true_tables_and_nothing_grows(tmp_path: Path) -> None:
    place = tmp_path / "soak"
    command = [sys.executable, "-m", "tests.soak", "--seconds", str(SECONDS), "--rate", "30", "--judge", "30"]
    command += ["--dir", str(place), "--output", str(tmp_path)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=SECONDS * 3 + 900, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    result = json.loads((tmp_path / "soak.json").read_text(encoding="utf-8"))
    assert result["differences"] == []
    assert [each["name"] for each in result["growth"] if not each["kept"]] == []
    assert result["records"] > 500 and result["verdicts"] > 0 and result["alerts"] > 0
    assert result["rows_deleted"]["ordered_sds_messages"] > 0, "retention had something to do"
    shutil.rmtree(place)  # hundreds of megabytes
