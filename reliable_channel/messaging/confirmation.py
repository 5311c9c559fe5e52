"""Confirms records against the store, and loads history from it (MESSAGING-API, *Acknowledgements*).

The recurring query asks, per pubsub topic and for at most ten content topics at a time, for the hashes of the period in
which records are still unconfirmed. A message sent by this node that the next query does not find is looked up once
more by its hash alone, because the store decides which time a message has; if that fails too, the message is sent
again: three times, after which its record carries an error. Where the query over the topic was cut short and no store
answers for hashes, no message counts as missing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from reliable_channel.core.errors import LocalError
from reliable_channel.core.wire.waku import message_hash
from reliable_channel.messaging.codec import PlainDecoder
from reliable_channel.messaging.config import CONFIRMATION_SUBSCRIPTION_ID, MessagingConfig
from reliable_channel.messaging.ledger import Ledger
from reliable_channel.messaging.records import NOT_STORED, MessageRecord
from reliable_channel.messaging.sending import MessageSender
from reliable_channel.messaging.subscriptions import Subscription, SubscriptionId, Subscriptions, TopicPair
from reliable_channel.transport.base import Node, StoreUnavailable
from reliable_channel.transport.store.model import (
    MAX_HASHES,
    TOPICS_PER_QUERY,
    StoreEntry,
    StorePage,
    StoreQuery,
    split,
)

_log = logging.getLogger(__name__)

MAX_PAGES = 100
"""The maximum number of pages of one query, because a store may return cursors without end."""

CLOCK_SKEW_MS = 30_000
"""Stores keep timestamps up to 20 s off their clock; ours may be off as well."""

WINDOW_MS = 3_600_000
"""A record that is not confirmed after an hour is no longer queried."""

NS_PER_MS = 1_000_000


class Confirmation:
    """The recurring query of one node. ``run_due`` waits for the store and belongs on a thread of its own."""

    def __init__(
        self,
        config: MessagingConfig,
        ledger: Ledger,
        transport: Node,
        subscriptions: Subscriptions,
        sender: MessageSender,
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._transport = transport
        self._subscriptions = subscriptions
        self._sender = sender
        self._usable = False
        self._due_ms: int | None = None

    def set_usable(self, usable: bool) -> None:
        """Note a change from or to *unhealthy*: the recurring query resumes or pauses."""
        self._usable = usable

    def next_due(self) -> int | None:
        """When the next query is due, in Unix ms; None while there is nothing to confirm or the node is unhealthy.

        The first query is due one interval after the first subscription, because there is nothing to confirm
        earlier."""
        if not self._usable or not self._subscriptions.list_topics_to_confirm():
            return None
        latest = self._ledger.now() + self._config.store_query_interval_ms  # the clock may have been set back
        self._due_ms = latest if self._due_ms is None else min(self._due_ms, latest)
        return self._due_ms

    def run_due(self) -> bool:
        """Query the store if the query is due; returns whether it was. A store that does not answer is queried again
        next time."""
        if not self._subscriptions.list_topics_to_confirm():
            self._due_ms = None
        due = self.next_due()
        if due is None or due > self._ledger.now():
            return False
        self._due_ms = self._ledger.now() + self._config.store_query_interval_ms
        try:
            self.run()
        except StoreUnavailable as fault:
            _log.warning("no store confirmed anything: %s", fault.cause)
        return True

    def run(self) -> None:
        """One round of the recurring query. Raises ``StoreUnavailable``."""
        started = self._ledger.now()
        to_confirm = self._subscriptions.list_topics_to_confirm()
        complete = True
        for pubsub_topic, topics in _group_by_pubsub(to_confirm).items():
            for lot in split(topics, TOPICS_PER_QUERY):
                complete &= self._confirm_topics(pubsub_topic, lot, started)
        missing = [one for one in self._find_unconfirmed(to_confirm, started) if one.sent and not one.sending]
        try:
            missing = self._select_absent(missing)
        except StoreUnavailable:
            # go-waku answers for hashes only when the call names whom to ask (docs/spec/waku-rest.md *Store v3*).
            missing = missing if complete else []
        for record in missing:
            self._send_again(record, started)

    def history(
        self, pairs: Collection[TopicPair], start_ns: int | None, end_ns: int | None, limit: int
    ) -> list[MessageRecord]:
        """Query the stores for these topics and times (Unix ns of the senders, both ends included), oldest first, at
        most ``limit``. Each entry becomes a record that is ``stored``. Raises ``StoreUnavailable``."""
        records: list[MessageRecord] = []
        size = 0
        for pubsub_topic, topics in _group_by_pubsub(pairs).items():
            query = StoreQuery(
                pubsub_topic=pubsub_topic, content_topics=topics, start_time_ns=start_ns, end_time_ns=end_ns
            )
            for entry in self._read_entries(query):
                if len(records) >= limit or size >= self._config.max_record_bytes:
                    return _sort_by_time(records)
                kept = self._keep(entry, pubsub_topic, topics)
                records += kept
                size += sum(record.message.size for record in kept)
        return _sort_by_time(records)

    def _confirm_topics(self, pubsub_topic: str, topics: tuple[str, ...], now: int) -> bool:
        """Mark the records of these topics that the store has; returns whether its answer was complete."""
        since = self._subscriptions.list_topics_to_confirm()
        pairs = [(pubsub_topic, topic) for topic in topics]
        open_records = self._find_unconfirmed({pair: since.get(pair, 0) for pair in pairs}, now)
        oldest = min((record.created_ms for record in open_records), default=now)
        query = StoreQuery(
            pubsub_topic=pubsub_topic,
            content_topics=topics,
            start_time_ns=(oldest - CLOCK_SKEW_MS) * NS_PER_MS,
            include_data=False,  # without an end time: nodes return the data where one is given
        )
        pages = 0
        for page in self._read_pages(query):
            pages += 1
            for entry in page.entries:
                self._mark_stored(entry.message_hash)
        return pages < MAX_PAGES

    def _find_unconfirmed(self, to_confirm: dict[TopicPair, int], now: int) -> list[MessageRecord]:
        """Records of confirmed topics that are not known to be stored and still worth asking for. What this node sent
        counts from before the subscription, too: subscriptions end with the process, and requests do not."""
        topics = {content_topic for _, content_topic in to_confirm}
        unconfirmed = []
        for record in self._ledger.records.read_unconfirmed(topics, now - WINDOW_MS):
            since = to_confirm.get((record.pubsub_topic, record.message.content_topic))
            if since is None:
                continue
            is_earlier = record.created_ms < since <= now  # a subscription of the future: the clock was set back
            if record.request_id is not None or not is_earlier:
                unconfirmed.append(record)
        return unconfirmed

    def _select_absent(self, records: list[MessageRecord]) -> list[MessageRecord]:
        """Those of ``records`` that the store does not have under their hashes either."""
        by_hash = {record.message_hash: record for record in records}
        for part in split(list(by_hash), MAX_HASHES):
            for entry in self._read_entries(StoreQuery(hashes=part, include_data=False)):
                if entry.message_hash in by_hash:
                    self._mark_stored(entry.message_hash)
                    del by_hash[entry.message_hash]
        return list(by_hash.values())

    def _send_again(self, record: MessageRecord, queried_ms: int) -> None:
        stored = self._ledger.requests.find(str(record.request_id))
        if stored is not None and (stored.sent_ms or queried_ms) + self._config.store_settle_ms <= queried_ms:
            self._sender.resend(stored.request_id)

    def _mark_stored(self, envelope_hash: bytes) -> None:
        with self._ledger.step():
            for record in self._ledger.records.all_by_hash(envelope_hash):
                if not record.stored:
                    self._set_stored(record)

    def _keep(self, entry: StoreEntry, pubsub_topic: str, topics: tuple[str, ...]) -> list[MessageRecord]:
        """Make records of a store's entry; none when its hash or topic does not match its content."""
        message = entry.message
        if message is None or message.content_topic not in topics:
            return []
        if entry.verified is False and message_hash(pubsub_topic, message) != entry.message_hash:
            return []
        with self._ledger.step():
            known = self._ledger.records.all_by_hash(entry.message_hash)
            if not known:
                record = MessageRecord(message, stored=True, message_hash=entry.message_hash, pubsub_topic=pubsub_topic)
                return [self._ledger.add(record)]
            return [one if one.stored else self._set_stored(one) for one in known]

    def _set_stored(self, record: MessageRecord) -> MessageRecord:
        """Confirm a record, and clear the error that no store had it."""
        lacking = (record.error or "").startswith(NOT_STORED)
        return self._ledger.update(record, stored=True, error=None if lacking else record.error)

    def _read_entries(self, query: StoreQuery) -> Iterator[StoreEntry]:
        """All entries of a query, page after page."""
        for page in self._read_pages(query):
            yield from page.entries

    def _read_pages(self, query: StoreQuery) -> Iterator[StorePage]:
        """The pages of a query, at most ``MAX_PAGES``."""
        for _ in range(MAX_PAGES):
            page = self._transport.query_store(query)
            yield page
            if page.cursor is None or page.cursor == query.cursor:  # a store that repeats itself
                return
            query = replace(query, cursor=page.cursor)
        _log.warning("a store query was cut after %d pages", MAX_PAGES)


def make_background_subscription(
    config: MessagingConfig, pubsub_topic_for: Callable[[str], str], now: int
) -> Subscription | None:
    """The reserved subscription of ``confirm_content_topics``, where one of the two confirmations is on. A content
    topic counts under its own pubsub topic, or under all configured ones where it has none here."""
    if not config.confirm_content_topics or not (config.store_confirmation or config.filter_confirmation):
        return None
    decoders = []
    for content_topic in config.confirm_content_topics:
        try:
            topics: tuple[str, ...] = (pubsub_topic_for(content_topic),)
        except LocalError:
            topics = ()
        if not set(topics) & set(config.pubsub_topics):
            topics = config.pubsub_topics
        decoders += [PlainDecoder(pubsub_topic, content_topic) for pubsub_topic in topics]
    return Subscription(
        SubscriptionId(CONFIRMATION_SUBSCRIPTION_ID),
        tuple(decoders),
        None,
        listens=config.filter_confirmation,
        confirms=config.store_confirmation,
        since_ms=now,
    )


def _sort_by_time(records: list[MessageRecord]) -> list[MessageRecord]:
    return sorted(records, key=lambda record: (record.message.timestamp or 0, record.message_hash))


def _group_by_pubsub(pairs: Collection[TopicPair]) -> dict[str, tuple[str, ...]]:
    grouped: dict[str, list[str]] = {}
    for pubsub_topic, content_topic in pairs:
        grouped.setdefault(pubsub_topic, []).append(content_topic)
    return {topic: tuple(dict.fromkeys(contents)) for topic, contents in grouped.items()}
