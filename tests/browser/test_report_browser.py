"""The report in a real browser: wide, on a phone, in the dark, and on paper."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reliable_channel.config import PathSettings
from scripts.screenshots import report_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.node

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1100, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
PAPER = {"width": 703, "height": 1017}
"""What the margins leave of A4, CSS pixels."""


@pytest.fixture(scope="module")
def report(tables: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_text(report_page(PathSettings(data_dir=str(tables))), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("name", LOOKS)
def test_the_report_fits_and_loads_nothing(chromium: Browser, report: str, screenshots: Path, name: str) -> None:
    page = chromium.new_page(**LOOKS[name])
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report)
    page.screenshot(path=screenshots / f"report-{name}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    small = "[...document.querySelectorAll('figure img')].filter(i => i.width < 0.95 * i.naturalWidth).map(i => i.alt)"
    assert page.evaluate(small) == [], "letters of charts keep their size"
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    page.close()


def test_the_report_on_paper_has_no_half_empty_pages(chromium: Browser, report: str, screenshots: Path) -> None:
    page = chromium.new_page(viewport=PAPER)
    page.goto(report)
    page.emulate_media(media="print")
    height = page.evaluate("document.documentElement.scrollHeight")
    printed = page.pdf(path=screenshots / "report.pdf", prefer_css_page_size=True)
    pages = len(re.findall(rb"/Type\s*/Page\b", printed))
    assert pages <= 1.15 * height / PAPER["height"] + 1
    page.close()
