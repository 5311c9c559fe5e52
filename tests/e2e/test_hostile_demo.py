"""``demo --hostile``: hostile senders through a real broker, the jobs and the check against the truth."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from demo_runs import COMMAND, PATIENCE_S, ROOT

from reliable_channel.simulation.attacks import ATTACKS
from reliable_channel.simulation.truth import Truth

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka]


def test_it_ends_with_tables_that_match_the_truth(tmp_path: Path) -> None:
    command = [*COMMAND[:-1], "--hostile", "--dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    attacks = {attack.attack for attack in Truth.load(tmp_path / "run" / "truth").attacks}
    assert attacks == set(ATTACKS)
    assert "What hostile senders sent" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout
    assert "The tables match the truth exactly." in done.stdout
