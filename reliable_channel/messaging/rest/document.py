"""Returns the OpenAPI document of the REST server, without a server."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.transport.memory import MemoryNetwork


def openapi_document() -> dict[str, Any]:
    """The document of a server with reliable channels, as ``/openapi.json`` returns it. It starts nothing."""
    config = MessagingConfig.of(mode="relay", cluster_id=0, shards=[0], bootstrap_nodes=[])
    with TemporaryDirectory() as directory:
        node = MessagingNode(config, MemoryNetwork().node("reference"), Path(directory) / "messages.sqlite")
        try:
            document: dict[str, Any] = create_app(
                node, channels=lambda _: ReliableChannelConfig(), run_node=False
            ).openapi()
        finally:
            node.close()
    return document
