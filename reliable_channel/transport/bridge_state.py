"""Stores the state that a bridge needs after a crash: the last time at which everything it had read was safe in Kafka,
and open gaps.

One JSON file, written to a temporary one and renamed, so that a reader finds the old state or the new one. A lock
beside it refuses a second bridge, because two readers of one node take each other's messages. A bridge that lost the
file looks in Kafka when it last saw an envelope: it would start as a new one, and record no gap for the time it was
away.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from reliable_channel.core import foreign_json
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.file_lock import FileLock
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import OffsetReader
from reliable_channel.transport.private_files import replace_file

KEPT_HASHES = 2_000
"""Envelopes written last whose hashes the file keeps: a store returns them again after a restart, for the margin of a
gap."""
KEPT_CONTENT_TOPICS = 1_000
MAX_TOPIC_BYTES = 256
"""The longest content topic that is remembered; a stranger's longer ones would fill the state file, which is written
with every batch."""
NEAR_MS = 60_000
WIDEST_MS = 300_000
"""A gap that begins so soon after an open one of the same cause, for which no store was asked yet, is joined with it,
up to that length. Stores are asked for half a minute more at both ends: a stranger who fills the node's cache every
second would have each minute read from them forty times."""
MAX_GAPS = 1_000
"""The maximum number of open gaps. Then one widens the last one of its cause, whatever lies between."""
_VERSION = 2


@dataclass(frozen=True, slots=True)
class BridgeGap:
    """A time span in which envelopes may have been missed: Unix ms of the bridge's clock, both ends included.

    ``cause``: ``bridge_restart``, ``bridge_suspended`` (its machine slept), ``node_unreachable`` (also a read that
    broke off: reading is destructive), ``cache_full``, ``resubscribed``, ``too_large`` (envelopes, for their Kafka
    topic). ``attempts``: how often stores were queried for it."""

    from_ms: int
    to_ms: int
    cause: str
    attempts: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        """The same for the same gap, also when it is widened: the key of its records, of which the last one counts."""
        return f"{self.from_ms}-{self.cause}"


class BridgeState:
    """The state of one bridge. Thread-safe; every change that matters is on disk when the call returns.

    ``acknowledged_ms`` may be too early, never too late: a gap that is too wide is filled nevertheless."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._file_lock: FileLock | None = None
        self.acknowledged_ms: int | None = None
        self.gaps: tuple[BridgeGap, ...] = ()
        self.recent: tuple[bytes, ...] = ()
        self.content_topics: tuple[str, ...] = ()
        """The last content topics that were seen, because some store nodes answer only queries that name content
        topics."""
        self.dispatched: dict[tuple[int, int], str] = {}
        """Outgoing records (partition, offset), with digests, that were dispatched ahead of one that waits for the rate
        limit."""

    def open(self) -> None:
        """Take the lock and read the state. Raises ``EnvironmentFault`` when another bridge has the lock, or when the
        file is not a valid state."""
        try:
            self._file_lock = FileLock(self._path.with_suffix(".lock"))
        except BlockingIOError:
            raise EnvironmentFault(
                f"Another bridge uses {self._path}.", "Stop it, or choose another paths.run_dir for another node."
            ) from None
        try:
            state = json.loads(self._path.read_text(encoding="utf-8"))
            if state["version"] != _VERSION:
                raise ValueError("version")
            self.acknowledged_ms = state["acknowledged_ms"]
            self.gaps = tuple(BridgeGap(**gap) for gap in state["gaps"])
            self.recent = tuple(bytes.fromhex(text) for text in state["recent"])
            self.content_topics = tuple(filter(can_be_asked_for, map(str, state["content_topics"])))
            self.dispatched = {(int(p), int(o)): str(digest) for p, o, digest in state["dispatched"]}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            self.close()
            raise EnvironmentFault(
                f"{self._path} is not the state of a bridge of this version ({type(error).__name__}).",
                "Move it away; the bridge then continues from its last sighting in Kafka.",
            ) from None

    def acknowledge(self, at_ms: int, recent: Iterable[bytes]) -> None:
        """Everything read until ``at_ms`` is safe in Kafka."""
        with self._lock:
            self.acknowledged_ms = at_ms
            self.recent = tuple(recent)[-KEPT_HASHES:]
            self._write()

    def note_content_topics(self, topics: Iterable[str]) -> None:
        """Remember content topics that were seen; written to disk with the next change that matters."""
        with self._lock:
            seen = dict.fromkeys(filter(can_be_asked_for, topics))
            if seen:
                before = [one for one in self.content_topics if one not in seen]
                self.content_topics = (*before, *seen)[-KEPT_CONTENT_TOPICS:]

    def note_dispatched(self, ahead: Mapping[tuple[int, int], str]) -> None:
        """Remember which records are done beyond the committed offsets."""
        with self._lock:
            if self.dispatched != ahead:
                self.dispatched = dict(ahead)
                self._write()

    def was_dispatched(self, partition: int, offset: int, digest: str) -> bool:
        """Whether an earlier bridge dispatched this record."""
        return self.dispatched.get((partition, offset)) == digest

    def count_attempt(self, gap: BridgeGap) -> BridgeGap:
        """Count a query of the stores for an open gap; returns it with one more attempt, unchanged if it is no longer
        open."""
        with self._lock:
            for other in self.gaps:
                if other == gap:
                    counted = replace(other, attempts=other.attempts + 1)
                    self.gaps = tuple(counted if one == gap else one for one in self.gaps)
                    self._write()
                    return counted
            return gap

    def open_gap(self, gap: BridgeGap) -> BridgeGap:
        """Remember a gap. One that begins in an open gap of the same cause, or soon after it, widens that gap, which
        keeps its name: a record under the old name would otherwise stay open for ever. Returns the gap that is now
        open."""
        with self._lock:
            is_full = len(self.gaps) >= MAX_GAPS
            for other in reversed(self.gaps):
                # What is being filled is left alone, or it would be filled again and again.
                is_joined = not other.attempts and gap.to_ms - other.from_ms <= WIDEST_MS
                reach = other.to_ms + (NEAR_MS if is_joined else 0)
                if other.cause == gap.cause and other.from_ms <= gap.from_ms and (is_full or gap.from_ms <= reach):
                    gap = replace(other, to_ms=max(gap.to_ms, other.to_ms))
                    break
            self.gaps = (*(g for g in self.gaps if g.name != gap.name), gap)
            self._write()
            return gap

    def close_gap(self, gap: BridgeGap) -> None:
        """Remove a gap that was closed; one that was widened meanwhile stays."""
        with self._lock:
            self.gaps = tuple(g for g in self.gaps if g != gap)
            self._write()

    def close(self) -> None:
        """Release the lock. Closing twice does nothing."""
        if self._file_lock is not None:
            self._file_lock.release()

    def _write(self) -> None:
        state = {
            "version": _VERSION,
            "acknowledged_ms": self.acknowledged_ms,
            "gaps": [asdict(gap) for gap in self.gaps],
            "recent": [one.hex() for one in self.recent],
            "content_topics": list(self.content_topics),
            "dispatched": [[*position, digest] for position, digest in self.dispatched.items()],
        }
        replace_file(self._path, json.dumps(state))


def can_be_asked_for(content_topic: str) -> bool:
    """Whether a store can be queried for a content topic beside others: commas separate them."""
    return "," not in content_topic and len(content_topic.encode()) <= MAX_TOPIC_BYTES


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
