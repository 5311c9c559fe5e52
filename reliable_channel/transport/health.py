"""Computes a node's health in three states from its reports (MESSAGING-API, *Health states*, *Health Indicator*)."""

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


def judge(mode: Mode, report: Health) -> HealthState:
    """The state of a node of ``mode`` with this report: its mesh peers decide in relay mode, the service nodes of each
    kind in edge mode. One to three mesh peers count like none, because the specified *minimally healthy* begins at
    four. Peer counts take precedence over the reporter's own verdict, which is used where there are no peers to count
    (Kafka, memory)."""
    if mode is Mode.RELAY:
        counts: tuple[int | None, ...] = (report.relay_peers,)
        minimal, healthy = MINIMAL_MESH_PEERS, HEALTHY_MESH_PEERS
    else:
        counts = (report.lightpush_peers, report.filter_peers)
        minimal, healthy = MINIMAL_SERVICE_PEERS, HEALTHY_SERVICE_PEERS
    known = [count for count in counts if count is not None]
    if len(known) < len(counts):
        return report.state
    if min(known) >= healthy:
        return HealthState.HEALTHY
    return HealthState.MINIMALLY_HEALTHY if min(known) >= minimal else HealthState.UNHEALTHY
