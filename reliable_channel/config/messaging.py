"""Configures the Messaging API beside the Waku node that it uses."""

from __future__ import annotations

import re
from typing import Any

from reliable_channel.config.node import NodeSettings
from reliable_channel.messaging.config import MessagingConfig, Multiaddrs

_STATIC_SHARD = re.compile(r"/waku/2/rs/([0-9]+)/([0-9]+)")


class MessagingSettings(MessagingConfig):
    """The Messaging API, as MESSAGING-API names its settings. ``mode``, ``cluster_id`` and ``shards`` are those of the
    Waku node in ``node``; set here, they count for the Messaging API alone."""

    bootstrap_nodes: Multiaddrs = ()


def complete_from_node(given: dict[str, Any], node: NodeSettings) -> dict[str, Any]:
    """The section ``messaging`` with what it leaves to the node. A pubsub topic that is no static shard leaves cluster
    and shards open."""
    network: dict[str, Any] = {"cluster_id": node.cluster_id, "shards": range(node.shards)}
    if node.pubsub_topic is not None:
        shard = _STATIC_SHARD.fullmatch(node.pubsub_topic)
        network = {} if shard is None else {"cluster_id": int(shard[1]), "shards": (int(shard[2]),)}
    return {"mode": node.mode, **network, **given}
