"""Finds in Kafka when a bridge that has lost its state last saw an envelope.

Without it, a bridge that lost its state file would start as a new one and record no gap for the time it was away."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from reliable_channel.core import foreign_json
from reliable_channel.transport.bridge_state import KEPT_HASHES
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import OffsetReader

READ_BACK = 20_000
"""The number of records at the end of the evidence topic that are searched."""


@dataclass(frozen=True, slots=True)
class LastSighting:
    """The time (Unix ms) of a bridge's last sighting, and the hashes of the last envelopes it saw, oldest first."""

    at_ms: int
    hashes: tuple[bytes, ...]


def find_last_sighting(clients: KafkaClients, topic: str, vantage: str, node: str) -> LastSighting | None:
    """The sightings of this vantage point at this node at the end of the evidence topic; ``None`` if there are none, so
    the bridge is new. Raises ``EnvironmentFault``."""
    reader = OffsetReader(clients, topic, None)
    try:
        reader.rewind(READ_BACK)
        at_ms = 0
        hashes: deque[bytes] = deque(maxlen=KEPT_HASHES)
        while reader.check():
            for record in reader.poll(1_000):
                if record.key != f"sightings:{vantage}".encode() or record.value is None:
                    continue
                if (seen := parse_sighting(record.value, node)) is not None:
                    at_ms = max(at_ms, seen.at_ms)
                    hashes.extend(seen.hashes)
    finally:
        reader.close()
    return LastSighting(at_ms, tuple(hashes)) if at_ms else None


def parse_sighting(value: bytes, node: str) -> LastSighting | None:
    """The sightings at this node in a record; ``None`` for another node's, and for other records."""
    try:
        record = foreign_json.loads(value)
        if record["node"] != node:
            return None
        return LastSighting(int(record["at_ms"]), tuple(map(bytes.fromhex, record["hashes"])))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
