"""The dashboard over real tables, without a server or a browser, and its pages as a browser would read them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.dashboard.page_cache import PageCache
from reliable_channel.config import PathSettings
from tests.support.sample_values import HOSTILE, PUBSUB_TOPIC, topic_of

VOID = {"meta", "link", "input", "img", "source", "br", "hr"}
ATTRIBUTES = {
    "action", "alt", "aria-busy", "aria-current", "aria-hidden", "aria-keyshortcuts", "aria-label", "aria-labelledby",
    "aria-live", "aria-pressed", "autocomplete", "charset", "class", "content", "d", "data-copy", "data-job",
    "data-live", "data-newest",
    "data-refresh-ms", "data-tag", "datetime", "decoding", "defer", "for", "height", "hidden", "href", "id", "lang",
    "maxlength", "media", "method", "name", "placeholder", "rel", "role", "scope", "selected", "spellcheck", "src",
    "srcset",
    "tabindex", "title", "type", "value", "viewbox", "width",
}  # fmt: skip


def key_of(channel_id: str, content_topic: str | None = None) -> dict[str, str]:
    topic = topic_of(channel_id) if content_topic is None else content_topic
    return {"pubsub_topic": PUBSUB_TOPIC, "content_topic": topic, "channel_id": channel_id}


def hostile_key(number: int) -> dict[str, str]:
    """The channel of a hostile string, as the sample tables have it."""
    return key_of(HOSTILE[number], "/" + HOSTILE[(number + 2) % len(HOSTILE)])


FILES = "/channel?" + urlencode(key_of("files"))


class HtmlPage(HTMLParser):
    """A page as a browser would read it; fails on what no template of ours has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.labels: set[str] = set()
        self.headings: list[str] = []
        self.references: list[str] = []
        self.addresses: list[str] = []
        self.tables = self.captions = 0
        self.feed(text)
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        assert set(given) <= ATTRIBUTES, f"an attribute that no template has: {sorted(set(given) - ATTRIBUTES)}"
        assert tag not in {"style", "iframe", "object", "embed", "base"}
        assert tag != "script" or (given.get("src") or "").startswith("/static/")
        if tag not in VOID:
            self.open.append(tag)
        if given.get("id"):
            self.ids.append(str(given["id"]))
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)
        self.references += [str(given[name]) for name in ("aria-labelledby", "for") if given.get(name)]
        self.addresses += [str(given[name]) for name in ("href", "src", "srcset", "action") if given.get(name)]
        self.tables += tag == "table"
        self.captions += tag == "caption"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"


@pytest.fixture(scope="module")
def client(sample_tables: Path) -> TestClient:
    return TestClient(create_app(PathSettings(data_dir=str(sample_tables))), base_url="http://localhost")


def over(place: Path, **more: Any) -> TestClient:
    """A dashboard over other tables, which looks at them anew with every request."""
    paths = PathSettings(data_dir=str(place))
    app = create_app(paths, cache=PageCache(paths, fresh_s=0), **more)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)
