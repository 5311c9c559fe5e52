"""Maps a content topic to its pubsub topic: one named topic, or autosharding (51/WAKU2-RELAY-SHARDING)."""

from __future__ import annotations

import hashlib
from typing import Protocol

from reliable_channel.core.errors import LocalError

DEFAULT_SHARDS = 8
"""Shards of a generation-0 cluster."""


class PubsubTopics(Protocol):
    """Content topic → pubsub topic."""

    def topic_for(self, content_topic: str) -> str:
        """Raises ``LocalError`` when this network has no shard for the content topic."""


class NamedTopic:
    """Every content topic on one pubsub topic (static sharding with one shard)."""

    def __init__(self, pubsub_topic: str) -> None:
        if not pubsub_topic:
            raise LocalError("The pubsub topic is empty.", "Set node.pubsub_topic.")
        self._topic = pubsub_topic

    def topic_for(self, content_topic: str) -> str:
        return self._topic


class Autosharding:
    """The shard is the last 8 bytes, big-endian, of sha256(application ‖ version), modulo the number of shards."""

    def __init__(self, cluster_id: int, shards: int = DEFAULT_SHARDS) -> None:
        self._cluster_id = cluster_id
        self._shards = shards

    def topic_for(self, content_topic: str) -> str:
        parts = content_topic.split("/")
        if len(parts) == 6 and parts[1] == "0":  # /{generation}/{application}/{version}/{name}/{encoding}
            parts = parts[1:]
        if len(parts) != 5 or parts[0] not in ("", "0") or not parts[1] or not parts[2]:
            raise LocalError(
                f"Content topic {content_topic!r} is not /application/version/name/encoding.",
                "Autosharding needs that form; or set node.pubsub_topic.",
            )
        digest = hashlib.sha256((parts[1] + parts[2]).encode()).digest()
        return f"/waku/2/rs/{self._cluster_id}/{int.from_bytes(digest[-8:], 'big') % self._shards}"
