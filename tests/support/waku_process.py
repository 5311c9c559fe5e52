"""Running go-waku nodes on loopback for tests: started, killed, started again on the same ports and with the same key.

``make test-node`` builds the program (``scripts/test-node.sh``) and names it in ``RELIABLE_CHANNEL_WAKU``.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from reliable_channel.runtime.broker import free_port
from tests.support.waiting import WAIT_S, until

PROGRAM = os.environ.get("RELIABLE_CHANNEL_WAKU", "")
CLUSTER_ID, SHARD = 16, 32
PUBSUB_TOPIC = f"/waku/2/rs/{CLUSTER_ID}/{SHARD}"


class WakuProcess:
    """One node with relay, store, filter, lightpush, REST and a websocket. ``peers`` are addresses it connects to.

    ``joined=False`` starts it without a shard of its own: it joins when a REST client subscribes. ``log_encoding``: it
    also logs hashes, in this encoding."""

    def __init__(
        self,
        place: Path,
        peers: tuple[str, ...] = (),
        *,
        joined: bool = True,
        rest_cache: int = 1000,
        log_encoding: str | None = None,
    ) -> None:
        self.place = place
        self.url = f"http://127.0.0.1:{(rest_port := free_port())}"
        self._process: subprocess.Popen[bytes] | None = None
        place.mkdir(parents=True)
        arguments = {
            "address": "127.0.0.1",
            "tcp-port": free_port(),
            "nodekey": os.urandom(32).hex(),
            "cluster-id": CLUSTER_ID,
            "nat": "none",
            "rest-port": rest_port,
            "rest-relay-cache-capacity": rest_cache,
            "store-message-db-url": f"sqlite3://{place / 'store.db'}",
            "websocket-address": "127.0.0.1",
            "websocket-port": free_port(),
        }
        flags = ["rest", "rest-admin", "relay", "store", "filter", "lightpush", "websocket-support"]
        self._command = [
            PROGRAM,
            "--discv5-discovery=false",
            *(f"--{name}={value}" for name, value in arguments.items()),
            *(f"--{name}" for name in flags),
            *(f"--staticnode={peer}" for peer in peers),
            *([f"--pubsub-topic={PUBSUB_TOPIC}"] if joined else []),
            *(["--log-level=DEBUG", f"--log-encoding={log_encoding}"] if log_encoding else []),
        ]

    def __enter__(self) -> WakuProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start, and wait until the REST interface answers."""
        with (self.place / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, cwd=self.place, stdout=log, stderr=subprocess.STDOUT)
        until(self._answers, f"the node at {self.url} answers")

    def kill(self) -> None:
        """SIGKILL. Killing twice does nothing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(WAIT_S)

    @contextmanager
    def stop(self) -> Iterator[None]:
        """It takes connections and answers nothing."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def address(self, websocket: bool = False) -> str:
        """Its multiaddr."""
        addresses = self.get("/debug/v1/info")["listenAddresses"]
        return next(str(one) for one in addresses if ("/ws/" in one) is websocket)

    def sees(self, *others: WakuProcess) -> bool:
        """Whether it is connected to all of these. Others, such as a light node, come and go beside them."""
        connected = {peer["id"] for peer in self.get("/admin/v1/peers") if peer["connected"]}
        return connected >= {other.address().rpartition("/")[2] for other in others}

    def connect(self, other: WakuProcess) -> None:
        """Connect to a node now: of itself a node tries one that was away again only after minutes. It is asked until
        the other sees it, as it refuses to dial for seconds after a dial of its own that failed."""
        body = {"multiaddr": other.address(), "shards": [SHARD], "protocols": ["/vac/waku/relay/2.0.0"]}

        def is_connected() -> bool:
            httpx.post(self.url + "/admin/v1/peers", json=body, timeout=10, trust_env=False)
            return other.sees(self)

        until(is_connected, f"{self.url} connects to {other.url}")

    def count_stored(self, content_topic: str) -> int:
        """How many messages its own archive has (Store v1), up to a page of 100."""
        query = {"pubsubTopic": PUBSUB_TOPIC, "contentTopics": content_topic, "pageSize": "100"}
        return len(self.get("/store/v1/messages", query)["messages"] or ())

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        """A REST answer as JSON."""
        return httpx.get(self.url + path, params=query, timeout=10, trust_env=False).raise_for_status().json()

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self.place / "log").read_text()[-2_000:]
        try:
            return bool(self.get("/debug/v1/info"))
        except httpx.HTTPError:
            return False
