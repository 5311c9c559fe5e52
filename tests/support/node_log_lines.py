"""Writes log lines as nwaku, go-waku and status-go do, in each of their formats, and what the nodes of a simulated
conversation log: for tests, benches and pictures."""

from __future__ import annotations

import datetime as dt
import json
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from reliable_channel.simulation.world import World

SHARD = "/waku/2/rs/1/0"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NIM_TEXT = {"received": "Received relay message", "relayed": "Sent relay message", "stored": "Message archived"}
_GO_TEXT = {"received": "waku.relay received", "relayed": "waku.relay published", "stored": "message archived"}


def _time(at_ms: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(milliseconds=at_ms)


def _nim_fields(kind: str, digest: bytes, own: str, peer: str) -> dict[str, str]:
    sides = {"received": {"from_peer_id": peer}, "relayed": {"to_peer_id": peer}}.get(kind, {})
    return {"my_peer_id": own, "msg_hash": f"0x{digest.hex()}", "msg_id": "b9cf...ecc1", **sides, "topic": SHARD}


def nim_text(at_ms: int, kind: str, digest: bytes, own: str, peer: str) -> str:
    """Chronicles' *textlines*, without colours."""
    time = _time(at_ms).isoformat(" ", "milliseconds")
    fields = {"topics": '"waku relay"', "tid": "7", "file": "protocol.nim:221"} | _nim_fields(kind, digest, own, peer)
    return f"TRC {time} {_NIM_TEXT[kind]:<42} {' '.join(f'{name}={value}' for name, value in fields.items())}"


def nim_colours(at_ms: int, kind: str, digest: bytes, own: str, peer: str) -> str:
    """Chronicles' *textlines* with ANSI colours, as on a terminal."""
    level, day, hour, rest = nim_text(at_ms, kind, digest, own, peer).split(" ", 3)
    words, _, fields = rest.partition(" topics=")
    coloured = " ".join(
        f"\x1b[37m{name}\x1b[0m=\x1b[94m{value}\x1b[0m" for name, value in (f.split("=", 1) for f in fields.split()[2:])
    )
    return f"\x1b[37m{level}\x1b[0m {day} {hour} \x1b[1m{words}\x1b[0m {coloured}"


def nim_json(at_ms: int, kind: str, digest: bytes, own: str, peer: str) -> str:
    """Chronicles' *json*."""
    head = {"lvl": "TRC", "ts": _time(at_ms).isoformat(" ", "milliseconds"), "msg": _NIM_TEXT[kind], "tid": 7}
    return json.dumps(head | _nim_fields(kind, digest, own, peer), separators=(",", ":"))


def zap_console(at_ms: int, kind: str, digest: bytes, own: str, peer: str) -> str:
    """Zap's console encoder: go-waku, and status-go since the end of 2024."""
    time = _time(at_ms).isoformat("T", "milliseconds").replace("+00:00", "Z")
    fields = json.dumps({"pubsubTopic": SHARD, "hash": f"0x{digest.hex()}", "payloadSizeBytes": 12})
    return "\t".join([time, "DEBUG", "relay.messages", "relay/metrics.go:66", _GO_TEXT[kind], fields])


def zap_json(at_ms: int, kind: str, digest: bytes, own: str, peer: str) -> str:
    """Zap's JSON encoder, with a zone other than UTC."""
    zone = dt.timezone(dt.timedelta(hours=2))
    time = _time(at_ms).astimezone(zone).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "+0200"
    head = {"level": "debug", "ts": time, "logger": "relay.messages", "msg": _GO_TEXT[kind]}
    return json.dumps(head | {"pubsubTopic": SHARD, "hash": f"0x{digest.hex()}"}, separators=(",", ":"))


def geth_text(at_ms: int, kind: str, digest: bytes, own: str, peer: str) -> str:
    """The terminal format of go-ethereum, without a year: status-go until the end of 2024."""
    time = _time(at_ms).strftime("%m-%d|%H:%M:%S.%f")[:-3]
    fields = f"envelopeHash=0x{digest.hex()} pubsubTopic={SHARD} timestamp={at_ms * 1_000_000}"
    return f"DEBUG[{time}|github.com/status-im/status-go/wakuv2/waku.go:1464] {_GO_TEXT[kind]:<40} {fields}"


FORMATS: tuple[Callable[[int, str, bytes, str, str], str], ...] = (
    nim_text,
    nim_colours,
    nim_json,
    zap_console,
    zap_json,
    geth_text,
)
"""All formats: time (Unix ms), kind of sighting, message hash, the node's own peer id, the other's → the line."""


class Logged(NamedTuple):
    """A line of a log, by the true clock."""

    at_ms: int
    kind: str
    message_hash: bytes


def log_conversation(world: World) -> dict[str, list[Logged]]:
    """What the node of each participant did: it relayed what it dispatched, and received what it heard of others."""
    logs = defaultdict(set)
    for journal in world.journals:
        for dispatch in journal.dispatches:
            logs[dispatch.by].add(Logged(dispatch.at_ms, "relayed", dispatch.envelope_hash))
        for (who, sds_id), at_ms in journal.heard.items():
            earlier = [d for d in journal.dispatches if d.sds_id == sds_id and d.at_ms <= at_ms and d.by != who]
            if journal.sds[sds_id].sender != who and earlier:
                logs[who].add(Logged(at_ms, "received", max(earlier, key=lambda d: d.at_ms).envelope_hash))
    return {who: sorted(lines) for who, lines in logs.items()}
