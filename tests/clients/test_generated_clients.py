"""Clients that public generators make from the servers' OpenAPI documents compile and speak with a server."""

from __future__ import annotations

import base64
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.transport.store.document import document as store_document
from tests.support.http_server import running
from tests.support.messaging_world import CONTENT, World

HERE = Path(__file__).parent
NODE = shutil.which("node")
TOOLS = HERE / "node_modules"
GENERATORS = HERE.parents[1] / "build" / "clients-venv" / "bin"

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(not GENERATORS.exists(), reason="The generators are not installed: make test-e2e installs them"),
]


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.node.close()


def api(world: World) -> Any:
    return create_app(world.node, channels=lambda _: ReliableChannelConfig(query_on_connect=False), run_node=False)


def documents(world: World, place: Path) -> dict[str, Path]:
    """The document of each server, in a file."""
    files = {}
    for name, content in (("messaging", api(world).openapi()), ("store", store_document("1"))):
        files[name] = place / f"{name}.json"
        files[name].write_text(json.dumps(content), encoding="utf-8")
    return files


def generated(document: Path, package: Path) -> None:
    """A Python package of a client, without a warning that something of the document was left out."""
    command = [GENERATORS / "openapi-python-client", "generate", "--meta", "none"]
    done = subprocess.run(
        [*command, "--path", document, "--output-path", package, "--fail-on-warning"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PATH": f"{GENERATORS}{os.pathsep}{os.environ['PATH']}"},  # it runs ruff
    )
    assert done.returncode == 0, done.stdout + done.stderr
    compiled = subprocess.run([sys.executable, "-m", "compileall", "-q", package], capture_output=True, timeout=120)
    assert compiled.returncode == 0, compiled.stdout


def test_a_generated_python_client_sends_reads_and_knows_the_types_of_events(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generated(documents(world, tmp_path)["messaging"], tmp_path / "messaging_client")
    monkeypatch.syspath_prepend(str(tmp_path))
    with running(api(world), lifespan="on") as address:
        client = importlib.import_module("messaging_client").Client(base_url=address)
        models = importlib.import_module("messaging_client.models")
        send = importlib.import_module("messaging_client.api.messaging.send")
        payload = base64.b64encode(b"hello").decode()
        request = models.SendRequest(payload=payload, content_topic=CONTENT)
        answer = send.sync(client=client, body=request, idempotency_key="one")
        assert isinstance(answer, models.RequestIdentifier)
        assert send.sync(client=client, body=request, idempotency_key="one") == answer
        message = importlib.import_module("messaging_client.api.messaging.message")
        record = message.sync(client=client, request_id=answer.request_id)
        assert (record.message.payload, record.sending) == (payload, True)
        assert str(record.message.timestamp) == record.message.timestamp_text
        channels = importlib.import_module("messaging_client.api.reliable_channels.open_channel")
        body = models.OpenRequest(channel_id="lobby", content_topic="/reliable-channel/1/lobby/proto", sender_id="a")
        opened = channels.sync(client=client, body=body)
        events = importlib.import_module("messaging_client.api.reliable_channels.channel_events")
        on_channel = importlib.import_module("messaging_client.api.reliable_channels.send_on_channel")
        on_channel.sync(opened.id, client=client, body=models.ChannelSend(payload=payload))
        world.run(1_000)
        found = events.sync(opened.id, client=client, wait=10_000)
        assert {type(event).__name__ for event in found} <= set(dir(models))
        assert found and all(hasattr(event, "cursor") for event in found)
        v1 = importlib.import_module("messaging_client.api.messaging_v1.send_envelope")
        sent = v1.sync(client=client, body=models.EnvelopeRequest(payload=payload, content_topic=CONTENT))
        world.run()
        told = importlib.import_module("messaging_client.api.messaging_v1.send_events_of")
        events = told.sync(sent.request_id, client=client).events
        assert [event.kind for event in events] == ["propagated", "sent"]
        world.arrives()
        received = importlib.import_module("messaging_client.api.messaging_v1.received_events").sync(client=client)
        assert [one.message.content_topic for one in received] == [CONTENT]


def test_a_generated_python_client_of_the_store_compiles(world: World, tmp_path: Path) -> None:
    generated(documents(world, tmp_path)["store"], tmp_path / "store_client")


@pytest.mark.skipif(NODE is None, reason="Node was not found: it generates the TypeScript client")
@pytest.mark.skipif(not TOOLS.exists(), reason="openapi-typescript is not installed: npm ci --prefix tests/clients")
def test_generated_typescript_compiles_with_the_code_of_the_page(world: World, tmp_path: Path) -> None:
    assert NODE is not None
    for name, document in documents(world, tmp_path).items():
        target = tmp_path / f"{name}.d.ts"
        tool = TOOLS / "openapi-typescript" / "bin" / "cli.js"
        done = subprocess.run([NODE, tool, document, "-o", target], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    (tmp_path / "page.ts").write_text(typescript_of_the_page(), encoding="utf-8")
    command = [NODE, TOOLS / "typescript" / "bin" / "tsc", "--strict", "--noEmit", "--target", "es2022"]
    command += ["--module", "es2022", "--moduleResolution", "bundler", "--lib", "es2022,dom", "page.ts", "store.d.ts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout


def typescript_of_the_page() -> str:
    """The TypeScript blocks of the pages about the servers."""
    how_to = HERE.parents[1] / "docs" / "howto"
    text = "".join((how_to / f"http-{name}.md").read_text(encoding="utf-8") for name in ("messaging", "store"))
    return "\n".join(block.partition("```")[0] for block in text.split("```ts\n")[1:])
