"""Where a channel keeps what must survive its process (protocol.md §7 *persistence is pluggable*)."""

from reliable_channel.channel.persistence.base import ChannelKey, LabelledSend, Persistence, StoredChannel
from reliable_channel.channel.persistence.memory import MemoryPersistence
from reliable_channel.channel.persistence.sqlite import SqlitePersistence

__all__ = ["ChannelKey", "LabelledSend", "MemoryPersistence", "Persistence", "SqlitePersistence", "StoredChannel"]
