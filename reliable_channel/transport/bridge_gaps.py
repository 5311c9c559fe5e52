"""Open gaps → stores → Kafka: what was missed is asked for by time range, from every store node (protocol.md §8)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from reliable_channel.store.client import StoreClient
from reliable_channel.store.model import StoreQuery
from reliable_channel.store.rest_node import StoreNodeError
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_inbound import BridgeTopics, SharedRecent
from reliable_channel.transport.bridge_state import BridgeState, Gap
from reliable_channel.transport.bridge_writer import OutRecord, SafeWriter, envelope_record
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.evidence import gap_record

_log = logging.getLogger(__name__)

TOPICS_PER_QUERY = 10
"""Content topics that running stores take at once (waku-rest.md *Store v3*)."""
IDLE_S = 1.0


class GapFiller:
    """Fills the gaps of a :class:`BridgeState`. A gap is closed when one store node has given every page of it; until
    then it is tried again every ``retry_ms``. ``count`` is told ``recovered`` and ``filled``."""

    def __init__(
        self,
        stores: StoreClient,
        writer: SafeWriter,
        state: BridgeState,
        recent: SharedRecent,
        topics: BridgeTopics,
        node: str,
        clock: Clock,
        count: Callable[[str, int], None],
        margin_ms: int = 30_000,
        settle_ms: int = 5_000,
        retry_ms: int = 60_000,
    ) -> None:
        self._stores = stores
        self._writer = writer
        self._state = state
        self._recent = recent
        self._topics = topics
        self._node = node
        self._clock = clock
        self._count = count
        self._margin_ms = margin_ms
        self._settle_ms = settle_ms
        self._retry_ms = retry_ms
        self._not_before: dict[Gap, int] = {}

    def run(self, stopping: threading.Event) -> None:
        """Fill until ``stopping``; raises ``Interrupted`` when stopped in the middle of a page."""
        while not stopping.is_set():
            self.step(stopping)
            stopping.wait(IDLE_S)

    def step(self, stopping: threading.Event | None = None) -> int:
        """Try every gap that is due; how many were closed."""
        closed = 0
        for gap in self._state.gaps:
            if stopping is not None and stopping.is_set():
                break
            due = self._not_before.get(gap, gap.to_ms + self._settle_ms)
            if now_ms(self._clock) < due:
                continue
            if self._fill(gap):
                closed += 1
                self._not_before.pop(gap, None)
            else:
                self._not_before[gap] = now_ms(self._clock) + self._retry_ms
        return closed

    def _fill(self, gap: Gap) -> bool:
        recovered = 0
        outcome: dict[str, str] = {}
        for query in self._queries(gap):
            for node, page in self._stores.walk_each(query):
                if isinstance(page, StoreNodeError):
                    outcome[node] = page.fault.value
                    continue
                outcome.setdefault(node, "complete")
                new: dict[bytes, OutRecord] = {}
                for entry in page.entries:
                    if (
                        entry.message is not None
                        and entry.pubsub_topic is not None
                        and self._topics.wants(entry.message.content_topic)
                        and not self._recent.has(entry.message_hash)
                    ):
                        new[entry.message_hash] = envelope_record(
                            self._topics.envelopes, entry.message, entry.pubsub_topic, Source.STORE
                        )
                self._writer.write(list(new.values()))
                self._recent.add(new)
                recovered += len(new)
                self._count("recovered", len(new))
        status = "filled" if "complete" in outcome.values() else "unfilled" if not outcome else "open"
        key, value = gap_record(gap, status, self._node, self._topics.waku, now_ms(self._clock), recovered, outcome)
        self._writer.write([OutRecord(self._topics.evidence, key, value)])
        if status == "open":
            _log.warning("no store answered for a gap of %s ms; again later", gap.to_ms - gap.from_ms)
            return False
        self._state.close_gap(gap)
        self._count("filled" if status == "filled" else "unfilled", 1)
        return True

    def _queries(self, gap: Gap) -> list[StoreQuery]:
        start = max(0, gap.from_ms - self._margin_ms) * 1_000_000
        end = (gap.to_ms + self._margin_ms) * 1_000_000
        queries = []
        for pubsub_topic in sorted({p for p, _ in self._topics.waku}):
            named = sorted(c for p, c in self._topics.waku if p == pubsub_topic and c is not None)
            lots: list[tuple[str, ...]] = [
                tuple(named[i : i + TOPICS_PER_QUERY]) for i in range(0, len(named), TOPICS_PER_QUERY)
            ]
            queries += [StoreQuery(pubsub_topic, lot, start, end) for lot in lots or [()]]
        return queries
