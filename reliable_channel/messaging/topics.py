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


def check_subscription_topic(config: MessagingConfig, pubsub_topic: str) -> None:
    """Raise :class:`UnsupportedTopicError` with MESSAGING-API's 404 text for ``POST /subscribe``: it names the
    part of the topic that does not fit."""
    if (unsupported := _find_unsupported(config, pubsub_topic)) is not None:
        raise UnsupportedTopicError(f"Cannot create subscription. {unsupported} is not supported.")


def check_history_topic(config: MessagingConfig, pubsub_topic: str) -> None:
    """Raise :class:`UnsupportedTopicError` for a history query on a topic that is not one of the node's."""
    if (unsupported := _find_unsupported(config, pubsub_topic)) is not None:
        raise UnsupportedTopicError(f"Cannot query history. {unsupported} is not supported.")


def _find_unsupported(config: MessagingConfig, pubsub_topic: str) -> str | None:
    """The part of a topic that does not fit the node's shards, or None."""
    if pubsub_topic in config.pubsub_topics:
        return None
    match = _STATIC_SHARD.fullmatch(pubsub_topic)
    if match is None:
        return f"pubsubTopic '{pubsub_topic}'"
    if int(match[1]) != config.cluster_id:
        return f"clusterId {match[1]}"
    return f"shard {match[2]}"
