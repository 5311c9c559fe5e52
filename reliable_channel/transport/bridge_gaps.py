"""Fills open gaps: queries every store node for their time ranges and writes new envelopes to Kafka."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, message_hash
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_context import BridgeContext
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.bridge_writer import OutRecord, envelope_record
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import StoreFault, StoreNodeError

_log = logging.getLogger(__name__)

TOPICS_PER_QUERY = 10
"""The maximum number of content topics that running stores accept in a query."""
IDLE_S = 1.0
LONGEST_RETRY = 10
"""The wait between two attempts doubles up to this many times the first."""


class GapFiller:
    """Fills the gaps of a :class:`BridgeState`. A gap is closed when one store node has returned every page of it;
    until then it is tried again after ``retry_ms``, twice that, and so on up to ten times that. Counts ``recovered``,
    ``filled`` and ``unfilled``."""

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
        self._not_before: dict[BridgeGap, int] = {}

    def run(self, stopping: threading.Event) -> None:
        """Fill until ``stopping``; raises ``Interrupted`` when stopped in the middle of a page."""
        while not stopping.is_set():
            self.step(stopping)
            stopping.wait(IDLE_S)

    def step(self, stopping: threading.Event | None = None) -> int:
        """Try every gap that is due; returns how many were closed."""
        closed, gaps = 0, self._bridge.state.gaps
        self._not_before = {gap: due for gap, due in self._not_before.items() if gap in gaps}
        for gap in gaps:
            if stopping is not None and stopping.is_set():
                break
            due = self._not_before.get(gap, gap.to_ms + self._settle_ms)
            if self._bridge.now_ms() < due:
                continue
            gap = self._bridge.state.count_attempt(gap)
            if self._fill(gap):
                closed += 1
            else:
                factor = min(2 ** min(gap.attempts - 1, LONGEST_RETRY), LONGEST_RETRY)
                self._not_before[gap] = self._bridge.now_ms() + factor * self._retry_ms
        return closed

    def _fill(self, gap: BridgeGap) -> bool:
        recovered = 0
        outcome: dict[str, str] = {}
        for query in self._queries(gap):
            strict: list[str] = []
            for node, page in self._stores.walk_each(query):
                if isinstance(page, StoreNodeError):
                    if page.fault is StoreFault.NEEDS_CONTENT_TOPICS and self._bridge.state.content_topics:
                        strict.append(node)
                    else:
                        outcome[node] = page.fault.value
                    continue
                outcome.setdefault(node, "complete")
                recovered += self._take(page)
            for lot in _lots(sorted(self._bridge.state.content_topics)) if strict else []:
                for node, page in self._stores.walk_each(replace(query, content_topics=lot), strict):
                    if isinstance(page, StoreNodeError):
                        outcome[node] = page.fault.value
                        continue
                    outcome.setdefault(node, "known_content_topics")
                    recovered += self._take(page)
        if gap not in self._bridge.state.gaps:  # widened meanwhile: the whole of it is asked for
            return False
        answered = {"complete", "known_content_topics"} & {*outcome.values()}
        status = "filled" if answered else "unfilled" if not outcome else "open"
        self._bridge.writer.write([self._bridge.gap_record(gap, status, recovered, outcome)])
        if status == "open":
            _log.warning("no store answered for a gap of %s ms; again later", gap.to_ms - gap.from_ms)
            return False
        self._bridge.state.close_gap(gap)
        self._bridge.count("filled" if status == "filled" else "unfilled", 1)
        return True

    def _take(self, page: StorePage) -> int:
        """Write the new envelopes of a page to Kafka; returns how many there were."""
        with self._bridge.keeping:
            return self._keep(page)

    def _keep(self, page: StorePage) -> int:
        new: dict[bytes, OutRecord] = {}
        seen: list[tuple[bytes, str]] = []
        for entry in page.entries:
            if (
                entry.message is not None
                and entry.pubsub_topic is not None
                and self._bridge.topics.wants(entry.message.content_topic)
                and not any(self._bridge.recent.has(found) for found in _hashes(entry))
            ):
                new[entry.message_hash] = envelope_record(
                    self._bridge.topics.envelopes, entry.message, entry.pubsub_topic, Source.STORE
                )
                seen += [(found, entry.pubsub_topic) for found in _hashes(entry)]
        self._bridge.writer.write([*new.values(), *self._bridge.sightings(seen, Source.STORE, page.node)])
        self._bridge.recent.add([found for found, _ in seen])
        self._bridge.count("recovered", len(new))
        return len(new)

    def _queries(self, gap: BridgeGap) -> list[StoreQuery]:
        start = max(0, gap.from_ms - self._margin_ms) * 1_000_000
        end = (gap.to_ms + self._margin_ms) * 1_000_000
        queries = []
        for pubsub_topic in sorted({p for p, _ in self._bridge.topics.waku}):
            named = sorted(c for p, c in self._bridge.topics.waku if p == pubsub_topic and c is not None)
            queries += [StoreQuery(pubsub_topic, lot, start, end) for lot in _lots(named) or [()]]
        return queries


def _lots(content_topics: list[str]) -> list[tuple[str, ...]]:
    """Content topics in groups that stores accept in one query."""
    return [
        tuple(content_topics[begin : begin + TOPICS_PER_QUERY])
        for begin in range(0, len(content_topics), TOPICS_PER_QUERY)
    ]


def _hashes(entry: StoreEntry) -> list[bytes]:
    """The hashes under which an entry may be known: Store v1 leaves out ``meta``, which is part of the hash."""
    if entry.verified or entry.message is None or entry.pubsub_topic is None:
        return [entry.message_hash]
    marked = replace(entry.message, meta=RELIABLE_CHANNEL_META)
    return [entry.message_hash, message_hash(entry.pubsub_topic, marked)]
