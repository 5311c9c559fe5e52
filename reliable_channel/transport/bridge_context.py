"""Holds what the threads of a bridge share: Kafka and Waku topics, recently written hashes, the clock, and the
writer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_state import BridgeGap, BridgeState
from reliable_channel.transport.bridge_writer import SafeWriter
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.evidence import SIGHTINGS_PER_RECORD, gap_record, sightings_record
from reliable_channel.transport.kafka_records import OutRecord
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.store.model import split

DROPPED_MS = 60_000
"""Envelopes that Kafka does not take are one gap for each such time, and not one each: anybody can send them."""
MARGIN_MS = 30_000
"""Stores are asked for a gap that is wider by this at both ends. That of dropped envelopes begins so much earlier,
because they were sent before they came."""
UNKNOWN_MS = 86_400_000
"""How far back (ms) a gap begins if the clock was set, so that nobody knows since when it lasts: as far as participants
ask stores (``query_window_ms``)."""


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """Kafka topics, and the Waku topics that are read: pairs of pubsub topic and content topic (``None``: all)."""

    envelopes: str
    outgoing: str
    dispatched: str
    evidence: str
    waku: tuple[tuple[str, str | None], ...]
    channels: tuple[str, ...] = ()
    """Content topics that store nodes are asked for by name, also if a thousand of strangers were seen since."""

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
        """Whether a hash is safe in Kafka, or another thread is about to write it."""
        with self._lock:
            return message_hash in self._recent or message_hash in self._claimed

    def claim(self, message_hash: bytes) -> None:
        """Note that a hash will be safe soon; Kafka's offset of the outgoing record ensures that, also after a crash.
        Claims are not kept across a restart."""
        with self._lock:
            self._claimed.add(message_hash)

    def release(self, message_hash: bytes) -> None:
        """Withdraw a claim."""
        with self._lock:
            self._claimed.discard(message_hash)

    def add(self, message_hashes: Collection[bytes]) -> None:
        """Note that these hashes are safe in Kafka."""
        with self._lock:
            for one in message_hashes:
                self._recent.add(one)
                self._claimed.discard(one)

    def list_newest(self, count: int) -> list[bytes]:
        """The last hashes, oldest first."""
        with self._lock:
            return self._recent.list_newest(count)


@dataclass(frozen=True, slots=True)
class BridgeContext:
    """One bridge, as its threads see it. ``vantage`` is its name and ``node`` the address of its Waku node, both empty
    for the local loop; ``count(name, number)`` adds to the numbers of
    :class:`~reliable_channel.transport.bridge.BridgeStatus`."""

    topics: BridgeTopics
    state: BridgeState
    recent: SharedRecent
    writer: SafeWriter
    clock: Clock
    count: Callable[[str, int], None]
    node: str = ""
    vantage: str = ""
    subscribed: threading.Event = field(default_factory=threading.Event)
    """Set when the node was read for the first time, so that it has joined the topics that are published to."""
    keeping: threading.Lock = field(default_factory=threading.Lock)
    """Held from the check whether an envelope is new until it is in ``recent``, because a relay and a store may deliver
    it at the same time."""

    def write(self, records: Sequence[OutRecord], sent_within: BridgeGap | None = None) -> None:
        """Write records to Kafka. Envelopes that are too large for their topic leave a gap that nothing can fill: as
        long as the time that they were ``sent_within``, or until now. Raises ``Interrupted``."""
        dropped = self.writer.write(records)
        if any(one.topic == self.topics.envelopes for one in dropped):
            now = self.now_ms()
            gap = BridgeGap(now - now % DROPPED_MS - MARGIN_MS, now, "too_large")
            if sent_within is not None:
                gap = replace(gap, from_ms=sent_within.from_ms, to_ms=sent_within.to_ms)
            self.writer.write([self.gap_record(gap, "unfilled")])
            self.count("gaps", 1)

    def gap_record(
        self, gap: BridgeGap, status: str, recovered: int = 0, stores: Mapping[str, str] | None = None
    ) -> OutRecord:
        """A gap of this bridge as a record for the evidence topic."""
        key, value = gap_record(
            gap, status, self.node, self.topics.waku, self.now_ms(), recovered, stores, vantage=self.vantage
        )
        return OutRecord(self.topics.evidence, key, value)

    def sightings(self, seen: Iterable[tuple[bytes, str]], source: Source, node: str | None = None) -> list[OutRecord]:
        """Records that this bridge saw envelopes (message hash, pubsub topic), at its own node unless ``node`` says
        another; none for the local loop, which sees no network."""
        if not self.vantage:
            return []
        by_topic: dict[str, list[bytes]] = {}
        for message_hash, pubsub_topic in seen:
            by_topic.setdefault(pubsub_topic, []).append(message_hash)
        records = []
        for pubsub_topic, hashes in by_topic.items():
            for part in split(hashes, SIGHTINGS_PER_RECORD):
                at = node if node is not None else self.node
                key, value = sightings_record(self.vantage, at, source, pubsub_topic, part, self.now_ms())
                records.append(OutRecord(self.topics.evidence, key, value))
        return records

    def reads(self, pubsub_topic: str) -> bool:
        """Whether this bridge reads, and so joins, a pubsub topic."""
        return any(pubsub_topic == read for read, _ in self.topics.waku)

    def now_ms(self) -> int:
        """Unix ms."""
        return now_ms(self.clock)
