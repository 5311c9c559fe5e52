"""``reliable-channel api serve`` as a process: its address, its token, its end, its memory of requests."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from reliable_channel.config import Settings
from reliable_channel.runtime.build import make_bridge
from reliable_channel.runtime.topics import ensure_evidence_topic
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNode
from tests.support.waiting import WAIT_S

pytestmark = pytest.mark.e2e

CONTENT = "/messaging/2/api/utf8"
MESSAGE = {"contentTopic": CONTENT, "payload": base64.b64encode(b"hello").decode()}
TOKEN = "a token of sixteen characters or more"
"""For one condition at a time: as long as the slowest machine may need, and no machine waits it out."""

CONFIGURATION = """
paths: {{run_dir: {run}}}
node: {{url: "{url}", pubsub_topic: {topic}}}
messaging: {{mode: relay, cluster_id: 16, shards: [32], bootstrap_nodes: []}}
api: {{transport: waku-rest, feed: false, port: 0}}
"""


@pytest.fixture
def fake() -> Iterator[FakeWakuNode]:
    with FakeWakuNode("nwaku") as node:
        yield node


def configured(fake: FakeWakuNode, tmp_path: Path) -> list[str]:
    file = tmp_path / "api.yaml"
    file.write_text(CONFIGURATION.format(run=tmp_path / "run", url=fake.url, topic=PUBSUB_TOPIC), encoding="utf-8")
    return [sys.executable, "-m", "reliable_channel", "--config", str(file), "api", "serve"]


class Server:
    """A server that was started; :meth:`client` waits until it says where it listens. What it logs goes to a file, so
    that it never waits for somebody who reads."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str] | None = None) -> None:
        self.log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **(environment or {})},
            )

    def client(self) -> httpx.Client:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = re.search(r"http://\S+:(\d+)", line)
        assert found, line + self.log.read_text(encoding="utf-8")
        transport = httpx.HTTPTransport(retries=20)
        return httpx.Client(
            base_url=f"http://127.0.0.1:{found[1]}", trust_env=False, timeout=WAIT_S, transport=transport
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def serving(command: list[str], log: Path, environment: dict[str, str] | None = None) -> Iterator[tuple[Any, Any]]:
    with Server(command, log, environment) as server, server.client() as client:
        yield server.process, client


def test_a_message_goes_from_http_to_the_node_and_comes_back(fake: FakeWakuNode, tmp_path: Path) -> None:
    with serving(configured(fake, tmp_path), tmp_path / "log") as (process, client):
        subscription_id = client.post("/subscribe", json={"contentTopic": CONTENT}).json()["subscriptionId"]
        request_id = client.post("/send", json=MESSAGE).json()["requestId"]
        record, cursor = {"sent": False}, "0"
        while not record["sent"]:
            query: dict[str, Any] = {"requestId": request_id, "since": cursor, "wait": 20_000}
            answer = client.get("/message", params=query)
            record, cursor = answer.json(), answer.headers["X-Cursor"]
        assert [message.payload for _, message in fake.published] == [b"hello"]
        stranger = FakeWakuNode("nwaku", fake.network)
        fake.network.publish(PUBSUB_TOPIC, fake.published[0][1].__class__(b"answer", CONTENT, timestamp=1), stranger)
        found = client.get("/messages", params={"subscriptionId": subscription_id, "wait": 20_000}).json()
        assert base64.b64decode(found[-1]["message"]["payload"]) == b"answer"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) in (0, 143, -signal.SIGTERM)


def test_after_sigkill_what_was_promised_is_sent_by_the_next_process(fake: FakeWakuNode, tmp_path: Path) -> None:
    fake.faults.status, fake.faults.paths = 500, "relay/v1/messages"
    command = configured(fake, tmp_path)
    with serving(command, tmp_path / "log") as (process, client):
        request_id = client.post("/send", json=MESSAGE).json()["requestId"]
        process.kill()
        process.wait(WAIT_S)
    fake.faults.status = None
    with serving(command, tmp_path / "log") as (process, client):
        record = {"sent": False}
        while not record["sent"]:
            record = client.get("/message", params={"requestId": request_id, "since": 0, "wait": 1_000}).json()
    assert {message.payload for _, message in fake.published} == {b"hello"}


@pytest.mark.kafka
@pytest.mark.slow
def test_two_servers_hold_a_conversation_over_the_real_broker(broker: Settings, tmp_path: Path) -> None:
    """Alice and Bob speak only HTTP; between them are two processes, Kafka and the local loop."""
    loop = make_bridge(broker.with_run_dir(tmp_path / "loop"), loop=True)
    ensure_evidence_topic(broker)
    loop.start()
    try:
        with contextlib.ExitStack() as stack:
            servers = {name: stack.enter_context(kafka_server(broker, tmp_path / name)) for name in ("alice", "bob")}
            lobby = f"lobby-{uuid.uuid4().hex}"
            alice, bob = (
                Participant(stack.enter_context(server.client()), lobby, name) for name, server in servers.items()
            )
            sends = [alice.send(b"hello %d" % number) for number in range(2)]
            received = bob.events("reliable:message:received", 2)
            assert [event["message"] for event in received] == [encoded(b"hello %d" % n) for n in range(2)]
            bob.send(b"x" * 300_000)
            (answer,) = alice.events("reliable:message:received", 1)
            assert answer["message"] == encoded(b"x" * 300_000)
            delivered = alice.events("reliable:message:delivered", 2)
            assert {event["requestId"] for event in delivered} == set(sends)
            records = bob.client.get("/messages", params={"contentTopic": bob.topic}).json()
            assert sum(record["sent"] for record in records) >= 3, "every segment has a record"
    finally:
        loop.stop()


def kafka_server(broker: Settings, run_dir: Path) -> Server:
    """A server over the broker, its state in ``run_dir``."""
    run_dir.mkdir()
    environment = {
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": broker.kafka.servers,
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(run_dir),
        "RELIABLE_CHANNEL__API__GROUP_ID": f"test-{run_dir}".replace("/", "-"),
    }
    return Server(
        [sys.executable, "-m", "reliable_channel", "api", "serve", "--port", "0"], run_dir / "log", environment
    )


class Participant:
    """A program that speaks HTTP to a server of its own."""

    def __init__(self, client: httpx.Client, channel_id: str, name: str) -> None:
        self.client = client
        self.topic = f"/reliable-channel/1/{channel_id}/proto"
        self.hear_itself()
        body = {"channelId": channel_id, "contentTopic": self.topic, "senderId": name}
        answer = self.client.post("/channels", json=body)
        assert answer.status_code == 200, answer.text
        self.channel = answer.json()["id"]
        self.seen: list[dict[str, Any]] = []
        self.cursor = "0"

    def hear_itself(self) -> None:
        """Until its reader stands at the end of the topic: what came before is not received, and a channel would begin
        in the middle of a conversation."""
        topic = f"/probe/1/{uuid.uuid4().hex}/proto"
        subscription = self.client.post("/subscribe", json={"contentTopic": topic}).json()["subscriptionId"]
        answer, deadline = None, time.monotonic() + WAIT_S
        while answer is None or answer.status_code == 404:
            assert time.monotonic() < deadline, "its own messages do not come back"
            self.client.post("/send", json={**MESSAGE, "contentTopic": topic})
            answer = self.client.get("/messages", params={"subscriptionId": subscription, "wait": 500})

    def send(self, payload: bytes) -> str:
        answer = self.client.post(f"/channels/{self.channel}/send", json={"payload": encoded(payload)})
        assert answer.status_code == 200, answer.text
        request_id: str = answer.json()["requestId"]
        return request_id

    def events(self, name: str, wanted: int) -> list[dict[str, Any]]:
        """The first events of that name, waited for by long polling; every event is read once."""
        deadline = time.monotonic() + WAIT_S
        while len(found := [event for event in self.seen if event["event"] == name]) < wanted:
            assert time.monotonic() < deadline, (
                f"{len(found)} of {wanted} {name} among {[e['event'] for e in self.seen]}"
            )
            query: dict[str, Any] = {"since": self.cursor, "wait": 20_000}
            answer = self.client.get(f"/channels/{self.channel}/events", params=query)
            assert answer.status_code == 200, answer.text
            self.cursor = answer.headers["X-Cursor"]
            self.seen += answer.json()
        return found[:wanted]


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def test_off_loopback_there_is_no_server_without_a_token(fake: FakeWakuNode, tmp_path: Path) -> None:
    done = subprocess.run(
        [*configured(fake, tmp_path), "--host", "0.0.0.0"],  # noqa: S104
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "api.token is not set" in done.stderr
    assert "Traceback" not in done.stderr


def test_off_loopback_every_call_needs_the_token(fake: FakeWakuNode, tmp_path: Path) -> None:
    command = [*configured(fake, tmp_path), "--host", "0.0.0.0"]  # noqa: S104
    with serving(command, tmp_path / "log", {"RELIABLE_CHANNEL__API__TOKEN": TOKEN}) as (_, client):
        assert client.post("/send", json=MESSAGE).status_code == 401
        answer = client.post("/send", json=MESSAGE, headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == 200
    assert fake.requests


def test_a_missing_section_is_named_with_its_remedy(fake: FakeWakuNode, tmp_path: Path) -> None:
    command = configured(fake, tmp_path)
    file = Path(command[command.index("--config") + 1])
    file.write_text(
        "\n".join(line for line in file.read_text().splitlines() if not line.startswith("messaging")), encoding="utf-8"
    )
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "messaging is missing" in done.stderr) == (2, True)
