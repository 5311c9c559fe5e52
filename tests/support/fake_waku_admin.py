"""What the fake Waku node says of itself: info, health, peers (docs/spec/waku-rest.md *Health, info, peers*)."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any

from tests.support.fake_waku_faults import Call, Dialect, Reply

PEER_ADDRESS = "/ip4/127.0.0.1/tcp/60001/p2p/16Uiu2HAkvaJ1E6ZaY3dAddTgUqvorsHYsY4cxuqSeCcvuccdR4Xz"


class AdminAnswers:
    """The node's word about itself."""

    dialect: Dialect
    joined: set[str]
    _relay: dict[str, Any]
    mesh_peers: int
    service_peers: int
    rln: bool

    def _answer_about(self, what: str) -> Reply:
        if what == "info":
            return Reply(200, {"listenAddresses": [PEER_ADDRESS], "enrUri": enr_of({*self.joined, *self._relay})})
        return Reply(200, "-") if self.dialect == "go-waku" else Reply(200, "v0.37.1", "text")

    def _health(self) -> Reply:
        if self.dialect == "go-waku":
            if self.rln:
                return Reply(200, "Node is healthy", "text")
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
                "protocolsHealth": [{"Relay": ready}, {"Rln Relay": "READY" if self.rln else "NOT_MOUNTED"}],
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


def enr_of(pubsub_topics: Collection[str]) -> str:
    """A node's record that names its shards, without a signature that holds."""
    shards = sorted((int(topic.split("/")[4]), int(topic.split("/")[5])) for topic in pubsub_topics)
    fields = [b"s" * 64, b"\x01"]
    if shards:
        named = b"".join(shard.to_bytes(2, "big") for _, shard in shards)
        fields += [b"rs", shards[0][0].to_bytes(2, "big") + bytes([len(shards)]) + named]
    content = b"".join(rlp(0x80, field) for field in fields)
    return "enr:" + base64.urlsafe_b64encode(rlp(0xC0, content)).decode().rstrip("=")


def rlp(kind: int, content: bytes) -> bytes:
    """One RLP item: a string (0x80) or a list (0xC0)."""
    if kind == 0x80 and len(content) == 1 and content[0] < 0x80:
        return content
    if len(content) <= 55:
        return bytes([kind + len(content)]) + content
    size = len(content).to_bytes((len(content).bit_length() + 7) // 8, "big")
    return bytes([kind + 55 + len(size)]) + size + content
