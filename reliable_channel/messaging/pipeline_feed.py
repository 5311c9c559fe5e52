"""Writes the sender's records to Kafka for the pipeline and, if no bridge is used, the dispatched and received
envelopes.

With the Kafka transport the bridge already writes the envelopes; then ``envelopes`` is off.
"""

from __future__ import annotations

import logging
import threading

from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.messaging.sender_events import LossReport, SenderEvent, to_json
from reliable_channel.transport.base import FailureReason, ReceivedEnvelope, Source
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord, envelope_record
from reliable_channel.transport.recent import RecentHashes

_log = logging.getLogger(__name__)

EVIDENCE_TOPIC = "waku.evidence"
"""Where the bridge writes its evidence as well; the records differ in ``kind``."""

MAX_BLOCK_S = 0.5
"""How long a row waits for room. Sending continues when Kafka does not answer: such a row is then counted as lost, and
those after it do not wait until Kafka has taken one."""


class Feed:
    """Receives rows and envelopes for the pipeline; this one discards them. A feed never raises once it has started,
    and never blocks for long."""

    def start(self) -> None:
        """Connect; starting twice does nothing."""

    def stop(self) -> None:
        """Flush and end."""

    def record(self, event: SenderEvent | LossReport) -> None:
        """One row of the sender's own records."""

    def record_dispatched(self, message: WakuMessage, pubsub_topic: str) -> None:
        """An envelope that the network accepted from this node."""

    def record_received(self, envelope: ReceivedEnvelope) -> None:
        """An envelope that came from the network."""


class KafkaFeed(Feed):
    """Writes to Kafka with acks=all. ``lost`` counts what could not be written: the sender does not stop for it, the
    pipeline then knows less."""

    def __init__(
        self,
        clients: KafkaClients,
        *,
        evidence_topic: str = EVIDENCE_TOPIC,
        envelopes_topic: str = "waku.envelopes",
        envelopes: bool = True,
    ) -> None:
        self._options = dict(clients.producer)
        self._evidence_topic = evidence_topic
        self._envelopes_topic = envelopes_topic
        self._envelopes = envelopes
        self._producer: EnvelopeProducer | None = None
        self._lock = threading.Lock()
        self._copied = RecentHashes()
        self._wait_s: float | None = None
        self.lost = 0

    def start(self) -> None:
        """Connect. Raises ``EnvironmentFault`` when no broker answers."""
        with self._lock:
            if self._producer is None:
                self._producer = EnvelopeProducer(self._options, max_block_s=MAX_BLOCK_S)

    def stop(self) -> None:
        """Flush within ten seconds and end."""
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(10.0)

    def record(self, event: SenderEvent | LossReport) -> None:
        """Key: the content topic, so that rows of one channel stay in order."""
        self._write(OutRecord(self._evidence_topic, event.content_topic.encode("utf-8"), to_json(event)))

    def record_dispatched(self, message: WakuMessage, pubsub_topic: str) -> None:
        """The copy with ``source=sender`` that the dispatcher of an envelope writes."""
        self._copy(message, pubsub_topic, Source.SENDER, message_hash(pubsub_topic, message))

    def record_received(self, envelope: ReceivedEnvelope) -> None:
        """Write a received envelope; the echo of one dispatched here is not written again, as with the bridge."""
        self._copy(envelope.message, envelope.pubsub_topic, envelope.source, envelope.message_hash)

    def _copy(self, message: WakuMessage, pubsub_topic: str, source: Source, envelope_hash: bytes) -> None:
        if not self._envelopes:
            return
        with self._lock:
            if not self._copied.add(envelope_hash):
                return
        self._write(envelope_record(self._envelopes_topic, message, pubsub_topic, source))

    def _write(self, record: OutRecord) -> None:
        if self._producer is None:
            self._on_settled(FailureReason.STOPPED, "not started")
            return
        try:
            self._producer.send(record, self._on_settled, self._wait_s)
        except ReliableChannelError as error:
            self._on_settled(FailureReason.UNREACHABLE, error.cause)

    def _on_settled(self, reason: FailureReason | None, detail: str) -> None:
        if reason is None:
            self._wait_s = None
            return
        self.lost += 1
        if self._wait_s is None:  # once until Kafka takes a row again: there may be thousands, in an outage of hours
            _log.warning("rows for the pipeline are lost (%s: %s)", reason, detail)
        self._wait_s = 0
