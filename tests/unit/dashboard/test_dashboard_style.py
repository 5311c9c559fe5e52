"""The look: readable in light and dark, and nothing that the policy of the pages would refuse."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

import reliable_channel.analysis.dashboard

PLACE = Path(reliable_channel.analysis.dashboard.__file__).parent
STYLE = (PLACE / "static" / "style.css").read_text(encoding="utf-8")
TEMPLATES = sorted((PLACE / "templates").glob("*.html"))


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


LIGHT = colours(STYLE.split(":root {")[1])
DARK = LIGHT | colours(STYLE.split("@media screen and (prefers-color-scheme: dark)")[1].split("* {")[0])
PAIRS = [
    *product(("text", "faint", "accent", "bad"), ("card", "page", "sunk")),
    *((name, f"{name}-soft") for name in ("good", "bad", "warn", "accent")),
    ("text", "none-soft"),
    ("text", "accent-soft"),
    ("text", "bad-soft"),
]


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("pair", PAIRS, ids=" on ".join)
def test_text_stands_out_from_its_ground(theme: dict[str, str], pair: tuple[str, str]) -> None:
    darker, lighter = sorted(luminance(theme[name]) for name in pair)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda file: file.name)
def test_templates_have_no_inline_style_script_or_foreign_address(template: Path) -> None:
    text = template.read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son[a-z]+=|<style|javascript:|https?://", text)
    assert re.findall(r"<script(?! src=\"/static/(?:live|charts)\.js)", text) == []
    assert "|safe" not in text.replace(" ", "") and "autoescape" not in text


def test_style_and_script_load_nothing() -> None:
    assert not re.search(r"url\(|@import", STYLE)
    for script in (PLACE / "static").glob("*.js"):
        text = script.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|eval\(|document\.write|https?://", text)
