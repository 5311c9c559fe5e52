"""What the fake Waku node says of itself: info, health, peers (waku-rest.md *Health, info, peers*)."""

from __future__ import annotations

from typing import Any

from support.fake_waku_faults import Call, Dialect, Reply

PEER_ADDRESS = "/ip4/127.0.0.1/tcp/60001/p2p/16Uiu2HAkvaJ1E6ZaY3dAddTgUqvorsHYsY4cxuqSeCcvuccdR4Xz"


class AdminAnswers:
    """The node's word about itself."""

    dialect: Dialect
    mesh_peers: int
    service_peers: int

    def _about(self, what: str) -> Reply:
        if what == "info":
            return Reply(200, {"listenAddresses": [PEER_ADDRESS], "enrUri": "enr:-Jq4Q"})
        return Reply(200, "-") if self.dialect == "go-waku" else Reply(200, "v0.37.1", "text")

    def _health(self) -> Reply:
        if self.dialect == "go-waku":
            return Reply(501, "Non RLN healthcheck is not implemented")
        ready = "READY" if self.mesh_peers or self.service_peers else "NOT_READY"
        status = (
            "Disconnected" if ready == "NOT_READY" else "Connected" if self.mesh_peers >= 6 else "PartiallyConnected"
        )
        return Reply(
            200,
            {
                "nodeHealth": "READY",
                "connectionStatus": status,
                "protocolsHealth": [{"Relay": ready}, {"Rln Relay": "NOT_MOUNTED"}],
            },
        )

    def _peers(self, call: Call) -> Reply:
        if call.method != "GET":
            return Reply(400, None, "none")
        kinds = [["/vac/waku/relay/2.0.0"]] * self.mesh_peers
        kinds += [["/vac/waku/lightpush/3.0.0", "/vac/waku/filter-subscribe/2.0.0-beta1"]] * self.service_peers
        if self.dialect == "go-waku":
            peers: list[dict[str, Any]] = [
                {"id": f"16U{n}", "multiaddrs": [PEER_ADDRESS], "protocols": p, "connected": True, "pubsubTopics": []}
                for n, p in enumerate(kinds)
            ]
            return Reply(200, [*peers, {"id": "x", "multiaddrs": [], "protocols": None, "connected": False}])
        return Reply(
            200,
            [
                {
                    "multiaddr": PEER_ADDRESS,
                    "protocols": p,
                    "shards": [32],
                    "connected": "Connected",
                    "agent": "",
                    "origin": "",
                }
                for p in kinds
            ],
        )
