"""Builds a participant from the settings for commands and programs: node, database, keys and channel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
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
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.messaging.channel_evidence import ChannelEvidence
from reliable_channel.messaging.pipeline_feed import Feed, KafkaFeed
from reliable_channel.runtime.build import kafka_node, pubsub_topics, waku_node
from reliable_channel.runtime.logs import quiet_kafka_client
from reliable_channel.runtime.own_broker import check_kafka
from reliable_channel.transport.base import Node
from reliable_channel.transport.sqlite import IN_MEMORY

Transport = Literal["kafka", "waku-rest"]


@dataclass(frozen=True, slots=True)
class ParticipantOptions:
    """The identity and storage of a participant. ``None`` selects the default: content topic
    ``/reliable-channel/1/<channel>/proto``, the database ``channel.sqlite`` in the run directory, the database's own
    sender id, the keys of ``channels.content_topics``."""

    channel_id: str
    content_topic: str | None = None
    sender_id: str | None = None
    database: Path | None = None
    key_files: tuple[Path, ...] = ()
    transport: Transport = "kafka"

    @property
    def topic(self) -> str:
        """The effective content topic."""
        return self.content_topic or f"/reliable-channel/1/{self.channel_id}/proto"

    def database_path(self, settings: Settings) -> Path:
        """The path of the effective database. Raises ``ConfigurationError`` for SQLite's name of one in memory."""
        if str(self.database) == IN_MEMORY:  # it would be the name of a file
            raise ConfigurationError("A database in memory keeps nothing for the next start.", "Name a file.")
        return self.database or Path(settings.paths.run_dir) / "channel.sqlite"


def topic_config(settings: Settings, content_topic: str, key_files: Sequence[Path | str] = ()) -> ReliableChannelConfig:
    """Return the configuration of a channel on ``content_topic``, whichever interface opens it.

    The entry of ``channels.content_topics`` that matches the topic decides about the SDS family, the segmentation
    dialects, the keys and what they encrypt, so a topic with keys never carries plaintext;
    ``key_files`` replace its keys. The channel sends a dialect that the topic accepts. All other settings come from the
    sections ``segmentation``, ``sds``, ``rate_limit`` and ``participant``. Raises ``ConfigurationError`` if a key file
    cannot be used."""
    known = settings.channels.topic_for(content_topic, pubsub_topics(settings).topic_for(content_topic))
    sds, segmentation, layer = settings.sds, settings.segmentation, EncryptionLayer.AROUND_SDS
    files = tuple(key_files)
    if known is not None:
        sds = replace(sds.in_family(known.families[0]), history_layout=known.history_layout)
        accepted = known.dialects
        dialect = known.dialect or segmentation.dialect
        if dialect not in accepted:
            dialect = next(one for one in Dialect if one in accepted)
        segmentation = replace(segmentation, accepted_dialects=accepted, dialect=dialect)
        files = files or known.decryption_key_files
        layer = known.encryption_layer
    return ReliableChannelConfig(
        segmentation=segmentation,
        sds=sds,
        rate_limit=settings.rate_limit,
        encryption=AesGcm.from_files(files) if files else None,
        encryption_layer=layer,
        query_on_connect=bool(settings.store.nodes),
        **settings.participant.model_dump(exclude={"preset"}),
    )


def channel_config(
    settings: Settings, who: ParticipantOptions, persistence: SqlitePersistence
) -> ReliableChannelConfig:
    """Return the configuration of a participant's channel, with the database of its state."""
    return replace(topic_config(settings, who.topic, who.key_files), persistence=persistence)


@dataclass(frozen=True, slots=True)
class OpenParticipant:
    """A channel that is open but not started: add listeners first, then call :meth:`start`. ``feed`` takes what only
    the channel knows (messages that it gave up, sends that wait) for the pipeline's tables."""

    channel: ReliableChannel
    node: Node
    feed: Feed

    def start(self) -> None:
        """Start the channel, then the node, so that the channel receives everything the node reads from its last
        offset.

        Raises ``EnvironmentFault`` if the broker or node does not answer."""
        with quiet_kafka_client():
            self.feed.start()
            ChannelEvidence(self.channel, self.channel.pubsub_topic, self.feed).follow()
            self.channel.start()
            self.node.start()


@contextmanager
def participant(settings: Settings, who: ParticipantOptions) -> Iterator[OpenParticipant]:
    """Open a participant's channel. However the block ends, the state is stored and everything is stopped."""
    with closing(SqlitePersistence(who.database_path(settings))) as persistence:
        config = replace(channel_config(settings, who, persistence), auto_start=False)
        sender_id = who.sender_id or persistence.sender_id()
        node, feed = _make_node(settings, who, sender_id), _make_feed(settings, who)
        try:
            with create_reliable_channel(node, who.channel_id, who.topic, sender_id, config=config) as channel:
                yield OpenParticipant(channel, node, feed)
        finally:
            feed.stop()
            node.stop()


def channel_keys(who: ParticipantOptions, persistence: SqlitePersistence) -> list[ChannelKey]:
    """Return the channels with this id in the database, of any sender and topic unless these are given."""
    return [
        key
        for key in persistence.channels()
        if key.channel_id == who.channel_id
        and who.content_topic in (None, key.content_topic)
        and who.sender_id in (None, key.sender_id)
    ]


def _make_feed(settings: Settings, who: ParticipantOptions) -> Feed:
    """Where the channel's own records go. Envelopes are not its business: the bridge writes them."""
    if who.transport != "kafka":
        return Feed()
    return KafkaFeed(settings.kafka.clients(), evidence_topic=settings.bridge.evidence_topic, envelopes=False)


def _make_node(settings: Settings, who: ParticipantOptions, sender_id: str) -> Node:
    if who.transport == "waku-rest":
        return waku_node(settings)
    check_kafka(settings)
    # One consumer group per sender and channel, so that each reads everything from its own offset.
    name = hashlib.sha256(f"{sender_id}\0{who.topic}\0{who.channel_id}".encode()).hexdigest()[:16]
    return kafka_node(settings, group_id=f"reliable-channel-{name}")
