"""What participants on Kafka learn of bridges and their nodes, and what they make of it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.transport.bridge_health import (
    EXPIRY_MS,
    MOST_BRIDGES,
    BridgeHealth,
    BridgesHealth,
    read_bridge_health,
)
from reliable_channel.transport.health import Health, HealthState

KAFKA = Health(HealthState.HEALTHY, "Kafka answers; 0 records behind")
WELL = Health(HealthState.HEALTHY, "7 peers connected", 7, 3, 3, 2)
ALONE = Health(HealthState.UNHEALTHY, "0 peers connected", 0, 0, 0, 0)


def heard(*bridges: tuple[str, Health]) -> BridgesHealth:
    known = BridgesHealth(0)
    for name, health in bridges:
        known.store(BridgeHealth(name, health, 1), 1_000)
    return known


def test_a_record_is_read_as_it_was_written() -> None:
    record = BridgeHealth("http://127.0.0.1:8645", WELL, 1_795_254_432_521)
    assert read_bridge_health(record.to_bytes()) == record


def test_the_node_behind_the_bridge_decides_and_is_named() -> None:
    found = heard(("a", ALONE)).judge(KAFKA, 2_000)
    assert (found.state, found.relay_peers) == (HealthState.UNHEALTHY, 0)
    assert found.detail == "Kafka answers; 0 records behind; bridge a: 0 peers connected"


def test_of_several_bridges_the_best_counts() -> None:
    assert heard(("a", WELL), ("b", ALONE)).judge(KAFKA, 2_000).relay_peers == 7


def test_kafka_that_does_not_answer_is_worse_than_any_bridge() -> None:
    down = Health(HealthState.UNHEALTHY, "no broker")
    assert heard(("a", WELL)).judge(down, 2_000) == down


def test_without_a_bridge_it_is_unhealthy_after_the_first_seconds() -> None:
    assert BridgesHealth(0).judge(KAFKA, EXPIRY_MS) == KAFKA
    found = BridgesHealth(0).judge(KAFKA, EXPIRY_MS + 1)
    assert (found.state, "no bridge has reported" in found.detail) == (HealthState.UNHEALTHY, True)


def test_a_bridge_that_is_silent_is_gone() -> None:
    assert heard(("a", WELL)).judge(KAFKA, 1_000 + EXPIRY_MS).state is HealthState.HEALTHY
    assert heard(("a", WELL)).judge(KAFKA, 1_001 + EXPIRY_MS).state is HealthState.UNHEALTHY


def test_invented_bridges_are_bounded() -> None:
    known = heard(*((f"{number}", WELL) for number in range(3 * MOST_BRIDGES)))
    assert len(known._latest) == MOST_BRIDGES


@given(
    st.one_of(
        st.binary(max_size=200),
        st.dictionaries(
            st.sampled_from(["status", "bridge", "state", "detail", "relay_peers", "at_ms"]),
            st.one_of(
                st.none(), st.integers(), st.text(max_size=5), st.just("health"), st.floats(), st.lists(st.none())
            ),
        ).map(lambda value: json.dumps(value).encode()),
    )
)
def test_whatever_stands_in_the_topic_raises_nothing(value: bytes) -> None:
    read_bridge_health(value)


@pytest.mark.parametrize("peers", [-1, 2**31, "7", True, 1.5])
def test_a_count_that_is_none_makes_no_record(peers: object) -> None:
    value = json.loads(BridgeHealth("a", WELL, 1).to_bytes())
    assert read_bridge_health(json.dumps({**value, "relay_peers": peers}).encode()) is None


def test_a_bridge_that_ended_is_gone_although_the_clock_was_set_back() -> None:
    known = BridgesHealth(10**12)
    known.store(BridgeHealth("a", WELL, 1), 10**12)
    assert known.judge(KAFKA, 1_000).state is HealthState.UNHEALTHY
