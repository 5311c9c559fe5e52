"""The messaging node from the configuration: store nodes in the specified order, peers made known, gaps named."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from reliable_channel.config import Settings, load
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging import MessagingConfig
from reliable_channel.runtime.messaging import _Introduction, _make_stores, messaging_config, messaging_node
from reliable_channel.transport.base import HealthChanged
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.http.client import HttpResponse, NodeUnreachable
from reliable_channel.transport.waku_api import NodeDialect
from tests.support.fake_waku_node import PEER_ADDRESS, PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode
from tests.support.messaging_world import CONTENT

STORE = "/dns4/store.example/tcp/443/wss/p2p/16Uiu2Store"
SERVICE = "/dns4/service.example/tcp/443/wss/p2p/16Uiu2Service"
BASE: dict[str, Any] = {"mode": "relay", "cluster_id": 1, "shards": [0], "bootstrap_nodes": []}


def settings(**messaging: Any) -> Settings:
    other = {"store": {"nodes": [{"url": "http://store.example:8646"}]}}
    return load("local", messaging={**BASE, **messaging}, **other)


def asked(over_kafka: bool = False, **messaging: Any) -> list[tuple[str, str | None]]:
    configured = settings(**messaging)
    client = _make_stores(configured, messaging_config(configured), over_kafka)
    try:
        return [(node.name, node.peer_address) for node in client._nodes]  # type: ignore[attr-defined]
    finally:
        client.close()


NODE = "http://127.0.0.1:8645"
SERVER = "http://store.example:8646"


def test_store_nodes_are_asked_before_any_other() -> None:
    assert asked(store_nodes=[STORE], preferred_service_nodes=[SERVICE]) == [
        (NODE, STORE),
        (SERVER, None),
        (NODE, None),
    ]


def test_without_store_nodes_the_preferred_service_nodes_are_asked() -> None:
    assert asked(preferred_service_nodes=[SERVICE])[0] == (NODE, SERVICE)


def test_without_either_the_nodes_that_the_network_gives_are_asked() -> None:
    assert asked() == [(SERVER, None), (NODE, None)]


def test_over_kafka_store_nodes_are_asked_through_the_waku_node_and_nothing_else_of_it() -> None:
    assert asked(over_kafka=True, store_nodes=[STORE]) == [(NODE, STORE), (SERVER, None)]
    assert asked(over_kafka=True) == [(SERVER, None)]


def test_over_kafka_a_store_node_gives_the_history(tmp_path: Path) -> None:
    """Whatever carries the messages, a peer's store is asked over the REST interface of a Waku node."""
    network = FakeWakuNetwork()
    network.publish(PUBSUB_TOPIC, WakuMessage(b"hello", CONTENT, timestamp=1_795_254_432_521_844_140))
    _, _, _, _, cluster, shard = PUBSUB_TOPIC.split("/")
    with FakeWakuNode("nwaku", network) as waku:
        messaging = {**BASE, "cluster_id": int(cluster), "shards": [int(shard)], "store_nodes": [PEER_ADDRESS]}
        configured = load("local", messaging=messaging, node={"url": waku.url}, api={"feed": False})
        with closing(messaging_node(configured.with_run_dir(tmp_path))) as node:
            (record,) = node.history([CONTENT])
        assert (record.stored, record.message.payload) == (True, b"hello")


@pytest.mark.parametrize("name", ["bootstrap_nodes", "preferred_service_nodes"])
def test_over_kafka_peers_that_nobody_would_use_are_refused_by_name(name: str) -> None:
    configured = settings(**{name: [SERVICE]})
    with pytest.raises(ConfigurationError, match=rf"messaging\.{name} has no effect over Kafka.*waku-rest"):
        messaging_node(configured)


def test_over_kafka_a_mode_that_the_bridges_node_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"messaging\.mode is edge.*as relay"):
        messaging_node(settings(mode="edge"))


def network_of(node: dict[str, Any], messaging: dict[str, Any] | None = None) -> tuple[str, int, tuple[int, ...]]:
    configured = messaging_config(Settings(node=node, messaging=messaging or {}))
    return configured.mode.value, configured.cluster_id, configured.shards


def test_mode_cluster_and_shards_are_those_of_the_node_unless_they_are_set() -> None:
    assert network_of({}) == ("relay", 1, tuple(range(8)))
    assert network_of({"mode": "edge", "cluster_id": 16, "shards": 2}) == ("edge", 16, (0, 1))
    assert network_of({"pubsub_topic": "/waku/2/rs/16/32"}) == ("relay", 16, (32,))
    own = {"mode": "edge", "cluster_id": 2, "shards": [5]}
    assert network_of({"pubsub_topic": "/waku/2/rs/16/32"}, own) == ("edge", 2, (5,))
    assert network_of({"pubsub_topic": "/waku/2/named/proto"}, own) == ("edge", 2, (5,))


def test_a_named_topic_of_the_node_leaves_cluster_and_shards_to_the_messaging_api() -> None:
    with pytest.raises(ValidationError, match=r"messaging\.cluster_id"):
        network_of({"pubsub_topic": "/waku/2/named/proto"})


class FakeApi:
    """An API that notes what it is told."""

    def __init__(self, dialect: NodeDialect, status: int = 200) -> None:
        self._dialect = dialect
        self._status = status
        self.http = self
        self.told: list[Any] = []
        self.down = False

    def dialect(self) -> NodeDialect:
        if self.down:
            raise NodeUnreachable("down")
        return self._dialect

    def post(self, path: str, body: Any) -> HttpResponse:
        assert path == "/admin/v1/peers"
        self.told.append(body)
        return HttpResponse(self._status, b"")


def changed(state: HealthState) -> HealthChanged:
    return HealthChanged(Health(state))


def test_the_node_is_told_of_bootstrap_and_service_nodes_once_each_time_it_comes_back() -> None:
    api = FakeApi(NodeDialect.NWAKU)
    introduction = _Introduction(api, [STORE, SERVICE])  # type: ignore[arg-type]
    introduction.on_event(changed(HealthState.UNHEALTHY))
    assert api.told == []
    introduction.on_event(changed(HealthState.MINIMALLY_HEALTHY))
    introduction.on_event(changed(HealthState.HEALTHY))
    assert api.told == [[STORE, SERVICE]]
    introduction.on_event(changed(HealthState.UNHEALTHY))
    introduction.on_event(changed(HealthState.HEALTHY))
    assert len(api.told) == 2


def test_each_dialect_is_told_in_its_own_form() -> None:
    api = FakeApi(NodeDialect.GO_WAKU)
    _Introduction(api, [STORE, SERVICE]).on_event(changed(HealthState.HEALTHY))  # type: ignore[arg-type]
    assert [one["multiaddr"] for one in api.told] == [STORE, SERVICE]


def test_a_node_that_cannot_be_told_is_told_the_next_time() -> None:
    api = FakeApi(NodeDialect.NWAKU)
    api.down = True
    introduction = _Introduction(api, [STORE])  # type: ignore[arg-type]
    introduction.on_event(changed(HealthState.HEALTHY))
    api.down = False
    introduction.on_event(changed(HealthState.MINIMALLY_HEALTHY))
    assert api.told == [[STORE]]


def test_the_section_of_the_configuration_is_the_specified_configuration() -> None:
    configured = messaging_config(settings(store_confirmation=True))
    assert configured == MessagingConfig.of(**BASE, store_confirmation=True)


def test_without_the_section_there_is_no_node() -> None:
    with pytest.raises(ConfigurationError, match="messaging is missing"):
        messaging_config(load("local").model_copy(update={"messaging": None}))


def test_a_wrong_value_of_the_section_is_named_with_its_file() -> None:
    with pytest.raises(ConfigurationError, match=r"messaging\.mode"):
        load("local", messaging={**BASE, "mode": "light"})
