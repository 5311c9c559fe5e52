"""docs/architecture.md answers by file names: each of them exists, in the text and in the picture."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reliable_channel.lake.tables import BY_NAME

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PICTURE = (ROOT / "docs" / "assets" / "architecture.svg").read_text(encoding="utf-8")
LINEAGE = (ROOT / "docs" / "assets" / "lineage.svg").read_text(encoding="utf-8")
PLACES = (ROOT, ROOT / "reliable_channel", ROOT / "reliable_channel" / "pipeline")
NAMED = sorted(
    {*re.findall(r"`([\w/]+(?:\.py|/))`", PAGE), *re.findall(r"[\w/]*\w+/\w+\.py|(?<=>)functions\.py", PICTURE)}
)


@pytest.mark.parametrize("name", NAMED)
def test_a_file_that_the_page_names_exists(name: str) -> None:
    assert any((place / name).exists() for place in PLACES)


def test_the_page_about_sds_has_every_file_of_its_package() -> None:
    page = (ROOT / "docs" / "sds.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"^\| file \| content \|\n(.*?)\n\n", page, re.DOTALL | re.MULTILINE)
    package = ROOT / "reliable_channel" / "core" / "sds"
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+\.py)`", row.split(" | ")[0])}
    assert named == {file.name for file in package.glob("*.py")} - {"__init__.py"}


def test_the_page_answers_the_four_questions() -> None:
    for question in ("Where are rows decoded?", "Where is state?", "Where is it written?", "What may I change?"):
        (answer,) = re.findall(rf"\*\*{re.escape(question)}\*\* \| (.+) \|", PAGE)
        assert ".py`" in answer or answer == "See below"


def test_the_picture_of_the_lineage_links_every_table() -> None:
    assert set(re.findall(r'href="#(\w+)"', LINEAGE)) == set(BY_NAME)


def test_every_picture_can_be_seen_without_the_site() -> None:
    """In an editor and on a Git host: a file of its own, which has its colours, and a text for who cannot see it."""
    pictures = {file: file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "assets").glob("*.svg")}
    styles = {re.findall(r"<style>.*</style>", text)[0] for text in pictures.values()}
    assert len(styles) == 1
    assert all('xmlns="http://www.w3.org/2000/svg" class="picture"' in text for text in pictures.values())
    shown = set()
    for page in (ROOT / "docs").rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert "--8<--" not in text
        for figure in re.findall(r'<figure class="picture">(.*?)</figure>', text, re.DOTALL):
            (source,) = re.findall(r'<img src="(.*?)" alt="[^"]+">', figure)
            shown.add(page.parent / source)
    assert shown == pictures.keys()
