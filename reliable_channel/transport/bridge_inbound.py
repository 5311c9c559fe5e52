"""Node → Kafka: every batch read from the node is safe in Kafka before the next read; gaps are found and recorded."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass

from reliable_channel.transport.bridge_state import BridgeState, Gap
from reliable_channel.transport.bridge_writer import OutRecord, SafeWriter, envelope_record
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.evidence import gap_record
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.waku_receiver import Batch, ReadInterrupted, WakuReceiver
from reliable_channel.transport.waku_rest import Backoff

_log = logging.getLogger(__name__)

SAVE_INTERVAL_MS = 1_000
"""How often an acknowledgement without envelopes is put on disk."""

Topics = Collection[tuple[str, str | None]]


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """Kafka topics, and the Waku topics that are read: pairs of pubsub topic and content topic (``None``: all)."""

    envelopes: str
    outgoing: str
    evidence: str
    waku: tuple[tuple[str, str | None], ...]

    def wants(self, content_topic: str) -> bool:
        """Whether envelopes of this content topic are forwarded."""
        named = {c for _, c in self.waku}
        return None in named or content_topic in named


class SharedRecent:
    """Message hashes that are safe in Kafka, shared by the threads of a bridge."""

    def __init__(self, known: Collection[bytes]) -> None:
        self._lock = threading.Lock()
        self._recent = RecentHashes(known=known)
        self._claimed: set[bytes] = set()

    def has(self, message_hash: bytes) -> bool:
        """Whether it is safe, or another thread is about to make it so."""
        with self._lock:
            return message_hash in self._recent or message_hash in self._claimed

    def claim(self, message_hash: bytes) -> None:
        """It will be safe soon: Kafka's offset of the outgoing record sees to that, also over a crash. Claims are not
        kept over a restart."""
        with self._lock:
            self._claimed.add(message_hash)

    def release(self, message_hash: bytes) -> None:
        """It will not be."""
        with self._lock:
            self._claimed.discard(message_hash)

    def add(self, message_hashes: Collection[bytes]) -> None:
        """Now they are."""
        with self._lock:
            for one in message_hashes:
                self._recent.add(one)
                self._claimed.discard(one)

    def newest(self, count: int) -> list[bytes]:
        """The last ones, oldest first."""
        with self._lock:
            return self._recent.newest(count)


class Inbound:
    """Reads one node. ``count`` is told ``received``, ``duplicates``, ``refused``, ``gaps`` as they happen."""

    def __init__(
        self,
        receiver: WakuReceiver,
        writer: SafeWriter,
        state: BridgeState,
        recent: SharedRecent,
        topics: BridgeTopics,
        node: str,
        clock: Clock,
        count: Callable[[str, int], None],
        poll_s: float = 0.5,
        max_backoff_s: float = 15.0,
    ) -> None:
        self._receiver = receiver
        self._writer = writer
        self._state = state
        self._recent = recent
        self._topics = topics
        self._node = node
        self._clock = clock
        self._count = count
        self._poll_s = poll_s
        self._backoff = Backoff(min(0.5, max_backoff_s), max_backoff_s)
        self._saved_ms = 0
        self._restarted = state.acknowledged_ms is not None
        self.reachable = False

    def run(self, stopping: threading.Event) -> None:
        """Read until ``stopping``; raises ``Interrupted`` when stopped in the middle of a batch."""
        while not stopping.is_set():
            stopping.wait(self.step())
        self._receiver.leave()

    def step(self) -> float:
        """One read and all that follows from it; seconds to wait before the next."""
        started_ms = now_ms(self._clock)
        wait = self._poll_s
        fault = ""
        try:
            batch = self._receiver.read(self._topics.waku)
        except ReadInterrupted as error:
            batch, fault = error.partial, error.cause
        self._keep(batch)
        if fault:
            if self.reachable:
                _log.warning("%s", fault)
            self.reachable = False
            return self._backoff.fault()
        self._record_gaps(batch, started_ms)
        self.reachable = True
        self._backoff.well()
        self._acknowledge(started_ms, bool(batch.envelopes))
        return 0.0 if batch.envelopes else wait

    def _keep(self, batch: Batch) -> None:
        """Everything of a batch that is new, into Kafka."""
        self._count("refused", batch.refused)
        new: dict[bytes, OutRecord] = {}
        for one in batch.envelopes:
            if not self._topics.wants(one.message.content_topic):
                continue
            if one.message_hash in new or self._recent.has(one.message_hash):
                self._count("duplicates", 1)
                continue
            new[one.message_hash] = envelope_record(self._topics.envelopes, one.message, one.pubsub_topic, one.source)
        self._writer.write(list(new.values()))
        self._recent.add(new)
        self._count("received", len(new))

    def _record_gaps(self, batch: Batch, started_ms: int) -> None:
        """A read that succeeded ends whatever gap there was."""
        causes = [batch.maybe_lost] if batch.maybe_lost else []
        if self._restarted:
            causes.append("bridge_restart")
        elif self._backoff.faults:
            # Also when the node lived on: an answer that broke off had been taken out of its cache.
            causes.append("node_unreachable")
        begin = self._state.acknowledged_ms
        for cause in causes if begin is not None else []:
            gap = self._state.open_gap(Gap(begin or 0, started_ms, cause))
            key, value = gap_record(gap, "open", self._node, self._topics.waku, now_ms(self._clock))
            self._writer.write([OutRecord(self._topics.evidence, key, value)])
            self._count("gaps", 1)
            _log.warning("a gap of %s ms (%s)", gap.to_ms - gap.from_ms, cause)
        self._restarted = False

    def _acknowledge(self, started_ms: int, envelopes: bool) -> None:
        # `started_ms`: what arrived at the node after this read began may not have been in it.
        if envelopes or self._state.acknowledged_ms is None or started_ms - self._saved_ms >= SAVE_INTERVAL_MS:
            self._saved_ms = started_ms
            self._state.acknowledge(started_ms, self._recent.newest(2_000))
