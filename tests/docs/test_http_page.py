"""The page about the servers: its calls give the answers that it prints, its Python runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.messaging import MessagingConfig, MessagingNode
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.store.memory_source import MemorySource
from reliable_channel.store.server import create_app as create_store
from reliable_channel.transport.memory import MemoryNetwork
from reliable_channel.transport.sharding import NamedTopic
from reliable_channel.wire.waku import WakuMessage
from tests.support.doc_blocks import ROOT, Block, blocks_of
from tests.support.http_server import running

PAGE = ROOT / "docs" / "howto" / "http.md"
TEST = "tests/docs/test_http_page.py::test_the_page_of_the_servers_answers_what_it_shows"
PUBSUB = "/waku/2/rs/16/32"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[str]:
    config = MessagingConfig.of(mode="relay", cluster_id=16, shards=[32], bootstrap_nodes=[])
    network = MemoryNetwork(pubsub_topics=NamedTopic(PUBSUB))
    node = MessagingNode(config, network.node("me"), tmp_path / "messages.sqlite")
    app = create_app(node, channels=lambda _: ReliableChannelConfig(query_on_connect=False))
    with running(app, lifespan="on", on_stop=app.state.poll.stop) as address, pumped(network):
        yield address
    node.close()


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
        source.add(PUBSUB, WakuMessage(payload, "/my-app/1/chat/proto", timestamp=1_795_254_432_521_844_140 + number))
    with running(create_store(source)) as address:
        yield address


def pairs() -> list[tuple[Block, Block]]:
    """Each block of calls with the block of answers below it."""
    found = blocks_of(PAGE)
    return [(one, found[number + 1]) for number, one in enumerate(found) if one.about == TEST]


def expected(text: str) -> re.Pattern[str]:
    """What the page shows: an ellipsis is anything, line breaks between answers do not matter."""
    return re.compile(".+?".join(map(re.escape, "".join(text.split("\n")).split("…"))))


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl was not found")
def test_the_page_of_the_servers_answers_what_it_shows(api: str, store: str, tmp_path: Path) -> None:
    assert len(pairs()) >= 6
    for calls, answers in pairs():
        done = subprocess.run(
            ["bash", "-c", calls.text],
            cwd=tmp_path,
            env={**os.environ, "API": api, "STORE": store, "no_proxy": "*"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        shown = "".join(done.stdout.replace("\r", "").split("\n"))
        assert expected(answers.text).fullmatch(shown), f"{calls}\n{done.stdout}{done.stderr}"


def test_the_python_of_the_page_sends_and_reads(api: str) -> None:
    (code,) = (block.text for block in blocks_of(PAGE) if block.language == "python")
    names: dict[str, object] = {}
    exec(code.replace("http://127.0.0.1:8647", api), names)  # noqa: S102 — the page's own code
    record = names["record"]
    assert isinstance(record, dict)
    assert record["sent"] is True
