"""What the bridge's writer does with records that Kafka does not take."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import cast

import pytest

from reliable_channel.transport import bridge_writer
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.bridge_writer import FLUSH_TIMEOUT_S, SafeWriter
from reliable_channel.transport.kafka_producer import Done, EnvelopeProducer
from reliable_channel.transport.kafka_records import OutRecord
from tests.support.waiting import until

OK, TOO_LARGE, UNREACHABLE = None, FailureReason.TOO_LARGE, FailureReason.UNREACHABLE


class Answers:
    """A producer whose records end with the given reasons, in order."""

    def __init__(self, reasons: Sequence[FailureReason | None]) -> None:
        self.reasons = [*reasons]

    def send(self, _record: OutRecord, done: Done) -> None:
        done(self.reasons.pop(0), "")


class Slow:
    """A producer that acknowledges a record in half of the time that a batch waits for the next one, by its own
    clock."""

    def __init__(self) -> None:
        self.now_s, self.looks, self.open, self.sent = 0.0, 0, list[Done](), list[OutRecord]()

    def monotonic(self) -> float:
        self.looks += 1
        return self.now_s

    def send(self, record: OutRecord, done: Done) -> None:
        assert record not in self.sent
        self.sent.append(record)
        self.open.append(done)

    def acknowledge(self) -> None:
        until(lambda: len(self.open) == 5)
        for done in self.open[:-1]:
            self.now_s += FLUSH_TIMEOUT_S / 2
            done(OK, "")
            until(lambda looks=self.looks: self.looks > looks)  # type: ignore[misc]
        self.open[-1](OK, "")


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


def test_a_batch_that_kafka_takes_slowly_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a quota. After a minute all that was not acknowledged was written again, behind itself, and so on for
    ever."""
    producer = Slow()
    monkeypatch.setattr(bridge_writer, "time", producer)
    records = [OutRecord("envelopes", b"key", b"%d" % number) for number in range(5)]
    slowly = threading.Thread(target=producer.acknowledge, daemon=True)
    slowly.start()
    assert SafeWriter(cast(EnvelopeProducer, producer), threading.Event()).write(records) == []
    slowly.join()
    assert producer.sent == records
