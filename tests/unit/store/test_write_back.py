"""What store nodes gave goes to Kafka; one envelope that Kafka can never take does not stop the others."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from reliable_channel.config import load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message
from reliable_channel.evidence import refetch
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.kafka_records import OutRecord
from reliable_channel.transport.store.model import StoreEntry

opened: list[Any] = []
"""The producers that are open."""
REASONS = {b"large": FailureReason.TOO_LARGE, b"refused": FailureReason.REFUSED}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The payloads that Kafka took."""
    found: list[bytes] = []
    opened.clear()

    class Producer:
        def __init__(self, options: Any) -> None:
            opened.append(self)
            self.has_failed = False

        def send(self, record: OutRecord, done: Any) -> None:
            message = decode_waku_message(record.value)
            assert isinstance(message, WakuMessage)
            payload = message.payload
            reason = REASONS.get(payload)
            if payload == b"behind" and not self.has_failed:
                reason, self.has_failed = FailureReason.UNREACHABLE, True
            if reason is None:
                found.append(payload)
            done(reason, "")

        def close(self) -> None:
            opened.remove(self)

    monkeypatch.setattr(refetch, "EnvelopeProducer", Producer)
    return found


def entries(*payloads: bytes) -> list[StoreEntry]:
    return [StoreEntry(b"h" * 32, WakuMessage(payload, "/t"), "/p") for payload in payloads]


def test_an_envelope_that_is_too_large_is_left_out(taken: list[bytes]) -> None:
    refetch.KafkaWriter(load("local")).write_back(entries(b"one", b"large", b"two"))
    assert taken == [b"one", b"two"]


def test_what_fails_with_an_envelope_that_is_too_large_is_written_all_the_same(taken: list[bytes]) -> None:
    """kafka-python ends what waits behind it with its error; every run failed so, and asked for nothing else."""
    refetch.KafkaWriter(load("local")).write_back(entries(b"one", b"large", b"behind"))
    assert taken == [b"one", b"behind"]


def test_any_other_refusal_lets_the_next_run_ask_again(taken: list[bytes]) -> None:
    with pytest.raises(EnvironmentFault, match=r"refused 1 of 3"):
        refetch.KafkaWriter(load("local")).write_back(entries(b"one", b"large", b"refused"))


def test_one_producer_writes_all_pages_of_a_run(taken: list[bytes]) -> None:
    with closing(refetch.KafkaWriter(load("local"))) as kafka:
        kafka.write_back([])
        assert not opened
        for page in (b"one", b"two", b"three"):
            kafka.write_back(entries(page))
            assert len(opened) == 1 and taken[-1] == page
    assert not opened
