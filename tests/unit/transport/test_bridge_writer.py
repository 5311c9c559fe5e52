"""What the bridge's writer does with records that Kafka does not take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.bridge_writer import SafeWriter
from reliable_channel.transport.kafka_producer import Done, EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord

OK, TOO_LARGE, UNREACHABLE = None, FailureReason.TOO_LARGE, FailureReason.UNREACHABLE


class Answers:
    """A producer whose records end with the given reasons, in order."""

    def __init__(self, reasons: Sequence[FailureReason | None]) -> None:
        self.reasons = [*reasons]

    def send(self, _record: OutRecord, done: Done) -> None:
        done(self.reasons.pop(0), "")


class Waits(threading.Event):
    """Counts the waits for it, which end at once."""

    count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return False


@pytest.mark.parametrize(
    ("reasons", "waits"),
    [
        # kafka-python ends what waits behind a record that is too large with it.
        pytest.param([OK, TOO_LARGE, UNREACHABLE, OK], 0, id="behind one that is too large"),
        pytest.param([UNREACHABLE, TOO_LARGE, UNREACHABLE, UNREACHABLE, OK, OK], 1, id="Kafka is away as well"),
    ],
)
def test_a_record_that_is_too_large_is_returned_and_keeps_the_others_from_nothing(
    reasons: list[FailureReason | None], waits: int
) -> None:
    producer, stopping = Answers(reasons), Waits()
    records = [OutRecord("envelopes", b"key", value) for value in (b"first", b"large", b"last")]
    writer = SafeWriter(cast(EnvelopeProducer, producer), stopping)
    assert writer.write(records) == [records[1]]
    assert producer.reasons == []
    assert stopping.count == waits
