"""``demo --hostile``: hostile senders through a real broker, the jobs and the check against the truth."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from reliable_channel.simulation.attacks import ATTACKS
from reliable_channel.simulation.truth import MessageOutcome, Truth
from tests.e2e.demo_runs import COMMAND, ROOT
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def test_it_ends_with_tables_that_match_the_truth(tmp_path: Path) -> None:
    command = [*COMMAND[:-1], "--hostile", "--dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    truth = Truth.load(tmp_path / "run" / "truth")
    attacks = {attack.attack for attack in truth.attacks}
    assert attacks == set(ATTACKS)
    assert "What hostile senders sent" in done.stdout
    assert "Traceback" not in done.stderr
    assert done.returncode == 0, done.stdout
    assert "The tables match the truth exactly." in done.stdout
    # That includes the headline figures of every surface. Claims are many, and in none of them.
    report = [*COMMAND[:-2], "report", "--json", "--tables", str(tmp_path / "run" / "tables")]
    totals = json.loads(subprocess.run(report, cwd=ROOT, capture_output=True, text=True, check=True).stdout)["totals"]
    sent = {(m.channel_id, m.first_sds_id) for m in truth.messages if m.outcome != MessageOutcome.DELIVERED}
    sent |= {(attack.channel_id, attack.sds_id) for attack in truth.attacks}
    assert totals["missing"] <= len(sent)
    assert totals["claimed"] > 10 * totals["missing"]
