"""Holds what the threads of a bridge share: Kafka and Waku topics, recently written hashes, the clock, and the writer,
which repeats a batch until Kafka has acknowledged it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.backoff import Backoff
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.bridge_state import BridgeGap, BridgeState
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.evidence import SIGHTINGS_PER_RECORD, gap_record, sightings_record
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.store.model import split

_log = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 60.0
STOPPING_TIMEOUT_S = 10.0
"""The time that a batch still gets when the bridge stops; less than the bridge waits for its threads."""


class Interrupted(Exception):
    """The bridge is stopping, and the batch is not safe in Kafka."""


class SafeWriter:
    """Writes batches with acks from all replicas. Thread-safe; a thread waits only for its own batch."""

    def __init__(self, producer: EnvelopeProducer, stopping: threading.Event) -> None:
        self._producer = producer
        self._stopping = stopping

    def write(self, records: Sequence[OutRecord]) -> None:
        """Return when every record is acknowledged; records that the broker rejects as too large are dropped. Raises
        :class:`Interrupted` when the bridge stops before that."""
        backoff = Backoff(0.5, 10.0)
        left = list(records)
        dropped = 0
        while left:
            outcomes = self._try(left)
            dropped += sum(reason is FailureReason.TOO_LARGE for reason in outcomes)
            left = [
                record
                for record, reason in zip(left, outcomes, strict=True)
                if reason is not None and reason is not FailureReason.TOO_LARGE
            ]
            if left:
                if self._stopping.is_set():
                    raise Interrupted
                wait = backoff.next_wait()
                _log.warning("Kafka did not take %s records; again in %.1f s", len(left), wait)
                self._stopping.wait(wait)
        if dropped:
            _log.error("%s envelopes are over the broker's size limit and were dropped", dropped)

    def _try(self, records: Sequence[OutRecord]) -> list[FailureReason | None]:
        outcomes: list[FailureReason | None] = [FailureReason.UNREACHABLE] * len(records)
        left = len(records)
        settled = threading.Condition()

        def on_done(number: int, reason: FailureReason | None) -> None:
            nonlocal left
            with settled:
                outcomes[number] = reason
                left -= 1
                settled.notify_all()

        for number, record in enumerate(records):
            try:
                self._producer.send(
                    record,
                    lambda reason, _detail, number=number: on_done(number, reason),  # type: ignore[misc]
                )
            except EnvironmentFault as fault:
                _log.warning("%s", fault.cause)
                with settled:
                    left -= len(records) - number
                break
        deadline, stop_by = time.monotonic() + FLUSH_TIMEOUT_S, 0.0
        with settled:
            while left > 0 and (now := time.monotonic()) < deadline:
                if self._stopping.is_set():
                    deadline = min(deadline, stop_by := stop_by or now + STOPPING_TIMEOUT_S)
                settled.wait(0.5)
            return list(outcomes)


@dataclass(frozen=True, slots=True)
class BridgeTopics:
    """Kafka topics, and the Waku topics that are read: pairs of pubsub topic and content topic (``None``: all)."""

    envelopes: str
    outgoing: str
    dispatched: str
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
