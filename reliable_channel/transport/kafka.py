"""A node over the project's Kafka topics: sends into the outgoing topic, receives from the envelopes topic.

What stands behind the topics is not seen here: a bridge to a Waku node, or the local loop
(``reliable-channel bridge --loop``) that copies the one into the other. *Sent* means that all replicas have the
envelope.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any, Literal

from reliable_channel.errors import EnvironmentFault
from reliable_channel.store.model import StorePage, StoreQuery, StoreQuerying
from reliable_channel.transport.base import (
    FailureReason,
    NodeEvent,
    Received,
    ReceivedEnvelope,
    RequestId,
    Source,
    StoreUnavailable,
)
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.kafka_consumer import OffsetReader
from reliable_channel.transport.kafka_producer import DEFAULT_BUFFER_BYTES, EnvelopeProducer
from reliable_channel.transport.kafka_records import read_record
from reliable_channel.transport.node import NodeBase, new_request_id
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.sharding import PubsubTopics
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.waku import WakuMessage, message_hash

_log = logging.getLogger(__name__)

POLL_MS = 200
CHECK_INTERVAL_S = 10.0
STOP_TIMEOUT_S = 30.0


class KafkaNode(NodeBase):
    """A :class:`~reliable_channel.transport.base.Node` on Kafka.

    ``group_id`` names where the read offsets are kept: a participant with a group id goes on where it stopped, and
    offsets are committed only after the listeners have seen the records (at least once: the same envelope may come
    again after a crash). Without one, reading begins at ``start_at``. ``store`` answers ``query_store``.
    """

    def __init__(
        self,
        client_options: Mapping[str, Any],
        pubsub_topics: PubsubTopics,
        *,
        envelopes_topic: str = "waku.envelopes",
        outgoing_topic: str = "waku.outgoing",
        group_id: str | None = None,
        start_at: Literal["latest", "earliest"] = "latest",
        store: StoreQuerying | None = None,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        max_block_s: float = 60.0,
        delivery_timeout_s: float = 120.0,
        stop_timeout_s: float = STOP_TIMEOUT_S,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(pubsub_topics, clock)
        self._options = dict(client_options)
        self._envelopes_topic = envelopes_topic
        self._outgoing_topic = outgoing_topic
        self._group_id = group_id
        self._start_at: Literal["latest", "earliest"] = start_at
        self._store = store
        self._buffer_bytes = buffer_bytes
        self._max_block_s = max_block_s
        self._delivery_timeout_s = delivery_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._state = threading.Lock()
        self._producer: EnvelopeProducer | None = None
        self._stopping = threading.Event()
        self._closing = False
        self._reader_thread: threading.Thread | None = None
        self._dispatcher = Dispatcher("kafka-node")
        self._recent = RecentHashes()
        self._read: dict[int, int] = {}

    def start(self) -> None:
        with self._state:
            if self._producer is not None:
                return
            self._stopping = threading.Event()
            self._closing = False
            reader = OffsetReader(self._options, self._envelopes_topic, self._group_id, self._start_at)
            try:
                self._producer = EnvelopeProducer(
                    self._options, self._buffer_bytes, self._max_block_s, self._delivery_timeout_s
                )
                self._producer.know(self._outgoing_topic)
            except BaseException:
                reader.close()
                producer, self._producer = self._producer, None
                if producer is not None:
                    producer.close()
                raise
            self._dispatcher.start()
            self._set_health(Health(HealthState.HEALTHY, "Kafka answers"))
            self._reader_thread = threading.Thread(
                target=self._receive, args=(reader, self._stopping), name="kafka-node-reader", daemon=True
            )
            self._reader_thread.start()

    def stop(self) -> None:
        with self._state:
            producer, self._producer = self._producer, None
            thread, self._reader_thread = self._reader_thread, None
        if producer is None:
            return
        self._closing = True
        producer.close(self._stop_timeout_s)  # settles every send, so before the dispatcher ends
        self._stopping.set()
        self._set_health(Health(HealthState.UNHEALTHY, "stopped"))
        self._dispatcher.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join(STOP_TIMEOUT_S)

    def send(
        self, message: WakuMessage, pubsub_topic: str | None = None, *, max_wait_s: float | None = None
    ) -> RequestId:
        producer = self._producer
        if producer is None:
            raise self._not_started()
        message, topic = self._prepare(message, pubsub_topic)
        message = self._stamp(message)
        request_id = new_request_id()

        def done(reason: FailureReason | None, detail: str) -> None:
            if reason is None:
                self._emit(self._sent(request_id, message, topic))
            else:
                if self._closing:
                    reason = FailureReason.STOPPED
                self._emit(self._failed(request_id, reason, detail, message_hash(topic, message)))

        producer.send(self._outgoing_topic, message, topic, None, done, request_id, max_wait_s)
        return request_id

    def query_store(self, query: StoreQuery) -> StorePage:
        if self._store is None:
            raise StoreUnavailable("No store node is configured.", "Set store.nodes.")
        return self._store.query(query)

    def _receive(self, reader: OffsetReader, stopping: threading.Event) -> None:
        committed: dict[int, int] = {}
        waits = 0
        try:
            while not stopping.is_set():
                try:
                    for record in reader.poll(POLL_MS):
                        self._take(record.partition, record.offset, record.value, record.headers)
                    read = dict(self._read)
                    reader.commit({p: o for p, o in read.items() if committed.get(p) != o})
                    committed = read  # not reached when it fails: the next round commits again
                    waits += 1
                    if waits * POLL_MS >= CHECK_INTERVAL_S * 1000 or self._health.state != HealthState.HEALTHY:
                        waits = 0
                        behind = reader.check()
                        if not stopping.is_set():  # "stopped" must not become healthy again
                            self._set_health(Health(HealthState.HEALTHY, f"Kafka answers; {behind} records behind"))
                except EnvironmentFault as fault:
                    if not stopping.is_set():
                        self._set_health(Health(HealthState.UNHEALTHY, fault.cause))
                        stopping.wait(1.0)
        finally:
            try:  # what the listeners have seen by now; the rest comes again
                reader.commit(self._read)
            except EnvironmentFault as fault:
                _log.warning("read offsets are not kept: %s", fault.cause)
            reader.close()

    def _take(self, partition: int, offset: int, value: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> None:
        """Give one record to the listeners when it is on a subscribed topic; then its offset counts as read."""
        event = self._event_for(value, headers)

        def deliver() -> None:
            if event is not None:
                self._call_listeners(event)
            self._read[partition] = offset + 1

        self._dispatcher.put_bounded(deliver)

    def _event_for(self, value: bytes | None, headers: tuple[tuple[str, bytes], ...]) -> Received | None:
        record = read_record(value, headers)
        if isinstance(record, Malformed) or record.message.content_topic not in self._subscribed:
            return None  # what cannot be decoded is the pipeline's to quarantine
        found = message_hash(record.pubsub_topic, record.message)
        if not self._recent.add(found):
            return None
        source = record.source or Source.RELAY
        return Received(ReceivedEnvelope(record.message, record.pubsub_topic, found, source, now_ms(self._clock)))

    def _emit(self, event: NodeEvent) -> None:
        self._dispatcher.put(lambda: self._call_listeners(event))
