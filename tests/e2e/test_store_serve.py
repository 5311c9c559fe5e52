"""``reliable-channel store serve`` as a process: serves a real table, refuses a taken port, ends on SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode
from tests.support.envelope_rows import PUBSUB_TOPICS, append, some
from tests.support.store_pages import pages_of
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

PATIENT = RetryPolicy(attempts=60, longest_wait_s=1.0)
"""The server answers 503 until the index is complete, which takes long on a busy machine."""


def serving(run_dir: Path, port: str = "0") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "reliable_channel", "store", "serve", "--port", port],
        env={**os.environ, "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(run_dir)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_serves_the_table_as_it_grows_and_ends_on_sigterm(tmp_path: Path) -> None:
    table = tmp_path / "tables" / "envelopes"
    append(table, some(30))
    process = serving(tmp_path)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url is not None, line
        port = url[0].rsplit(":", 1)[1]
        client = StoreClient([RestStoreNode(BoundedHttp(url[0]))], PATIENT)
        query = StoreQuery(PUBSUB_TOPICS[0], page_size=7)
        found = [e.message.payload for page in pages_of(client, query) for e in page.entries if e.message]
        assert sorted(found) == sorted(b"%d" % n for n in range(0, 30, 2))
        append(table, some(2, 30))
        until(lambda: any(e.message and e.message.payload == b"30" for p in pages_of(client, query) for e in p.entries))
        client.close()
        second = serving(tmp_path / "other", port)
        assert second.wait(120) == 1
        assert second.stderr is not None
        assert "Cannot listen on 127.0.0.1" in second.stderr.read()
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 143
