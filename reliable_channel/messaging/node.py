"""``MessagingNode``: the Messaging API (MESSAGING-API) over any transport.

Assembles the parts; each rule is in the module named after it. Usable without threads: tests call
:meth:`MessagingNode.tick`, which does all due work; :meth:`MessagingNode.start` does the same in the background.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from weakref import finalize

from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.settings import check_type
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.messaging.codec import Decoder, Encoder, Message
from reliable_channel.messaging.config import MessagingConfig, check_read_topic, check_send_topic
from reliable_channel.messaging.confirmation import Confirmation, make_background_subscription
from reliable_channel.messaging.events import EventName, EventSource, HealthStatus
from reliable_channel.messaging.idempotency import IdempotencyKey
from reliable_channel.messaging.ledger import Ledger
from reliable_channel.messaging.pipeline_feed import Feed
from reliable_channel.messaging.port import NodePort
from reliable_channel.messaging.receiving import MessageReceiver
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.messaging.sending import MessageSender
from reliable_channel.messaging.store import RecordKey
from reliable_channel.messaging.subscriptions import (
    Subscription,
    SubscriptionId,
    SubscriptionListener,
    Subscriptions,
)
from reliable_channel.messaging.worker import Worker
from reliable_channel.transport.base import (
    HealthChanged,
    Node,
    NodeEvent,
    Queued,
    RateLimitNear,
    Received,
    RecordsGone,
    RequestId,
    SendDelayed,
    SendFailed,
    Sent,
)
from reliable_channel.transport.clock import Clock, SystemClock
from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.envelopes import refuse_one_text
from reliable_channel.transport.health import Health, judge
from reliable_channel.transport.sqlite import IN_MEMORY
from reliable_channel.transport.threads import OwnerProcess, TurnLock
from reliable_channel.transport.waku_json import hash_from_hex

_log = logging.getLogger(__name__)


class MessagingNode:
    """The Messaging API. ``transport`` carries envelopes; ``database`` is the SQLite file of the records, or
    ``:memory:``; ``feed`` receives the rows and envelopes for the pipeline.
    Reliable channels use its :attr:`port`. Thread-safe.
    """

    def __init__(
        self,
        config: MessagingConfig,
        transport: Node,
        database: Path | str = ":memory:",
        *,
        clock: Clock | None = None,
        feed: Feed | None = None,
    ) -> None:
        check_type("config", config, MessagingConfig)
        check_type("transport", transport, Node)
        self.config = config
        self._transport = transport
        self._clock = clock or SystemClock()
        self._feed = feed or Feed()
        self._ledger = Ledger(database, config, self._clock)
        self.port = NodePort(self, transport)
        """The node through which reliable channels dispatch: ``create_reliable_channel(messaging.port, …)``."""
        self._subscriptions = Subscriptions(config.max_subscriptions)
        self._receiver = MessageReceiver(self._ledger, self._subscriptions)
        self._sender = MessageSender(config, self._ledger, transport, self._clock, self._feed, self.port.announce)
        self._confirmation = Confirmation(config, self._ledger, transport, self._subscriptions, self._sender)
        self._health = Health(HealthStatus.UNHEALTHY, "not started")
        self._health_changes = 0
        self._topics = threading.RLock()
        """Held from a change of the subscriptions until the transport follows it: or one that ends could end one that
        began after it."""
        self._made_ms = self._ledger.now()
        self.health_reports: Dispatcher[Health] = Dispatcher()
        """Listeners of the health whenever its state or a number of peers has changed."""
        self._send_worker = Worker("messaging-send", self._clock, self._send_due, self._sender.next_due)
        self._store_worker = Worker(
            "messaging-store", self._clock, self._confirmation.run_due, self._confirmation.next_due
        )
        self._turns = TurnLock()
        self._started = False
        self._must_stop = False
        self._must_close = False
        self._is_failing = False
        self._is_kept = str(database) != IN_MEMORY
        self._at_exit: finalize[..., MessagingNode] | None = None
        """Called when the process ends, while the node's threads run."""
        background = make_background_subscription(config, self.pubsub_topic_for, self._ledger.now())
        if background is not None:
            self._add_subscription(background)

    # -- life ---------------------------------------------------------------------------------------------------

    def start(self, background: bool = True) -> None:
        """Start the transport, listen to its events, and continue the requests that an earlier process left pending.
        Starting twice does nothing. ``background=False`` starts no threads: call :meth:`tick`. In a process that was
        forked from the one that made the node, this and all that uses its state raises ``ForkedError``, except
        :meth:`close`, which does nothing there. Raises ``NodeClosedError`` after :meth:`close`."""
        self._ledger.records.owner.refuse_fork()
        with self._turns.take() as mine:
            if mine and not self._started:
                self._ledger.records.refuse_closed()
                self._must_stop = False
                self._start(background)
                if self._must_stop:  # a listener wanted it while the node started
                    self._stop()

    def _start(self, background: bool) -> None:
        self._started = True
        try:
            self._transport.add_listener(self._on_transport)
            self._feed.start()
            self._transport.start()
            self._transport.subscribe(self._subscriptions.content_topics())
            self._observe(self._transport.health())
            self._sender.dispatching = True
            if background:
                self._send_worker.start()
                self._store_worker.start()
                # Its arguments keep the node alive, as the threads do.
                owner = self._ledger.records.owner
                self._at_exit = finalize(self, _warn_of_pending, self._sender, owner, self._is_kept)
        except BaseException:
            self._stop()
            raise

    def stop(self) -> None:
        """End all threads and the transport. Pending requests stay in the database and continue at the next start.
        Waits for another thread that starts or stops the node, except in a listener for which that one waits: there it
        leaves the stopping to that thread."""
        self._ledger.records.owner.refuse_fork()
        # Set first: a listener that may not wait for the thread that starts the node leaves this to it.
        self._must_stop = True
        with self._turns.take() as mine:
            if mine:
                self._stop()

    def _stop(self) -> None:
        try:
            if self._started:
                self._started = False
                if self._at_exit is not None:
                    self._at_exit.detach()
                self._sender.dispatching = False
                with ExitStack() as last:  # the last one first, and all of them, also if Ctrl-C ends a wait
                    last.callback(lambda: self._observe(self._transport.health()))  # fails where nothing can be stored
                    last.callback(self._feed.stop)
                    last.callback(self._ledger.events.drain)  # of what channels sent; the feed has rows of it
                    last.callback(self._transport.remove_listener, self._on_transport)
                    last.callback(self._transport.stop)
                    last.callback(self._store_worker.stop)
                    last.callback(self._send_worker.stop)
        finally:
            if self._must_close:
                self._ledger.records.close()

    def close(self) -> None:
        """Stop, and close the database: the node cannot be started again. Closing twice does nothing, and neither does
        closing in a forked process."""
        if self._ledger.records.owner.is_current:
            self._must_close = True  # first, as in ``stop``
            self.stop()

    def __enter__(self) -> MessagingNode:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def tick(self) -> None:
        """Do the work that is due now: check the health, attempt sends, query the store."""
        self._send_due()
        self._confirmation.run_due()

    # -- sending ------------------------------------------------------------------------------------------------

    def send(self, encoder: Encoder, message: Message, *, key: IdempotencyKey | None = None) -> RequestId:
        """Schedule a message in the envelope that ``encoder`` makes of it.

        Returns the request id, a GUID, and never waits. The same ``key`` sends once within a day.
        Raises ``UnsupportedTopicError``, ``EmptyMessage``, ``MessageTooLarge``, ``PendingLimitError``,
        ``KeyReusedError``, and what the encoder raises."""
        check_send_topic(self.config, encoder.pubsub_topic)
        return self.submit(encoder.encode(message), encoder.pubsub_topic, key=key)

    def submit(
        self,
        envelope: WakuMessage,
        pubsub_topic: str,
        *,
        key: IdempotencyKey | None = None,
        traffic: Traffic = Traffic.FIRST_SEGMENT,
        drain: bool = True,
    ) -> RequestId:
        """Schedule an envelope. Returns and raises as :meth:`send`; ``traffic`` decides its priority when a rate limit
        delays envelopes. ``drain=False`` calls no listener here, for a caller that holds a lock: a thread of this node
        does."""
        check_send_topic(self.config, pubsub_topic)
        request_id = self._sender.submit(envelope, pubsub_topic, key, traffic, drain)
        self._send_worker.wake()
        return request_id

    def run_once(self, key: IdempotencyKey, send: Callable[[], str]) -> str:
        """The id that ``send`` returned when ``key`` was first used within a day; ``send`` is called for a new key
        only.

        ``send`` runs outside the transaction that keeps its result: after a crash in between it is called again.
        Raises ``KeyReusedError``, and what ``send`` raises."""
        with self._ledger.step():
            known = self._ledger.keys.find(key, self._ledger.now())
        if known is None:
            known = send()
            with self._ledger.step():
                self._ledger.keys.keep(key, known, self._ledger.now())
        return known

    def retry(self, request_id: str) -> bool:
        """Send a failed or cancelled request again: one attempt and three retries. False for any other id."""
        done = self._sender.retry(request_id)
        self._send_worker.wake()
        return done

    def cancel_request(self, request_id: str) -> None:
        """Cancel a pending request; ignored for one that is fulfilled or unknown."""
        self._sender.cancel(request_id)

    def withdraw(self, request_id: RequestId) -> bool:
        """As :meth:`~reliable_channel.transport.base.Node.withdraw`; calls no listener here, as :meth:`submit`."""
        withdrawn = self._sender.withdraw(request_id)
        self._send_worker.wake()
        return withdrawn

    def get_pending_requests(self) -> list[RequestId]:
        """The ids of the requests that have not succeeded, failed or been cancelled; no duplicates."""
        return self._sender.pending()

    # -- subscriptions ------------------------------------------------------------------------------------------

    def subscribe(
        self, decoder: Decoder, listener: SubscriptionListener | None = None, *, listed: bool = True
    ) -> SubscriptionId:
        """Listen to the content topic of ``decoder``. ``listed``: :meth:`get_active_subscriptions` names it. Raises
        ``UnsupportedTopicError``, ``SubscriptionLimitError``, and ``LocalError`` for a listener that is no function."""
        if listener is not None and not callable(listener):
            raise LocalError("The listener of a subscription is no function.", "Give one that takes a MessageRecord.")
        check_read_topic(self.config, decoder.pubsub_topic, "Cannot create subscription.")
        subscription_id = SubscriptionId(str(uuid.uuid4()))
        self._add_subscription(
            Subscription(
                subscription_id,
                (decoder,),
                listener,
                listens=True,
                confirms=self.config.store_confirmation,
                since_ms=self._ledger.now(),
                listed=listed,
            )
        )
        return subscription_id

    def unsubscribe(self, subscription_id: str) -> None:
        """End a subscription. Unknown ones are ignored."""
        self._ledger.records.owner.refuse_fork()
        with self._topics:
            abandoned = self._subscriptions.remove(subscription_id)
            if abandoned:
                self._transport.unsubscribe(abandoned)
        self._store_worker.wake()

    def get_active_subscriptions(self) -> list[SubscriptionId]:
        """The ids of all active subscriptions, the background confirmation's included; no duplicates. Those of channels
        and of :class:`MessagingClient` are not among them, since whoever ended one would make its owner deaf."""
        return self._subscriptions.ids()

    # -- records ----------------------------------------------------------------------------------------------

    def get_by_request_id(self, request_id: str) -> MessageRecord | None:
        """The record of a send request, or None."""
        return self._ledger.records.by_request_id(request_id)

    def get_by_hash(self, message_hash: str) -> MessageRecord | None:
        """The record of a message hash (64 hex digits, ``0x`` optional), or None, also for text that is not a hash."""
        digest = hash_from_hex(message_hash)
        return None if digest is None else self._ledger.records.by_hash(digest)

    def get_by_content_topic(
        self, content_topic: str, skip: int = 0, take: int | None = None, *, since: int | None = None
    ) -> list[MessageRecord]:
        """The records of a content topic, in the order in which they were added; ``since`` (a ``change_seq``) leaves
        only those changed after it, in the order of their changes. Raises ``ValueError`` for negative numbers."""
        return list(self.records_of(self.find_keys(content_topic, None, skip, take, since)))

    def get_by_subscription_id(
        self, subscription_id: str, skip: int = 0, take: int | None = None, *, since: int | None = None
    ) -> list[MessageRecord]:
        """The records received under a subscription, as :meth:`get_by_content_topic`."""
        return list(self.records_of(self.find_keys(None, subscription_id, skip, take, since)))

    def find_keys(
        self,
        content_topic: str | None,
        subscription_id: str | None,
        skip: int = 0,
        take: int | None = None,
        since: int | None = None,
    ) -> list[RecordKey]:
        """Which records :meth:`get_by_content_topic` or :meth:`get_by_subscription_id` would return, in their order;
        :meth:`records_of` reads them a batch at a time."""
        return self._ledger.records.keys(content_topic, subscription_id, skip, take, since)

    def records_of(self, keys: Sequence[RecordKey]) -> Iterator[MessageRecord]:
        """The records of these keys; those that are gone meanwhile are left out."""
        return self._ledger.records.by_keys(keys)

    @property
    def record_cursor(self) -> int:
        """The ``change_seq`` of the latest change of any record."""
        return self._ledger.records.change_seq()

    # -- history ------------------------------------------------------------------------------------------------

    def history(
        self,
        content_topics: Sequence[str],
        start: int | None = None,
        end: int | None = None,
        *,
        pubsub_topic: str | None = None,
        limit: int | None = None,
    ) -> list[MessageRecord]:
        """Load history. The specification names the *History API* and leaves it undefined. Returns the messages that
        stores have of these content topics between ``start`` and ``end`` (Unix ns, both included), oldest first, at
        most ``limit`` (``max_records`` by default) and ``max_record_bytes``; go on after the last one's timestamp. Each
        becomes a record with ``stored`` set.

        Waits for the store. Raises ``StoreUnavailable``, ``UnsupportedTopicError``, and ``LocalError`` for one text in
        place of topics."""
        self._ledger.records.owner.refuse_fork()
        refuse_one_text(content_topics)
        if pubsub_topic is not None:
            check_read_topic(self.config, pubsub_topic, "Cannot query history.")
        pairs = [(pubsub_topic or self.pubsub_topic_for(topic), topic) for topic in content_topics]
        bound = self.config.max_records if limit is None else min(limit, self.config.max_records)
        return self._confirmation.history(pairs, start, end, bound)

    # -- health and events --------------------------------------------------------------------------------------

    @property
    def health_indicator(self) -> HealthStatus:
        """The node's health."""
        return self._health.state

    @property
    def health_change_seq(self) -> int:
        """Another number whenever the health has changed, also than in an earlier process: the cursor for long
        polling."""
        return self._made_ms + self._health_changes

    @property
    def events(self) -> EventSource:
        """The event source to which listeners of ``health:change`` and ``message:*`` are added."""
        return self._ledger.events

    @property
    def feed(self) -> Feed:
        """The receiver of rows and envelopes for the pipeline, for callers with further facts (a channel's rate
        limit)."""
        return self._feed

    def health(self) -> Health:
        """The health with its evidence."""
        return self._health

    def pubsub_topic_for(self, content_topic: str) -> str:
        """The only configured pubsub topic, or, with several shards, the transport's choice."""
        topics = self.config.pubsub_topics
        return topics[0] if len(topics) == 1 else self._transport.pubsub_topic_for(content_topic)

    # -- inside -------------------------------------------------------------------------------------------------

    def _add_subscription(self, subscription: Subscription) -> None:
        self._ledger.records.owner.refuse_fork()
        self._ledger.records.refuse_closed()
        with self._topics:
            new = self._subscriptions.add(subscription)
            try:
                if new:
                    self._transport.subscribe(new)
            except BaseException:
                self._subscriptions.remove(subscription.subscription_id)
                raise
        self._store_worker.wake()

    def _send_due(self) -> None:
        self._ledger.events.drain()
        if self._started:
            self._observe(self._transport.health())
            self._sender.dispatch_due()

    def _on_transport(self, event: NodeEvent) -> None:
        try:
            self._follow(event)
            self._is_failing = False
        except EnvironmentFault as fault:
            if not self._is_failing:  # a full disk stays full for many events
                _log.error("events of the transport are not recorded: %s", fault)
            self._is_failing = True

    def _follow(self, event: NodeEvent) -> None:
        match event:
            case Queued() | SendDelayed() | Sent() | SendFailed():
                if isinstance(event, Sent):
                    self._feed.record_dispatched(event.message, event.pubsub_topic)
                self._sender.on_transport(event)
                self._send_worker.wake()
            case HealthChanged():
                self._observe(event.health)
            case Received():
                self._feed.record_received(event.envelope)
                self.port.announce(event)  # first: channels receive also what cannot be recorded
                self._receiver.on_envelope(event.envelope)
            case RateLimitNear() | RecordsGone():
                self.port.announce(event)

    def _observe(self, report: Health) -> None:
        judged = replace(report, state=judge(self.config.mode, report))
        with self._ledger.hold_lock():
            if replace(judged, detail=self._health.detail) == self._health:
                self._health = judged
                return
        with self._ledger.step():
            before, self._health = self._health, judged
            # So that the next report changes it again.
            self._ledger.run_if_lost(partial(setattr, self, "_health", before))
            self._ledger.run_after(lambda: self.health_reports.emit(judged))
            if judged.state is before.state:
                return
            self._health_changes += 1
            # Retries and store queries run in every state but unhealthy.
            is_usable = judged.state is not HealthStatus.UNHEALTHY
            self._sender.set_usable(is_usable)
            self._confirmation.set_usable(is_usable)
            self._ledger.emit(EventName.HEALTH_CHANGE, judged.state)
            self._ledger.run_after(lambda: self.port.announce(HealthChanged(judged)))
        self._send_worker.wake()
        self._store_worker.wake()


def _warn_of_pending(sender: MessageSender, owner: OwnerProcess, is_kept: bool) -> None:
    """Log that the process ends with requests that are pending, because nobody closed the node."""
    if owner.is_current and (pending := sender.pending()):
        fate = "the next start continues them" if is_kept else "they are lost, as its records are in memory only"
        _log.warning(
            "a messaging node was not closed when its process ended, and requests are pending (%d); %s."
            " Wait for their events, then close it.",
            *(len(pending), fate),
        )
