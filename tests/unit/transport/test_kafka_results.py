"""A node over Kafka reads what bridges report, and goes on reading when it cannot."""

from __future__ import annotations

import threading
from typing import Any, cast

import pytest

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.sharding import NamedTopic


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
