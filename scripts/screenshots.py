"""Renews the pictures in docs/assets/screens from the tables of the demo: ``make screenshots``.

Pictures of the terminal, of pages and of their parts (SVG, and PNG by Debian's Chromium), and what :data:`PAGES` print.
Nothing is downloaded. ``build/screens`` then holds every page in light and dark, wide and at 390 pixels, for whoever
changes how pages look.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console

from reliable_channel.analysis.dashboard import report_page as page
from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.dashboard.render import address
from reliable_channel.analysis.report import summary
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.config import PathSettings
from reliable_channel.evidence.log_files import read_logs
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.check.tables import read_observed, read_verdicts
from reliable_channel.simulation.check.terminal import next_steps, render
from reliable_channel.simulation.check.verdicts import check_verdicts
from reliable_channel.simulation.presets import demo_scenario
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate
from reliable_channel.transport.http.server import serve_in_thread
from tests.support.node_log_lines import log_conversation, nim_text

ROOT = Path(__file__).parents[1]
SCREENS = ROOT / "docs" / "assets" / "screens"
ALL = ROOT / "build" / "screens"
WIDE, NARROW = (1100, 760), (390, 844)
Scheme = Literal["light", "dark"]
MESSAGE = """SELECT s.message_key, s.pubsub_topic, s.content_topic, s.channel_id
    FROM delivery_status s JOIN incomplete_messages i USING (channel_id, entire_message_hash)
    WHERE s.verdict = 'missing' ORDER BY len(s.sds_ids), s.message_key LIMIT 1"""
"""A message of which some segments arrived: its page has something of everything."""
SPLIT = "SELECT pubsub_topic, content_topic, channel_id FROM delivery_status WHERE channel_id = 'ops' LIMIT 1"
"""The channel that the bad day splits."""
PAGES = [ROOT / "docs" / name for name in ("start.md", "howto/what-if.md")]
"""The pages with what commands print."""
_PRINTED = re.compile(
    r"```sh\n(?P<command>[^\n]+)\n```\n+<!-- printed by .*? -->\n```text\n(?P<text>.*?)```", re.DOTALL
)


def main() -> None:
    """Write the pictures. The argument is the demo's directory (build/demo); that of the bad day is beside it."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # commands are shown by their name
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo")
    for folder in (SCREENS, ALL):
        folder.mkdir(parents=True, exist_ok=True)
    (SCREENS / "terminal.svg").write_text(terminal(directory), encoding="utf-8")
    paths = PathSettings(data_dir=str(directory / "tables"))
    report = (ALL / "report.html").resolve()
    report.write_text(report_page(paths), encoding="utf-8")
    (message,) = TableSnapshot(paths).select(MESSAGE)
    channel = {name: message[name] for name in ("pubsub_topic", "content_topic", "channel_id")}
    with browser() as opened, serve_in_thread(create_app(paths)) as server:
        pages = {
            "overview": f"{server}/",
            "channels": f"{server}/channels",
            "channel": server + address("/channel", **channel),
            "messages": f"{server}/messages?verdict=missing",
            "message": server + address("/message", key=message["message_key"], **channel),
            "quarantine": f"{server}/quarantine",
            "alerts": f"{server}/alerts",
            "report": report.as_uri(),
            "bundle": checked_bundle(directory, message["message_key"]).as_uri(),
        }
        picture(opened, pages["overview"], SCREENS / "overview.png", size=(1100, 960))
        picture(opened, pages["message"], SCREENS / "message.png")
        picture(opened, pages["report"], SCREENS / "report.png")
        picture(opened, pages["bundle"], SCREENS / "bundle.png")
        picture(opened, pages["channel"], SCREENS / "budget.png", part="budget")
        for name, where in pages.items():
            for scheme in ("light", "dark"):
                picture(opened, where, ALL / f"{name}-{scheme}.png", scheme, WIDE, whole=True)
                picture(opened, where, ALL / f"{name}-{scheme}-390.png", scheme, NARROW, whole=True)
    with browser() as opened, serve_in_thread(create_app(with_node_logs(paths))) as server:
        picture(opened, server + address("/message", key=message["message_key"], **channel),
                SCREENS / "sightings.png", part="places")  # fmt: skip
    bad_day = PathSettings(data_dir=str(directory.with_name(f"{directory.name}-bad-day") / "tables"))
    (split,) = TableSnapshot(bad_day).select(SPLIT)
    with browser() as opened, serve_in_thread(create_app(bad_day)) as server:
        picture(opened, server + address("/channel", **split), SCREENS / "split.png", part="shares")
    for walk in PAGES:
        walk.write_text(_PRINTED.sub(lambda block: print_block(block, directory), walk.read_text("utf-8")), "utf-8")


def terminal(directory: Path) -> str:
    """What the demo prints at its end, as SVG without a font from outside."""
    truth, tables = Truth.load(directory / "truth"), str(directory / "tables")
    observed, judged = read_observed(tables), read_verdicts(tables)
    differences = [*check(truth, observed), *check_verdicts(truth, judged)]
    with Path("/dev/null").open("w") as nowhere:
        console = Console(record=True, width=132, file=nowhere, force_terminal=True)
        render(console, truth, observed, judged, differences, "build/demo/tables")
        console.print(next_steps("build/demo/tables"), markup=False, highlight=False, soft_wrap=True)
    svg = console.export_svg(title="make demo", unique_id="demo")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL).replace("Fira Code, ", "")


def print_block(block: re.Match[str], directory: Path) -> str:
    """A command of the walk with what it prints now."""
    command = block["command"].replace("build/demo", str(directory))
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    return block[0].replace(f"```text\n{block['text']}```", f"```text\n{done.stdout.rstrip()}\n```")


def checked_bundle(directory: Path, key: str) -> Path:
    """The page of a bundle of evidence about a message, with its checks."""
    bundle, shown = ALL / "evidence.zip", (ALL / "bundle.html").resolve()
    evidence = ["reliable-channel", "evidence"]
    tables = ["--tables", str(directory / "tables")]
    subprocess.run([*evidence, "bundle", key, "--out", str(bundle), *tables], capture_output=True, check=True)
    subprocess.run([*evidence, "verify", str(bundle), "--html", str(shown)], capture_output=True, check=True)
    return shown


def with_node_logs(paths: PathSettings) -> PathSettings:
    """A copy of the demo's tables, with what the participants' nodes would have logged of its conversation."""
    copy = ALL / "node-logs"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(paths.data_dir, copy / "tables")
    logged = paths.model_copy(update={"run_dir": str(copy), "data_dir": str(copy / "tables")})
    for who, lines in log_conversation(simulate(demo_scenario())).items():
        log = copy / f"{who}.log"
        text = [nim_text(line.at_ms, line.kind, line.message_hash, f"16U*{who}", "16U*other1") for line in lines]
        log.write_text("\n".join([*text, ""]), encoding="utf-8")
        read_logs(logged, [log], who)
    return logged


def report_page(paths: PathSettings) -> str:
    """The report as one HTML file."""
    source = TableWindow(paths.data_dir)
    return page.render(source, summary.collect(source, dt.datetime.now(dt.UTC)), [])


@contextmanager
def browser() -> Iterator[Browser]:
    """Headless Chromium."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        sys.exit("Chromium was not found (Debian: apt-get install chromium)")
    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=program, args=["--no-sandbox", "--force-color-profile=srgb"])
        yield opened
        opened.close()


def picture(
    opened: Browser,
    where: str,
    file: Path,
    scheme: Scheme = "light",
    size: tuple[int, int] = WIDE,
    whole: bool = False,
    part: str | None = None,
) -> None:
    """The first screen of a page, the whole page, or the part with an id, once its charts are there."""
    width, height = size
    tab = opened.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    tab.goto(where)
    tab.wait_for_load_state("networkidle")
    if part is None:
        tab.screenshot(path=file, full_page=whole)
    else:
        tab.locator(f"#{part}").screenshot(path=file)
    tab.close()


if __name__ == "__main__":
    main()
