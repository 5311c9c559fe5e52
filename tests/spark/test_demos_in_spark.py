"""``demo --hostile`` and ``demo --bad-day`` through a broker of their own and the jobs, to tables that match the truth.
Other demos are played as whole processes in tests/e2e."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from reliable_channel.analysis.report import incidents
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.config import Settings
from reliable_channel.simulation.attacks import ATTACKS
from reliable_channel.simulation.truth import MessageOutcome, Truth

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_hostile_senders_leave_tables_that_match_the_truth(
    settings: Settings, shell: Callable[..., str], tmp_path: Path
) -> None:
    said = shell(settings, "demo", "--hostile", "--dir", str(tmp_path / "run"))
    truth = Truth.load(tmp_path / "run" / "truth")
    attacks = {attack.attack for attack in truth.attacks}
    assert attacks == set(ATTACKS)
    assert "What hostile senders sent" in said
    assert "The tables match the truth exactly." in said
    # That includes the headline figures of every surface. Claims are many, and in none of them.
    report = shell(settings, "report", "--json", "--tables", str(tmp_path / "run" / "tables"))
    totals = json.loads(report)["totals"]
    sent = {(m.channel_id, m.first_sds_id) for m in truth.messages if m.outcome != MessageOutcome.DELIVERED}
    sent |= {(attack.channel_id, attack.sds_id) for attack in truth.attacks}
    assert totals["missing"] <= len(sent)
    assert totals["claimed"] > 10 * totals["missing"]


def test_what_was_played_of_a_bad_day_is_found_in_the_tables(
    settings: Settings, shell: Callable[..., str], tmp_path: Path
) -> None:
    """A split, a store that keeps nothing and a flood: the notebook's sentences name them as they were played."""
    said = shell(settings, "demo", "--bad-day", "--dir", str(tmp_path / "run"))
    assert "The tables match the truth exactly." in said
    source = TableWindow(tmp_path / "run" / "tables")
    (split,) = incidents.list_splits(source).itertuples()
    assert (split.channel, split.groups) == ("ops", ["alice bob erin", "carol dave"])
    # The simulation cuts them off from 00:12 to 00:24; tables show it by the next message of a participant.
    assert 12 <= split.since.minute <= 14 and 24 <= split.healed.minute <= 26
    split_sentence, store, flood = incidents.describe(source).splitlines()
    assert split_sentence.startswith("ops was split from ")
    assert "from 2026-01-01 00:30:00 to 2026-01-01 00:45:00" in store
    assert flood.startswith("600 senders of a single message appeared")
