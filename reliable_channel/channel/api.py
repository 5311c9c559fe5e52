"""The Reliable Channel API (protocol.md §7; seeds ``000…``, ``001…``, ``002…``).

::

    with create_reliable_channel(node, "lobby", "/chat/1/lobby/proto", "alice") as channel:
        channel.on_message_received(lambda event: print(event.sender_id, event.message))
        request_id = channel.send(b"hello")

Ring 2: knows nodes by their port (:mod:`reliable_channel.transport.base`), databases by the persistence protocol.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from reliable_channel.channel.channel import ReliableChannel, ReliableSendId
from reliable_channel.channel.config import NodeConfig, ReliableChannelConfig, ReliableEnvelope
from reliable_channel.channel.driver import ChannelDriver
from reliable_channel.channel.emitter import EventEmitter
from reliable_channel.channel.encryption import Encryption, bound_encryption, overhead_bytes
from reliable_channel.channel.errors import ChannelClosedError
from reliable_channel.channel.events import MessageReceived
from reliable_channel.channel.headers import largest_sds_header
from reliable_channel.channel.incoming import IncomingPipeline
from reliable_channel.channel.journal import Journal
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outgoing import OutgoingPipeline
from reliable_channel.channel.persistence import ChannelKey, Persistence
from reliable_channel.channel.registry import channels_of
from reliable_channel.channel.replay import replay, summary
from reliable_channel.channel.retrieval import StoreRetrieval
from reliable_channel.errors import ConfigurationError, LocalError
from reliable_channel.rate_limit import RateLimitConfig
from reliable_channel.sds import SdsConfig
from reliable_channel.transport.base import Node, RequestId
from reliable_channel.transport.clock import Clock, SystemClock
from reliable_channel.wire.sds import MAX_ID_CHARACTERS
from reliable_channel.wire.waku import WakuMessage


def create_reliable_channel(
    node: Node,
    channel_id: str,
    content_topic: str,
    sender_id: str | None = None,
    encryption: object | None = None,
    *,
    config: ReliableChannelConfig | None = None,
    clock: Clock | None = None,
    threaded: bool = True,
) -> ReliableChannel:
    """Open a reliable channel over a started node, subscribe to its content topic and, with ``auto_start``, start.

    ``sender_id``: unique per participant and the same in every session; ``None`` takes the database's own, created at
    first use and kept. ``encryption``: see :mod:`reliable_channel.channel.encryption`; it stands before the
    configuration's. ``clock`` and ``threaded=False`` are for tests: nothing happens then but in ``channel.step()``.

    Raises ``ConfigurationError``, ``IncompleteEncryptionError``, ``ChannelExistsError``, ``SenderLocked``,
    ``ChangedConfigurationError``, ``DamagedStore``.
    """
    config = config or ReliableChannelConfig()
    clock = clock or SystemClock()
    _check_names(channel_id=channel_id, content_topic=content_topic)
    pubsub_topic = node.pubsub_topic_for(content_topic)
    hook = bound_encryption(encryption if encryption is not None else config.encryption, pubsub_topic, content_topic)
    own_persistence = config.persistence is None
    persistence = config.open_persistence()
    releases = [persistence.close] if own_persistence else []

    def release() -> None:
        while releases:
            releases.pop()()

    try:
        sender_id = sender_id or persistence.sender_id()
        _check_names(sender_id=sender_id)
        key = ChannelKey(pubsub_topic, content_topic, channel_id, sender_id)
        shared = channels_of(node)
        shared.reserve(key)
        releases.append(lambda: shared.release(key))
        releases.append(persistence.acquire(sender_id, key))
        machine = build_machine(key, config, hook)
        limit = shared.limit(config.rate_limit, persistence)
        emitter, wake = EventEmitter(), threading.Event()
        outgoing = OutgoingPipeline(machine, node, pubsub_topic, hook, limit, wake.set)
        incoming = IncomingPipeline(machine, pubsub_topic, hook)
        retrieval = StoreRetrieval(node, pubsub_topic, content_topic, threaded=threaded)
        journal = Journal(machine, key, config, persistence)
        driver = ChannelDriver(
            machine, key, config, node, outgoing, incoming, retrieval, journal, clock, emitter, wake.set
        )
        retrieval.answered = driver.on_store_answer
        emitter.joined = driver.teller.on_listener
        driver.restore()
    except BaseException:
        release()
        raise

    def subscribe() -> None:
        node.add_listener(driver.on_node_event)
        shared.subscribe(content_topic)

    def unsubscribe() -> None:
        shared.unsubscribe(content_topic)
        node.remove_listener(driver.on_node_event)

    channel = ReliableChannel(
        driver,
        channel_id=channel_id,
        pubsub_topic=pubsub_topic,
        content_topic=content_topic,
        sender_id=sender_id,
        emitter=emitter,
        subscribe=subscribe,
        unsubscribe=unsubscribe,
        release=release,
        wake=wake,
        threaded=threaded,
    )
    shared.opened(key, channel)
    if config.auto_start:
        try:
            channel.start()
        except BaseException:
            channel.close()
            raise
    return channel


def open_channel(
    node_config: NodeConfig,
    channel_config: ReliableChannelConfig,
    *,
    channel_id: str,
    content_topic: str,
    sender_id: str | None = None,
    clock: Clock | None = None,
    threaded: bool = True,
) -> ReliableChannel:
    """``openChannel`` of seed ``002…``, with the ids and the topic that it omits.

    A node that ``node_config.node`` makes is started here, and stopped when the channel closes; a given node is left as
    it is. What ``channel_config`` leaves at its default is taken from ``node_config``. Raises as
    :func:`create_reliable_channel`."""
    made = not isinstance(node_config.node, Node)
    node = node_config.node() if not isinstance(node_config.node, Node) else node_config.node
    if node_config.sds_config is not None and channel_config.sds == SdsConfig():
        channel_config = replace(channel_config, sds=node_config.sds_config)
    if node_config.rate_limit_config is not None and channel_config.rate_limit == RateLimitConfig():
        channel_config = replace(channel_config, rate_limit=node_config.rate_limit_config)
    if made:
        node.start()
    try:
        channel = create_reliable_channel(
            node, channel_id, content_topic, sender_id, config=channel_config, clock=clock, threaded=threaded
        )
    except BaseException:
        if made:
            node.stop()
        raise
    if made:
        channel.on_release(node.stop)
    return channel


def close_channel(channel: ReliableChannel) -> None:
    """Close a channel: releases everything, unsubscribes when it was the last of its topic. Twice is fine."""
    channel.close()


def send(channel: ReliableChannel, message: bytes) -> ReliableSendId:
    """``send`` of the seeds: see :meth:`ReliableChannel.send`."""
    return channel.send(message)


def send_envelope(node: Node, envelope: ReliableEnvelope) -> ReliableSendId | RequestId:
    """Send a :class:`ReliableEnvelope`: on the open channel it names, or, with an empty channel id, as one ephemeral
    envelope without reliability. Raises ``ChannelClosedError`` when no such channel is open on this node."""
    inner = envelope.message_envelope
    if not envelope.channel_id:
        return node.send(WakuMessage(inner.payload, inner.content_topic, version=0, ephemeral=True))
    channel = channels_of(node).find(envelope.channel_id, inner.content_topic)
    if channel is None:
        raise ChannelClosedError(
            f"Channel {envelope.channel_id!r} is not open on {inner.content_topic!r}.", "Create it first."
        )
    return channel.send_ephemeral(inner.payload) if inner.ephemeral else channel.send(inner.payload)


def build_machine(key: ChannelKey, config: ReliableChannelConfig, hook: Encryption | None) -> ChannelMachine:
    """A fresh state machine, its segment size what header and encryption leave of an envelope (protocol.md §3)."""
    header = largest_sds_header(config.sds, key.channel_id, key.sender_id)
    segmentation = config.segmentation.within_envelope(header, overhead_bytes(hook))
    return ChannelMachine(key.channel_id, key.sender_id, key.content_topic, config, segmentation)


def inspect_channel(key: ChannelKey, config: ReliableChannelConfig, persistence: Persistence) -> dict[str, Any]:
    """What a database keeps of a channel, in plain numbers, without a node and without changing anything. Raises
    ``ChangedConfigurationError`` and ``DamagedStore``."""
    stored = persistence.load(key)
    machine = build_machine(key, config, bound_encryption(config.encryption, key.pubsub_topic, key.content_topic))
    untold = replay(machine, stored, config.fingerprint(machine.segmentation))
    waiting = sum(isinstance(telling.event, MessageReceived) for telling in untold)
    return {**summary(machine), "received": stored.sequence, "received_and_untold": waiting}


def _check_names(**names: str) -> None:
    for name, value in names.items():
        if not isinstance(value, str) or not value:
            raise LocalError(f"{name} is empty.", "Give a text.")
        if len(value) > MAX_ID_CHARACTERS:
            raise ConfigurationError(f"{name} is longer than {MAX_ID_CHARACTERS} characters.", "Shorten it.")
