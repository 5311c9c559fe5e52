"""Completes the configuration of the Messaging API from that of the Waku node that it uses."""

from __future__ import annotations

import re
from typing import Any

from reliable_channel.config.node import NodeSettings

_STATIC_SHARD = re.compile(r"/waku/2/rs/([0-9]+)/([0-9]+)")


def complete_from_node(given: dict[str, Any], node: NodeSettings) -> dict[str, Any]:
    """The section ``messaging`` with what it leaves out: mode, cluster and shards of the node, which finds its peers
    without bootstrap nodes of this section. A pubsub topic that is no static shard leaves cluster and shards open."""
    network: dict[str, Any] = {"cluster_id": node.cluster_id, "shards": range(node.shards)}
    if node.pubsub_topic is not None:
        shard = _STATIC_SHARD.fullmatch(node.pubsub_topic)
        network = {} if shard is None else {"cluster_id": int(shard[1]), "shards": (int(shard[2]),)}
    return {"mode": node.mode, "bootstrap_nodes": (), **network, **given}
