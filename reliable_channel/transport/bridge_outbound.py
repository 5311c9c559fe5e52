"""Kafka → node: outgoing envelopes in order, each copied to the envelopes topic with ``source=sender`` once the node
has taken it; the offset is kept only after that copy is safe."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from reliable_channel.errors import EnvironmentFault
from reliable_channel.transport.base import RETRIABLE, FailureReason, Source
from reliable_channel.transport.bridge_context import BridgeContext
from reliable_channel.transport.bridge_writer import OutRecord, envelope_record
from reliable_channel.transport.clock import Timestamps
from reliable_channel.transport.evidence import dispatch_record
from reliable_channel.transport.http import NodeUnreachable
from reliable_channel.transport.kafka_consumer import OffsetReader, RawRecord
from reliable_channel.transport.kafka_records import REQUEST_HEADER, Record, read_record
from reliable_channel.transport.waku_api import Published
from reliable_channel.transport.waku_rest import Backoff
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.waku import WakuMessage, message_hash

_log = logging.getLogger(__name__)

Publish = Callable[[str, WakuMessage], Published]
"""(pubsub topic, envelope) → the node's answer; raises ``NodeUnreachable``."""

POLL_MS = 500


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """When an envelope gets a fresh timestamp, and when it is given up; ms. ``batch`` records are taken at once: their
    copies are acknowledged together."""

    restamp_after_ms: int = 15_000
    give_up_after_ms: int = 600_000
    max_backoff_s: float = 15.0
    batch: int = 50


LOOP_POLICY = DispatchPolicy(restamp_after_ms=2**62, batch=500)
"""Nothing ages in a loop without a network."""


def loop_publish(_pubsub_topic: str, _message: WakuMessage) -> Published:
    """A node that is not there takes everything: the local loop (protocol.md §2)."""
    return Published()


class Outbound:
    """Dispatches the outgoing topic. Counts ``dispatched``, ``failed`` and ``malformed`` as they happen.

    An envelope the node cannot take now holds up those behind it: order within a channel matters more than speed. The
    same bytes are tried again while they are fresh, so that a duplicate is recognised as the success that it is."""

    def __init__(self, publish: Publish, bridge: BridgeContext, policy: DispatchPolicy | None = None) -> None:
        self._publish = publish
        self._bridge = bridge
        self._policy = policy or DispatchPolicy()
        self._timestamps = Timestamps(bridge.clock)

    def run(self, reader: OffsetReader, stopping: threading.Event) -> None:
        """Dispatch until ``stopping``, then close the reader. Raises ``Interrupted`` when a batch is not safe."""
        backoff = Backoff(0.5, self._policy.max_backoff_s)
        done_to: dict[int, int] = {}
        try:
            while not stopping.is_set():
                try:
                    # What a broken commit left over goes first: dispatched is dispatched.
                    reader.commit(done_to)
                    done_to.clear()
                    records = reader.poll(POLL_MS)
                    backoff.well()
                except EnvironmentFault as fault:
                    _log.warning("%s", fault.cause)
                    stopping.wait(backoff.fault())
                    continue
                for begin in range(0, len(records), self._policy.batch):
                    part = records[begin : begin + self._policy.batch]
                    done = self.dispatch(part, stopping)
                    done_to |= {record.partition: record.offset + 1 for record in done}
                    if len(done) < len(part):
                        return  # stopping: the rest is read again by the next bridge
        finally:
            try:
                reader.commit(done_to)
            except EnvironmentFault as fault:
                _log.warning("offsets are not kept, some envelopes will be dispatched again: %s", fault.cause)
            reader.close()

    def dispatch(self, records: list[RawRecord], stopping: threading.Event) -> list[RawRecord]:
        """Dispatch a batch; the records that are dealt with and whose copies are safe, a prefix of the batch."""
        done: list[RawRecord] = []
        copies: list[OutRecord] = []
        hashes: list[bytes] = []
        seen: list[tuple[bytes, str]] = []
        for raw in records:
            record = read_record(raw.value, raw.headers)
            if isinstance(record, Malformed):
                _log.error("outgoing record %s:%s is no envelope: %s", raw.partition, raw.offset, record.reason)
                self._bridge.count("malformed", 1)
                done.append(raw)
                continue
            request_id = dict(raw.headers).get(REQUEST_HEADER, b"")[:64].decode("ascii", "replace") or None
            if not self._joined(record.pubsub_topic, stopping):
                break  # stopping
            message, outcome = self._deliver(record, request_id, stopping, copies)
            if outcome is None:
                break  # stopping
            if outcome.reason is None:
                copies.append(
                    envelope_record(self._bridge.topics.envelopes, message, record.pubsub_topic, Source.SENDER)
                )
                hashes.append(message_hash(record.pubsub_topic, message))
                seen.append((hashes[-1], record.pubsub_topic))
                self._bridge.count("dispatched", 1)
            done.append(raw)
        self._bridge.writer.write([*copies, *self._bridge.sightings(seen, Source.SENDER)])
        self._bridge.recent.add(hashes)
        return done

    def _deliver(
        self, record: Record, request_id: str | None, stopping: threading.Event, evidence: list[OutRecord]
    ) -> tuple[WakuMessage, Published | None]:
        """Publish until the node takes it, refuses it, or time is up; ``None`` when stopped before that."""
        message = self._fresh(record.message)
        backoff = Backoff(0.5, self._policy.max_backoff_s)
        begun_ms = self._bridge.now_ms()
        while True:
            # Before it is out: its echo, or a store, may be quicker than its copy.
            found = message_hash(record.pubsub_topic, message)
            self._bridge.recent.claim(found)
            try:
                outcome = self._publish(record.pubsub_topic, message)
            except NodeUnreachable as error:
                outcome = Published(FailureReason.UNREACHABLE, error.cause)
            if outcome.not_subscribed and self._bridge.reads(record.pubsub_topic):
                outcome = replace(outcome, reason=FailureReason.UNREACHABLE)  # it joins with the next read
            if outcome.reason is FailureReason.DUPLICATE:
                outcome = Published()  # the network has it
            if outcome.reason is None:
                return message, outcome
            over = self._bridge.now_ms() - begun_ms >= self._policy.give_up_after_ms
            final = over or outcome.reason not in RETRIABLE
            if final or (outcome.reason is FailureReason.RATE_LIMITED and not backoff.faults):
                evidence.append(self._evidence(record, message, outcome, request_id, final))
            if final:
                self._bridge.recent.release(found)
                _log.error("an envelope on %s was not dispatched: %s", record.message.content_topic, outcome.reason)
                self._bridge.count("failed", 1)
                return message, outcome
            if stopping.wait(backoff.fault()):
                self._bridge.recent.release(found)
                return message, None
            fresh = self._fresh(message)
            if fresh is not message:
                self._bridge.recent.release(found)  # should it be out after all, it is an envelope of its own
            message = fresh

    def _joined(self, pubsub_topic: str, stopping: threading.Event) -> bool:
        """Wait until the node has joined a topic that this bridge reads; ``False`` when stopped before that."""
        while self._bridge.reads(pubsub_topic) and not self._bridge.subscribed.wait(0.1):
            if stopping.is_set():
                return False
        return True

    def _evidence(
        self, record: Record, message: WakuMessage, outcome: Published, request_id: str | None, final: bool
    ) -> OutRecord:
        key, value = dispatch_record(
            "failed" if final else "rate_limited",
            pubsub_topic=record.pubsub_topic,
            content_topic=message.content_topic,
            envelope_hash=message_hash(record.pubsub_topic, message),
            at_ms=self._bridge.now_ms(),
            request_id=request_id,
            reason=outcome.reason.value if outcome.reason else None,
            detail=outcome.detail,
        )
        return OutRecord(self._bridge.topics.evidence, key, value)

    def _fresh(self, message: WakuMessage) -> WakuMessage:
        """The envelope with a timestamp that stores still take."""
        age_ms = None if message.timestamp is None else (self._bridge.clock.now_ns() - message.timestamp) // 1_000_000
        if age_ms is not None and age_ms < self._policy.restamp_after_ms:
            return message
        return replace(message, timestamp=self._timestamps.next_ns())
