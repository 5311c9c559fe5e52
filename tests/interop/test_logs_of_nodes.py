"""Logs of running go-waku nodes, one in each of its encodings, show which node published and received a message.

``make test-node`` builds go-waku and runs these; skipped with a reason without it."""

from __future__ import annotations

import base64
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from reliable_channel.config import PathSettings
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.evidence.log_files import read_logs
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import SIGHTINGS
from tests.support.waiting import until
from tests.support.waku_process import PROGRAM, PUBSUB_TOPIC, WakuProcess

pytestmark = [
    pytest.mark.waku,
    pytest.mark.skipif(not PROGRAM, reason="no Waku node was built: make test-node"),
]

ENCODINGS = ("json", "nocolor", "console")


def test_the_logs_of_running_nodes_show_what_they_published_and_received(tmp_path: Path) -> None:
    with ExitStack() as stack:
        nodes: list[WakuProcess] = []
        for encoding in ENCODINGS:
            peers = tuple(node.address() for node in nodes)
            nodes.append(stack.enter_context(WakuProcess(tmp_path / encoding, peers, log_encoding=encoding)))
        until(lambda: nodes[0].sees(*nodes[1:]), "the nodes find each other")
        ids = [node.address().rpartition("/")[2] for node in nodes]
        message = WakuMessage(b"hello", "/app/1/x/proto", timestamp=time.time_ns())
        body = {
            "payload": base64.b64encode(message.payload).decode(),
            "contentTopic": message.content_topic,
            "timestamp": message.timestamp,
        }
        url = f"{nodes[0].url}/relay/v1/messages/{quote(PUBSUB_TOPIC, safe='')}"

        def everybody_has_it() -> bool:  # published until the mesh is there: it is the same message each time
            httpx.post(url, json=body, timeout=10, trust_env=False)
            return all("waku.relay received" in (tmp_path / name / "log").read_text() for name in ENCODINGS)

        until(everybody_has_it, "all nodes receive the message")
    paths = PathSettings(run_dir=str(tmp_path / "run"))
    counts = read_logs(paths, [tmp_path / name / "log" for name in ENCODINGS])
    assert not counts.unknown and not counts.no_time
    rows = rows_of(open_table(paths, SIGHTINGS))
    assert {row["message_hash"] for row in rows} == {message_hash(PUBSUB_TOPIC, message)}
    assert {row["pubsub_topic"] for row in rows} == {PUBSUB_TOPIC}
    kinds = Counter((row["vantage"], row["source"]) for row in rows)
    assert kinds.keys() == {(ids[0], "published"), *((each, "received") for each in ids)}
