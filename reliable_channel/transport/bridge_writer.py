"""Writes what a bridge has read or dispatched, or a store returned, to Kafka, and waits until it is safe there."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.backoff import Backoff
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord

_log = logging.getLogger(__name__)

FLUSH_TIMEOUT_S = 60.0
"""How long a batch waits for Kafka to acknowledge another record."""
STOPPING_TIMEOUT_S = 10.0
"""The time that a batch still gets when the bridge stops; less than the bridge waits for its threads."""


class Interrupted(Exception):
    """The bridge is stopping, and the batch is not safe in Kafka."""


class SafeWriter:
    """Writes batches with acks from all replicas. Thread-safe; a thread waits only for its own batch."""

    def __init__(self, producer: EnvelopeProducer, stopping: threading.Event) -> None:
        self._producer = producer
        self._stopping = stopping

    def write(self, records: Sequence[OutRecord]) -> list[OutRecord]:
        """Return when every record is acknowledged, except those that the broker rejects as too large: they are
        dropped, and returned. Raises :class:`Interrupted` when the bridge stops before that."""
        backoff = Backoff(0.5, 10.0)
        left = list(records)
        dropped: list[OutRecord] = []
        while left:
            outcomes = [*zip(left, self.write_once(left), strict=True)]
            too_large = [record for record, reason in outcomes if reason is FailureReason.TOO_LARGE]
            left = [record for record, reason in outcomes if reason not in (None, FailureReason.TOO_LARGE)]
            dropped += too_large
            if left:
                if self._stopping.is_set():
                    raise Interrupted
                if too_large:  # the others failed with it, and fit: nothing to wait for
                    continue
                wait = backoff.next_wait()
                _log.warning("Kafka did not take %s records; again in %.1f s", len(left), wait)
                self._stopping.wait(wait)
        if dropped:
            _log.error("%s records are over the broker's size limit and were dropped", len(dropped))
        return dropped

    def write_once(self, records: Sequence[OutRecord]) -> list[FailureReason | None]:
        """Write records, and wait while Kafka acknowledges one within :data:`FLUSH_TIMEOUT_S`. Returns why each was not
        acknowledged, ``None`` for those that were. Behind one that is too large, others fail with it."""
        outcomes: list[FailureReason | None] = [FailureReason.UNREACHABLE] * len(records)
        left = len(records)
        settled = threading.Condition()
        deadline, stop_by = time.monotonic() + FLUSH_TIMEOUT_S, 0.0

        def on_done(number: int, reason: FailureReason | None) -> None:
            nonlocal left, deadline
            with settled:
                outcomes[number] = reason
                left -= 1
                # Not for the whole batch: where a quota slows Kafka down, what it has still to take would be written
                # again behind itself, again and again.
                deadline = time.monotonic() + FLUSH_TIMEOUT_S
                settled.notify_all()

        for number, record in enumerate(records):
            try:
                self._producer.send(
                    record,
                    lambda reason, _detail, number=number: on_done(number, reason),  # type: ignore[misc]
                )
            except EnvironmentFault as fault:
                _log.warning("%s", fault.cause)
                with settled:
                    left -= len(records) - number
                break
        with settled:
            while left > 0 and (now := time.monotonic()) < deadline:
                if self._stopping.is_set():
                    deadline = min(deadline, stop_by := stop_by or now + STOPPING_TIMEOUT_S)
                settled.wait(0.5)
            return list(outcomes)
