"""The pages about the servers: their calls give the answers that they print, their Python runs."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.config import load
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import MessagingConfig, MessagingNode
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.pipeline.runner.metrics import PrometheusMetrics, serve_prometheus
from reliable_channel.transport.base import NodeEvent, Received
from reliable_channel.transport.memory import MemoryNetwork
from reliable_channel.transport.sharding import NamedTopic
from reliable_channel.transport.store.server import create_app as create_store
from reliable_channel.transport.store.source import MemorySource
from tests.support.dashboard_server import serve
from tests.support.doc_blocks import ROOT, Block, blocks_of
from tests.support.http_server import running
from tests.support.waiting import WAIT_S

HOW_TO = ROOT / "docs" / "howto"
TEST = "tests/docs/test_http_pages.py::test_the_pages_of_the_servers_answer_what_they_show"
PUBSUB = "/waku/2/rs/16/32"
CHAT = "/my-app/1/chat/proto"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[str]:
    config = MessagingConfig.of(mode="relay", cluster_id=16, shards=[32], bootstrap_nodes=[])
    network = MemoryNetwork(pubsub_topics=NamedTopic(PUBSUB))
    node = MessagingNode(config, network.node("me"), tmp_path / "messages.sqlite")
    answering(network)
    app = create_app(node, channels=lambda _: ReliableChannelConfig(query_on_connect=False))
    with running(app, lifespan="on", on_stop=app.state.poll.stop) as address, pumped(network):
        yield address
    node.close()


def answering(network: MemoryNetwork) -> None:
    """Somebody who answers each message of the chat."""
    friend = network.node("friend")

    def answer(event: NodeEvent) -> None:
        if isinstance(event, Received):
            friend.send(WakuMessage(b"hi back", CHAT), PUBSUB)

    friend.start()
    friend.subscribe([CHAT])
    friend.add_listener(answer)


@contextmanager
def pumped(network: MemoryNetwork) -> Iterator[None]:
    """A network whose envelopes arrive by themselves."""
    ended = threading.Event()

    def pump() -> None:
        while not ended.wait(0.005):
            network.pump()

    thread = threading.Thread(target=pump)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture
def store() -> Iterator[str]:
    source = MemorySource()
    for number, payload in enumerate((b"hello", b"and", b"goodbye")):
        source.add(PUBSUB, WakuMessage(payload, CHAT, timestamp=1_795_254_432_521_844_140 + number))
    with running(create_store(source)) as address:
        yield address


@pytest.fixture
def pages(sample_tables: Path) -> Iterator[dict[str, str]]:
    """The dashboard over the sample tables, and the endpoint for Prometheus of a query that runs."""
    settings = load("local")
    free = settings.model_copy(update={"metrics": settings.metrics.model_copy(update={"port": 0})})
    prometheus = PrometheusMetrics()
    prometheus.running("ingest", True)
    with serve(sample_tables) as dashboard, serve_prometheus(free, prometheus, 0) as metrics:
        yield {"DASHBOARD": dashboard, "METRICS": str(metrics)}


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl was not found")


def pairs(page: str) -> list[tuple[Block, Block]]:
    """Each block of calls with the block of answers below it."""
    found = blocks_of(HOW_TO / page)
    return [(one, found[number + 1]) for number, one in enumerate(found) if one.about == TEST]


def expected(text: str) -> re.Pattern[str]:
    """What a page shows: an ellipsis is anything, line breaks between answers do not matter."""
    return re.compile(".*?".join(map(re.escape, "".join(text.split("\n")).split("…"))))


def answers_what_it_shows(page: str, place: Path, **servers: str) -> None:
    assert len(pairs(page)) >= 2
    for calls, answers in pairs(page):
        done = subprocess.run(
            ["bash", "-c", calls.text],
            cwd=place,
            env={**os.environ, **servers, "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        shown = "".join(done.stdout.replace("\r", "").split("\n"))
        assert expected(answers.text).fullmatch(shown), f"{calls}\n{done.stdout}{done.stderr}"


@needs_curl
def test_the_pages_of_the_servers_answer_what_they_show(api: str, tmp_path: Path) -> None:
    answers_what_it_shows("http-messaging.md", tmp_path, API=api)


@needs_curl
def test_the_page_of_the_store_answers_what_it_shows(store: str, tmp_path: Path) -> None:
    answers_what_it_shows("http-store.md", tmp_path, STORE=store)


@needs_curl
def test_the_page_of_dashboard_and_metrics_answers_what_it_shows(pages: dict[str, str], tmp_path: Path) -> None:
    answers_what_it_shows("http-pages.md", tmp_path, **pages)


def test_every_call_of_the_messaging_api_is_on_its_page(tmp_path: Path) -> None:
    node = MessagingNode(
        MessagingConfig.of(mode="relay", cluster_id=16, shards=[32], bootstrap_nodes=[]), MemoryNetwork().node("me")
    )
    document = create_app(node, channels=lambda _: ReliableChannelConfig()).openapi()
    node.close()
    calls = "".join(calls.text for calls, _ in pairs("http-messaging.md"))
    for path in document["paths"]:
        used = re.escape(path).replace(r"\{id\}", r"\$CHANNEL").replace(r"\{requestId\}", r"\$SENT")
        assert re.search(rf"\$API{used}[\s?\"]", calls), path


def python_of(page: str, here: str, address: str) -> dict[str, Any]:
    """The names that the Python of a page leaves, run against the server at ``address``."""
    (code,) = (block.text for block in blocks_of(HOW_TO / page) if block.language == "python")
    names: dict[str, Any] = {}
    exec(code.replace(here, address), names)  # noqa: S102 — the page's own code
    return names


def test_the_python_of_the_page_about_messaging_runs(api: str) -> None:
    assert python_of("http-messaging.md", "http://127.0.0.1:8647", api)["record"]["sent"] is True


def test_the_python_of_the_page_about_the_store_runs(store: str) -> None:
    found = python_of("http-store.md", "http://127.0.0.1:8646", store)["found"]
    assert [base64.b64decode(message["payload"]) for message in found] == [b"hello", b"and", b"goodbye"]
