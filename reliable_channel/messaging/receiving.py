"""Turns each envelope from the network into a record in the state ``received``, once.

MESSAGING-API, *Subscribe*. An exception of a decoder or a listener does not affect the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from reliable_channel.messaging.ledger import Ledger
from reliable_channel.messaging.records import MessageRecord, shorten
from reliable_channel.messaging.subscriptions import Subscription, SubscriptionListener, Subscriptions
from reliable_channel.transport.base import ReceivedEnvelope, Source

_running: set[asyncio.Task[object]] = set()
"""Tasks that run, because event loops hold them weakly (https://docs.python.org/3/library/asyncio-task.html)."""


class MessageReceiver:
    """Turns received envelopes into records, events and calls of subscription listeners."""

    def __init__(self, ledger: Ledger, subscriptions: Subscriptions) -> None:
        self._ledger = ledger
        self._subscriptions = subscriptions

    def on_envelope(self, envelope: ReceivedEnvelope) -> None:
        """Process one envelope. A repeated one changes nothing."""
        wanted = self._subscriptions.find_by_topic(envelope.pubsub_topic, envelope.message.content_topic)
        takers, error = _decode(wanted, envelope)
        if not takers and error is None:
            return
        with self._ledger.step():
            for record, new in self._record(envelope, takers, error):
                for subscription in takers if new else ():
                    self._call(subscription, record)

    def _record(
        self, envelope: ReceivedEnvelope, takers: list[Subscription], error: str | None
    ) -> list[tuple[MessageRecord, bool]]:
        """The records of this envelope after it was received, and whether each is received for the first time."""
        ids = tuple(taker.subscription_id for taker in takers)
        from_store = envelope.source is Source.STORE
        known = self._ledger.records.all_by_hash(envelope.message_hash)
        if not known:
            record = MessageRecord(
                envelope.message,
                received=bool(takers),
                error=error,
                message_hash=envelope.message_hash,
                pubsub_topic=envelope.pubsub_topic,
                from_store=from_store,
            )
            return [(self._ledger.add(record, ids, failed=error is not None), True)]
        recorded = []
        for record in known:
            if record.received or (not takers and record.error is not None):
                recorded.append((record, False))
                continue
            changes: dict[str, Any] = {"received": bool(takers), "from_store": from_store}
            if error is not None:
                changes |= {"error": error, "failed": True}
            recorded.append((self._ledger.update(record, subscriptions=ids, **changes), bool(takers)))
        return recorded

    def _call(self, subscription: Subscription, record: MessageRecord) -> None:
        listener = subscription.listener
        if listener is None:
            return
        subscription_id = subscription.subscription_id

        def call(listener: SubscriptionListener = listener) -> None:
            # Unsubscribed meanwhile: it MUST NOT receive any further messages.
            if subscription_id in self._subscriptions:
                result = listener(record)
                if asyncio.iscoroutine(result):
                    _run(result)

        self._ledger.run_after(call)


def _decode(wanted: list[Subscription], envelope: ReceivedEnvelope) -> tuple[list[Subscription], str | None]:
    """The subscriptions whose decoder takes the message, and the error of those that failed."""
    takers, error = [], None
    for subscription in wanted:
        for decoder in subscription.decoders:
            if (decoder.pubsub_topic, decoder.content_topic) != (envelope.pubsub_topic, envelope.message.content_topic):
                continue
            try:
                if decoder.decode(envelope.message) is not None:
                    takers.append(subscription)
            except Exception as failure:
                # A decoder's text may hold plaintext or keys, so only its kind is kept.
                error = shorten(f"decoding: {type(failure).__name__}")
    return takers, error


def _run(work: Coroutine[Any, Any, object]) -> None:
    """Run a listener's coroutine: on the event loop of the calling thread where there is one, else to its end."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
        return
    task = loop.create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
