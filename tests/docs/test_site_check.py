"""What the check of the built site calls a fault, and what not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.check_site import faults

GOOD = '<a href="other.html#there">a</a> <a href="#here">b</a> <i id="here"></i> <a href="https://example.org">c</a>'


def site(place: Path, body: str) -> Path:
    (place / "index.html").write_text(f"<html>{body}</html>", encoding="utf-8")
    (place / "other.html").write_text('<h2 id="there">There</h2>', encoding="utf-8")
    return place


def test_links_that_lead_somewhere_are_no_faults(tmp_path: Path) -> None:
    assert faults(site(tmp_path, GOOD)) == []


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="gone.html">x</a>', "there is no such file"),
        ('<a href="other.html#nowhere">x</a>', "no such anchor"),
        ('<a href="#nowhere">x</a>', "no such anchor"),
        ('<img src="picture.svg">', "there is no such file"),
        ('<script src="https://cdn.example/x.js"></script>', "from a network"),
        ('<link rel="stylesheet" href="//fonts.example/x.css">', "from a network"),
    ],
)
def test_broken_links_and_foreign_scripts_are_faults(tmp_path: Path, body: str, fault: str) -> None:
    found = faults(site(tmp_path, body))
    assert len(found) == 1
    assert fault in found[0]


def test_style_sheets_that_load_from_a_network_are_faults(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url('https://fonts.example/a.woff2') }", encoding="utf-8")
    assert len(faults(site(tmp_path, ""))) == 1
