"""Runs the refetch job once: queries store nodes and writes the envelopes they return to Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.evidence.refetch import RefetchResult, refetch
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StoreEntry

FLUSH_S = 60.0

_log = logging.getLogger(__name__)


def refetch_once(settings: Settings, connect: Callable[[Settings], StoreClient]) -> RefetchResult:
    """Query store nodes for all open requests and write the returned envelopes to the envelopes topic. ``connect``
    creates the client of the configured store nodes, which is closed at the end.

    Raises ``EnvironmentFault`` if Kafka does not accept them; nothing is then recorded as queried."""
    client = connect(settings)
    try:
        return refetch(settings, client, lambda entries: write_back(settings, entries))
    finally:
        client.close()


def write_back(settings: Settings, entries: Sequence[StoreEntry]) -> None:
    """Write entries (with data) to Kafka as records with ``source=store``; returns when all replicas have them. An
    entry too large for Kafka would fail again at every run, so it is skipped and logged."""
    if not entries:
        return
    failures: list[FailureReason] = []
    producer = EnvelopeProducer(settings.kafka.clients().producer)
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
            "Check that the brokers and the topic are there; the next run asks again.",
        )
