"""The Reliable Channel API (protocol.md §7): a participant that sends and receives. Ring 2."""

from reliable_channel.channel.aes_gcm import AesGcm
from reliable_channel.channel.api import (
    close_channel,
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
    ReliableChannelConfig,
    ReliableChannelOptions,
    ReliableEnvelope,
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
from reliable_channel.channel.events import (
    ChannelEvent,
    ChannelProblem,
    ChunkInfo,
    EphemeralMessageDropped,
    IrretrievableMessage,
    MessageAcknowledged,
    MessageDelayed,
    MessageDelivered,
    MessagePossiblyAcknowledged,
    MessageReceived,
    MessageSendError,
    MessageSent,
    MissingMessage,
    RateLimitApproached,
    SegmentSent,
    SendingMessage,
)
from reliable_channel.channel.persistence import ChannelKey, MemoryPersistence, Persistence, SqlitePersistence
from reliable_channel.channel.sends import SendState
from reliable_channel.segmentation import MessageChunk

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
    "IncompleteEncryptionError",
    "IrretrievableMessage",
    "MemoryPersistence",
    "MessageAcknowledged",
    "MessageChunk",
    "MessageDelayed",
    "MessageDelivered",
    "MessageEnvelope",
    "MessagePossiblyAcknowledged",
    "MessageReceived",
    "MessageSendError",
    "MessageSent",
    "MissingMessage",
    "NodeConfig",
    "Persistence",
    "RateLimitApproached",
    "ReliableChannel",
    "ReliableChannelConfig",
    "ReliableChannelOptions",
    "ReliableEnvelope",
    "ReliableSendId",
    "SegmentSent",
    "SendState",
    "SenderLocked",
    "SendingMessage",
    "SqlitePersistence",
    "close_channel",
    "create_reliable_channel",
    "inspect_channel",
    "open_channel",
    "send",
    "send_envelope",
]
