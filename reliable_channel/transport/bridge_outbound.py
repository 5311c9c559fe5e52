"""Publishes outgoing envelopes from Kafka to the node, in order. Each one is copied to the envelopes topic with
``source=sender`` once the node has accepted it, and its offset is committed only after that copy is safe."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import Admitted, Delayed, EphemeralDropped, LimitApproaching, RateLimitEvent
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.backoff import Backoff
from reliable_channel.transport.base import RETRIABLE, FailureReason, Source
from reliable_channel.transport.bridge_context import DROPPED_MS, MARGIN_MS, UNKNOWN_MS, BridgeContext
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.clock import Timestamps, has_passed
from reliable_channel.transport.dispatch_limit import DispatchLimit
from reliable_channel.transport.dispatch_results import MAX_REQUEST_ID, DispatchResult, DispatchStatus
from reliable_channel.transport.evidence import dispatch_record
from reliable_channel.transport.http.client import NodeUnreachable
from reliable_channel.transport.kafka_consumer import OffsetReader, RawRecord
from reliable_channel.transport.kafka_records import (
    REQUEST_HEADER,
    KafkaEnvelope,
    OutRecord,
    envelope_record,
    key_of,
    read_record,
    traffic_of,
)
from reliable_channel.transport.waku_api import Published

_log = logging.getLogger(__name__)

Publish = Callable[[str, WakuMessage], Published]
"""(pubsub topic, envelope) → the node's answer; raises ``NodeUnreachable``."""

POLL_MS = 500
MAX_AHEAD = 10_000
MAX_AHEAD_BYTES = 64 * 1024 * 1024
"""The maximum number of records read beyond the first that waits for the rate limit, and of the bytes that wait."""
GIVE_UP_AFTER_MS = 600_000
"""An envelope that the node cannot take is given up after this time, with a record."""
LONGEST_ATTEMPT_MS = 60_000
"""An attempt that took longer (ms) was interrupted by a sleep of the machine."""
RLN_INTERVAL_MS = 30_000
"""How often a node is asked whether RLN is on."""


@dataclass(frozen=True, slots=True)
class DispatchPolicy:
    """After how many ms an envelope gets a fresh timestamp: stores refuse 20 s. ``batch`` records are processed
    together, and their copies are acknowledged together."""

    restamp_after_ms: int = 15_000
    max_backoff_s: float = 15.0
    batch: int = 50


LOOP_POLICY = DispatchPolicy(restamp_after_ms=2**62, batch=500)
"""For the local loop, where envelopes do not age."""


def accept_in_loop(_pubsub_topic: str, _message: WakuMessage) -> Published:
    """The local loop: accepts everything in place of a node (14/WAKU2-MESSAGE)."""
    return Published()


@dataclass(frozen=True, slots=True)
class PendingDispatch:
    """A record of the outgoing topic that contains an envelope."""

    raw: RawRecord
    record: KafkaEnvelope
    request_id: str | None


class DispatchBatch:
    """What a batch must write to Kafka before its input counts as done. ``stopping``: the bridge is to end."""

    def __init__(self, bridge: BridgeContext, stopping: threading.Event) -> None:
        self.stopping = stopping
        self.records: list[OutRecord] = []
        self.sent: list[tuple[bytes, str]] = []
        """Message hash and pubsub topic of the envelopes that were published."""
        self.done: list[RawRecord] = []
        """The input records whose output is not written yet."""
        self.safe: list[RawRecord] = []
        """Those whose output is."""
        self._bridge = bridge

    def write(self) -> None:
        """Write the output; the input records that are done are then safe."""
        now = self._bridge.now_ms()
        # To its sender a message was sent when it came to Kafka, however long it waited for an epoch or a bridge.
        since = max(now - UNKNOWN_MS, min([now, *(raw.at_ms for raw in self.done if raw.at_ms > 0)]))
        waited = BridgeGap(since - since % DROPPED_MS - MARGIN_MS, now, "too_large")
        self._bridge.write([*self.records, *self._bridge.sightings(self.sent, Source.SENDER)], waited)
        self._bridge.recent.add([envelope_hash for envelope_hash, _ in self.sent])
        self.safe += self.done
        for part in (self.records, self.sent, self.done):
            part.clear()


class OffsetProgress:
    """Which records of the outgoing topic are read and which are done. Offsets are committed up to the first record
    that is not done; records done beyond it are ``done_ahead``."""

    def __init__(self) -> None:
        self._read: dict[int, deque[RawRecord]] = {}
        self._done: dict[tuple[int, int], str] = {}
        self._next: dict[int, int] = {}

    def read(self, records: Sequence[RawRecord]) -> None:
        """Note records as read, in order."""
        for raw in records:
            self._read.setdefault(raw.partition, deque()).append(raw)

    def record_done(self, records: Sequence[RawRecord]) -> None:
        """Note records as done."""
        for raw in records:
            self._done[raw.partition, raw.offset] = digest_of(raw)
        for partition, waiting in self._read.items():
            while waiting and (partition, waiting[0].offset) in self._done:
                raw = waiting.popleft()
                del self._done[partition, raw.offset]
                self._next[partition] = raw.offset + 1

    @property
    def next_offsets(self) -> dict[int, int]:
        """The offsets to continue from, by partition, that are not committed yet."""
        return dict(self._next)

    def clear_offsets(self) -> None:
        """Note offsets as committed."""
        self._next.clear()

    @property
    def done_ahead(self) -> dict[tuple[int, int], str]:
        """Records beyond the offsets that are done, by partition and offset, with their digests."""
        return dict(self._done)

    @property
    def open(self) -> int:
        """Records read beyond the offsets."""
        return sum(map(len, self._read.values()))


def digest_of(raw: RawRecord) -> str:
    """Distinguishes a record from another one at the same offset, in case the topic was recreated."""
    return hashlib.sha256(raw.value or b"").hexdigest()[:16]


class Outbound:
    """Dispatches the outgoing topic, and reports the result of each envelope in the topic of dispatch results. Counts
    ``dispatched``, ``failed``, ``delayed`` and ``malformed`` as they happen.

    An envelope that the node cannot accept now holds up those behind it: order within a channel matters more than
    speed. The same bytes are tried again while they are fresh, so that a duplicate is recognised as a success. Within a
    rate limit, content goes before control traffic, so the bridge reads up to :data:`MAX_AHEAD` records beyond those
    that wait."""

    def __init__(
        self,
        publish: Publish,
        bridge: BridgeContext,
        policy: DispatchPolicy | None = None,
        limit: DispatchLimit[PendingDispatch] | None = None,
        has_rln: Callable[[], bool | None] | None = None,
    ) -> None:
        self._publish = publish
        self._bridge = bridge
        self._policy = policy or DispatchPolicy()
        self._limit: DispatchLimit[PendingDispatch] = limit or DispatchLimit()
        self._has_rln = has_rln
        self._rln_checked_ms: int | None = None
        self._waiting_bytes = 0
        self._timestamps = Timestamps(bridge.clock)

    def run(self, reader: OffsetReader, stopping: threading.Event) -> None:
        """Dispatch until ``stopping``, then close the reader. Raises ``Interrupted`` when a batch is not safe."""
        backoff = Backoff(0.5, self._policy.max_backoff_s)
        progress = OffsetProgress()
        try:
            while not stopping.is_set():
                self._look_for_rln()
                try:
                    # What a broken commit left over goes first: dispatched is dispatched.
                    self._commit(reader, progress)
                    if progress.open >= MAX_AHEAD or self._waiting_bytes >= MAX_AHEAD_BYTES:
                        stopping.wait(POLL_MS / 1000)
                        records = []
                    else:
                        records = reader.poll(POLL_MS)
                    backoff.reset()
                except EnvironmentFault as fault:
                    _log.warning("%s", fault)
                    stopping.wait(backoff.next_wait())
                    continue
                progress.read(records)
                for begin in range(0, max(1, len(records)), self._policy.batch):
                    progress.record_done(self.dispatch(records[begin : begin + self._policy.batch], stopping))
                    if self._limit.waiting:
                        self._bridge.state.note_dispatched(progress.done_ahead)
                    if stopping.is_set():
                        return  # the rest is read again by the next bridge
                    with suppress(EnvironmentFault):  # tried again before the next poll
                        self._commit(reader, progress)
        finally:
            try:
                reader.commit(progress.next_offsets)
            except EnvironmentFault as fault:
                _log.warning("offsets were not stored, so some envelopes will be dispatched again: %s", fault.cause)
            reader.close()

    @staticmethod
    def _commit(reader: OffsetReader, progress: OffsetProgress) -> None:
        reader.commit(progress.next_offsets)
        progress.clear_offsets()

    def dispatch(self, records: list[RawRecord], stopping: threading.Event) -> list[RawRecord]:
        """Dispatch a batch, and the waiting envelopes whose turn it is; returns the records that are done and whose
        results are safe."""
        batch = DispatchBatch(self._bridge, stopping)
        if not self._follow(self._ask(lambda: self._limit.tick(self._bridge.now_ms()), stopping), batch):
            return batch.safe
        for raw in records:
            record = read_record(raw.value, raw.headers)
            if isinstance(record, Malformed):
                _log.error("outgoing record %s:%s is no envelope: %s", raw.partition, raw.offset, record.reason)
                self._bridge.count("malformed", 1)
                batch.done.append(raw)
                continue
            if self._bridge.state.was_dispatched(raw.partition, raw.offset, digest_of(raw)):
                batch.done.append(raw)
                continue
            named = dict(raw.headers).get(REQUEST_HEADER) or b""  # a header may have no value
            pending = PendingDispatch(raw, record, named[:MAX_REQUEST_ID].decode("ascii", "replace") or None)
            traffic = traffic_of(record.message, raw.headers)
            self._waiting_bytes += len(raw.value or b"")
            events = self._ask(lambda: self._limit.submit(pending, traffic, self._bridge.now_ms()), stopping)  # noqa: B023
            if not self._follow(events, batch):
                return batch.safe
        batch.write()
        return batch.safe

    def _follow(self, events: Sequence[RateLimitEvent[PendingDispatch]] | None, batch: DispatchBatch) -> bool:
        """Carry out the decision of the rate limit; ``False`` when stopped before that was done."""
        for number, event in enumerate(events or ()):
            match event:
                case Admitted(pending):
                    following = events[number + 1] if events and number + 1 < len(events) else None
                    near = following if isinstance(following, LimitApproaching) else None
                    if not self._publish_one(pending, near, batch):
                        batch.write()
                        return False
                    self._waiting_bytes -= len(pending.raw.value or b"")
                case Delayed(pending, until):
                    self._bridge.count("delayed", 1)
                    result = self._make_results(pending, DispatchStatus.DELAYED, until_ms=until)
                    detail = f"held back until {until} ms by the rate limit"
                    message = pending.record.message
                    evidence = self._make_evidence("rate_limited", pending, message, "rate_limited", detail)
                    batch.records += [*result, evidence]
                case EphemeralDropped(pending, used, limit):
                    self._bridge.count("failed", 1)
                    self._waiting_bytes -= len(pending.raw.value or b"")
                    batch.records += self._make_results(
                        pending,
                        DispatchStatus.FAILED,
                        reason=FailureReason.DROPPED,
                        detail=f"{used} of {limit} envelopes of this epoch are used",
                        utilization=used / limit,
                    )
                    batch.done.append(pending.raw)
                case LimitApproaching(used, limit, _):
                    _log.warning("%d of the %d envelopes of this epoch are used", used, limit)
        if events is None:
            batch.write()
        return events is not None

    def _publish_one(self, pending: PendingDispatch, near: LimitApproaching | None, batch: DispatchBatch) -> bool:
        """Publish one envelope, or give up on it; ``False`` when stopped before that."""
        record = pending.record
        if not self._wait_until_joined(record.pubsub_topic, batch.stopping):
            return False
        message, outcome = self._deliver(pending, batch)
        if outcome is None:
            return False
        envelope_hash = message_hash(record.pubsub_topic, message)
        if outcome.reason is None:
            batch.records.append(
                envelope_record(self._bridge.topics.envelopes, message, record.pubsub_topic, Source.SENDER)
            )
            batch.sent.append((envelope_hash, record.pubsub_topic))
            self._bridge.count("dispatched", 1)
            batch.records += self._make_results(
                pending,
                DispatchStatus.ACCEPTED,
                timestamp=message.timestamp,
                envelope_hash=envelope_hash.hex(),
                near=None if near is None else (near.used, near.limit, near.until),
            )
        else:
            batch.records += self._make_results(
                pending,
                DispatchStatus.FAILED,
                reason=outcome.reason,
                detail=outcome.detail,
                timestamp=message.timestamp,
                envelope_hash=envelope_hash.hex(),
            )
        batch.done.append(pending.raw)
        return True

    def _make_results(self, pending: PendingDispatch, status: DispatchStatus, **more: Any) -> list[OutRecord]:
        """Add the record for the sender, unless the sender did not name its request."""
        if pending.request_id is None:
            return []
        result = DispatchResult(pending.request_id, status, self._bridge.now_ms(), **more)
        return [OutRecord(self._bridge.topics.dispatched, key_of(pending.record.message), result.to_bytes())]

    def _ask(
        self, ask: Callable[[], list[RateLimitEvent[PendingDispatch]]], stopping: threading.Event
    ) -> list[RateLimitEvent[PendingDispatch]] | None:
        """The decision of the rate limit; waits while its count cannot be stored; ``None`` when stopped before that."""
        backoff = Backoff(0.5, self._policy.max_backoff_s)
        while True:
            try:
                return ask()
            except (EnvironmentFault, OSError) as fault:
                _log.error("nothing is dispatched, because the count of the rate limit cannot be stored: %s", fault)
                if stopping.wait(backoff.next_wait()):
                    return None

    def _look_for_rln(self) -> None:
        now = self._bridge.now_ms()
        if self._has_rln is not None and (
            self._rln_checked_ms is None or has_passed(RLN_INTERVAL_MS, self._rln_checked_ms, now)
        ):
            self._rln_checked_ms = now
            self._limit.node_has_rln(self._has_rln(), self._bridge.node)

    def _deliver(self, pending: PendingDispatch, batch: DispatchBatch) -> tuple[WakuMessage, Published | None]:
        """Publish until the node accepts or refuses the envelope, or time is up; ``None`` when stopped before that. The
        results of earlier envelopes are written before the first wait, so their senders do not wait for this one."""
        record = pending.record
        message = self._renew_stamp(record.message)
        backoff = Backoff(0.5, self._policy.max_backoff_s)
        tried_ms = 0
        while True:
            before_ms = self._bridge.now_ms()
            # Before it is out: its echo, or a store, may be quicker than its copy.
            envelope_hash = message_hash(record.pubsub_topic, message)
            self._bridge.recent.claim(envelope_hash)
            try:
                outcome = self._publish(record.pubsub_topic, message)
            except NodeUnreachable as error:
                outcome = Published(FailureReason.UNREACHABLE, error.cause, retry_after_s=error.retry_after_s)
            if outcome.not_subscribed and self._bridge.reads(record.pubsub_topic):
                outcome = replace(outcome, reason=FailureReason.UNREACHABLE)  # it joins with the next read
            if outcome.reason is FailureReason.DUPLICATE:
                outcome = Published()  # the network has it
            if outcome.reason is None:
                return message, outcome
            self._limit.note_refusal(outcome.detail, self._bridge.node)
            # Not by the time since the first attempt: the machine may have slept, or its clock have been set back.
            tried_ms += min(max(0, self._bridge.now_ms() - before_ms), LONGEST_ATTEMPT_MS)
            final = tried_ms >= GIVE_UP_AFTER_MS or outcome.reason not in RETRIABLE
            if final or (outcome.reason is FailureReason.RATE_LIMITED and not backoff.faults):
                event = "failed" if final else "rate_limited"
                batch.records.append(self._make_evidence(event, pending, message, outcome.reason.value, outcome.detail))
            if final:
                self._bridge.recent.release(envelope_hash)
                _log.error("an envelope on %s was not dispatched: %s", record.message.content_topic, outcome.reason)
                self._bridge.count("failed", 1)
                return message, outcome
            batch.write()
            wait_s = backoff.next_wait(outcome.retry_after_s)
            if batch.stopping.wait(wait_s):
                self._bridge.recent.release(envelope_hash)
                return message, None
            tried_ms += round(wait_s * 1000)
            fresh = self._renew_stamp(message)
            if fresh is not message:
                self._bridge.recent.release(envelope_hash)  # should it be out after all, it is an envelope of its own
            message = fresh

    def _wait_until_joined(self, pubsub_topic: str, stopping: threading.Event) -> bool:
        """Wait until the node has joined a topic that this bridge reads; ``False`` when stopped before that."""
        while self._bridge.reads(pubsub_topic) and not self._bridge.subscribed.wait(0.1):
            if stopping.is_set():
                return False
        return True

    def _make_evidence(
        self, event: str, pending: PendingDispatch, message: WakuMessage, reason: str, detail: str
    ) -> OutRecord:
        topic, now = pending.record.pubsub_topic, self._bridge.now_ms()
        key, value = dispatch_record(event, topic, message, pending.request_id, reason, detail, now)
        return OutRecord(self._bridge.topics.evidence, key, value)

    def _renew_stamp(self, message: WakuMessage) -> WakuMessage:
        """The envelope with a timestamp that stores still accept."""
        age_ms = None if message.timestamp is None else (self._bridge.clock.now_ns() - message.timestamp) // 1_000_000
        if age_ms is not None and abs(age_ms) < self._policy.restamp_after_ms:
            return message
        return replace(message, timestamp=self._timestamps.next_ns())
