"""A real headless Chromium (Debian's) for tests of pages; nothing is downloaded. Screenshots: build/screenshots."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from reliable_channel.analysis.alerts.check import check
from reliable_channel.config import load
from tests.support.dashboard_server import serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """The browser; tests that need it are skipped where it is not installed."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        pytest.skip("Chromium was not found (Debian: apt-get install chromium)")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as started:
        # Containers run as root, where Chromium has no sandbox; the pages are our own.
        browser = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--force-color-profile=srgb"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots() -> Path:
    """Where pictures of pages are kept, for people to look at."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    return SCREENSHOTS


@pytest.fixture(scope="session")
def tables(sample_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample tables with the alerts that they raise; read only."""
    place = tmp_path_factory.mktemp("browser") / "tables"
    shutil.copytree(sample_tables, place)
    check(load("local", paths={"data_dir": str(place)}))
    return place


@pytest.fixture(scope="session")
def site(tables: Path) -> Iterator[str]:
    """The address of a dashboard over :func:`tables`."""
    with serve(tables) as address:
        yield address
