"""Renews the pictures in docs/assets/screens from the tables of the demo: ``make screenshots``.

The terminal report as SVG, and two pages of the dashboard as PNG by Debian's Chromium. Nothing is downloaded.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from rich.console import Console

from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.report.check import check
from reliable_channel.analysis.report.check_verdicts import check_verdicts
from reliable_channel.analysis.report.render import next_steps, render
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.tables import read_observed, read_verdicts
from reliable_channel.config import PathSettings
from reliable_channel.simulation.truth import Truth
from reliable_channel.transport.serving import served

ROOT = Path(__file__).parents[1]
SCREENS = ROOT / "docs" / "assets" / "screens"
WIDTH, HEIGHT = 1100, 760
TIME_LINE = """SELECT message_key
    FROM delivery_status s JOIN incomplete_messages i USING (channel_id, entire_message_hash)
    WHERE verdict = 'missing' ORDER BY len(sds_ids), message_key LIMIT 1"""
"""A message of which some segments came: its page has something of everything."""


def main() -> None:
    """Write the three pictures. The argument is the demo's directory, build/demo by default."""
    place = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "demo")
    SCREENS.mkdir(parents=True, exist_ok=True)
    (SCREENS / "terminal.svg").write_text(terminal(place), encoding="utf-8")
    paths = PathSettings(data_dir=str(place / "tables"))
    (message,) = TableSnapshot(paths).select(TIME_LINE)
    with browser_page() as page, served(create_app(paths)) as address:
        picture(page, f"{address}/", SCREENS / "overview.png")
        picture(page, f"{address}/message?key={message['message_key']}", SCREENS / "message.png")


def terminal(place: Path) -> str:
    """What the demo prints at its end, as SVG without a font from outside."""
    truth, tables = Truth.load(place / "truth"), str(place / "tables")
    observed, judged = read_observed(tables), read_verdicts(tables)
    differences = [*check(truth, observed), *check_verdicts(truth, judged)]
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=124, file=nowhere, force_terminal=True)
        render(console, truth, observed, judged, differences, "build/demo/tables")
        console.print(next_steps("build/demo/tables"), markup=False, highlight=False, soft_wrap=True)
    svg = console.export_svg(title="make demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")


@contextmanager
def browser_page() -> Iterator[Page]:
    """A page of headless Chromium in the light scheme."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        sys.exit("Chromium was not found (Debian: apt-get install chromium)")
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--force-color-profile=srgb"])
        yield browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        browser.close()


def picture(page: Page, address: str, file: Path) -> None:
    """What stands on the first screen of a page, once its charts are there."""
    page.goto(address)
    page.wait_for_load_state("networkidle")
    page.screenshot(path=file)


if __name__ == "__main__":
    main()
