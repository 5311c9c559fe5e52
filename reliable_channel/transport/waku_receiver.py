"""Reading messages out of a node's REST caches, which are destructive to read and bounded (waku-rest.md *Relay*,
*Filter v2*). One reader per node and topic: two would take each other's messages."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from reliable_channel.transport.base import ReceivedEnvelope, Source, hash_candidates
from reliable_channel.transport.clock import Clock, SystemClock, now_ms
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http import NodeUnreachable
from reliable_channel.transport.waku_api import Dialect, Read, Refused, WakuApi
from reliable_channel.wire.waku import WakuMessage

_log = logging.getLogger(__name__)

NWAKU_CACHE = 50
"""Messages nwaku keeps for REST readers, over all topics; the oldest go first when it is full."""
GO_WAKU_FILTER_CACHE = 30
"""Messages go-waku keeps per filter topic. Its relay queue holds 1 000 and loses none: it stops the node instead."""

PING_INTERVAL_MS = 60_000
"""A filter subscription lapses after five minutes without a ping."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One round of reads. ``maybe_lost`` names why envelopes may be missing before this batch, or is empty:
    ``cache_full`` (a read returned as much as the cache holds) or ``resubscribed`` (the node had forgotten us)."""

    envelopes: tuple[ReceivedEnvelope, ...]
    maybe_lost: str = ""
    refused: int = 0

    @property
    def full(self) -> bool:
        """Whether more may be waiting."""
        return bool(self.envelopes)


class WakuReceiver:
    """Keeps the subscriptions of one node and reads what came. For one thread.

    In relay mode it joins pubsub topics, and gives everything that is on them; in edge mode it holds filter
    subscriptions to content topics. Envelopes are in the order of timestamp and hash within a batch, and may repeat.
    """

    def __init__(self, api: WakuApi, mode: Mode, clock: Clock | None = None) -> None:
        self._api = api
        self._mode = mode
        self._clock: Clock = clock or SystemClock()
        self._joined: set[str] = set()
        self._filtered: set[tuple[str, str]] = set()
        self._pinged_ms = 0

    def read(self, topics: Collection[tuple[str, str | None]]) -> Batch:
        """One read of every topic: pairs of pubsub topic and content topic (ignored in relay mode).

        Subscribes where needed, unsubscribes from what is not in ``topics`` any more. Raises ``NodeUnreachable``;
        what was read before the fault is in its ``partial`` attribute, as reading took it out of the node."""
        envelopes: list[ReceivedEnvelope] = []
        lost = ""
        refused = 0
        try:
            if self._mode is Mode.RELAY:
                for pubsub_topic in sorted({pubsub_topic for pubsub_topic, _ in topics}):
                    read, cause = self._read_relay(pubsub_topic)
                    lost, refused = lost or cause, refused + len(read.refused)
                    self._keep(envelopes, read.messages, pubsub_topic, Source.RELAY)
            else:
                lost = self._hold_filters({(p, c) for p, c in topics if c is not None})
                for pubsub_topic, content_topic in sorted(self._filtered):
                    read, cause = self._read_filter(pubsub_topic, content_topic)
                    lost, refused = lost or cause, refused + len(read.refused)
                    self._keep(envelopes, read.messages, pubsub_topic, Source.FILTER)
        except NodeUnreachable as error:
            raise ReadInterrupted(error, self._batch(envelopes, lost, refused)) from None
        return self._batch(envelopes, lost, refused)

    def leave(self, unsubscribe: bool | None = None) -> None:
        """Give up subscriptions, as far as the node answers. By default only where leaving them would do harm: an
        unread queue stops a go-waku node; on nwaku leaving would take the shard away from everybody."""
        try:
            if unsubscribe is None:
                unsubscribe = self._mode is Mode.EDGE or self._api.dialect() is Dialect.GO_WAKU
            if unsubscribe:
                if self._joined:
                    self._api.relay_unsubscribe(sorted(self._joined))
                for pubsub_topic in {p for p, _ in self._filtered}:
                    self._api.filter_unsubscribe(
                        pubsub_topic, sorted(c for p, c in self._filtered if p == pubsub_topic)
                    )
        except NodeUnreachable as error:
            _log.info("leaving subscriptions behind: %s", error.cause)
        self._joined.clear()
        self._filtered.clear()

    def _read_relay(self, pubsub_topic: str) -> tuple[Read, str]:
        # Read first: on go-waku every subscription adds a queue, also after a restart of ours.
        read = self._api.relay_read(pubsub_topic)
        if read.subscribed:
            self._joined.add(pubsub_topic)
            return read, self._overflow(read)
        cause = "resubscribed" if pubsub_topic in self._joined else ""
        self._raise_refusal(self._api.relay_subscribe([pubsub_topic]))
        self._joined.add(pubsub_topic)
        return self._api.relay_read(pubsub_topic), cause

    def _read_filter(self, pubsub_topic: str, content_topic: str) -> tuple[Read, str]:
        read = self._api.filter_read(pubsub_topic, content_topic)
        if read.subscribed:
            return read, self._overflow(read)
        self._raise_refusal(self._api.filter_subscribe(pubsub_topic, [content_topic]))
        return self._api.filter_read(pubsub_topic, content_topic), "resubscribed"

    def _hold_filters(self, wanted: set[tuple[str, str]]) -> str:
        """Subscribe to what is new, leave what is gone, ping what is held; a cause when the node had forgotten us."""
        lost = ""
        if self._filtered and now_ms(self._clock) - self._pinged_ms >= PING_INTERVAL_MS:
            self._pinged_ms = now_ms(self._clock)
            answer = self._api.filter_ping()
            # Other failures of a ping are the service's rate limit, or unclear: the subscription may well be there.
            if answer is not None and answer.status == 404:
                self._filtered.clear()
                lost = "resubscribed"
        for pubsub_topic in {p for p, _ in wanted - self._filtered}:
            new = sorted(c for p, c in wanted - self._filtered if p == pubsub_topic)
            self._raise_refusal(self._api.filter_subscribe(pubsub_topic, new))
            self._filtered |= {(pubsub_topic, c) for c in new}
            self._pinged_ms = now_ms(self._clock)
        for pubsub_topic in {p for p, _ in self._filtered - wanted}:
            gone = sorted(c for p, c in self._filtered - wanted if p == pubsub_topic)
            self._api.filter_unsubscribe(pubsub_topic, gone)
            self._filtered -= {(pubsub_topic, c) for c in gone}
        return lost

    def _overflow(self, read: Read) -> str:
        if self._api.dialect() is Dialect.GO_WAKU:
            limit = GO_WAKU_FILTER_CACHE if self._mode is Mode.EDGE else None
        else:
            limit = NWAKU_CACHE
        return "cache_full" if limit is not None and len(read.messages) + len(read.refused) >= limit else ""

    def _raise_refusal(self, refused: Refused | None) -> None:
        if refused is not None:
            raise NodeUnreachable(
                f"{self._api.name} refused a subscription (HTTP {refused.status}: {refused.detail}).",
                "See that the node serves the topic.",
            )

    def _keep(
        self, envelopes: list[ReceivedEnvelope], messages: tuple[WakuMessage, ...], pubsub_topic: str, source: Source
    ) -> None:
        at = now_ms(self._clock)
        for message in messages:
            found = hash_candidates(pubsub_topic, message)[0]
            envelopes.append(ReceivedEnvelope(message, pubsub_topic, found, source, at))

    @staticmethod
    def _batch(envelopes: list[ReceivedEnvelope], lost: str, refused: int) -> Batch:
        envelopes.sort(key=lambda one: (one.message.timestamp or 0, one.message_hash))
        return Batch(tuple(envelopes), lost, refused)


class ReadInterrupted(NodeUnreachable):
    """A fault in the middle of a round; ``partial`` is what had been taken out of the node by then."""

    def __init__(self, error: NodeUnreachable, partial: Batch) -> None:
        super().__init__(error.cause, error.remedy)
        self.partial = partial
