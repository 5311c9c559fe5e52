"""The demo's report on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from reliable_channel.simulation.check.observed import Difference
from reliable_channel.simulation.check.terminal import bar, next_steps, render
from reliable_channel.simulation.check.verdicts import Judged
from tests.unit.simulation.true_conversation import CHANNEL, faultless, true_conversation

JUDGED = [
    Judged(CHANNEL, ("f0", "f1"), "missing", "segment_missing", "1 of 2 needed segments arrived"),
    Judged(CHANNEL, ("l0",), "missing", "propagated_not_stored", None),
    Judged(CHANNEL, ("n0",), "missing", None, "no store node is configured"),
]


def report(differences: list[Difference], judged: list[Judged] = JUDGED) -> str:
    out = io.StringIO()
    render(Console(file=out, width=200), true_conversation(), faultless(), judged, differences, "/t")
    return out.getvalue()


def test_the_report_counts_the_missing_by_channel_and_cause_and_shows_three() -> None:
    text = report([])
    missing = [m for m in true_conversation().messages if m.outcome != "delivered"]
    assert f"{len(missing)} of {len(true_conversation().messages)} messages are missing" in text
    assert "c #2 from alice, 40 bytes: segment missing (1 of 2 needed segments arrived)" in text
    assert "c #3 from bob, 4 bytes: propagated not stored" in text
    assert "report --missing --tables /t" in text
    assert "The tables match the truth exactly." in text
    assert len(text.splitlines()) + len(next_steps("/t").splitlines()) <= 40, "it fits one screen"


def test_what_has_no_cause_is_said_to_have_none_and_why() -> None:
    lost = next(m for m in true_conversation().messages if m.outcome == "no_trace")
    judged = [Judged(CHANNEL, (lost.first_sds_id,), "missing", None, "no store node is configured")]
    text = report([], judged)
    assert "cause unknown" in text
    assert "(no store node is configured)" in text


@pytest.mark.parametrize(("value", "length"), [(0.0, 0), (0.001, 1), (0.5, 12), (1.0, 24)])
def test_a_bar_shows_what_is_not_nothing(value: float, length: int) -> None:
    assert len(bar(value, 1.0)) == length


def test_the_report_says_where_the_tables_differ_and_shows_hostile_text_as_text() -> None:
    text = report([Difference("delivered messages", "[red]c[/red]", "x", "is not delivered")])
    assert "differ from the truth in 1 places" in text
    assert "delivered messages: [red]c[/red] x: is not delivered" in text
    assert "match the truth exactly" not in text
