"""Computes a node's health from what its REST API reports (docs/spec/waku-rest.md *Health, info, peers*)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reliable_channel.transport.health import Health, HealthState, Mode, judge
from reliable_channel.transport.http.client import NodeUnreachable
from reliable_channel.transport.waku_api import NodeDialect, WakuApi
from reliable_channel.transport.waku_json import as_list

RELAY = "/vac/waku/relay/"
LIGHTPUSH = "/vac/waku/lightpush/"
FILTER = "/vac/waku/filter-subscribe/"
STORE = "/vac/waku/store-query/"

_CONNECTION = {
    "connected": HealthState.HEALTHY,
    "partiallyconnected": HealthState.MINIMALLY_HEALTHY,
    "disconnected": HealthState.UNHEALTHY,
}


def node_health(api: WakuApi, mode: Mode) -> Health:
    """Query a node's health. Peers counted through the admin API come first; without it the node's own health; without
    that a node that answers is minimally healthy. Never raises: a node that does not answer is unhealthy."""
    try:
        peers = api.peers()
        if peers is not None:
            return judge_peers(peers, mode)
        response = api.health()
        reported = response.json()
        if response.ok and isinstance(reported, dict):
            return judge_report(reported, mode)
        api.dialect()
        return Health(HealthState.MINIMALLY_HEALTHY, "the node answers, and reports neither peers nor health")
    except NodeUnreachable as error:
        return Health(HealthState.UNHEALTHY, error.cause)


def node_has_rln(api: WakuApi) -> bool | None:
    """Whether RLN is on at a node; ``None`` when it does not say. go-waku answers ``/health`` only where RLN is on,
    nwaku lists ``Rln Relay`` among its protocols."""
    try:
        answer = api.health()
        if api.dialect() is NodeDialect.GO_WAKU:
            return True if answer.ok else False if answer.status == 501 else None
        reported = answer.json()
    except NodeUnreachable:
        return None
    entries = as_list(reported.get("protocolsHealth")) if isinstance(reported, dict) else []
    for entry in entries:
        for name, state in entry.items() if isinstance(entry, dict) else ():
            if name.lower().replace("_", " ").startswith("rln"):
                return _read_status(state) != "NOT_MOUNTED"
    return False if entries else None


def judge_peers(peers: list[dict[str, Any]], mode: Mode) -> Health:
    """The admin API's list: nwaku ``connected: "Connected"``, go-waku ``connected: true``, ``protocols`` maybe null."""
    connected = [peer for peer in peers if _is_connected(peer.get("connected"))]

    def count_serving(protocol: str) -> int:
        return sum(
            any(isinstance(p, str) and p.startswith(protocol) for p in as_list(peer.get("protocols")))
            for peer in connected
        )

    relay, lightpush, filters, store = (count_serving(p) for p in (RELAY, LIGHTPUSH, FILTER, STORE))
    counted = Health(HealthState.UNHEALTHY, f"{len(connected)} peers connected", relay, lightpush, filters, store)
    return replace(counted, state=judge(mode, counted))


def judge_report(reported: dict[str, Any], mode: Mode) -> Health:
    """nwaku's ``/health``: ``connectionStatus`` (≥ 0.38) is its count of peers in three steps, else the protocols."""
    protocols: dict[str, str] = {}
    for entry in as_list(reported.get("protocolsHealth")):
        if isinstance(entry, dict):
            protocols.update({k: v for k, v in entry.items() if k != "desc" and isinstance(v, str)})
    needed = ("Relay",) if mode is Mode.RELAY else ("Lightpush Client", "Filter Client")
    known = [protocols[name] for name in needed if name in protocols]
    status = reported.get("connectionStatus")
    node = reported.get("nodeHealth")
    detail = f"node {str(node)[:40]}, connection {str(status)[:40]}"
    if (node is not None and _read_status(node) != "READY") or any(_read_status(state) != "READY" for state in known):
        return Health(HealthState.UNHEALTHY, detail)
    if isinstance(status, str) and (state := _CONNECTION.get(status.lower().replace("_", ""))):
        return Health(state, detail)
    return Health(HealthState.MINIMALLY_HEALTHY, detail)


def _read_status(value: Any) -> str:
    """nwaku's name of a health status; before 0.36 it wrote *Not Ready* for ``NOT_READY``."""
    return str(value).upper().replace(" ", "_")


def _is_connected(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.lower() == "connected")
