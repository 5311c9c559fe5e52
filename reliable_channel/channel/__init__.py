"""The Reliable Channel API (RELIABLE-CHANNEL-API, docs/spec/reliable-channel-api.md): a participant that sends and
receives."""

from reliable_channel.channel.aes_gcm import AesGcm
from reliable_channel.channel.api import (
    close_channel,
    create_node,
    create_reliable_channel,
    inspect_channel,
    open_channel,
    send,
    send_envelope,
)
from reliable_channel.channel.channel import ReliableChannel, ReliableSendId
from reliable_channel.channel.config import (
    MessageEnvelope,
    NodeConfig,
    NodeSegmentationConfig,
    ReliableChannelConfig,
    ReliableChannelOptions,
    ReliableEnvelope,
    SdsConfig,
)
from reliable_channel.channel.encryption import Encryption
from reliable_channel.channel.errors import (
    ChangedConfigurationError,
    ChannelClosedError,
    ChannelExistsError,
    ChannelNotStartedError,
    DamagedStore,
    IncompleteEncryptionError,
    SenderLocked,
)
from reliable_channel.channel.event_stream import EventStream
from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    ChunkInfo,
    EphemeralMessageDropped,
    IrretrievableMessage,
    MessageAcknowledged,
    MessageDelayed,
    MessageDelivered,
    MessageDeliveryError,
    MessageLost,
    MessagePossiblyAcknowledged,
    MessageReceived,
    MessageSendError,
    MessageSent,
    MissingMessage,
    RateLimitApproached,
    SegmentQueued,
    SegmentSent,
    SendingMessage,
)
from reliable_channel.channel.persistence import ChannelKey, MemoryPersistence, Persistence, SqlitePersistence
from reliable_channel.channel.sends import SendState
from reliable_channel.core.segmentation import MessageChunk
from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.threads import ForkedError

__all__ = [
    "AesGcm",
    "ChangedConfigurationError",
    "ChannelClosedError",
    "ChannelEvent",
    "ChannelExistsError",
    "ChannelKey",
    "ChannelNotStartedError",
    "ChannelProblem",
    "ChunkInfo",
    "DamagedStore",
    "Encryption",
    "EphemeralMessageDropped",
    "EventStream",
    "ForkedError",
    "IncompleteEncryptionError",
    "IrretrievableMessage",
    "MemoryPersistence",
    "MessageAcknowledged",
    "MessageChunk",
    "MessageDelayed",
    "MessageDelivered",
    "MessageDeliveryError",
    "MessageEnvelope",
    "MessageLost",
    "MessagePossiblyAcknowledged",
    "MessageReceived",
    "MessageSendError",
    "MessageSent",
    "MissingMessage",
    "NodeConfig",
    "NodeSegmentationConfig",
    "Persistence",
    "RateLimitApproached",
    "ReliableChannel",
    "ReliableChannelConfig",
    "ReliableChannelOptions",
    "ReliableEnvelope",
    "ReliableSendId",
    "SdsConfig",
    "SegmentQueued",
    "SegmentSent",
    "SendBufferFull",
    "SendState",
    "SenderLocked",
    "SendingMessage",
    "SqlitePersistence",
    "close_channel",
    "create_node",
    "create_reliable_channel",
    "inspect_channel",
    "open_channel",
    "send",
    "send_envelope",
]
