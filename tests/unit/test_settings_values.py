"""Settings and arguments made in code: a value of another type, or no number, is an error that names it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from reliable_channel.channel import (
    NodeConfig,
    ReliableChannelConfig,
    ReliableChannelOptions,
    SdsConfig,
    create_node,
    create_reliable_channel,
    open_channel,
    send_envelope,
)
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds import SdsParameters, Tracking
from reliable_channel.core.segmentation import Dialect, SegmentationConfig
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.messaging import MessagingClient, MessagingConfig, MessagingNode, PlainDecoder
from reliable_channel.transport.base import Node
from reliable_channel.transport.memory import MemoryNetwork

KINDS = (
    ReliableChannelConfig,
    ReliableChannelOptions,
    SdsParameters,
    SdsConfig,
    SegmentationConfig,
    RateLimitConfig,
    FilterFormat,
)
NUMBERS = [
    (kind, one.name)
    for kind in KINDS
    for one in fields(kind)
    if isinstance(getattr(kind(), one.name), int | float) and not isinstance(getattr(kind(), one.name), bool)
]


@pytest.mark.parametrize("value", ["5", b"5", [5], -1, True, math.nan, math.inf, 2**63])
@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=lambda each: getattr(each, "__name__", each))
def test_a_number_is_a_number_in_range(kind: type, name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name) as raised:
        kind(**{name: value})
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (ReliableChannelConfig, "sds", {}),
        (ReliableChannelConfig, "auto_start", "no"),
        (ReliableChannelConfig, "database", 5),
        (ReliableChannelConfig, "history_backend", None),
        (ReliableChannelConfig, "persistence", "channels.db"),
        (SdsConfig, "persistence", dict),
        (NodeConfig, "node", 5),
        (NodeConfig, "node", None),
        (SdsParameters, "jitter", 0.5),
        (SdsParameters, "wire_family", "other"),
        (SdsParameters, "max_retransmissions", 10**6),
        (RateLimitConfig, "counts", ["envelopes"]),
        (FilterFormat, "error_rate", 1),
    ],
)
def test_any_other_value_that_cannot_be_used_is_refused(kind: type, name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=name):
        kind(**{name: value})
    with pytest.raises(ConfigurationError, match="sds_config"):
        NodeConfig(node=lambda: None, sds_config=5)  # type: ignore[arg-type, return-value]


def test_a_value_that_may_be_a_key_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as raised:
        ReliableChannelConfig(encryption_layer="a key in the wrong place")  # type: ignore[arg-type]
    assert "wrong place" not in str(raised.value)


def test_a_choice_may_be_given_as_its_text() -> None:
    """It was taken as it was, and compared with the choice by identity: ``wire_family="nim"`` spoke the other one."""
    texts: dict[str, Any] = {"wire_family": "nim", "tracking": "everyone"}
    sds = SdsParameters(**texts)
    assert (sds.wire_family, sds.tracking) == (WireFamily.NIM, Tracking.EVERYONE)
    assert sds.wire_family.__class__ is WireFamily
    assert SegmentationConfig(dialect="lip243").dialect.__class__ is Dialect  # type: ignore[arg-type]
    layer = ReliableChannelConfig(encryption_layer="inside_sds").encryption_layer  # type: ignore[arg-type]
    assert layer.__class__ is EncryptionLayer


MESSAGING = MessagingConfig.of(mode="relay", cluster_id=0, shards=[0], bootstrap_nodes=[])
TOPIC = "/test/1/types/proto"
CALLS: dict[str, Callable[[Node, Any], object]] = {
    "node": lambda _, value: create_reliable_channel(value, "lobby", TOPIC, "alice"),
    "config": lambda node, value: create_reliable_channel(node, "lobby", TOPIC, "alice", config=value),
    "node_config": lambda _, value: create_node(value),
    "node_config of a channel": lambda _, value: open_channel(
        value, ReliableChannelConfig(), channel_id="lobby", content_topic=TOPIC
    ),
    "envelope": lambda node, value: send_envelope(node, value),
    "transport": lambda _, value: MessagingNode(MESSAGING, value),
    "config of messaging": lambda node, value: MessagingNode(value, node),
    "node of a client": lambda _, value: MessagingClient(value),
    "listener": lambda node, value: MessagingNode(MESSAGING, node).subscribe(
        PlainDecoder(MESSAGING.pubsub_topics[0], TOPIC), value
    ),
    "limit": lambda node, value: create_reliable_channel(node, "lobby", TOPIC, "alice").events(limit=value),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", ["", [], ReliableChannelOptions()], ids=["text", "list", "options"])
def test_an_argument_of_another_type_is_refused_by_its_name(name: str, value: object) -> None:
    node = MemoryNetwork().node("alice")
    node.start()
    with pytest.raises(LocalError, match=name.split()[0]) as raised:
        CALLS[name](node, value)
    assert raised.value.remedy
