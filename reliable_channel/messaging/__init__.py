"""The Messaging API (MESSAGING-API): send with retries, records, confirmation, health and events over any transport.

``MessagingNode`` is the entry, ``MessagingClient`` the same with the calls and events of LIP-168; ``rest`` serves both
over HTTP. Names are loaded on first use, so that reading the configuration does not import transports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_channel.channel.config import MessageEnvelope
    from reliable_channel.messaging.client import MessagingClient, SubscriptionsError
    from reliable_channel.messaging.codec import Decoder, Encoder, Message, PlainDecoder, PlainEncoder
    from reliable_channel.messaging.config import CONFIRMATION_SUBSCRIPTION_ID, MessagingConfig, Mode
    from reliable_channel.messaging.events import CustomEvent, EventName, EventSource
    from reliable_channel.messaging.health import HealthStatus
    from reliable_channel.messaging.node import MessagingNode
    from reliable_channel.messaging.pipeline_feed import KafkaFeed
    from reliable_channel.messaging.records import MessageRecord
    from reliable_channel.messaging.sending import PendingLimitError
    from reliable_channel.messaging.store import NodeClosedError
    from reliable_channel.messaging.topics import UnsupportedTopicError

_HOME = {
    "CONFIRMATION_SUBSCRIPTION_ID": "config",
    "CustomEvent": "events",
    "Decoder": "codec",
    "Encoder": "codec",
    "EventName": "events",
    "EventSource": "events",
    "HealthStatus": "health",
    "KafkaFeed": "pipeline_feed",
    "Message": "codec",
    "MessageEnvelope": "client",
    "MessageRecord": "records",
    "MessagingClient": "client",
    "MessagingConfig": "config",
    "MessagingNode": "node",
    "Mode": "config",
    "NodeClosedError": "store",
    "PendingLimitError": "sending",
    "PlainDecoder": "codec",
    "PlainEncoder": "codec",
    "SubscriptionsError": "client",
    "UnsupportedTopicError": "topics",
}

__all__ = [
    "CONFIRMATION_SUBSCRIPTION_ID",
    "CustomEvent",
    "Decoder",
    "Encoder",
    "EventName",
    "EventSource",
    "HealthStatus",
    "KafkaFeed",
    "Message",
    "MessageEnvelope",
    "MessageRecord",
    "MessagingClient",
    "MessagingConfig",
    "MessagingNode",
    "Mode",
    "NodeClosedError",
    "PendingLimitError",
    "PlainDecoder",
    "PlainEncoder",
    "SubscriptionsError",
    "UnsupportedTopicError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
