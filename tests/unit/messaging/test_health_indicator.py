"""Health: the specified criteria by mode, and one event per change."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.messaging.config import Mode
from reliable_channel.transport.health import Health, HealthState, judge
from tests.support.messaging_world import World

UNHEALTHY, MINIMAL, HEALTHY = HealthState.UNHEALTHY, HealthState.MINIMALLY_HEALTHY, HealthState.HEALTHY


@pytest.mark.parametrize(
    ("peers", "status"),
    [(0, UNHEALTHY), (1, UNHEALTHY), (3, UNHEALTHY), (4, MINIMAL), (5, MINIMAL), (6, HEALTHY), (60, HEALTHY)],
)
def test_relay_judges_the_mesh(peers: int, status: HealthState) -> None:
    report = Health(UNHEALTHY, relay_peers=peers, lightpush_peers=9, filter_peers=9)
    assert judge(Mode.RELAY, report) is status


@pytest.mark.parametrize(
    ("filter_peers", "lightpush_peers", "status"),
    [
        (0, 0, UNHEALTHY),
        (1, 0, UNHEALTHY),
        (0, 5, UNHEALTHY),
        (1, 1, MINIMAL),
        (1, 5, MINIMAL),
        (2, 1, MINIMAL),
        (2, 2, HEALTHY),
        (3, 9, HEALTHY),
    ],
)
def test_edge_judges_its_service_nodes(filter_peers: int, lightpush_peers: int, status: HealthState) -> None:
    report = Health(HEALTHY, relay_peers=60, filter_peers=filter_peers, lightpush_peers=lightpush_peers)
    assert judge(Mode.EDGE, report) is status


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("state", list(HealthState))
def test_a_transport_without_peers_to_count_is_believed(mode: Mode, state: HealthState) -> None:
    assert judge(mode, Health(state)) is state


@given(st.lists(st.sampled_from(list(HealthState)), max_size=30))
def test_a_change_is_told_exactly_once_per_change(states: list[HealthState]) -> None:
    world, before = World(), HealthState.HEALTHY
    expected, begun = ["health:change"], world.node.health_change_seq
    for state in states:
        world.transport.report(Health(state))
        expected += ["health:change"] if state is not before else []
        before = state
    assert world.names() == expected
    assert world.node.health_change_seq - begun == len(expected) - 1
    assert world.node.health_indicator is before
    world.node.close()


def test_health_change_is_emitted_once_and_its_detail_is_the_new_status(world: World) -> None:
    assert world.node.health_indicator == "Healthy"
    world.transport.report(Health(HealthState.MINIMALLY_HEALTHY, "fewer"))
    world.transport.report(Health(HealthState.MINIMALLY_HEALTHY, "still fewer"))
    world.run(10_000)
    world.transport.report(Health(HealthState.UNHEALTHY))
    assert [detail for name, detail in world.events if name == "health:change"] == [
        "Healthy",
        "MinimallyHealthy",
        "Unhealthy",
    ]
    assert world.node.health_indicator == "Unhealthy"


def test_a_node_that_is_stopped_is_unhealthy(new_world: Callable[..., World]) -> None:
    world = new_world()
    world.node.stop()
    assert world.node.health_indicator == "Unhealthy"
