"""The Messaging API (MESSAGING-API): send with retries, records, confirmation, health and events over any transport.

``MessagingNode`` is the entry, ``MessagingClient`` the same with the calls and events of LIP-168; ``rest`` serves both
over HTTP. Names are loaded on first use, so that reading the configuration does not import transports.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_channel.channel.config import MessageEnvelope
    from reliable_channel.messaging.client import (
        ConnectionStatus,
        ConnectionStatusChange,
        ContentTopicHealthChange,
        MessageErrorEvent,
        MessagePropagatedEvent,
        MessageReceivedEvent,
        MessageSentEvent,
        MessageSource,
        MessagingClient,
        ShardTopicHealthChange,
        SubscriptionError,
        SubscriptionsError,
        TopicHealth,
    )
    from reliable_channel.messaging.codec import Decoder, Encoder, Message, PlainDecoder, PlainEncoder
    from reliable_channel.messaging.config import (
        CONFIRMATION_SUBSCRIPTION_ID,
        MessagingConfig,
        Mode,
        UnsupportedTopicError,
    )
    from reliable_channel.messaging.events import CustomEvent, EventName, EventSource, HealthStatus
    from reliable_channel.messaging.idempotency import IdempotencyKey, KeyReusedError
    from reliable_channel.messaging.node import MessagingNode
    from reliable_channel.messaging.pipeline_feed import KafkaFeed
    from reliable_channel.messaging.records import MessageRecord
    from reliable_channel.messaging.sending import PendingLimitError
    from reliable_channel.messaging.store import NodeClosedError
    from reliable_channel.messaging.subscriptions import SubscriptionLimitError

__all__ = [
    "CONFIRMATION_SUBSCRIPTION_ID",
    "ConnectionStatus",
    "ConnectionStatusChange",
    "ContentTopicHealthChange",
    "CustomEvent",
    "Decoder",
    "Encoder",
    "EventName",
    "EventSource",
    "HealthStatus",
    "IdempotencyKey",
    "KafkaFeed",
    "KeyReusedError",
    "Message",
    "MessageEnvelope",
    "MessageErrorEvent",
    "MessagePropagatedEvent",
    "MessageReceivedEvent",
    "MessageRecord",
    "MessageSentEvent",
    "MessageSource",
    "MessagingClient",
    "MessagingConfig",
    "MessagingNode",
    "Mode",
    "NodeClosedError",
    "PendingLimitError",
    "PlainDecoder",
    "PlainEncoder",
    "ShardTopicHealthChange",
    "SubscriptionError",
    "SubscriptionLimitError",
    "SubscriptionsError",
    "TopicHealth",
    "UnsupportedTopicError",
]


_MODULES = (
    *("config", "codec", "events", "records", "store"),
    *("idempotency", "subscriptions", "pipeline_feed", "sending", "node", "client"),
)
"""Where the names are looked for: what imports little comes first."""


def __getattr__(name: str) -> Any:
    if name in __all__:
        modules = (import_module(f"{__name__}.{module}") for module in _MODULES)
        return globals().setdefault(name, next(getattr(one, name) for one in modules if hasattr(one, name)))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
