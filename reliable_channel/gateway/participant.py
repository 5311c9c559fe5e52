"""A participant from the settings: node, database, keys and channel, for the commands and for programs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from reliable_channel.channel import (
    AesGcm,
    ChannelKey,
    ReliableChannel,
    ReliableChannelConfig,
    SqlitePersistence,
    create_reliable_channel,
)
from reliable_channel.config import Settings
from reliable_channel.errors import ConfigurationError
from reliable_channel.gateway.build import kafka_node, pubsub_topics, waku_node
from reliable_channel.runtime.logs import unheard_kafka
from reliable_channel.transport.base import Node

Transport = Literal["kafka", "waku-rest"]


@dataclass(frozen=True, slots=True)
class Participant:
    """Who takes part where. ``None`` stands for the default: content topic ``/reliable-channel/1/<channel>/proto``, the
    database ``channel.sqlite`` in the run directory, its own sender id, the keys of ``channels.content_topics``."""

    channel_id: str
    content_topic: str | None = None
    sender_id: str | None = None
    database: Path | None = None
    key_files: tuple[Path, ...] = ()
    transport: Transport = "kafka"

    @property
    def topic(self) -> str:
        """The content topic in use."""
        return self.content_topic or f"/reliable-channel/1/{self.channel_id}/proto"

    def place(self, settings: Settings) -> Path:
        """The database in use."""
        return self.database or Path(settings.paths.run_dir) / "channel.sqlite"


def channel_config(settings: Settings, who: Participant, persistence: SqlitePersistence) -> ReliableChannelConfig:
    """The channel's configuration: the sections of the settings, dialects and keys of its content topic."""
    known = settings.channels.topic_for(who.topic, pubsub_topics(settings).topic_for(who.topic))
    sds, segmentation = settings.sds, settings.segmentation
    files: tuple[Path | str, ...] = who.key_files
    if known is not None:
        sds = replace(sds, wire_family=known.family)
        segmentation = replace(segmentation, accepted_dialects=known.dialects)
        files = files or known.decryption_key_files
    return ReliableChannelConfig(
        segmentation=segmentation,
        sds=sds,
        rate_limit=settings.rate_limit,
        encryption=AesGcm.from_files(files) if files else None,
        persistence=persistence,
        query_on_connect=bool(settings.store.nodes),
    )


@dataclass(frozen=True, slots=True)
class Seat:
    """A channel that is open and not started: listen first, then :meth:`start`."""

    channel: ReliableChannel
    node: Node

    def start(self) -> None:
        """The channel first: what the node reads from where it stopped must find somebody who listens.

        Raises ``EnvironmentFault`` when the broker or node does not answer."""
        self.channel.start()
        with unheard_kafka():
            self.node.start()


@contextmanager
def participant(settings: Settings, who: Participant) -> Iterator[Seat]:
    """A seat in a channel. Whatever ends the block, the state is kept and everything is stopped."""
    persistence = SqlitePersistence(who.place(settings))
    try:
        config = replace(channel_config(settings, who, persistence), auto_start=False)
        sender_id = who.sender_id or persistence.sender_id()
        node = _node(settings, who, sender_id)
        try:
            with create_reliable_channel(node, who.channel_id, who.topic, sender_id, config=config) as channel:
                yield Seat(channel, node)
        finally:
            node.stop()
    finally:
        persistence.close()


def channel_keys(settings: Settings, who: Participant, persistence: SqlitePersistence) -> list[ChannelKey]:
    """The channels of this id in the database, of any sender and topic unless they are given."""
    return [
        key
        for key in persistence.channels()
        if key.channel_id == who.channel_id
        and who.content_topic in (None, key.content_topic)
        and who.sender_id in (None, key.sender_id)
    ]


def _node(settings: Settings, who: Participant, sender_id: str) -> Node:
    if who.transport == "waku-rest":
        return waku_node(settings)
    if who.transport != "kafka":
        raise ConfigurationError(f"There is no transport {who.transport!r}.", "Use kafka or waku-rest.")
    # A group of its own per sender and channel: each reads everything, from where it stopped.
    name = hashlib.sha256(f"{sender_id}\0{who.topic}\0{who.channel_id}".encode()).hexdigest()[:16]
    return kafka_node(settings, group_id=f"reliable-channel-{name}")
