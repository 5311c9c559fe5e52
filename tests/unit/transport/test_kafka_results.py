"""A node over Kafka reads what bridges report, and goes on reading when it cannot."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest
from kafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    TopicAuthorizationFailedError,
)

from reliable_channel.config import KafkaSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime.topics import unreachable
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_producer import reason_of, translate_errors
from reliable_channel.transport.sharding import NamedTopic
from tests.support.error_page import pattern_of


class Outages(threading.Event):
    """Polls of which those that are false fail; stops after the last one. Nothing waits."""

    def __init__(self, polls: list[bool]) -> None:
        super().__init__()
        self.polls = polls

    def poll(self, timeout_ms: int) -> list[Any]:
        answers = self.polls.pop(0)
        if not self.polls:
            self.set()
        if not answers:
            raise EnvironmentFault("Kafka does not answer.")
        return []

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()

    def close(self) -> None: ...


def test_an_outage_in_which_no_results_are_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It was a line a second."""
    node = KafkaNode(KafkaClients({}, {}, {}), NamedTopic("/waku/2/rs/1/0"))
    outages = Outages([True, False, False, False, True, False])
    node._follow_results(cast(Any, outages), outages)
    assert [record.getMessage() for record in caplog.records] == [
        "results of dispatches are not read: Kafka does not answer."
    ] * 2


@pytest.mark.parametrize(
    "error", [TopicAuthorizationFailedError("waku.outgoing"), GroupAuthorizationFailedError("bob")]
)
def test_what_an_account_may_not_do_is_named(error: Exception) -> None:
    """It was "Kafka does not answer", with the advice to start a broker."""
    with pytest.raises(EnvironmentFault) as fault, translate_errors():
        raise error
    assert f"{type(error).__name__}: {error.args[0]}" in str(fault.value)
    for each in (fault.value, unreachable(KafkaSettings(), error)):
        assert pattern_of("An account that lacks a right").fullmatch(f"reliable-channel: {each}")


def test_a_producer_without_the_right_to_write_is_refused_and_not_unreachable() -> None:
    """kafka-python raises its basic error, with the broker's in the text; the send was tried for ever."""
    broker = ClusterAuthorizationFailedError()
    assert reason_of(KafkaError(f"Unexpected error in InitProducerIdResponse: {broker}")) is FailureReason.REFUSED
    assert reason_of(KafkaError("Cannot perform send because …", broker)) is FailureReason.REFUSED
    assert reason_of(KafkaError("Unexpected error")) is FailureReason.UNREACHABLE
