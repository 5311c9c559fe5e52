"""Computes a node's health in three states from its reports (MESSAGING-API, *Health states*)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class HealthState(StrEnum):
    """The Messaging API's ``HealthStatus``."""

    UNHEALTHY = "Unhealthy"
    MINIMALLY_HEALTHY = "MinimallyHealthy"
    HEALTHY = "Healthy"


class Mode(StrEnum):
    """How a node participates (MESSAGING-API, *mode*)."""

    EDGE = "edge"
    """Lightpush to send, filter to receive; health depends on its service nodes."""
    RELAY = "relay"
    """Relay both ways; health depends on its mesh."""


MINIMAL_MESH_PEERS = 4
HEALTHY_MESH_PEERS = 6
MINIMAL_SERVICE_PEERS = 1
HEALTHY_SERVICE_PEERS = 2


@dataclass(frozen=True, slots=True)
class Health:
    """A health state and its evidence; counts are ``None`` where the node does not report them."""

    state: HealthState
    detail: str = ""
    relay_peers: int | None = None
    lightpush_peers: int | None = None
    filter_peers: int | None = None
    store_peers: int | None = None


def judge_relay(mesh_peers: int) -> HealthState:
    """Mesh peers → state: at least four are minimal, six are healthy; one to three count like none."""
    if mesh_peers >= HEALTHY_MESH_PEERS:
        return HealthState.HEALTHY
    return HealthState.MINIMALLY_HEALTHY if mesh_peers >= MINIMAL_MESH_PEERS else HealthState.UNHEALTHY


def judge_edge(lightpush_peers: int, filter_peers: int) -> HealthState:
    """Service peers → state: one of each is minimal, two of each are healthy."""
    fewest = min(lightpush_peers, filter_peers)
    if fewest >= HEALTHY_SERVICE_PEERS:
        return HealthState.HEALTHY
    return HealthState.MINIMALLY_HEALTHY if fewest >= MINIMAL_SERVICE_PEERS else HealthState.UNHEALTHY
