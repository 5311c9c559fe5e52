"""``demo --bad-day``: a split, a store that keeps nothing and a flood, through a real broker and the jobs; the
notebook's sentences name them as they were played."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from reliable_channel.analysis.report import incidents
from reliable_channel.analysis.report.source import TableWindow
from tests.e2e.demo_runs import COMMAND, ROOT
from tests.support.waiting import WAIT_S

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]


def test_what_was_played_is_found_in_the_tables(tmp_path: Path) -> None:
    command = [*COMMAND[:-1], "--bad-day", "--dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stdout
    assert "The tables match the truth exactly." in done.stdout
    source = TableWindow(tmp_path / "run" / "tables")
    (split,) = incidents.list_splits(source).itertuples()
    assert (split.channel, split.groups) == ("ops", ["alice bob erin", "carol dave"])
    # The simulation cuts them off from 00:12 to 00:24; tables show it by the next message of a participant.
    assert 12 <= split.since.minute <= 14 and 24 <= split.healed.minute <= 26
    split_sentence, store, flood = incidents.describe(source).splitlines()
    assert split_sentence.startswith("ops was split from ")
    assert "from 2026-01-01 00:30:00 to 2026-01-01 00:45:00" in store
    assert flood.startswith("600 senders of a single message appeared")
