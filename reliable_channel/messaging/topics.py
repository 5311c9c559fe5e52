"""Checks which pubsub topics a node supports (51/WAKU2-RELAY-SHARDING), with the error sentences of MESSAGING-API."""

from __future__ import annotations

import re

from reliable_channel.core.errors import LocalError
from reliable_channel.messaging.config import MessagingConfig

_STATIC_SHARD = re.compile(r"/waku/2/rs/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")


class UnsupportedTopicError(LocalError):
    """The pubsub topic of an encoder or decoder is not one of the node's shards (MESSAGING-API, ``send`` and
    ``subscribe``)."""


def check_send_topic(config: MessagingConfig, pubsub_topic: str) -> None:
    """Raise :class:`UnsupportedTopicError` with MESSAGING-API's 404 text for ``POST /send``."""
    if pubsub_topic not in config.pubsub_topics:
        raise UnsupportedTopicError(f"Failed to send message. Target pubsubTopic '{pubsub_topic}' not supported.")


def check_read_topic(config: MessagingConfig, pubsub_topic: str, failure: str) -> None:
    """Raise :class:`UnsupportedTopicError` for a pubsub topic that is not one of the node's. Its text names the part of
    the topic that does not fit after ``failure``, as MESSAGING-API's 404 for ``POST /subscribe`` does."""
    if pubsub_topic in config.pubsub_topics:
        return
    match = _STATIC_SHARD.fullmatch(pubsub_topic)
    if match is None:
        unsupported = f"pubsubTopic '{pubsub_topic}'"
    else:
        unsupported = f"shard {match[2]}" if int(match[1]) == config.cluster_id else f"clusterId {match[1]}"
    raise UnsupportedTopicError(f"{failure} {unsupported} is not supported.")
