"""What the tests of the REST API share: a server over a node in memory."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from reliable_channel.messaging.rest.app import create_app
from tests.support.messaging_world import CONTENT, PUBSUB, World


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


MESSAGE = {"pubsubTopic": PUBSUB, "contentTopic": CONTENT, "payload": encoded(b"example")}


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with TestClient(create_app(world.node, run_node=False), base_url="http://localhost") as client:
        yield client


@pytest.fixture(scope="module")
def refusing() -> Iterator[TestClient]:
    """One server for everything that is refused: nothing of it changes the node."""
    world = World()
    with TestClient(create_app(world.node, run_node=False), base_url="http://localhost") as client:
        yield client
    world.node.close()


def secured(world: World, **options: Any) -> TestClient:
    return TestClient(create_app(world.node, run_node=False, **options), base_url="http://localhost")
