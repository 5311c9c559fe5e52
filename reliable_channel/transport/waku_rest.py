"""Implements a node over the REST API of a running Waku node: relay or lightpush to send, relay or filter messages
to receive.

Two threads do the I/O: one sends, in order, one reads and watches the health. Sends are not retried here: the Messaging
API and the reliable channel do that, and one retry layer per fault is enough.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from reliable_channel.core.rate_limit import Admitted
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.backoff import Backoff
from reliable_channel.transport.base import (
    FailureReason,
    Received,
    RequestId,
    SendBufferFull,
)
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.health import Health, HealthState, Mode
from reliable_channel.transport.http.client import NodeUnreachable
from reliable_channel.transport.node import Accepted, NodeBase
from reliable_channel.transport.recent import RecentHashes
from reliable_channel.transport.sharding import PubsubTopics
from reliable_channel.transport.store.model import StoreQuerying
from reliable_channel.transport.threads import FAULT_WAIT_S, RoundFaults, TurnLock, join
from reliable_channel.transport.waku_api import Published, WakuApi
from reliable_channel.transport.waku_health import node_has_rln, node_health
from reliable_channel.transport.waku_receiver import Batch, ReadInterrupted, WakuReceiver

_log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
IDLE_S = 0.1
"""How long the sending thread waits for an envelope before it looks again whether the rate limit admits one that waits,
and whether it is to stop."""
FAULTS_LOGGED = 5
"""After this many failed reads in a row one line in the log says why: the node may be healthy otherwise."""
FIRST_JOIN_S = 5.0
"""How long the first envelope on a topic waits for the node to join it."""
MAX_QUEUED = 1_000
"""The number of envelopes that may wait to be sent: at most 150 MB."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How often a node is polled, in seconds. ``max_backoff_s`` bounds the wait after faults, which doubles; reading is
    tried again after ``rejoin_s`` at most. ``cache``: see ``WakuReceiver``."""

    poll_s: float = 0.25
    health_s: float = 10.0
    min_backoff_s: float = 0.5
    max_backoff_s: float = 15.0
    max_block_s: float = 30.0
    rejoin_s: float = 2.0
    cache: int | None = None


class WakuRestNode(NodeBase):
    """A :class:`~reliable_channel.transport.base.Node` behind ``api``.

    In relay mode *sent* means that the node accepted the message: running nodes report success for a publish that
    reaches nobody (docs/spec/waku-rest.md *Relay*), so end-to-end acknowledgement is left to the reliable channel.
    Received envelopes are de-duplicated by message hash, and an echo of an own one is reported as well (it confirms
    that the network has it). After a fault, reading continues as far back as the node's cache reaches.
    """

    def __init__(
        self,
        api: WakuApi,
        pubsub_topics: PubsubTopics,
        mode: Mode = Mode.RELAY,
        *,
        store: StoreQuerying | None = None,
        pace: Pace | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(pubsub_topics, clock, "waku-node")
        self._api = api
        self._mode = mode
        self.store = store
        self._pace = pace or Pace()
        self._turns = TurnLock()
        self._stopping = threading.Event()
        self._outgoing: queue.Queue[Accepted] = queue.Queue(MAX_QUEUED)
        self._wake = threading.Event()
        self._threads: list[threading.Thread] = []
        self._recent = RecentHashes()
        self._tried = threading.Condition()
        self._tried_topics: set[str] = set()
        """Pubsub topics that the reader has tried to join."""

    def start(self) -> None:
        with self._turns.take() as mine:
            if not mine or self._started:
                return
            self._started = True
            self._stopping = threading.Event()  # a thread that an earlier stop left behind must not go on
            self._dispatcher.start()
            self._threads = [
                threading.Thread(target=work, args=(self._stopping,), name=f"waku-node-{name}", daemon=True)
                for name, work in (("send", self._send_loop), ("read", self._read_loop))
            ]
            for thread in self._threads:
                thread.start()

    def stop(self) -> None:
        with self._turns.take() as mine:
            if not mine or not self._started:
                return
            self._started = False
            self._stopping.set()
            self._wake.set()
            for thread in self._threads:
                join(thread, STOP_TIMEOUT_S)
            self._fail_queued()  # after its thread has ended, which takes from the queue as well
            self._set_health(Health(HealthState.UNHEALTHY, "stopped"))
            self._dispatcher.stop()

    def subscribe(self, content_topics: Collection[str]) -> None:
        super().subscribe(content_topics)
        self._wake.set()

    def _submit(self, accepted: Accepted, max_wait_s: float | None) -> None:
        try:
            wait_s = self._pace.max_block_s if max_wait_s is None else max_wait_s
            self._outgoing.put(accepted, timeout=wait_s)
        except queue.Full:
            raise SendBufferFull(
                f"{MAX_QUEUED} envelopes wait to be sent by {self._api.name}.", "Send more slowly, or see the node."
            ) from None
        if not self._started and self._take_back(accepted.request_id):
            raise self._make_stopped_error()

    def withdraw(self, request_id: RequestId) -> bool:
        return super().withdraw(request_id) or self._take_back(request_id)

    def _take_back(self, request_id: RequestId) -> bool:
        """Remove a send from the queue; returns whether it was still there."""
        # ``queue.Queue`` has no call for it. Its lock and its deque have no underscore, and are not documented.
        with self._outgoing.mutex:
            for accepted in self._outgoing.queue:
                if accepted.request_id == request_id:
                    self._outgoing.queue.remove(accepted)
                    self._outgoing.not_full.notify()
                    return True
            return False

    def _send_loop(self, stopping: threading.Event) -> None:
        backoff = Backoff(self._pace.min_backoff_s, self._pace.max_backoff_s)
        faults = RoundFaults("nothing is sent, because the count of the rate limit cannot be stored")
        while not stopping.is_set():
            one = None
            try:
                events = self._limit.tick(now_ms(self._clock))
                if not events:
                    if self._limit.waiting >= MAX_QUEUED:
                        stopping.wait(IDLE_S)
                        continue
                    one = self._outgoing.get(timeout=IDLE_S)
                    events = self._limit.submit(one, one.traffic, now_ms(self._clock))
            except queue.Empty:
                continue
            except Exception as error:
                faults.note(error)
                if one is not None:
                    detail = "the count of the rate limit cannot be kept"
                    self._emit(self._report_failed(one.request_id, FailureReason.UNREACHABLE, detail))
                stopping.wait(backoff.next_wait())
                continue
            faults.clear()
            for event in events:
                if not isinstance(event, Admitted):
                    self._report_limit(event)
                elif stopping.is_set():
                    self._emit(
                        self._report_failed(event.item.request_id, FailureReason.STOPPED, "the node was stopped")
                    )
                else:
                    self._dispatch(event.item, backoff, stopping)

    def _dispatch(self, one: Accepted, backoff: Backoff, stopping: threading.Event) -> None:
        message = self._stamp(one.message)
        published = self._publish(one.pubsub_topic, message)
        if published.reason is None:
            backoff.reset()
            self._emit(self._report_sent(one.request_id, message, one.pubsub_topic))
            return
        envelope_hash = message_hash(one.pubsub_topic, message)
        self._limit.note_refusal(published.detail, self._api.name)
        self._emit(self._report_failed(one.request_id, published.reason, published.detail, envelope_hash))
        if published.reason is FailureReason.RATE_LIMITED or published.retry_after_s:
            stopping.wait(backoff.next_wait(published.retry_after_s))  # all behind it would be refused as well

    def _publish(self, topic: str, message: WakuMessage) -> Published:
        try:
            if self._mode is Mode.RELAY:
                own = any(topic == wanted for wanted, _ in self._list_topics())
                if own:
                    # nwaku refuses for good what is published before it has joined the topic.
                    with self._tried:
                        self._tried.wait_for(lambda: topic in self._tried_topics, FIRST_JOIN_S)
                published = self._api.relay_publish(topic, message)
                if published.not_subscribed and own:
                    return replace(published, reason=FailureReason.UNREACHABLE)  # it joins with the next read
                return published
            return self._api.lightpush(topic, message)
        except NodeUnreachable as error:
            return Published(FailureReason.UNREACHABLE, error.cause, retry_after_s=error.retry_after_s)
        except Exception as error:  # what is sent has an end, whatever the node answered
            _log.exception("an envelope was not sent by %s", self._api.name)
            return Published(FailureReason.UNREACHABLE, f"a fault of this program ({type(error).__name__})")

    def _read_loop(self, stopping: threading.Event) -> None:
        faults = RoundFaults("nothing is received")
        while not stopping.is_set():
            try:
                self._read_until(stopping, faults)
            except Exception as error:
                self._set_health(Health(HealthState.UNHEALTHY, faults.note(error)))
                stopping.wait(FAULT_WAIT_S)

    def _read_until(self, stopping: threading.Event, faults: RoundFaults) -> None:
        receiver = WakuReceiver(self._api, self._mode, self._clock, self._pace.cache)
        backoff = Backoff(self._pace.min_backoff_s, min(self._pace.max_backoff_s, self._pace.rejoin_s))
        health_wait = 0.0
        while not stopping.is_set():
            if health_wait <= 0:
                self._set_health(node_health(self._api, self._mode))
                self._limit.node_has_rln(node_has_rln(self._api), self._api.name)
                health_wait = self._pace.health_s
            wait, retry_after_s = self._pace.poll_s, 0.0
            wanted = self._list_topics()
            try:
                batch = receiver.read(wanted)
                if backoff.faults:
                    health_wait = 0.0
                backoff.reset()
                if batch.envelopes:  # more may be waiting
                    wait = 0.0
                if batch.maybe_lost:
                    _log.warning("envelopes may have been lost in %s: %s", self._api.name, batch.maybe_lost)
            except ReadInterrupted as error:
                batch = error.partial
                if not backoff.faults:
                    health_wait = 0.0
                retry_after_s = error.retry_after_s
                wait = backoff.next_wait(retry_after_s)
                if backoff.faults == FAULTS_LOGGED:
                    _log.warning("nothing is received from %s, and reading goes on: %s", self._api.name, error.cause)
            with self._tried:
                self._tried_topics |= {pubsub_topic for pubsub_topic, _ in wanted}
                self._tried.notify_all()
            self._deliver(batch)
            faults.clear()
            health_wait -= max(wait, 0.05)  # also after a read without a wait: a busy node's health is asked for, too
            # A new subscription ends the wait, unless the node asked for it.
            if wait and (stopping if retry_after_s else self._wake).wait(wait):
                self._wake.clear()
        receiver.leave()

    def _list_topics(self) -> list[tuple[str, str]]:
        return [(self.pubsub_topic_for(topic), topic) for topic in sorted(self._subscribed)]

    def _deliver(self, batch: Batch) -> None:
        for envelope in batch.envelopes:
            # Not on a subscribed topic: not remembered either, somebody may subscribe to it later.
            if envelope.message.content_topic in self._subscribed and self._recent.add(envelope.message_hash):
                event = Received(envelope)
                self._dispatcher.put_bounded(partial(self._dispatcher.emit, event), envelope.message.size)

    def _fail_queued(self) -> None:
        left = self._limit.drain()
        with suppress(queue.Empty):
            while True:
                left.append(self._outgoing.get_nowait())
        for one in left:
            self._emit(self._report_failed(one.request_id, FailureReason.STOPPED, "the node was stopped"))
