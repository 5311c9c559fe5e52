"""Publishes the health of the bridges and their Waku nodes to participants on Kafka, as a JSON record every few
seconds.

::

    {"status": "health", "bridge": name, "state": "Healthy", "detail", "relay_peers", "lightpush_peers", "filter_peers",
     "store_peers", "at_ms"}

A bridge writes it to the topic of dispatch results, every :data:`INTERVAL_S` seconds and when it stops. ``state`` is
its node's, computed for the node's mode; a local loop, which has no node, is healthy while it runs. Counts are null
where the node does not report them. ``at_ms`` is Unix ms of the bridge's clock, for information only: a reader uses its
own clock.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace

from reliable_channel.core import foreign_json
from reliable_channel.transport.clock import has_passed
from reliable_channel.transport.health import Health, HealthState

INTERVAL_S = 5.0

EXPIRY_MS = 20_000
"""A bridge that has not reported for this time counts as gone."""

MAX_RECORD_BYTES = 2_048
MAX_NAME = 200
MAX_DETAIL = 300
MOST_BRIDGES = 100

_ORDER = (HealthState.UNHEALTHY, HealthState.MINIMALLY_HEALTHY, HealthState.HEALTHY)
_COUNTS = ("relay_peers", "lightpush_peers", "filter_peers", "store_peers")


@dataclass(frozen=True, slots=True)
class BridgeHealth:
    """One record: which bridge, and the health of its node."""

    bridge: str
    health: Health
    at_ms: int

    def to_bytes(self) -> bytes:
        """The record's value."""
        counts = {name: getattr(self.health, name) for name in _COUNTS}
        value = {
            "status": "health",
            "bridge": self.bridge[:MAX_NAME],
            "state": self.health.state.value,
            "detail": self.health.detail[:MAX_DETAIL],
            **counts,
            "at_ms": self.at_ms,
        }
        return json.dumps(value, separators=(",", ":")).encode()


def read_bridge_health(value: bytes | None) -> BridgeHealth | None:
    """Decode a record; ``None`` if it is not a health record."""
    if not value or len(value) > MAX_RECORD_BYTES:
        return None
    try:
        record = foreign_json.loads(value)
        if not isinstance(record, dict) or record.get("status") != "health":
            return None
        bridge, detail = record["bridge"], record["detail"]
        if not isinstance(bridge, str) or not isinstance(detail, str) or len(bridge) > MAX_NAME:
            return None
        counts = {name: _read_count(record.get(name)) for name in _COUNTS}
        health = Health(HealthState(record["state"]), detail[:MAX_DETAIL], **counts)
        return BridgeHealth(bridge, health, int(record["at_ms"]))
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return None


class BridgesHealth:
    """The latest record of each bridge, with the time it was read. Thread-safe.

    The best bridge counts, because an envelope needs only one bridge that dispatches it."""

    def __init__(self, now: int) -> None:
        self._lock = threading.Lock()
        self._begun = now
        self._latest: dict[str, tuple[int, Health]] = {}

    def store(self, report: BridgeHealth, now: int) -> None:
        """Store a record that was read at ``now`` (Unix ms). Beyond :data:`MOST_BRIDGES` names the oldest is
        removed."""
        with self._lock:
            self._latest.pop(report.bridge, None)
            self._latest[report.bridge] = (now, report.health)
            while len(self._latest) > MOST_BRIDGES:
                del self._latest[next(iter(self._latest))]

    def judge(self, kafka: Health, now: int) -> Health:
        """The health of a participant whose Kafka has the health ``kafka``. Without a bridge it is unhealthy, since
        nothing leaves Kafka. In the first :data:`EXPIRY_MS` a bridge may still report, so Kafka's health counts."""
        if kafka.state is HealthState.UNHEALTHY:
            return kafka
        with self._lock:
            known = {
                name: health for name, (at, health) in self._latest.items() if not has_passed(EXPIRY_MS + 1, at, now)
            }
        if not known:
            if not has_passed(EXPIRY_MS + 1, self._begun, now):
                return kafka
            return Health(HealthState.UNHEALTHY, f"{kafka.detail}; no bridge has reported for {EXPIRY_MS // 1000} s")
        name = max(known, key=lambda one: (_ORDER.index(known[one].state), one))
        best = known[name]
        return replace(best, detail=f"{kafka.detail}; bridge {name}: {best.detail}")


def _read_count(value: object) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**31:
        raise ValueError
    return value
