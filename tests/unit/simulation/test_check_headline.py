"""The headline figures of every surface are compared with the truth at the end of a demo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.analysis.figures import CLAIMED_BY_ONE
from reliable_channel.config import PathSettings
from reliable_channel.simulation.check import headline
from reliable_channel.simulation.check.tables import read_verdicts


def test_all_surfaces_show_what_is_judged(sample_tables: Path) -> None:
    judged = read_verdicts(sample_tables)
    paths = PathSettings(data_dir=str(sample_tables))
    assert headline.check_headline(judged, paths) == []
    surfaces = headline.read_surfaces(paths)
    assert all(figures["missing"] > 0 for figures in surfaces.values())
    assert set(surfaces) == {"report", "dashboard", "metrics", "alerts"}


@pytest.mark.parametrize("verdict", ["missing", "delivered"])
def test_a_surface_that_counts_one_too_many_is_named(sample_tables: Path, verdict: str) -> None:
    judged = read_verdicts(sample_tables)
    one = next(row for row in judged if row.verdict == verdict)
    judged.remove(one)
    differences = headline.check_headline(
        [*judged, replace(one, verdict="unknown", cause=CLAIMED_BY_ONE)], PathSettings(data_dir=str(sample_tables))
    )
    wrong = {each.subject for each in differences if verdict in each.what}
    assert {"report", "dashboard", "metrics"} <= wrong
    assert ("alerts" in wrong) == (verdict == "missing")
