"""Reads messages out of a node's REST caches, which are bounded and emptied by reading (docs/waku-node.md).

A node and topic may have one reader only: two would take each other's messages."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial

from reliable_channel.transport.base import ReceivedEnvelope, Source, hash_candidates
from reliable_channel.transport.clock import Clock, SystemClock, has_passed, now_ms
from reliable_channel.transport.enr import relay_topics
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import HttpResponse, NodeTimedOut, NodeUnreachable
from reliable_channel.transport.waku_api import NodeDialect, Read, WakuApi, describe

_log = logging.getLogger(__name__)

NWAKU_CACHE = 50
"""Messages nwaku keeps for REST readers by default, over all topics; the oldest go first when it is full."""
GO_WAKU_FILTER_CACHE = 30
"""Messages go-waku keeps per filter topic by default."""
GO_WAKU_RELAY_CACHE = 1_000
"""Messages a go-waku relay queue holds by default. A full queue stops the node's store and filter until it is read."""

PING_INTERVAL_MS = 60_000
"""A filter subscription lapses after five minutes without a ping."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of reads. ``maybe_lost`` names why envelopes may be missing before this batch, or is empty:
    ``cache_full`` (a read returned as much as the cache holds) or ``resubscribed`` (the node had lost the
    subscription)."""

    envelopes: tuple[ReceivedEnvelope, ...]
    maybe_lost: str = ""
    refused: int = 0


class WakuReceiver:
    """Keeps the subscriptions of one node and reads its messages. For one thread.

    In relay mode it joins pubsub topics and returns everything on them; in edge mode it holds filter subscriptions to
    content topics. Envelopes are in the order of their timestamps within a batch, those of one timestamp in the order
    of the node; they may repeat. ``cache``: how many messages the node keeps for REST readers, ``None`` for the default
    of its dialect.
    """

    def __init__(self, api: WakuApi, mode: Mode, clock: Clock | None = None, cache: int | None = None) -> None:
        self._api = api
        self._mode = mode
        self._clock: Clock = clock or SystemClock()
        self._cache = cache
        self._joined: set[str] = set()
        self._ours: set[str] = set()
        """Pubsub topics that the node did not serve before this object joined them."""
        self._filtered: set[tuple[str, str]] = set()
        """The filter subscriptions held at the node: pubsub topic and content topic."""
        self._pinged_ms = 0
        self._refused: HttpResponse | None = None
        self._refused_ms = 0
        """The last refusal of a subscription, until a round without one, and when."""

    def read(self, topics: Collection[tuple[str, str | None]]) -> Batch:
        """One read of every topic: pairs of pubsub topic and content topic (ignored in relay mode).

        Subscribes where needed, and unsubscribes from topics that are no longer in ``topics``. Raises
        ``ReadInterrupted``. A refused subscription keeps no other topic from being read."""
        envelopes: list[ReceivedEnvelope] = []
        lost = ""
        refused = 0
        held = 0
        pause_ms = 0 if self._refused is None else int(self._refused.retry_after_s * 1_000)
        if has_passed(pause_ms, self._refused_ms, now_ms(self._clock)):
            self._refused = None
        try:
            if self._mode is Mode.RELAY:
                reads = [(topic, partial(self._read_relay, topic)) for topic in sorted({topic for topic, _ in topics})]
            else:
                lost = self._hold_filters({(p, c) for p, c in topics if c is not None})
                reads = [(p, partial(self._read_filter, p, c)) for p, c in sorted(self._filtered)]
            source = Source.RELAY if self._mode is Mode.RELAY else Source.FILTER
            for pubsub_topic, read_topic in reads:
                read, cause = read_topic()
                lost, refused = lost or cause, refused + len(read.refused)
                held = self._measure_fill(held, read)
                for message in read.messages:
                    envelope_hash = hash_candidates(pubsub_topic, message)[0]
                    envelopes.append(ReceivedEnvelope(message, pubsub_topic, envelope_hash, source))
            if held and held >= self._find_capacity():
                lost = lost or "cache_full"
            if self._refused is not None:
                why = f"HTTP {self._refused.status}: {describe(self._refused)}"
                raise NodeUnreachable(
                    f"{self._api.name} refused a subscription ({why}).",
                    "Check that the node serves the topic.",
                )
        except NodeUnreachable as error:
            raise ReadInterrupted(self._classify(error), self._make_batch(envelopes, lost, refused)) from None
        return self._make_batch(envelopes, lost, refused)

    def leave(self) -> None:
        """Remove this object's own subscriptions, as far as the node answers.

        A DELETE of a pubsub topic affects everybody: the node leaves the shard, even one of its own configuration, and
        a go-waku node whose shard is removed a few times stops answering. So only topics that the node did not serve
        before are left."""
        try:
            if self._ours:
                self._api.relay_unsubscribe(sorted(self._ours))
            for pubsub_topic in {p for p, _ in self._filtered}:
                self._api.filter_unsubscribe(pubsub_topic, sorted(c for p, c in self._filtered if p == pubsub_topic))
        except NodeUnreachable as error:
            _log.info("leaving subscriptions behind: %s", error.cause)
        self._joined.clear()
        self._ours.clear()
        self._filtered.clear()

    def _read_relay(self, pubsub_topic: str) -> tuple[Read, str]:
        # Read first: on go-waku every subscription adds a queue, also after a restart of this process.
        read = self._api.relay_read(pubsub_topic)
        if read.subscribed:
            self._joined.add(pubsub_topic)
            return read, ""
        cause = "resubscribed" if pubsub_topic in self._joined else ""
        served = relay_topics(self._api.info().get("enrUri"))
        if not self._subscribe(partial(self._api.relay_subscribe, [pubsub_topic])):
            return Read(()), cause
        self._joined.add(pubsub_topic)
        if served is not None and pubsub_topic not in served:
            self._ours.add(pubsub_topic)
        else:
            self._ours.discard(pubsub_topic)
        return self._api.relay_read(pubsub_topic), cause

    def _read_filter(self, pubsub_topic: str, content_topic: str) -> tuple[Read, str]:
        read = self._api.filter_read(pubsub_topic, content_topic)
        if read.subscribed:
            return read, ""
        if not self._subscribe(partial(self._api.filter_subscribe, pubsub_topic, [content_topic])):
            return Read(()), "resubscribed"
        return self._api.filter_read(pubsub_topic, content_topic), "resubscribed"

    def _hold_filters(self, wanted: set[tuple[str, str]]) -> str:
        """Subscribe to new topics, leave removed ones, ping the others; returns a cause if the node had lost the
        subscription."""
        lost = ""
        if self._filtered and has_passed(PING_INTERVAL_MS, self._pinged_ms, now_ms(self._clock)):
            self._pinged_ms = now_ms(self._clock)
            response = self._api.filter_ping()
            # Other failures of a ping are the service's rate limit, or unclear: the subscription may well be there.
            if response is not None and response.status == 404:
                self._filtered.clear()
                lost = "resubscribed"
        for pubsub_topic in {p for p, _ in wanted - self._filtered}:
            new = sorted(c for p, c in wanted - self._filtered if p == pubsub_topic)
            if self._subscribe(partial(self._api.filter_subscribe, pubsub_topic, new)):
                self._filtered |= {(pubsub_topic, c) for c in new}
                self._pinged_ms = now_ms(self._clock)
        for pubsub_topic in {p for p, _ in self._filtered - wanted}:
            gone = sorted(c for p, c in self._filtered - wanted if p == pubsub_topic)
            self._api.filter_unsubscribe(pubsub_topic, gone)
            self._filtered -= {(pubsub_topic, c) for c in gone}
        return lost

    def _measure_fill(self, before: int, read: Read) -> int:
        """How full the fullest cache of this round was: nwaku has one for all topics, go-waku one for each."""
        here = len(read.messages) + len(read.refused)
        return before + here if here and self._api.dialect() is NodeDialect.NWAKU else max(before, here)

    def _find_capacity(self) -> int:
        if self._cache is not None:
            return self._cache
        if self._api.dialect() is NodeDialect.NWAKU:
            return NWAKU_CACHE
        return GO_WAKU_FILTER_CACHE if self._mode is Mode.EDGE else GO_WAKU_RELAY_CACHE

    def _classify(self, error: NodeUnreachable) -> NodeUnreachable:
        """The fault, or a more specific one for a node whose relay hangs while the rest of it answers."""
        if self._mode is Mode.RELAY and isinstance(error, NodeTimedOut):
            try:
                alive = bool(self._api.version())
            except NodeUnreachable:
                alive = False
            if alive:
                return NodeUnreachable(
                    f"The relay interface of {self._api.name} hangs, although the node answers.", "Restart the node."
                )
        return error

    def _subscribe(self, subscribe: Callable[[], HttpResponse | None]) -> bool:
        """Whether the node accepted a subscription. It is asked for none while it asks to be left alone after a
        refusal."""
        if self._refused is not None and self._refused.retry_after_s:
            return False
        refused = subscribe()
        if refused is not None:
            self._refused, self._refused_ms = refused, now_ms(self._clock)
        return refused is None

    @staticmethod
    def _make_batch(envelopes: list[ReceivedEnvelope], lost: str, refused: int) -> Batch:
        envelopes.sort(key=lambda one: one.message.timestamp or 0)  # stable: the node's order decides between equals
        return Batch(tuple(envelopes), lost, refused)


class ReadInterrupted(NodeUnreachable):
    """A fault in the middle of a round; ``partial`` has the messages removed from the node by then."""

    def __init__(self, error: NodeUnreachable, partial: Batch) -> None:
        super().__init__(error.cause, error.remedy, error.retry_after_s)
        self.partial = partial
