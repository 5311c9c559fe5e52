"""Fills open gaps: queries every store node for their time ranges and writes new envelopes to Kafka."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from reliable_channel.core.wire.waku import message_hash
from reliable_channel.transport.backoff import delay
from reliable_channel.transport.base import Source, list_hashes
from reliable_channel.transport.bridge_context import MARGIN_MS, BridgeContext
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.clock import has_passed
from reliable_channel.transport.kafka_records import OutRecord, envelope_record
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import TOPICS_PER_QUERY, StorePage, StoreQuery, split
from reliable_channel.transport.store.rest_node import StoreFault, StoreNodeError

_log = logging.getLogger(__name__)

IDLE_S = 1.0
PROBE_MS = 5_000
"""While the bridge's node does not answer, each store is asked this often whether it does."""
KEPT_PROBES = 10_000
"""Probes without an answer that are remembered of each store: those of fourteen hours."""
LONGEST_RETRY = 10
"""The wait between two attempts doubles up to this many times the first."""


ABLE = ("complete", "complete_unverified", "known_content_topics")
"""The answers that prove what was not sent, too; ``complete_unverified``: by a store protocol without hashes."""


class GapFiller:
    """Fills the gaps of a :class:`BridgeState`. A gap is closed when one store node that can know has returned every
    page of it, or when every node has, and none of them can know; until then it is tried again after ``retry_ms``,
    twice that, and so on up to ten times that. Counts ``recovered``.

    An answer proves presence. It proves absence only if the node could receive what was sent: it is not the bridge's
    own node in a gap in which that was unreachable, it answered the bridge during the gap (as far as the bridge asked),
    and it has what the other nodes have of the gap. ``is_node_up``: whether the bridge's own node answers."""

    def __init__(
        self,
        stores: StoreClient,
        bridge: BridgeContext,
        settle_ms: int = 5_000,
        retry_ms: int = 60_000,
        is_node_up: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stores = stores
        self._bridge = bridge
        self._settle_ms = settle_ms
        self._retry_ms = retry_ms
        self._not_before: dict[BridgeGap, int] = {}
        self._is_node_up = is_node_up
        self._unreachable: dict[str, deque[int]] = {}
        """Node → when (ms) it did not answer a probe."""
        self._probed_at = 0

    def run(self, stopping: threading.Event) -> None:
        """Fill until ``stopping``; raises ``Interrupted`` when stopped in the middle of a page."""
        while not stopping.is_set():
            if not self._is_node_up():
                self.probe()
            self.step(stopping)
            stopping.wait(IDLE_S)

    def probe(self) -> None:
        """Note which stores do not answer now."""
        now = self._bridge.now_ms()
        if not has_passed(PROBE_MS, self._probed_at, now):
            return
        self._probed_at = now
        for query in self._make_queries(BridgeGap(now, now, "probe"))[:1]:
            small = replace(query, start_time_ns=now * 1_000_000, end_time_ns=now * 1_000_000, include_data=False)
            for node, page in self._stores.walk_each(small):
                if isinstance(page, StoreNodeError) and page.fault is StoreFault.UNREACHABLE:
                    self._unreachable.setdefault(node, deque(maxlen=KEPT_PROBES)).append(now)

    def step(self, stopping: threading.Event | None = None) -> int:
        """Try every gap that is due; returns how many were closed."""
        closed, gaps = 0, self._bridge.state.gaps
        self._not_before = {gap: due for gap, due in self._not_before.items() if gap in gaps}
        for gap in gaps:
            if stopping is not None and stopping.is_set():
                break
            longest_ms = max(LONGEST_RETRY * self._retry_ms, self._settle_ms)
            due = self._not_before.get(gap, gap.to_ms + self._settle_ms)
            if 0 < due - self._bridge.now_ms() <= longest_ms:  # a longer wait: the clock was set back
                continue
            gap = self._bridge.state.count_attempt(gap)
            if self._fill(gap):
                closed += 1
            else:
                wait_ms = delay(gap.attempts, self._retry_ms, LONGEST_RETRY * self._retry_ms)
                self._not_before[gap] = self._bridge.now_ms() + int(wait_ms)
        return closed

    def _fill(self, gap: BridgeGap) -> bool:
        recovered = 0
        outcome: dict[str, str] = {}
        held: dict[str, set[bytes]] = {}
        topics = sorted({*self._bridge.state.content_topics, *self._bridge.topics.channels})

        def ask(query: StoreQuery, nodes: Collection[str] | None = None) -> list[str]:
            """Take what the nodes return; returns those that answer for named content topics only."""
            nonlocal recovered
            strict: list[str] = []
            for node, page in self._stores.walk_each(query, nodes):
                if not isinstance(page, StoreNodeError):
                    _note_answer(outcome, node, page, by_topic=nodes is not None)
                    held.setdefault(node, set()).update(_list_hashes_within(page, gap))
                    recovered += self._take(page, gap)
                elif page.fault is StoreFault.NEEDS_CONTENT_TOPICS and topics and nodes is None:
                    strict.append(node)
                else:
                    outcome[node] = page.fault.value
            return strict

        for query in self._make_queries(gap):
            if strict := ask(query):
                for lot in split(topics, TOPICS_PER_QUERY):
                    ask(replace(query, content_topics=lot), strict)
        if gap not in self._bridge.state.gaps:  # widened meanwhile: the whole of it is asked for
            return False
        ended = all(answer in ABLE for answer in outcome.values())
        for node, why in self._find_unable(gap, held).items():
            if outcome[node] in ABLE:
                outcome[node] = why
        answered = any(answer in ABLE for answer in outcome.values())
        status = "filled" if answered else "unfilled" if ended else "open"
        self._bridge.writer.write([self._bridge.gap_record(gap, status, recovered, outcome)])
        if status == "open":
            _log.warning("no store that can know answered for a gap of %s ms; again later", gap.to_ms - gap.from_ms)
            return False
        self._bridge.state.close_gap(gap)
        return True

    def _find_unable(self, gap: BridgeGap, held: Mapping[str, set[bytes]]) -> dict[str, str]:
        """The nodes whose answer does not prove that nothing else was sent in a gap, each with the reason."""
        every = set().union(*held.values())
        unable = {node: "incomplete" for node, hashes in held.items() if hashes < every}
        for node, times in self._unreachable.items():
            if any(gap.from_ms <= at <= gap.to_ms for at in times):
                unable[node] = "was_unreachable"
        is_down = gap.cause in ("node_unreachable", "bridge_suspended")  # it may have slept on the same machine
        if is_down and self._stores.includes(self._bridge.node):
            unable[self._bridge.node] = "was_unreachable"
        return {node: why for node, why in unable.items() if node in held}

    def _take(self, page: StorePage, gap: BridgeGap) -> int:
        """Write the new envelopes of a page, which were sent in a gap, to Kafka; returns how many there were."""
        new: dict[bytes, OutRecord] = {}
        seen: list[tuple[bytes, str]] = []
        with self._bridge.keeping:
            for entry in page.entries:
                if (
                    entry.message is not None
                    and entry.pubsub_topic is not None
                    and self._bridge.topics.wants(entry.message.content_topic)
                    and not any(self._bridge.recent.has(one) for one in list_hashes(entry))
                ):
                    new[entry.message_hash] = envelope_record(
                        self._bridge.topics.envelopes, entry.message, entry.pubsub_topic, Source.STORE
                    )
                    seen += [(one, entry.pubsub_topic) for one in list_hashes(entry)]
            self._bridge.write([*new.values(), *self._bridge.sightings(seen, Source.STORE, page.node)], gap)
            self._bridge.recent.add([one for one, _ in seen])
        self._bridge.count("recovered", len(new))
        return len(new)

    def _make_queries(self, gap: BridgeGap) -> list[StoreQuery]:
        start = max(0, gap.from_ms - MARGIN_MS) * 1_000_000
        end = (gap.to_ms + MARGIN_MS) * 1_000_000
        queries = []
        for pubsub_topic in sorted({p for p, _ in self._bridge.topics.waku}):
            named = sorted(c for p, c in self._bridge.topics.waku if p == pubsub_topic and c is not None)
            lots = [*split(named, TOPICS_PER_QUERY)] or [()]
            queries += [StoreQuery(pubsub_topic, lot, start, end) for lot in lots]
        return queries


def _note_answer(outcome: dict[str, str], node: str, page: StorePage, *, by_topic: bool) -> None:
    """Record in ``outcome`` what a page of a node proves; the weakest page decides."""
    if by_topic:
        outcome.setdefault(node, "known_content_topics")
        return
    answer = "complete" if all(entry.verified for entry in page.entries) else "complete_unverified"
    if outcome.setdefault(node, answer) == "complete":
        outcome[node] = answer


def _list_hashes_within(page: StorePage, gap: BridgeGap) -> set[bytes]:
    """The envelopes of a page that were sent in a gap, by their own timestamps: hashes without ``meta``, which Store v1
    leaves out."""
    since, until = gap.from_ms * 1_000_000, gap.to_ms * 1_000_000
    return {
        message_hash(entry.pubsub_topic or "", replace(entry.message, meta=None))
        for entry in page.entries
        if entry.message is not None and since <= (entry.message.timestamp or 0) <= until
    }
