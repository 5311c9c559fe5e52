"""Runs the bridge between a Waku node and Kafka, or the local loop that replaces it without a node.

Four threads: node → Kafka (``bridge_inbound``), Kafka → node (``bridge_outbound``), open gaps → stores → Kafka
(``bridge_gaps``), the node's health → Kafka (``bridge_health``); with the local loop the second and the last. State
that must survive a crash is in one state file and in Kafka's offsets (``docs/waku-node.md``).
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.bridge_context import BridgeContext, BridgeTopics, SharedRecent
from reliable_channel.transport.bridge_gaps import GapFiller
from reliable_channel.transport.bridge_health import INTERVAL_S, BridgeHealth
from reliable_channel.transport.bridge_inbound import Inbound
from reliable_channel.transport.bridge_outbound import (
    LOOP_POLICY,
    DispatchPolicy,
    Outbound,
    PendingDispatch,
    accept_in_loop,
)
from reliable_channel.transport.bridge_state import BridgeState, find_last_sighting
from reliable_channel.transport.bridge_writer import Interrupted, SafeWriter
from reliable_channel.transport.clock import SystemClock, now_ms
from reliable_channel.transport.dispatch_limit import Count, DispatchLimit, KeptCount
from reliable_channel.transport.health import Health, HealthState, Mode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import OffsetReader
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_health import node_has_rln, node_health
from reliable_channel.transport.waku_receiver import WakuReceiver

_log = logging.getLogger(__name__)

LOOP_HEALTH = Health(HealthState.HEALTHY, "local loop, without a Waku node")

STOP_TIMEOUT_S = 30.0

_COUNTED = ("received", "duplicates", "refused", "dispatched", "failed", "malformed", "gaps", "recovered", "delayed")
"""The numbers of :class:`BridgeStatus` that its threads count."""


@dataclass(frozen=True, slots=True)
class BridgeNode:
    """The node's side: its API and mode, and how often it is read."""

    api: WakuApi
    mode: Mode = Mode.RELAY
    poll_s: float = 0.5
    max_backoff_s: float = 15.0
    cache: int | None = None
    vantage: str = "bridge"
    gap_settle_ms: int = 5_000
    gap_retry_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class BridgeStatus:
    """Counts since the start, and the state now.

    ``reachable`` and ``ever_reachable`` are ``None`` for the local loop; ``fault`` is the reason why the node is not
    reachable; it is empty while the node is reachable and before the first attempt. The rate limit delayed the
    ``delayed`` envelopes earlier, and delays the ``waiting`` ones now."""

    received: int
    duplicates: int
    refused: int
    dispatched: int
    failed: int
    malformed: int
    gaps: int
    open_gaps: int
    recovered: int
    delayed: int
    waiting: int
    reachable: bool | None
    ever_reachable: bool | None = None
    fault: str = ""


class Bridge:
    """Runs until :meth:`stop`. ``node=None`` is the local loop: no node, no gaps, no state file.

    Start raises ``EnvironmentFault`` when Kafka does not answer or another bridge holds the state. A node that does not
    answer is not a fault: the bridge waits for it."""

    def __init__(
        self,
        clients: KafkaClients,
        topics: BridgeTopics,
        node: BridgeNode | None,
        stores: StoreClient,
        state_path: Path,
        group_id: str = "reliable-channel-bridge",
        rate_limit: RateLimitConfig | None = None,
        count: Count | None = None,
    ) -> None:
        self._limit: DispatchLimit[PendingDispatch] = DispatchLimit(rate_limit, count or KeptCount())
        self._clients = clients
        self._topics = topics
        self._node = node
        self._stores = stores
        self._group_id = group_id
        self._clock = SystemClock()
        self._state = BridgeState(state_path)
        self._stopping = threading.Event()
        self._counts: Counter[str] = Counter()
        self._count_lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._producer: EnvelopeProducer | None = None
        self._inbound: Inbound | None = None
        self.failure: BaseException | None = None
        """The error that ended a thread unexpectedly."""

    def start(self) -> None:
        """Start; returns when Kafka answers and the outgoing topic is being read."""
        if self._node is not None or self._limit.enabled:
            self._state.open()
        try:
            reader = OffsetReader(self._clients, self._topics.outgoing, self._group_id, "earliest")
            try:
                self._producer = EnvelopeProducer(self._clients.producer)
                self._recall()
                self._warn_of_repetition(reader)
                works = self._build_works(self._producer, reader)
            except BaseException:
                reader.close()
                raise
        except BaseException:
            self.stop()
            raise
        for name, work in works:
            thread = threading.Thread(target=self._run_guarded, args=(work,), name=f"bridge-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Finish the current batches, store offsets and state, end all threads. Stopping twice does nothing."""
        self._stopping.set()
        for thread in self._threads:  # by every caller: closing the state lets another bridge use it
            thread.join(STOP_TIMEOUT_S)
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(STOP_TIMEOUT_S)
        self._state.close()

    def wait(self, timeout_s: float) -> bool:
        """Wait; ``False`` when a thread has failed meanwhile (see ``failure``)."""
        self._stopping.wait(timeout_s)
        return self.failure is None

    def status(self) -> BridgeStatus:
        """The state of the bridge, for status output."""
        with self._count_lock:
            counts = Counter(self._counts)
        return BridgeStatus(
            **{name: counts[name] for name in _COUNTED},
            open_gaps=len(self._state.gaps),
            waiting=self._limit.waiting,
            reachable=None if self._inbound is None else self._inbound.reachable,
            ever_reachable=None if self._inbound is None else self._inbound.ever_reachable,
            fault="" if self._inbound is None else self._inbound.fault,
        )

    def _recall(self) -> None:
        """If the state file is gone, compute from this bridge's records in Kafka since when it may have missed
        envelopes."""
        if self._node is None or self._state.acknowledged_ms is not None:
            return
        seen = find_last_sighting(self._clients, self._topics.evidence, self._node.vantage, self._node.api.name)
        if seen is not None:
            _log.warning("The state of this bridge is missing: it continues from its last sighting in Kafka.")
            self._state.acknowledge(seen.at_ms, seen.hashes)

    def _warn_of_repetition(self, reader: OffsetReader) -> None:
        """Warn that all outgoing envelopes are dispatched, if a bridge was here before and Kafka has forgotten how far
        it came."""
        if self._state.acknowledged_ms is not None and reader.is_new and (count := reader.check()):
            _log.warning(
                "Kafka has no position of the group %s any more: all %d envelopes in %s are dispatched, also those that"
                " were before.",
                *(self._group_id, count, self._topics.outgoing),
            )

    def _build_works(self, producer: EnvelopeProducer, reader: OffsetReader) -> list[tuple[str, Callable[[], None]]]:
        stopping, node = self._stopping, self._node
        bridge = BridgeContext(
            self._topics,
            self._state,
            SharedRecent(self._state.recent),
            SafeWriter(producer, stopping),
            self._clock,
            self._add,
            "" if node is None else node.api.name,
            "" if node is None else node.vantage,
        )
        health = ("health", lambda: self._report_health(producer))
        if node is None:
            loop = Outbound(accept_in_loop, bridge, LOOP_POLICY, self._limit)
            return [("loop", lambda: loop.run(reader, stopping)), health]
        publish = node.api.relay_publish if node.mode is Mode.RELAY else node.api.lightpush
        policy = DispatchPolicy(max_backoff_s=node.max_backoff_s)
        outbound = Outbound(publish, bridge, policy, self._limit, lambda: node_has_rln(node.api))
        receiver = WakuReceiver(node.api, node.mode, self._clock, node.cache)
        inbound = self._inbound = Inbound(receiver, bridge, node.poll_s, node.max_backoff_s)
        filler = GapFiller(self._stores, bridge, node.gap_settle_ms, node.gap_retry_ms, lambda: inbound.reachable)
        return [
            ("receive", lambda: inbound.run(stopping)),
            ("dispatch", lambda: outbound.run(reader, stopping)),
            ("gaps", lambda: filler.run(stopping)),
            health,
        ]

    def _report_health(self, producer: EnvelopeProducer) -> None:
        """Report the health of this bridge's node to participants until it stops, and then that it stopped. A record
        that Kafka does not accept is not repeated, because the next one is newer."""
        node, name = self._node, "loop" if self._node is None else self._node.vantage or self._node.api.name

        def report(health: Health) -> None:
            value = BridgeHealth(name, health, now_ms(self._clock)).to_bytes()
            try:
                producer.send(OutRecord(self._topics.dispatched, name.encode(), value), lambda *_: None, 1.0)
            except (EnvironmentFault, SendBufferFull) as fault:
                _log.warning("the health of the bridge is not reported: %s", fault.cause)

        while not self._stopping.is_set():
            report(LOOP_HEALTH if node is None else node_health(node.api, node.mode))
            self._stopping.wait(INTERVAL_S)
        report(Health(HealthState.UNHEALTHY, "the bridge was stopped"))

    def _run_guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Interrupted:
            _log.info("stopped before a batch was safe; it is read again")
        except BaseException as error:  # surfaces in wait()
            if not (self._stopping.is_set() and isinstance(error, EnvironmentFault)):
                self.failure = error
            self._stopping.set()

    def _add(self, name: str, number: int) -> None:
        with self._count_lock:
            self._counts[name] += number
