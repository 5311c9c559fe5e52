"""Implements a node over the project's Kafka topics: sends into the outgoing topic, receives from the envelopes
topic.

It makes no difference here whether a bridge to a Waku node serves the topics, or the local loop (``reliable-channel
bridge --loop``), which copies the one into the other. *Queued* means that all replicas have the envelope; *sent* that a
bridge reported in the topic of dispatch results that a node accepted it. Without a bridge an envelope stays queued.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Literal

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import message_hash
from reliable_channel.transport.base import (
    FailureReason,
    NodeEvent,
    Queued,
    RateLimitNear,
    Received,
    ReceivedEnvelope,
    RecordsGone,
    RequestId,
    SendBufferFull,
    SendDelayed,
    Sent,
    Source,
)
from reliable_channel.transport.bridge_health import BridgesHealth, read_bridge_health
from reliable_channel.transport.byte_budget import ByteBudget
from reliable_channel.transport.clock import now_ms
from reliable_channel.transport.dispatch_limit import Count
from reliable_channel.transport.dispatch_results import DispatchResult, DispatchStatus, read_result
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import OffsetReader, describe_topic, make_missing_topic_fault
from reliable_channel.transport.kafka_producer import RECORD_OVERHEAD, EnvelopeProducer, translate_errors
from reliable_channel.transport.kafka_records import Headers, envelope_record, read_record
from reliable_channel.transport.node import Accepted, NodeBase
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.sharding import PubsubTopics
from reliable_channel.transport.store.model import StoreQuerying
from reliable_channel.transport.threads import FAULT_WAIT_S, RoundFaults, TurnLock, join
from reliable_channel.transport.unstored import Hold, UnstoredOffsets

_log = logging.getLogger(__name__)

POLL_MS = 200
"""How long a poll waits for records, so about how long ``stop`` waits for the readers."""
CHECK_INTERVAL_S = 10.0
"""About how often (s) the brokers are asked how far behind the reader is, while Kafka is healthy."""
STOP_TIMEOUT_S = 30.0
MAX_AWAITED_BYTES = 64 * 1024 * 1024
"""The envelopes that wait for a bridge's report: beyond it ``send`` waits for room."""


class AwaitedResults:
    """The sends of this process that no bridge has reported on yet, at most ``limit`` bytes of them. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self.begin()

    def begin(self) -> None:
        """Forget everything."""
        self._budget = ByteBudget(self._limit)
        self._sends: dict[RequestId, Accepted] = {}
        self._places: dict[RequestId, tuple[int, int]] = {}
        """The partition and offset of those that Kafka has."""

    def expect(self, accepted: Accepted, wait_s: float) -> None:
        """Add a send. Raises ``SendBufferFull`` when no room becomes free within ``wait_s``."""
        try:
            self._budget.take(_count_bytes(accepted), wait_s)
        except SendBufferFull:
            raise SendBufferFull(
                f"{len(self._sends)} envelopes are queued in Kafka, and no bridge takes them.",
                "Start a bridge: `reliable-channel bridge`, or `--loop` without a Waku node.",
            ) from None
        with self._lock:
            self._sends[accepted.request_id] = accepted

    def settle(self, request_id: RequestId) -> Accepted | None:
        """Remove and return a send; ``None`` when it is not awaited."""
        with self._lock:
            accepted = self._sends.pop(request_id, None)
            self._places.pop(request_id, None)
        if accepted is not None:
            self._budget.give_back(_count_bytes(accepted))
        return accepted

    def note_place(self, request_id: RequestId, partition: int, offset: int) -> None:
        """Note where Kafka has a send, unless a bridge has reported on it already."""
        with self._lock:
            if request_id in self._sends:
                self._places[request_id] = (partition, offset)

    def list_places(self) -> dict[RequestId, tuple[int, int]]:
        """The sends that Kafka has, with their partitions and offsets."""
        with self._lock:
            return dict(self._places)

    def end(self) -> list[RequestId]:
        """Remove and return all sends."""
        with self._lock:
            sends, self._sends = self._sends, {}
            self._places.clear()
        for accepted in sends.values():
            self._budget.give_back(_count_bytes(accepted))
        return list(sends)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._sends


def _count_bytes(accepted: Accepted) -> int:
    return accepted.message.size + RECORD_OVERHEAD


class KafkaNode(NodeBase):
    """A :class:`~reliable_channel.transport.base.Node` on Kafka.

    ``group_id`` names where the read offsets are kept: a participant with a group id continues where it stopped, and
    offsets are committed up to the first record that a listener holds (at least once: the same envelope may be reported
    again after a crash). A listener that never releases one keeps the group there; the health and the log name it.
    Without one, reading begins at ``start_at``. ``store`` answers ``query_store``.
    """

    def __init__(
        self,
        clients: KafkaClients,
        pubsub_topics: PubsubTopics,
        *,
        envelopes_topic: str = "waku.envelopes",
        outgoing_topic: str = "waku.outgoing",
        dispatched_topic: str = "waku.dispatched",
        group_id: str | None = None,
        start_at: Literal["latest", "earliest"] = "latest",
        store: StoreQuerying | None = None,
        max_block_s: float = 60.0,
        delivery_timeout_s: float = 120.0,
        stop_timeout_s: float = STOP_TIMEOUT_S,
    ) -> None:
        super().__init__(pubsub_topics, name="kafka-node")
        self._clients = clients
        self._envelopes_topic = envelopes_topic
        self._outgoing_topic = outgoing_topic
        self._dispatched_topic = dispatched_topic
        self._group_id = group_id
        self._start_at: Literal["latest", "earliest"] = start_at
        self.store = store
        self._max_block_s = max_block_s
        self._delivery_timeout_s = delivery_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._turns = TurnLock()
        self._producer: EnvelopeProducer | None = None
        self._stopping = threading.Event()
        self._closing = False
        self._threads: list[threading.Thread] = []
        self._awaited = AwaitedResults(MAX_AWAITED_BYTES)
        self._kafka = self._health
        """That of Kafka alone."""
        self._judging = threading.Lock()
        self._bridges = BridgesHealth(now_ms(self._clock))
        self._recent = RecentHashes()
        self._read: dict[int, int] = {}
        """The offset to read next, by partition."""
        self._unstored = UnstoredOffsets()
        self._behind: dict[int, int] = {}
        """The partitions whose records were not all stored at the last check, and their offsets to continue from."""
        self._stuck: dict[int, int] = {}
        """Those that were logged."""
        self._left_to_the_bridge: RateLimitConfig | None = None
        self._gone = ""
        """The records that were gone before this node read them, for its health."""
        self._is_shared = False
        """Another process used the group at the last check."""

    def start(self) -> None:
        with self._turns.take() as mine:
            if mine and self._producer is None:
                self._closing = False
                self._start()
                if self._closing:  # another thread wanted it meanwhile
                    self._stop()

    def _start(self) -> None:
        self._stopping = threading.Event()  # a thread that an earlier stop left behind must not go on
        self._awaited.begin()
        self._gone, self._is_shared = "", False
        # What is not stored is read again, and must not pass for known then.
        self._unstored, self._recent = UnstoredOffsets(), RecentHashes()
        readers = [
            OffsetReader(
                self._clients,
                self._envelopes_topic,
                self._group_id,
                self._start_at,
                on_gone=self._report_gone,
                marker_topic=self._dispatched_topic,
            )
        ]
        try:
            # Results of an earlier process belong to nobody: what it left unsettled is sent again.
            readers.append(
                OffsetReader(self._clients, self._dispatched_topic, None, "latest", on_gone=self._report_gone_results)
            )
            with translate_errors():
                if not describe_topic(self._clients, self._outgoing_topic).partitions:
                    raise make_missing_topic_fault(self._outgoing_topic)
            self._producer = EnvelopeProducer(
                self._clients.producer, max_block_s=self._max_block_s, delivery_timeout_s=self._delivery_timeout_s
            )
            self._producer.fetch_partitions(self._outgoing_topic)
        except BaseException:
            for reader in readers:
                reader.close()
            producer, self._producer = self._producer, None
            if producer is not None:
                producer.close()
            raise
        self._started = True
        self._dispatcher.start()
        self._bridges = BridgesHealth(now_ms(self._clock))
        self._note_kafka_health(Health(HealthState.HEALTHY, "Kafka answers"))
        works = (("reader", self._receive), ("results", self._follow_results))
        self._threads = [
            threading.Thread(target=work, args=(reader, self._stopping), name=f"kafka-node-{name}", daemon=True)
            for (name, work), reader in zip(works, readers, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._closing = True
        with self._turns.take() as mine:
            if mine:
                self._stop()

    def _stop(self) -> None:
        producer, self._producer, self._started = self._producer, None, False
        if producer is None:
            return
        producer.close(self._stop_timeout_s)  # settles every record, so before the dispatcher ends
        self._stopping.set()
        for request_id in self._awaited.end():
            self._emit(
                self._report_failed(request_id, FailureReason.STOPPED, "the node was stopped; no bridge has reported")
            )
        self._set_health(Health(HealthState.UNHEALTHY, "stopped"))
        self._dispatcher.stop()
        for thread in self._threads:
            join(thread, STOP_TIMEOUT_S)

    def limit_rate(self, config: RateLimitConfig, count: Count | None = None) -> None:
        """Ignored here: the bridge dispatches, so the bridge applies the limit."""
        if config.enabled and config != self._left_to_the_bridge:
            self._left_to_the_bridge = config
            _log.warning("Over Kafka the bridge's rate_limit counts; the one configured for channels has no effect.")

    def _submit(self, accepted: Accepted, max_wait_s: float | None) -> None:
        producer = self._producer
        if producer is None:
            raise self._make_stopped_error()
        accepted = replace(accepted, message=self._stamp(accepted.message))
        request_id, message, topic = accepted.request_id, accepted.message, accepted.pubsub_topic
        wait_s = self._max_block_s if max_wait_s is None else max_wait_s

        def on_done(reason: FailureReason | None, detail: str) -> None:
            if reason is None:
                if request_id not in self._awaited:
                    return  # the bridge was quicker
                self._emit(Queued(request_id, now_ms(self._clock)))
            elif self._awaited.settle(request_id) is not None:
                if self._closing:
                    reason = FailureReason.STOPPED
                self._emit(self._report_failed(request_id, reason, detail, message_hash(topic, message)))

        self._awaited.expect(accepted, wait_s)  # first: a bridge may report before Kafka has answered the producer
        try:
            record = envelope_record(self._outgoing_topic, message, topic, None, request_id, accepted.traffic)
            producer.send(record, on_done, wait_s, partial(self._awaited.note_place, request_id))
        except BaseException:
            self._awaited.settle(request_id)
            raise

    def _receive(self, reader: OffsetReader, stopping: threading.Event) -> None:
        committed: dict[int, int] = {}
        waits = 0
        faults = RoundFaults("nothing is received")
        try:
            while not stopping.is_set():
                try:
                    for record in reader.poll(POLL_MS):
                        self._take(record.partition, record.offset, record.value, record.headers)
                    stored = self._next_offsets()
                    reader.commit({p: o for p, o in stored.items() if committed.get(p) != o})
                    committed = stored  # not reached when it fails: the next round commits again
                    waits += 1
                    if waits * POLL_MS >= CHECK_INTERVAL_S * 1000 or self._kafka.state != HealthState.HEALTHY:
                        waits = 0
                        detail = self._describe_kafka(reader)
                        if not stopping.is_set():  # "stopped" must not become healthy again
                            self._note_kafka_health(Health(HealthState.HEALTHY, detail))
                    faults.clear()
                except Exception as error:
                    if not stopping.is_set():
                        is_outage = isinstance(error, EnvironmentFault)  # which the results name in the log
                        detail = str(error) if is_outage else faults.note(error)
                        self._note_kafka_health(Health(HealthState.UNHEALTHY, detail))
                        stopping.wait(FAULT_WAIT_S)
        finally:
            try:  # what the listeners have stored by now; the rest comes again
                reader.commit(self._next_offsets())
            except EnvironmentFault as fault:
                _log.warning("read offsets are not kept: %s", fault.cause)
            reader.close()

    def _describe_kafka(self, reader: OffsetReader) -> str:
        """Ask Kafka how far behind the reader is, and whether another process uses its group, for the health. Raises
        ``EnvironmentFault``."""
        behind, was_shared, self._is_shared = reader.check(), self._is_shared, reader.is_shared()
        if self._is_shared and not was_shared:
            _log.warning(
                "another process uses the group %s: after a restart each continues where the other one is, and misses"
                " what came before; give each a group of its own",
                self._group_id,
            )
        parts = (
            f"Kafka answers; {behind} records behind",
            f"; an open transaction withholds {reader.withheld}" if reader.withheld else "",
            f"; another process uses the group {self._group_id}" if self._is_shared else "",
        )
        return "".join((*parts, self._describe_unstored(), self._gone))

    def _next_offsets(self) -> dict[int, int]:
        """The offsets from which the group continues after a crash."""
        return self._unstored.limit(dict(self._read))  # copied first: what is read after that is held, if at all

    def _describe_unstored(self) -> str:
        """Describe for the health what is read and not stored, and log it once when nothing moves between two
        checks."""
        read = dict(self._read)
        behind = {p: offset for p, offset in self._unstored.limit(read).items() if offset < read[p]}
        stuck = {p: offset for p, offset in behind.items() if self._behind.get(p) == offset}
        self._behind = behind
        if self._group_id is None or not behind:
            return ""
        count = sum(read[p] - offset for p, offset in behind.items())
        text = f"{count} records are read, and a channel has not stored all of them"
        if stuck and stuck != self._stuck:
            self._stuck = stuck
            _log.warning("group %s stays at the offsets %s (by partition): %s", self._group_id, stuck, text)
        return f"; {text}"

    def _report_gone(self, gone: RecordsGone) -> None:
        self._gone = f"; gone before they were read: {gone}"
        self._emit(gone)

    def _report_gone_results(self, gone: RecordsGone) -> None:
        self._fail_awaited(str(gone))

    def _fail_awaited(self, why: str) -> None:
        """Fail what awaits a report. It may be among those that are gone, and nobody would ever hear of it; the network
        may have the envelope."""
        for request_id in self._awaited.end():
            detail = f"the report of its bridge may be gone: {why}"
            self._emit(self._report_failed(request_id, FailureReason.UNREACHABLE, detail))

    def _follow_results(self, reader: OffsetReader, stopping: threading.Event) -> None:
        """Read the bridges' reports of their health and of this process's envelopes."""
        faults = RoundFaults("results of dispatches are not read")
        checked = time.monotonic()
        try:
            while not stopping.is_set():
                try:
                    for record in reader.poll(POLL_MS):
                        if (bridge := read_bridge_health(record.value)) is not None:
                            self._bridges.store(bridge, now_ms(self._clock))
                            continue
                        for event in self._events_of(read_result(record.value)):
                            self._emit(event)
                    if not stopping.is_set():
                        self._judge()  # a bridge may be new, or gone
                    if time.monotonic() - checked >= CHECK_INTERVAL_S:
                        checked = time.monotonic()
                        self._fail_deleted(reader)
                    faults.clear()
                except Exception as error:
                    why = faults.note(error)
                    if not isinstance(error, EnvironmentFault):  # perhaps on a report that was read
                        self._fail_awaited(why)
                    stopping.wait(FAULT_WAIT_S)
        finally:
            reader.close()

    def _fail_deleted(self, reader: OffsetReader) -> None:
        """Fail the sends whose records Kafka has deleted: no bridge can take them any more. Raises
        ``EnvironmentFault``."""
        places = self._awaited.list_places()
        begins = reader.find_begins_of(self._outgoing_topic, {partition for partition, _ in places.values()})
        for request_id, (partition, offset) in places.items():
            if offset < begins[partition] and self._awaited.settle(request_id) is not None:
                detail = f"its record is gone from {self._outgoing_topic}, and no bridge has reported on it"
                self._emit(self._report_failed(request_id, FailureReason.UNREACHABLE, detail))

    def _note_kafka_health(self, health: Health) -> None:
        """Note Kafka's own health, and with it that of this node."""
        self._kafka = health
        self._judge()

    def _judge(self) -> None:
        """Compute the health of this node from Kafka's, and from that of the bridges and their Waku nodes."""
        with self._judging:  # else a thread that judged earlier could overwrite a newer health
            self._set_health(self._bridges.judge(self._kafka, now_ms(self._clock)))

    def _events_of(self, result: DispatchResult | None) -> list[NodeEvent]:
        """The events of one result; none for results of others."""
        if result is None:
            return []
        request_id = RequestId(result.request_id)
        if result.status is DispatchStatus.DELAYED:
            if request_id not in self._awaited:
                return []
            return [SendDelayed(request_id, result.until_ms or 0, result.at_ms)]
        accepted = self._awaited.settle(request_id)
        if accepted is None:
            return []
        topic = accepted.pubsub_topic
        # With its own bytes, so that nobody who writes into the topic can name another envelope.
        message = (
            accepted.message if result.timestamp is None else replace(accepted.message, timestamp=result.timestamp)
        )
        envelope_hash = message_hash(topic, message)
        if result.status is DispatchStatus.FAILED:
            failed = self._report_failed(
                request_id, result.reason or FailureReason.REFUSED, result.detail, envelope_hash
            )
            return [replace(failed, utilization=result.utilization)]
        events: list[NodeEvent] = [Sent(request_id, message, topic, envelope_hash, now_ms(self._clock))]
        return [*events, RateLimitNear(*result.near)] if result.near is not None else events

    def _take(self, partition: int, offset: int, value: bytes | None, headers: Headers) -> None:
        """Pass one record to the listeners if it is on a subscribed topic; its offset then counts as read, unless
        nobody is subscribed any more: it is for the next process of the group."""
        try:
            event = self._make_received(value, headers, Hold(self._unstored, partition, offset))
        except Exception as error:  # one record on which this program fails: those after it are read
            _log.exception("record %d of partition %d of %s was not read", offset, partition, self._envelopes_topic)
            why = f"a fault of this program ({type(error).__name__})"
            self._report_gone(RecordsGone(self._envelopes_topic, partition, offset, offset + 1, why))
            event = None

        def deliver() -> None:
            if event is not None:
                self._dispatcher.emit(event)
            if self._subscribed:
                self._read[partition] = offset + 1

        self._dispatcher.put_bounded(deliver, 0 if event is None else event.envelope.message.size)

    def _make_received(self, value: bytes | None, headers: Headers, hold: Hold) -> Received | None:
        record = read_record(value, headers)
        if isinstance(record, Malformed) or record.message.content_topic not in self._subscribed:
            return None  # what cannot be decoded is the pipeline's to quarantine
        envelope_hash = message_hash(record.pubsub_topic, record.message)
        if not self._recent.add(envelope_hash):
            return None
        source = record.source or Source.RELAY
        return Received(ReceivedEnvelope(record.message, record.pubsub_topic, envelope_hash, source, hold))
