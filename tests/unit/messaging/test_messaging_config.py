"""The configuration of MESSAGING-API: what must be given, the defaults, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.messaging import MessagingConfig, Mode

NODE = "/dns4/node.example/tcp/443/wss/p2p/16Uiu2HAm"
MINIMAL: dict[str, Any] = {"mode": "edge", "cluster_id": 1, "shards": [0, 3], "bootstrap_nodes": [NODE]}


def test_defaults_are_those_of_the_specification() -> None:
    config = MessagingConfig.of(**MINIMAL)
    assert config.mode is Mode.EDGE
    assert config.store_confirmation is False
    assert config.filter_confirmation is True
    assert (config.store_nodes, config.preferred_service_nodes, config.confirm_content_topics) == (None, None, None)
    assert config.store_query_interval_ms == 60_000
    assert config.pubsub_topics == ("/waku/2/rs/1/0", "/waku/2/rs/1/3")


@pytest.mark.parametrize("name", ["mode", "cluster_id", "shards", "bootstrap_nodes"])
def test_what_must_be_given_is_asked_for_by_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        MessagingConfig.of(**{key: value for key, value in MINIMAL.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("mode", "light"),
        ("cluster_id", -1),
        ("cluster_id", 65_536),
        ("shards", []),
        ("shards", [1_024]),
        ("shards", [1, 1]),
        ("bootstrap_nodes", ["node.example:443"]),
        ("store_nodes", ["/ip4"]),
        ("preferred_service_nodes", ["/ip4/127.0.0.1 /tcp/1"]),
        ("confirm_content_topics", ["no-topic"]),
        ("confirm_content_topics", ["/a/1/b/c/d/e"]),
        ("store_query_interval_ms", 0),
        ("unknown", 1),
    ],
)
def test_what_is_wrong_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=name):
        MessagingConfig.of(**{**MINIMAL, name: value})


def test_the_documented_names_are_those_of_the_wire() -> None:
    document = {
        "mode": "relay",
        "clusterId": 1,
        "shards": [0],
        "storeNodes": [NODE],
        "preferredServiceNodes": [NODE],
        "bootstrapNodes": [],
        "storeConfirmation": True,
        "filterConfirmation": False,
        "confirmContentTopics": ["/app/1/chat/proto"],
    }
    config = MessagingConfig.from_wire(document)
    assert (config.cluster_id, config.store_nodes, config.store_confirmation) == (1, (NODE,), True)
    with pytest.raises(ConfigurationError, match="cluster_id"):
        MessagingConfig.from_wire({"cluster_id": 1})


def test_the_node_config_of_lip_168_is_accepted_with_its_names_and_defaults() -> None:
    network = MessagingConfig.from_node_config({})
    assert (network.mode, network.cluster_id, network.shards) == (Mode.RELAY, 1, tuple(range(8)))
    document = {
        "mode": "edge",
        "protocols_config": {
            "entry_nodes": [NODE],
            "static_store_nodes": [NODE],
            "cluster_id": 16,
            "auto_sharding_config": {"num_shards_in_cluster": 2},
        },
    }
    config = MessagingConfig.from_node_config(document, store_confirmation=True)
    assert (config.mode, config.shards, config.cluster_id) == (Mode.EDGE, (0, 1), 16)
    assert (config.bootstrap_nodes, config.store_nodes, config.store_confirmation) == ((NODE,), (NODE,), True)
    camel = {"protocolsConfig": {"clusterId": 16}}
    assert MessagingConfig.from_node_config(camel).pubsub_topics == ("/waku/2/rs/16/0",)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"mode": "relay"}, "Use core or edge"),
        ({"networking_config": {}}, "networking_config of NodeConfig would have no effect"),
        ({"protocols_config": {"cluster_id": 1, "message_validation": {}}}, "message_validation of protocols_config"),
        ({"shards": [0]}, "Unknown configuration shards in NodeConfig"),
        ({"protocols_config": "twn"}, "protocols_config is no object"),
        ({"protocols_config": {}}, "cluster_id"),
        ({"protocols_config": {"cluster_id": 1, "auto_sharding_config": {}}}, "num_shards_in_cluster is None"),
        ({"protocols_config": {"cluster_id": 1, "auto_sharding_config": {"num_shards_in_cluster": 0}}}, "is 0"),
    ],
)
def test_what_a_node_config_cannot_set_here_is_refused_by_name(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        MessagingConfig.from_node_config(document)


def test_a_configuration_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        MessagingConfig.of(**MINIMAL).cluster_id = 2
