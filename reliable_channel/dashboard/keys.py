"""The channel key as it stands in addresses and queries."""

from __future__ import annotations

from typing import NamedTuple


class ChannelKey(NamedTuple):
    """Pubsub topic, content topic, channel id; a part that is not in the address is null."""

    pubsub_topic: str | None
    content_topic: str | None
    channel_id: str | None

    @property
    def parameters(self) -> dict[str, str | None]:
        """For :data:`SAME`."""
        return {"key_pubsub": self.pubsub_topic, "key_content": self.content_topic, "key_channel": self.channel_id}

    @property
    def query(self) -> dict[str, str]:
        """For an address."""
        return {name: value for name, value in self._asdict().items() if value is not None}


SAME = (
    "pubsub_topic IS NOT DISTINCT FROM $key_pubsub AND content_topic IS NOT DISTINCT FROM $key_content"
    " AND channel_id IS NOT DISTINCT FROM $key_channel"
)
