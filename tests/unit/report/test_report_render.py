"""The demo's report on a terminal."""

from __future__ import annotations

import io

from report_example import faultless, true_conversation
from rich.console import Console

from reliable_channel.report.difference import Difference
from reliable_channel.report.render import render


def report(differences: list[Difference]) -> str:
    out = io.StringIO()
    render(Console(file=out, width=200), true_conversation(), faultless(), differences)
    return out.getvalue()


def test_the_report_names_every_message_that_is_missing_and_what_of_it() -> None:
    text = report([])
    assert "c #2 from alice, 40 bytes: has 1 of 2 segments; missing 1" in text
    assert "c #3 from bob, 4 bytes: nothing arrived; others name it (l0…)" in text
    assert "c #5 from carol, 4 bytes: left no trace on the wire, known from the truth only" in text
    assert "The tables match the truth exactly." in text


def test_the_report_says_where_the_tables_differ_and_shows_hostile_text_as_text() -> None:
    text = report([Difference("delivered messages", "[red]c[/red]", "x", "is not delivered")])
    assert "differ from the truth in 1 places" in text
    assert "delivered messages: [red]c[/red] x: is not delivered" in text
    assert "match the truth exactly" not in text
