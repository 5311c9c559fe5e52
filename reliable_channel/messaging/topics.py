"""Which pubsub topics a node supports (RELAY-SHARDING), and the seed's sentences for those it does not."""

from __future__ import annotations

import re

from reliable_channel.errors import LocalError
from reliable_channel.messaging.config import MessagingConfig

_STATIC_SHARD = re.compile(r"/waku/2/rs/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")


class UnsupportedTopicError(LocalError):
    """The pubsub topic of an encoder or decoder is not one of the node's shards (seed ``003…``, ``send`` and
    ``subscribe``)."""


def check_send_topic(config: MessagingConfig, pubsub_topic: str) -> None:
    """Raise :class:`UnsupportedTopicError` with the text of the seed's 404 for ``POST /send``."""
    if pubsub_topic not in config.pubsub_topics:
        raise UnsupportedTopicError(f"Failed to send message. Target pubsubTopic '{pubsub_topic}' not supported.")


def check_subscription_topic(config: MessagingConfig, pubsub_topic: str) -> None:
    """Raise :class:`UnsupportedTopicError` with the text of the seed's 404 for ``POST /subscribe``: it names the
    part of the topic that does not fit."""
    if pubsub_topic in config.pubsub_topics:
        return
    found = _STATIC_SHARD.fullmatch(pubsub_topic)
    if found is None:
        what = f"pubsubTopic '{pubsub_topic}'"
    elif int(found[1]) != config.cluster_id:
        what = f"clusterId {found[1]}"
    else:
        what = f"shard {found[2]}"
    raise UnsupportedTopicError(f"Cannot create subscription. {what} is not supported.")
