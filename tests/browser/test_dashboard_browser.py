"""The dashboard in a real browser: every page and state looked at, by keyboard, live, without a word in the console."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.analysis.report import loss, quarantine
from reliable_channel.analysis.report.charts import loss as loss_charts
from reliable_channel.analysis.report.drawing import svg
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.lake.read import rows_of
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME
from tests.support.dashboard_server import serve
from tests.support.sample_values import HOSTILE, PUBSUB_TOPIC, topic_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.node

FILES = {"pubsub_topic": PUBSUB_TOPIC, "content_topic": topic_of("files"), "channel_id": "files"}
TALK = {"pubsub_topic": PUBSUB_TOPIC, "content_topic": topic_of("talk"), "channel_id": "talk"}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 900}, "color_scheme": "dark"},
    "narrow": {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
}
IN_EVERY_LOOK = {"overview", "channels", "channel", "message-confirmed", "quarantine", "alerts"}
WATCH_POLICY = "addEventListener('securitypolicyviolation', e => console.error('POLICY ' + e.violatedDirective))"


class Watched:
    """A page, and what was wrong while it was looked at."""

    def __init__(self, page: Page, site: str) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.add_init_script(WATCH_POLICY)
        page.on("console", lambda said: said.type in ("error", "warning") and self.wrong.append(said.text))  # type: ignore[call-overload]
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("request", lambda asked: asked.url.startswith(site) or self.wrong.append(f"asked for {asked.url}"))  # type: ignore[call-overload]
        page.on("response", lambda got: got.status >= 400 and self.wrong.append(f"{got.status} for {got.url}"))  # type: ignore[call-overload]


Open = Callable[..., "Page"]


@pytest.fixture
def look(chromium: Browser, site: str) -> Iterator[Open]:
    """``look(path, look="light")``: a page of the dashboard; whatever goes wrong in it fails the test."""
    opened: list[Watched] = []

    def one(path: str, name: str = "light", address: str = site, **options: Any) -> Page:
        watched = Watched(chromium.new_context(**LOOKS[name], **options).new_page(), address)
        opened.append(watched)
        watched.page.goto(address + path)
        if options.get("java_script_enabled", True):
            drawn(watched.page)
        return watched.page

    yield one
    for watched in opened:
        watched.page.context.close()
    assert [wrong for watched in opened for wrong in watched.wrong] == []


def drawn(page: Page) -> None:
    """Wait until every picture is there, and answers where scripts run."""
    page.wait_for_function("() => [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    page.wait_for_function(
        "() => document.querySelectorAll('figure.chart picture').length"
        " === document.querySelectorAll('.chart-live svg').length"
    )


def message_of(tables: Path, **wanted: Any) -> str:
    """The address of a message with these columns in ``delivery_status``."""
    rows = rows_of(DeltaTable(str(tables / "delivery_status")))
    row = next(r for r in rows if all(r[name] == value for name, value in wanted.items()))
    key = {name: row[name] for name in ("pubsub_topic", "content_topic", "channel_id")}
    return "/message?" + urlencode({**key, "key": row["message_key"]})


def every_page(tables: Path) -> dict[str, str]:
    """Name of the screenshot → address."""
    acks = rows_of(DeltaTable(str(tables / "acks")))
    confirmed = next(row["sds_id"] for row in acks if row["channel_id"] == "talk" and row["latency_ms"] > 0)
    return {
        "overview": "/?last=all",
        "channels": "/channels?last=all",
        "channel": "/channel?" + urlencode({**TALK, "last": "all"}),
        "channel-of-files": "/channel?" + urlencode({**FILES, "last": "all"}),
        "messages": "/messages?last=all",
        "message-confirmed": "/message?" + urlencode({**TALK, "key": confirmed}),
        "message-missing": message_of(tables, channel_id="files", cause="segment_missing"),
        "message-hostile": message_of(tables, channel_id=HOSTILE[0]),
        "search": "/messages?" + urlencode({"q": confirmed[:8]}),
        "search-nothing": "/messages?q=" + "0" * 40,
        "quarantine": "/quarantine?last=all",
        "quarantine-reason": "/quarantine?last=all&reason=malformed_sds",
        "alerts": "/alerts",
        "empty-hour": "/messages?last=1h&verdict=missing&cause=hash_mismatch",
    }


@pytest.mark.parametrize("name", LOOKS)
def test_every_page_is_drawn_fits_and_is_silent(look: Open, tables: Path, screenshots: Path, name: str) -> None:
    pages = every_page(tables)
    if name != "light":
        pages = {shot: address for shot, address in pages.items() if shot in IN_EVERY_LOOK}
    page = look(pages["overview"], name)
    for shot, address in pages.items():
        page.goto(page.url.split("/", 3)[0] + "//" + page.url.split("/")[2] + address)
        drawn(page)
        page.screenshot(path=screenshots / f"{shot}-{name}.png", full_page=True)
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 0, f"{shot} is {wide} px too wide"
        assert page.locator("h1").count() == 1
        unnamed = page.evaluate(
            "[...document.querySelectorAll('a, button, input:not([type=hidden]), summary, img')]"
            ".filter(e => !(e.innerText || e.alt || e.getAttribute('aria-label') || e.labels?.length || e.hidden))"
            ".map(e => e.outerHTML)"
        )
        assert unnamed == []


def test_a_page_can_be_printed(look: Open, screenshots: Path) -> None:
    page = look("/?last=all", "dark")
    page.emulate_media(media="print")
    page.wait_for_function("() => [...document.images].every(i => i.currentSrc.includes('theme=light'))")
    drawn(page)
    page.screenshot(path=screenshots / "overview-print.png", full_page=True)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".search").is_visible()


def test_pictures_answer_lead_on_and_zoom(look: Open, tables: Path, screenshots: Path) -> None:
    page = look("/?last=all")
    mark = page.locator("#verdicts a path").first
    mark.hover()
    assert re.fullmatch(r".+: [\d,]+ messages?, [\d: -]+", page.locator("#verdicts .tip").inner_text())
    page.locator("#verdicts").screenshot(path=screenshots / "chart-hover.png")
    whole = page.locator("#verdicts svg").get_attribute("viewBox")
    page.locator("#verdicts button", has_text="+").click()
    assert page.locator("#verdicts svg").get_attribute("viewBox") != whole
    page.locator("#verdicts button", has_text="Whole").click()
    assert page.locator("#verdicts svg").get_attribute("viewBox") == whole
    mark.click()
    page.wait_for_url(re.compile(r"/messages\?last=all&verdict="))
    page.goto(page.url.split("/messages")[0] + message_of(tables, channel_id="files", cause="segment_missing"))
    drawn(page)
    node = page.locator("#graph a").first
    node.focus()
    assert re.match(r"(this message|arrived|did not arrive)", page.locator("#graph .tip").inner_text())
    page.locator("#graph").screenshot(path=screenshots / "graph-focus.png")
    before = page.url
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: url != before)
    assert page.locator("h1").inner_text().startswith("Message")


def test_without_scripts_the_pictures_are_there_and_lead_on_alone(look: Open) -> None:
    page = look("/?last=all", java_script_enabled=False)
    assert page.locator("#verdicts picture").is_visible()
    page.locator("#verdicts a", has_text="The picture alone").click()
    link = page.locator("a path").first
    assert page.locator("a title").first.text_content()
    link.click()
    page.wait_for_url(re.compile(r"/messages\?last=all&verdict="))


def focused(page: Page) -> str:
    """The text or id of what has the focus."""
    found: str = page.evaluate("document.activeElement.innerText || document.activeElement.id")
    return found


def test_everything_is_reached_with_the_keyboard_and_the_focus_is_seen(
    look: Open, tables: Path, screenshots: Path
) -> None:
    page = look("/channels?last=all")
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert focused(page) == "Pause"
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Space")
    assert page.locator("#live-state").inner_text() == "Paused"
    assert page.locator("#live-pause").get_attribute("aria-pressed") == "true"
    walked = []
    for _ in range(40):
        page.keyboard.press("Tab")
        walked.append(focused(page))
        if walked[-1] == "files":
            break
    assert "6 hours" in walked and "loss rate" in walked and "text" in walked
    page.screenshot(path=screenshots / "focus.png")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/channel\\?.*files"))
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    wanted = message_of(tables, channel_id="files", cause="segment_missing").rsplit("key=", 1)[1][:12]
    page.keyboard.type(wanted + "/")
    assert page.locator("#search").input_value() == wanted + "/", "in a field a slash is a slash"
    page.keyboard.press("Backspace")
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/messages\\?q="))
    page.locator("#found-table a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/message\\?"))
    drawn(page)
    page.locator("#timeline-table summary").focus()
    page.keyboard.press("Enter")
    assert page.locator("#timeline-figures").is_visible(), "a picture's table opens with the keyboard"


def test_a_command_is_copied(look: Open, site: str) -> None:
    page = look("/quarantine?last=all&reason=malformed_sds", permissions=["clipboard-read", "clipboard-write"])
    page.locator("button.copy").click()
    page.wait_for_function("() => document.getElementById('live-said').textContent.includes('copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "reliable-channel requeue --reason malformed_sds"


def alert(sequence: int, subject: str) -> dict[str, Any]:
    return {
        "sequence": sequence, "alert": "loss_rate", "kind": "loss_rate", "subject": subject, "state": "raised",
        "severity": "critical", "value": 0.5, "threshold": 0.1, "detail": f"change {sequence}",
    }  # fmt: skip


def grow(tables: Path, *rows: dict[str, Any]) -> None:
    schema = arrow_schema(BY_NAME["alerts"])
    complete = [{name: row.get(name) for name in schema.names} for row in rows]
    write_deltalake(str(tables / "alerts"), pa.Table.from_pylist(complete, schema=schema), mode="append")


def test_a_page_renews_what_changed_and_keeps_the_rest(look: Open, tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(tables, place)
    with serve(place) as address:
        page = look("/?last=all", address=address)
        page.evaluate("document.getElementById('verdicts').seen = true")
        page.locator("#verdicts-table summary").click()
        page.locator("#alerts a").first.focus()
        kept = page.evaluate("document.activeElement.getAttribute('href')")
        grow(place, alert(1001, "a subject <i>that</i> is new"))
        page.wait_for_selector("text=change 1001")
        assert page.evaluate("document.activeElement.getAttribute('href')") == kept, "the focus stays"
        assert page.locator("#verdicts-figures").is_visible(), "what was open stays open"
        page.wait_for_function("() => document.getElementById('live-said').textContent.startsWith('Updated: ')")
        assert "Alerts" in str(page.locator("#live-said").text_content())
        assert page.evaluate("document.getElementById('verdicts').seen"), "nothing new in it, so not replaced"
        assert page.locator("#alerts i").count() == 0, "names stay text"
        page.locator("#live-pause").click()
        grow(place, alert(1002, "another"))
        page.locator("#live-pause").click()
        page.wait_for_selector("text=change 1002")
        page.context.close()


def test_a_page_without_tables_becomes_one_with_tables(
    look: Open, tables: Path, tmp_path: Path, screenshots: Path
) -> None:
    place = tmp_path / "later"
    with serve(place) as address:
        page = look("/?last=all", address=address)
        page.screenshot(path=screenshots / "no-tables-light.png", full_page=True)
        assert page.locator("h1").inner_text() == "No tables yet"
        shutil.copytree(tables, tmp_path / "made")
        (tmp_path / "made").rename(place)
        page.wait_for_selector("h1:has-text('Overview')")
        page.context.close()


def test_a_damaged_table_is_said_in_its_part(look: Open, tables: Path, tmp_path: Path, screenshots: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(tables, place)
    for file in (place / "pipeline_metrics").glob("*.parquet"):
        file.unlink()
    shutil.rmtree(place / "delivery_status")
    with serve(place) as address:
        for name in ("light", "dark"):
            page = look("/?last=all", name, address=address)
            page.screenshot(path=screenshots / f"damaged-{name}.png", full_page=True)
            assert page.locator("#jobs .box-fault").is_visible()
            assert "There is no table delivery_status yet" in page.locator("#verdicts").inner_text()
            page.context.close()


def test_waiting_and_silence_are_shown_and_said(chromium: Browser, tables: Path, screenshots: Path) -> None:
    # Not watched: a browser writes into its console that a server does not answer, which is what happens here.
    with serve(tables) as address:
        page = chromium.new_context(**LOOKS["light"]).new_page()
        page.goto(address + "/channels?last=all")
        page.route("**/*", lambda route: route.abort())
        page.wait_for_selector("body[data-connection=lost]")
        assert page.locator("#live-state").inner_text() == "No answer, trying again"
        assert "does not answer" in page.locator("#live-said").inner_text()
        page.screenshot(path=screenshots / "no-answer-light.png")
        page.unroute("**/*")
        page.wait_for_selector("body[data-connection=still]")  # the sample tables are old
        held: list[Route] = []
        page.route("**/channels*", lambda route: held.append(route))
        page.wait_for_selector("body[data-loading=refresh]")
        assert page.locator(".progress").is_visible(), "an answer that takes long is seen to be awaited"
        page.screenshot(path=screenshots / "loading-light.png")
        held[0].continue_()
        page.unroute("**/channels*")
        page.wait_for_selector("body:not([data-loading])")
        page.context.close()


# A page that is being left answers no questions, so it writes down what it showed for the page that follows.
NOTE_LOADING = """() => new MutationObserver(() => {
    const bar = getComputedStyle(document.querySelector(".progress"));
    sessionStorage.seen = [document.body.dataset.loading, bar.visibility, parseFloat(bar.height) > 0].join(" ");
}).observe(document.body, { attributeFilter: ["data-loading"] })"""


@pytest.mark.parametrize("way", ["a link", "a search"])
def test_the_next_page_is_seen_to_be_awaited(look: Open, way: str) -> None:
    page = look("/?last=all")
    page.evaluate(NOTE_LOADING)
    if way == "a link":
        page.get_by_role("link", name="Messages", exact=True).click()
    else:
        page.locator("#search").fill("0123abcd")
        page.keyboard.press("Enter")
    page.wait_for_url(re.compile("/messages"))
    assert page.evaluate("sessionStorage.seen") == "page visible true"
    assert page.locator("body[data-loading]").count() == 0, "the page that came waits for nothing"


OUTSIDE = """svg => { const box = svg.getBoundingClientRect();
    return [...svg.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()])
        .filter(([, r]) => r.left < box.left || r.right > box.right || r.top < box.top || r.bottom > box.bottom)
        .map(([words]) => words); }"""


@pytest.mark.parametrize("chart", ["quarantine", "bursts", "causes"])
def test_no_word_of_a_chart_is_cut_at_its_edge(chromium: Browser, tables: Path, chart: str) -> None:
    source = TableWindow(tables)
    frame = quarantine.reasons(source) if chart == "quarantine" else getattr(loss, chart)(source)
    page = chromium.new_page()
    page.set_content(svg(getattr(loss_charts, chart)(frame)))
    assert page.locator("text").count() > 5
    assert page.locator("svg").first.evaluate(OUTSIDE) == []
    page.close()


def test_the_command_serves_and_ends_cleanly(chromium: Browser, tables: Path) -> None:
    environment = {**os.environ, "RELIABLE_CHANNEL__PATHS__DATA_DIR": str(tables)}
    command = [str(Path(sys.executable).parent / "reliable-channel"), "dashboard", "--port", "0"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        said = server.stdout.readline()
        address = re.search(r"http://127\.0\.0\.1:\d+/", said)
        assert address, said
        page = chromium.new_page()
        page.goto(address[0])
        assert page.locator("h1").inner_text() == "Overview"
        page.close()
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) in (0, 143, -signal.SIGTERM)
