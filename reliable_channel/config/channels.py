"""Which content topics carry reliable channels, and what is spoken there.

Everything else in ``waku.envelopes`` is plain Waku traffic: kept, never an error (protocol.md §2).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from reliable_channel.config.section import Section
from reliable_channel.wire.sds import WireFamily
from reliable_channel.wire.segment import Dialect


class ChannelTopic(Section):
    """One content topic, or a pattern of them (``*`` matches anything), that carries channels.

    ``decryption_key_files``: files that executors can read, several for rotation; keys never stand in this file.
    """

    content_topic: str = Field(min_length=1, max_length=512)
    pubsub_topic: str | None = None
    family: WireFamily = WireFamily.SPEC
    dialects: frozenset[Dialect] = frozenset({Dialect.V01, Dialect.LIP243})
    decryption_key_files: tuple[str, ...] = ()
    store_plaintext: bool = True


def _topic(value: Any) -> Any:
    return {"content_topic": value} if isinstance(value, str) else value


class ChannelsSettings(Section):
    """The channels of this installation; the first entry that matches a content topic counts."""

    content_topics: tuple[Annotated[ChannelTopic, BeforeValidator(_topic)], ...] = (
        ChannelTopic(content_topic="/reliable-channel/1/*/proto"),
    )
    participant_id: str | None = Field(
        default=None, min_length=1, description="observe as this participant; unset observes everybody (design.md)"
    )

    def topic_for(self, content_topic: str, pubsub_topic: str | None = None) -> ChannelTopic | None:
        """The entry for a content topic, or None for plain Waku traffic."""
        for topic in self.content_topics:
            if topic.pubsub_topic not in (None, pubsub_topic):
                continue
            if fnmatchcase(content_topic, topic.content_topic):
                return topic
        return None

    def pattern_for(self, content_topic: str, pubsub_topic: str | None = None) -> str | None:
        """The entry for a content topic as text, if it is a pattern: anybody can invent topics that match one."""
        topic = self.topic_for(content_topic, pubsub_topic)
        if topic is None or not any(sign in topic.content_topic for sign in "*?["):
            return None
        return f"{topic.pubsub_topic or ''} {topic.content_topic}"
