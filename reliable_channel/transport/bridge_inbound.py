"""Copies envelopes from the node to Kafka. Each batch is acknowledged by Kafka before the next one is read; gaps are
recorded."""

from __future__ import annotations

import logging
import threading

from reliable_channel.transport.backoff import Backoff
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_context import UNKNOWN_MS, BridgeContext
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.clock import has_passed
from reliable_channel.transport.kafka_records import OutRecord, envelope_record
from reliable_channel.transport.waku_receiver import Batch, ReadInterrupted, WakuReceiver

_log = logging.getLogger(__name__)

REJOIN_MAX_S = 2.0
"""The longest wait between two attempts to reach a node that did not answer: the later reading starts, the more is
lost. It may ask for a longer one."""
LAST_READS = 20
"""The maximum number of reads of an orderly stop, which ends with the first empty one."""
SAVE_INTERVAL_MS = 1_000
"""How often an acknowledgement without envelopes is written to disk."""
SLEPT_MS = 60_000
"""A longer time (ms) from the end of one read to that of the next, the wait between them apart, was a sleep of the
machine."""
UNSET_CLOCK_MS = 1_577_836_800_000
"""2020: what is earlier was read from a clock that was not set yet, as that of a small machine after its start."""


class Inbound:
    """Reads one node. Counts ``received``, ``duplicates``, ``refused`` and ``gaps`` as they happen."""

    def __init__(
        self, receiver: WakuReceiver, bridge: BridgeContext, poll_s: float = 0.5, max_backoff_s: float = 15.0
    ) -> None:
        self._receiver = receiver
        self._bridge = bridge
        self._poll_s = poll_s
        self._backoff = Backoff(0.5, min(max_backoff_s, REJOIN_MAX_S))
        self._saved_ms = 0
        self._next_ms: int | None = None
        """When the next read is to begin."""
        self._restarted = bridge.state.acknowledged_ms is not None
        self.reachable = False
        self.ever_reachable = False
        self.fault = ""
        """The reason why the node is not reachable; empty while it is reachable, and before the first read."""

    def run(self, stopping: threading.Event) -> None:
        """Read until ``stopping``; raises ``Interrupted`` when stopped in the middle of a batch."""
        while not stopping.is_set():
            stopping.wait(self.step())
        for _ in range(LAST_READS):  # what came since the last read would be gone when the subscription ends
            if not self.reachable or self.step() > 0:
                break
        self._receiver.leave()

    def step(self) -> float:
        """Do one read and process its result; returns the seconds to wait before the next."""
        wait_s = self._read()
        self._next_ms = self._bridge.now_ms() + round(wait_s * 1000)
        return wait_s

    def _read(self) -> float:
        started_ms = self._bridge.now_ms()
        wait = self._poll_s
        fault, retry_after_s = "", 0.0
        try:
            batch = self._receiver.read(self._bridge.topics.waku)
        except ReadInterrupted as error:
            batch, fault, retry_after_s = error.partial, error.cause, error.retry_after_s
        ended_ms = self._bridge.now_ms()
        if has_slept := self._next_ms is not None and ended_ms - self._next_ms > SLEPT_MS:
            started_ms = ended_ms  # perhaps in the middle of this read
        with self._bridge.keeping:
            self._keep(batch)  # also after a fault: reading has removed them from the node
        if fault:
            if fault != self.fault:
                _log.warning("%s", fault)
            self.reachable, self.fault = False, fault
            return self._backoff.next_wait(retry_after_s)
        if self.fault:
            _log.warning("The node is read again. Failed attempts: %d.", self._backoff.faults)
        self._record_gaps(batch, started_ms, has_slept)
        self.reachable, self.ever_reachable, self.fault = True, True, ""
        self._bridge.subscribed.set()
        self._backoff.reset()
        self._acknowledge(started_ms, bool(batch.envelopes))
        return 0.0 if batch.envelopes else wait

    def _keep(self, batch: Batch) -> None:
        """Write the new envelopes of a batch to Kafka."""
        self._bridge.count("refused", batch.refused)
        new: dict[bytes, OutRecord] = {}
        for one in batch.envelopes:
            if not self._bridge.topics.wants(one.message.content_topic):
                continue
            if one.message_hash in new or self._bridge.recent.has(one.message_hash):
                self._bridge.count("duplicates", 1)
                continue
            new[one.message_hash] = envelope_record(
                self._bridge.topics.envelopes, one.message, one.pubsub_topic, one.source
            )
        seen: dict[Source, list[tuple[bytes, str]]] = {}
        for one in batch.envelopes:
            if one.message_hash in new:
                seen.setdefault(one.source, []).append((one.message_hash, one.pubsub_topic))
        sightings = [record for source, some in seen.items() for record in self._bridge.sightings(some, source)]
        self._bridge.write([*new.values(), *sightings])
        self._bridge.recent.add(new)
        self._bridge.state.note_content_topics(one.message.content_topic for one in batch.envelopes)
        self._bridge.count("received", len(new))

    def _record_gaps(self, batch: Batch, started_ms: int, has_slept: bool) -> None:
        """End the current gap after a successful read: one outage is one gap.

        If both the bridge and the node were down, the bridge is the cause, because what the node did meanwhile is
        unknown. A node that was down has also lost the subscription, which is then not a separate cause. So may one
        that slept on the same machine have, whose cache then holds no more than it held before."""
        if self._restarted:
            cause = "bridge_restart"
        elif self._backoff.faults:
            # Also when the node lived on: an answer that broke off had been taken out of its cache.
            cause = "node_unreachable"
        else:
            cause = "bridge_suspended" if has_slept else batch.maybe_lost
        begin = self._bridge.state.acknowledged_ms
        if cause and begin is not None:
            if not UNSET_CLOCK_MS <= begin <= started_ms:  # the clock was set meanwhile
                begin = started_ms - (UNKNOWN_MS if self._restarted or self._backoff.faults else 0)
            gap = self._bridge.state.open_gap(BridgeGap(begin, started_ms, cause))
            self._bridge.writer.write([self._bridge.gap_record(gap, "open")])
            self._bridge.count("gaps", 1)
            _log.warning("a gap of %s ms (%s)", gap.to_ms - gap.from_ms, cause)
        self._restarted = False

    def _acknowledge(self, started_ms: int, envelopes: bool) -> None:
        # `started_ms`: what arrived at the node after this read began may not have been in it.
        is_first = self._bridge.state.acknowledged_ms is None
        if envelopes or is_first or has_passed(SAVE_INTERVAL_MS, self._saved_ms, started_ms):
            self._saved_ms = started_ms
            self._bridge.state.acknowledge(started_ms, self._bridge.recent.list_newest(2_000))
