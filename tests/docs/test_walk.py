"""The first pages. The five-minute walk: its pictures are there, small, and of the same conversation as its text."""

from __future__ import annotations

import re

import pytest

from tests.support.doc_blocks import ROOT, blocks_of

SCREENS = ROOT / "docs" / "assets" / "screens"
WALK = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
SITE = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
TERMINAL = re.sub(r"<[^>]+>", "", (SCREENS / "terminal.svg").read_text(encoding="utf-8")).replace("&#160;", " ")


@pytest.mark.parametrize("picture", sorted(SCREENS.iterdir()), ids=lambda file: file.name)
def test_every_picture_is_small_and_shown(picture: object) -> None:
    name = getattr(picture, "name", "")
    assert (SCREENS / name).stat().st_size < 150_000
    assert f"assets/screens/{name}" in SITE


def test_the_picture_of_the_terminal_loads_no_font_and_names_the_command_as_the_pages_do() -> None:
    svg = (SCREENS / "terminal.svg").read_text(encoding="utf-8")
    assert "@font-face" not in svg
    assert ".venv" not in svg
    assert "The tables match the truth exactly." in TERMINAL


def test_pictures_and_text_are_of_one_conversation() -> None:
    missing, sent = map(int, re.findall(r"(\d+) of (\d+) messages are missing", TERMINAL)[0])
    answer = re.findall(r"^([a-z_]+) +(\d+)$", WALK.split("```text")[1], re.MULTILINE)
    assert sum(int(count) for _, count in answer) == missing
    for cause, count in answer:
        assert re.search(rf"{cause.replace('_', ' ')} *{count}\D", TERMINAL)
    assert f"conversation of {sent} messages" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_chat_of_the_tutorial_has_thirty_lines() -> None:
    chat = blocks_of(ROOT / "docs" / "tutorial.md")[1]
    assert chat.language == "python"
    assert len([line for line in chat.text.splitlines() if line.strip()]) <= 30


def test_the_first_page_of_the_site_leads_to_every_page() -> None:
    """Directly, or by a page that it links to."""
    docs = ROOT / "docs"
    links = {
        page: {
            (page.parent / link).resolve()
            for link in re.findall(r"\]\(([^)#\s]+\.md)", page.read_text(encoding="utf-8"))
        }
        for page in docs.rglob("*.md")
    }
    near = links[docs / "index.md"] | {docs / "index.md"}
    assert links.keys() - near.union(*(links.get(page, set()) for page in near)) == set()
