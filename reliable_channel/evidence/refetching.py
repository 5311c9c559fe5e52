"""Assembles the refetch job from the settings: the store nodes to query, and the Kafka producer."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.evidence.refetch import RefetchResult, refetch
from reliable_channel.gateway.build import store_client
from reliable_channel.runtime.own_broker import require_own_broker
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.store.model import StoreEntry

FLUSH_S = 60.0

_log = logging.getLogger(__name__)


def refetch_once(settings: Settings) -> RefetchResult:
    """Ask the configured store nodes for everything that is open and write what they give into the envelopes topic.

    Raises ``EnvironmentFault`` when Kafka does not take it; nothing is then recorded as asked."""
    require_own_broker(settings)
    client = store_client(settings)
    try:
        return refetch(settings, client, lambda entries: write_back(settings, entries))
    finally:
        client.close()


def write_back(settings: Settings, entries: Sequence[StoreEntry]) -> None:
    """Entries (with data) as records with ``source=store``; returns when all replicas have them. One that is too large
    for Kafka would be so again at every run, so it is left out, with a line in the log."""
    if not entries:
        return
    failures: list[FailureReason] = []
    producer = EnvelopeProducer(settings.kafka.client_options())
    try:
        for entry in entries:
            if entry.message is not None and entry.pubsub_topic is not None:
                producer.send(
                    settings.kafka.topics.envelopes,
                    entry.message,
                    entry.pubsub_topic,
                    Source.STORE,
                    lambda reason, _detail: failures.append(reason) if reason is not None else None,
                )
        producer.flush(FLUSH_S)
    finally:
        producer.close()
    too_large = failures.count(FailureReason.TOO_LARGE)
    if too_large:
        _log.warning("%d envelopes from store nodes are too large for Kafka and were left out", too_large)
    others = [reason for reason in failures if reason is not FailureReason.TOO_LARGE]
    if others:
        raise EnvironmentFault(
            f"Kafka refused {len(others)} of {len(entries)} fetched envelopes ({others[0].value}).",
            "See that the brokers and the topic are there; the next run asks again.",
        )
