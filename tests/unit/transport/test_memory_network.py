"""The network in memory: deterministic, and with exactly the faults that were asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError, MessageTooLarge
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import (
    FailureReason,
    HealthChanged,
    Node,
    NodeEvent,
    NodeStoppedError,
    Received,
    SendFailed,
    Sent,
    StoreUnavailable,
)
from reliable_channel.transport.dispatch_limit import CountFile
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.memory import DEFAULT_PUBSUB_TOPIC, LinkFaults, MemoryNetwork, MemoryNode
from reliable_channel.transport.store.model import StoreQuery

TOPIC = "/app/1/golden/proto"


def joined(network: MemoryNetwork, name: str) -> tuple[MemoryNode, list[NodeEvent]]:
    node, events = network.node(name), []  # type: ignore[var-annotated]
    node.add_listener(events.append)
    node.subscribe([TOPIC])
    node.start()
    return node, events


def payloads(events: list[NodeEvent]) -> list[bytes]:
    return [event.envelope.message.payload for event in events if isinstance(event, Received)]


def talk(faults: LinkFaults, count: int = 200) -> list[bytes]:
    network = MemoryNetwork(link=faults.link())
    alice, _ = joined(network, "alice")
    _, events = joined(network, "bob")
    for number in range(count):
        alice.send(WakuMessage(b"%d" % number, TOPIC))
        network.run(1)
    network.run(10_000)
    return payloads(events)


def test_a_perfect_network_gives_everything_once_in_order() -> None:
    assert talk(LinkFaults()) == [b"%d" % n for n in range(200)]


@given(st.integers(0, 5))
def test_faults_are_the_same_for_the_same_seed(seed: int) -> None:
    faults = LinkFaults(loss=0.2, duplication=0.2, max_delay_ms=50, seed=seed)
    assert talk(faults, 40) == talk(faults, 40)


def test_loss_loses_duplication_is_hidden_and_delay_reorders() -> None:
    assert 0 < len(talk(LinkFaults(loss=0.5, seed=1))) < 200
    assert talk(LinkFaults(duplication=1.0)) == [b"%d" % n for n in range(200)]
    late = talk(LinkFaults(max_delay_ms=50, seed=2))
    assert late != [b"%d" % n for n in range(200)]
    assert sorted(late) == sorted(b"%d" % n for n in range(200))


def test_sent_comes_after_send_returned_and_carries_the_stamped_envelope() -> None:
    network = MemoryNetwork()
    alice, events = joined(network, "alice")
    request_id = alice.send(WakuMessage(b"x", TOPIC))
    assert [e for e in events if isinstance(e, Sent)] == []
    network.pump()
    (sent,) = [e for e in events if isinstance(e, Sent)]
    assert (sent.request_id, sent.message.timestamp) == (request_id, network.clock.now_ns())


def test_a_failing_node_fails_every_send_with_the_reason() -> None:
    network = MemoryNetwork()
    alice, events = joined(network, "alice")
    alice.failing = FailureReason.NO_PEERS
    alice.send(WakuMessage(b"x", TOPIC))
    network.pump()
    assert [e.reason for e in events if isinstance(e, SendFailed)] == [FailureReason.NO_PEERS]


def test_stopping_fails_what_was_not_dispatched_and_then_says_nothing() -> None:
    network = MemoryNetwork()
    alice, events = joined(network, "alice")
    alice.send(WakuMessage(b"x", TOPIC))
    alice.stop()
    alice.stop()
    network.run(100)
    assert [e.reason for e in events if isinstance(e, SendFailed)] == [FailureReason.STOPPED]
    assert [e for e in events if isinstance(e, Sent)] == []
    with pytest.raises(NodeStoppedError):
        alice.send(WakuMessage(b"x", TOPIC))


def test_equal_envelopes_are_delivered_once_as_gossip_does() -> None:
    network = MemoryNetwork()
    alice, _ = joined(network, "alice")
    _, events = joined(network, "bob")
    for _ in range(2):
        alice.send(WakuMessage(b"x", TOPIC, timestamp=5))
    network.run(10)
    assert payloads(events) == [b"x"]


def test_its_store_keeps_what_is_not_ephemeral() -> None:
    network = MemoryNetwork()
    alice, _ = joined(network, "alice")
    alice.send(WakuMessage(b"kept", TOPIC))
    alice.send(WakuMessage(b"gone", TOPIC, ephemeral=True))
    network.pump()
    page = alice.query_store(StoreQuery(DEFAULT_PUBSUB_TOPIC, (TOPIC,)))
    assert [e.message.payload for e in page.entries if e.message] == [b"kept"]
    alice.store = None
    with pytest.raises(StoreUnavailable):
        alice.query_store(StoreQuery())


def test_health_changes_once_per_change() -> None:
    network = MemoryNetwork()
    alice, events = joined(network, "alice")
    for detail in ("a", "b"):
        alice.report(Health(HealthState.UNHEALTHY, detail))
    assert [e.health.state for e in events if isinstance(e, HealthChanged)] == [
        HealthState.HEALTHY,
        HealthState.UNHEALTHY,
    ]
    assert alice.health().detail == "b"


def test_misuse_is_refused() -> None:
    network = MemoryNetwork()
    alice, _ = joined(network, "alice")
    assert isinstance(alice, Node)
    with pytest.raises(LocalError):
        alice.subscribe("not a list")
    with pytest.raises(LocalError):
        alice.send(WakuMessage(b"x", ""))
    with pytest.raises(LocalError):
        alice.send(WakuMessage(b"x", TOPIC, meta=bytes(65)))
    with pytest.raises(MessageTooLarge):
        alice.send(WakuMessage(bytes(160_000), TOPIC))


def test_a_buffer_is_sent_as_it_was_when_it_was_given() -> None:
    network = MemoryNetwork()
    alice, _ = joined(network, "alice")
    buffer = bytearray(b"one")
    alice.send(WakuMessage(buffer, TOPIC))  # type: ignore[arg-type]
    buffer[:] = b"two"
    network.run(1)
    assert [message.payload for message in alice.sent] == [b"one"]


def test_a_restart_continues_the_count_of_a_limit_that_only_the_node_has(tmp_path: Path) -> None:
    """It began anew: the count was not kept unless the configuration differed from the default."""
    network = MemoryNetwork()
    for name in ("before", "after"):
        node, _ = joined(network, name)
        node.limit_rate(RateLimitConfig(), CountFile(tmp_path / "count.json"))
        node._limit.node_has_rln(True, name)
        node.send(WakuMessage(name.encode(), TOPIC))
        network.run(1)
    assert [len(network.node(name).sent) for name in ("before", "after")] == [1, 0]


def test_envelopes_that_wait_for_the_nodes_limit_go_out_under_one_that_is_configured_later() -> None:
    """They were neither sent nor reported: the first channel follows the node, a later one has a limit of its own."""
    network = MemoryNetwork()
    alice, _ = joined(network, "alice")
    alice._limit.node_has_rln(True, "alice")
    for number in range(3):
        alice.send(WakuMessage(b"%d" % number, TOPIC))
    network.run(1)
    alice.limit_rate(RateLimitConfig(messages_per_epoch=100))
    alice.send(WakuMessage(b"3", TOPIC))
    network.run(1)
    assert [message.payload for message in alice.sent] == [b"0", b"1", b"2", b"3"]
