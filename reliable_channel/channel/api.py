"""The Reliable Channel API (RELIABLE-CHANNEL-API, all revisions).

::

    with create_reliable_channel(node, "lobby", "/chat/1/lobby/proto", "alice") as channel:
        channel.on_message_received(lambda event: print(event.sender_id, event.message))
        request_id = channel.send(b"hello")

Uses nodes only through their port (:mod:`reliable_channel.transport.base`), and databases through the persistence
protocol.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from typing import Any, overload

from reliable_channel.channel.channel import ReliableChannel, ReliableSendId
from reliable_channel.channel.config import (
    ChannelDefaults,
    MessageEnvelope,
    NodeConfig,
    ReliableChannelConfig,
    ReliableEnvelope,
)
from reliable_channel.channel.cycle import ChannelCycle
from reliable_channel.channel.encryption import ChannelEncryption, bind_encryption
from reliable_channel.channel.errors import ChannelClosedError
from reliable_channel.channel.events import MessageReceived
from reliable_channel.channel.journal import replay
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.node_channels import channels_of
from reliable_channel.channel.persistence import ChannelKey, Persistence
from reliable_channel.channel.persistence.base import ParkedSegments
from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.core.sds.room import largest_sds_header
from reliable_channel.core.segmentation.lifetime import check_lifetime
from reliable_channel.core.segmentation.parking import SegmentStore
from reliable_channel.core.settings import check_type
from reliable_channel.core.wire.sds import MAX_ID_CHARACTERS
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import Node, RequestId
from reliable_channel.transport.clock import Clock, SystemClock
from reliable_channel.transport.dispatch_limit import KeptCount


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

    ``sender_id``: unique per participant and the same in every session; ``None`` uses the database's own, which is
    created at first use and kept. ``encryption``: see :mod:`reliable_channel.channel.encryption`; it overrides the
    configuration's. ``clock`` and ``threaded=False`` are for tests: the channel then works only in ``channel.step()``.

    Raises ``ConfigurationError``, ``IncompleteEncryptionError``, ``ChannelExistsError``, ``SenderLocked``,
    ``ChangedConfigurationError``, ``DamagedStore``.
    """
    config = ReliableChannelConfig() if config is None else config
    check_type("node", node, Node)
    check_type("config", config, ReliableChannelConfig)
    if (defaults := channels_of(node).defaults) is not None:
        config = defaults.apply_to(config)
    clock = clock or SystemClock()
    _check_names(channel_id=channel_id, content_topic=content_topic)
    pubsub_topic = node.pubsub_topic_for(content_topic)
    hook = encryption if encryption is not None else config.encryption
    bound = bind_encryption(hook, config.encryption_layer, pubsub_topic, content_topic)
    persistence = config.open_persistence()
    with ExitStack() as stack:  # releases what was made so far if something below raises
        if config.persistence is None:
            stack.callback(persistence.close)
        sender_id = sender_id or persistence.sender_id()
        _check_names(sender_id=sender_id)
        key = ChannelKey(pubsub_topic, content_topic, channel_id, sender_id)
        shared = channels_of(node)
        shared.reserve(key)
        stack.callback(shared.release, key)
        stack.callback(persistence.acquire(sender_id, key))
        keeps = bool(getattr(persistence, "keeps_journal", True))
        machine = build_machine(key, config, bound, ParkedSegments(persistence, key) if keeps else None)
        count = KeptCount(persistence)
        stack.callback(count.close)
        node.limit_rate(config.rate_limit, count)
        topic = shared.find_topic(node, key, clock, threaded)
        cycle = ChannelCycle(
            node, key, config, machine, persistence, bound, topic.retrieval, topic.check, clock=clock, threaded=threaded
        )
        channel = ReliableChannel(
            cycle,
            subscribe=lambda: shared.subscribe(topic, cycle),
            unsubscribe=lambda: shared.unsubscribe(topic, cycle),
            releases=stack.pop_all(),
        )
    shared.add(key, channel)
    if config.auto_start:
        try:
            channel.start()
        except BaseException:
            channel.close()
            raise
    return channel


def create_node(node_config: NodeConfig) -> Node:
    """Create the node of a configuration, not started. Channels created on it use the values of ``node_config`` where
    their own configuration has the default."""
    check_type("node_config", node_config, NodeConfig)
    node = node_config.node if isinstance(node_config.node, Node) else node_config.node()
    channels_of(node).defaults = ChannelDefaults(
        sds_config=node_config.sds_config,
        rate_limit_config=node_config.rate_limit_config,
        segmentation_config=node_config.segmentation_config,
    )
    return node


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
    """``openChannel`` of the March 2026 revision, with the ids and the topic that it omits.

    A node created by ``node_config.node`` is started here, and stopped when the channel closes; an existing node is
    left as it is. Where ``channel_config`` has the default, the value of ``node_config`` applies. Raises as
    :func:`create_reliable_channel`."""
    node = create_node(node_config)
    made = node is not node_config.node
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
    """Close a channel: releases everything, and unsubscribes if it was the last one of its topic. May be called
    twice."""
    channel.close()


@overload
def send(channel: ReliableChannel, message: bytes) -> ReliableSendId: ...


@overload
def send(channel: None, message: bytes, *, node: Node, content_topic: str) -> RequestId: ...


def send(
    channel: ReliableChannel | None, message: bytes, *, node: Node | None = None, content_topic: str | None = None
) -> ReliableSendId | RequestId:
    """``send`` of RELIABLE-CHANNEL-API: see :meth:`ReliableChannel.send`.

    Without a channel (the March 2026 revision) ``message`` goes out as one ephemeral envelope on ``content_topic``
    through ``node``, without delivery guarantees. Raises ``LocalError`` when they are missing, and as ``Node.send``."""
    if channel is not None:
        return channel.send(message)
    if node is None or content_topic is None:
        raise LocalError("Without a channel, send needs a node and a content topic.", "Give both, or a channel.")
    return send_envelope(node, ReliableEnvelope(MessageEnvelope(content_topic, message)))


def send_envelope(node: Node, envelope: ReliableEnvelope) -> ReliableSendId | RequestId:
    """Send a :class:`ReliableEnvelope`: on the open channel it names, or, with an empty channel id, as one ephemeral
    envelope without reliability. Raises ``ChannelClosedError`` when no such channel is open on this node."""
    check_type("envelope", envelope, ReliableEnvelope)
    inner = envelope.message_envelope
    if not envelope.channel_id:
        return node.send(WakuMessage(inner.payload, inner.content_topic, version=0, meta=inner.meta, ephemeral=True))
    channel = channels_of(node).find(envelope.channel_id, inner.content_topic)
    if channel is None:
        raise ChannelClosedError(
            f"Channel {envelope.channel_id!r} is not open on {inner.content_topic!r}.", "Create it first."
        )
    return channel.send_ephemeral(inner.payload) if inner.ephemeral else channel.send(inner.payload)


def build_machine(
    key: ChannelKey,
    config: ReliableChannelConfig,
    encryption: ChannelEncryption | None,
    store: SegmentStore | None = None,
) -> ChannelMachine:
    """Create a fresh state machine whose segment size is what header and encryption leave of an envelope (Segmentation
    0.1)."""
    header = largest_sds_header(config.sds, key.channel_id, key.sender_id)
    segmentation = config.segmentation.fit_envelope(header, 0 if encryption is None else encryption.overhead_bytes())
    check_lifetime(segmentation, config.sds, config.rate_limit)
    # A segment that comes after its message was forgotten would open a set that nothing completes; stores are queried
    # for what is up to query_window_ms old.
    memory_ms = max(segmentation.completed_memory_ms, segmentation.max_set_lifetime_ms + config.query_window_ms)
    segmentation = replace(segmentation, completed_memory_ms=memory_ms)
    inside = None if encryption is None else encryption.contents_hook
    return ChannelMachine(key.channel_id, key.sender_id, key.content_topic, config, segmentation, store, inside)


def inspect_channel(key: ChannelKey, config: ReliableChannelConfig, persistence: Persistence) -> dict[str, Any]:
    """Summarize in numbers what a database stores of a channel, without a node and without changing anything. Raises
    ``ChangedConfigurationError`` and ``DamagedStore``."""
    stored = persistence.load(key)
    bound = bind_encryption(config.encryption, config.encryption_layer, key.pubsub_topic, key.content_topic)
    machine = build_machine(key, config, bound, ParkedSegments(persistence, key, read_only=True))
    unreported = replay(machine, stored, config.fingerprint(machine.segmentation))
    waiting = sum(isinstance(report.event, MessageReceived) for report in unreported)
    return {**machine.summary(), "received": stored.sequence, "received_and_unreported": waiting}


def _check_names(**names: str) -> None:
    for name, value in names.items():
        if not isinstance(value, str) or not value:
            raise LocalError(f"{name} is empty, or no text.", "Give a text.")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigurationError(f"{name} is not Unicode.", "Give a text that UTF-8 can write.") from None
        if len(value) > MAX_ID_CHARACTERS:
            raise ConfigurationError(f"{name} is longer than {MAX_ID_CHARACTERS} characters.", "Shorten it.")
