"""Open gaps → stores → Kafka: what was missed is asked for by time range, from every store node (protocol.md §8)."""

from __future__ import annotations

import logging
import threading

from reliable_channel.store.client import StoreClient
from reliable_channel.store.model import StoreQuery
from reliable_channel.store.rest_node import StoreNodeError
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_context import BridgeContext
from reliable_channel.transport.bridge_state import Gap
from reliable_channel.transport.bridge_writer import OutRecord, envelope_record
from reliable_channel.transport.evidence import gap_record

_log = logging.getLogger(__name__)

TOPICS_PER_QUERY = 10
"""Content topics that running stores take at once (waku-rest.md *Store v3*)."""
IDLE_S = 1.0


class GapFiller:
    """Fills the gaps of a :class:`BridgeState`. A gap is closed when one store node has given every page of it; until
    then it is tried again every ``retry_ms``. The context's ``count`` is told ``recovered`` and ``filled``."""

    def __init__(
        self,
        stores: StoreClient,
        bridge: BridgeContext,
        margin_ms: int = 30_000,
        settle_ms: int = 5_000,
        retry_ms: int = 60_000,
    ) -> None:
        self._stores = stores
        self._bridge = bridge
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
        closed, gaps = 0, self._bridge.state.gaps
        self._not_before = {gap: due for gap, due in self._not_before.items() if gap in gaps}
        for gap in gaps:
            if stopping is not None and stopping.is_set():
                break
            due = self._not_before.get(gap, gap.to_ms + self._settle_ms)
            if self._bridge.now_ms() < due:
                continue
            if self._fill(gap):
                closed += 1
            else:
                self._not_before[gap] = self._bridge.now_ms() + self._retry_ms
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
                        and self._bridge.topics.wants(entry.message.content_topic)
                        and not self._bridge.recent.has(entry.message_hash)
                    ):
                        new[entry.message_hash] = envelope_record(
                            self._bridge.topics.envelopes, entry.message, entry.pubsub_topic, Source.STORE
                        )
                self._bridge.writer.write(list(new.values()))
                self._bridge.recent.add(new)
                recovered += len(new)
                self._bridge.count("recovered", len(new))
        if gap not in self._bridge.state.gaps:  # widened meanwhile: the whole of it is asked for
            return False
        status = "filled" if "complete" in outcome.values() else "unfilled" if not outcome else "open"
        key, value = gap_record(
            gap, status, self._bridge.node, self._bridge.topics.waku, self._bridge.now_ms(), recovered, outcome
        )
        self._bridge.writer.write([OutRecord(self._bridge.topics.evidence, key, value)])
        if status == "open":
            _log.warning("no store answered for a gap of %s ms; again later", gap.to_ms - gap.from_ms)
            return False
        self._bridge.state.close_gap(gap)
        self._bridge.count("filled" if status == "filled" else "unfilled", 1)
        return True

    def _queries(self, gap: Gap) -> list[StoreQuery]:
        start = max(0, gap.from_ms - self._margin_ms) * 1_000_000
        end = (gap.to_ms + self._margin_ms) * 1_000_000
        queries = []
        for pubsub_topic in sorted({p for p, _ in self._bridge.topics.waku}):
            named = sorted(c for p, c in self._bridge.topics.waku if p == pubsub_topic and c is not None)
            lots: list[tuple[str, ...]] = [
                tuple(named[i : i + TOPICS_PER_QUERY]) for i in range(0, len(named), TOPICS_PER_QUERY)
            ]
            queries += [StoreQuery(pubsub_topic, lot, start, end) for lot in lots or [()]]
        return queries
