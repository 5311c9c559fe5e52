"""Stores the state of a channel that must survive its process (RELIABLE-CHANNEL-API, *Scalable Data Sync*)."""

from reliable_channel.channel.persistence.base import ChannelKey, LabelledSend, Persistence, StoredChannel
from reliable_channel.channel.persistence.sqlite import MemoryPersistence, SqlitePersistence

__all__ = ["ChannelKey", "LabelledSend", "MemoryPersistence", "Persistence", "SqlitePersistence", "StoredChannel"]
