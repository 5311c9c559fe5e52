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
from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.runtime.topics import unreachable
from reliable_channel.transport import kafka
from reliable_channel.transport.base import FailureReason, NodeEvent, Received, SendFailed
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.kafka import KafkaNode
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_producer import reason_of, translate_errors
from reliable_channel.transport.kafka_records import envelope_record, read_record
from reliable_channel.transport.node import Accepted, new_request_id
from reliable_channel.transport.sharding import NamedTopic
from tests.support.error_page import pattern_of
from tests.unit.channel.channel_world import fail_with

PUBSUB = "/waku/2/rs/1/0"


class Outages(threading.Event):
    """Polls of which those that are false fail; stops after the last one. Nothing waits."""

    def __init__(self, polls: list[bool], error: Exception | None = None) -> None:
        super().__init__()
        self.polls = polls
        self.error = error or EnvironmentFault("Kafka does not answer.")

    def poll(self, timeout_ms: int) -> list[Any]:
        answers = self.polls.pop(0)
        if not self.polls:
            self.set()
        if not answers:
            raise self.error
        return []

    def commit(self, next_offsets: dict[int, int]) -> None: ...

    def check(self) -> int:
        return 0

    is_shared = check
    withheld = 0

    def wait(self, timeout: float | None = None) -> bool:
        return self.is_set()

    def close(self) -> None: ...


def test_an_outage_in_which_no_results_are_read_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """It was a line a second."""
    node = _make_node()
    outages = Outages([True, False, False, False, True, False])
    node._follow_results(cast(Any, outages), outages)
    assert [record.getMessage() for record in caplog.records] == [
        "results of dispatches are not read: Kafka does not answer."
    ] * 2


def test_no_error_ends_the_reading_of_envelopes_and_the_health_names_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread was gone, and the node stayed healthy and received nothing any more."""
    node, outages = _make_node(), Outages([True, False, False, True, True], KeyError("partition 3"))
    judged: list[Health] = []
    monkeypatch.setattr(node, "_note_kafka_health", judged.append)
    node._receive(cast(Any, outages), outages)
    assert outages.polls == []
    details = [health.detail for health in judged if health.state is HealthState.UNHEALTHY]
    assert details == ["nothing is received: KeyError; the log has more"] * 2
    (record,) = caplog.records
    assert record.exc_info, "with its traceback, once while it lasts"


def test_no_error_ends_the_reading_of_results_and_what_waits_for_one_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Every send stayed *queued*, whatever bridges reported."""
    node, outages = _make_node(), Outages([True, False, True], KeyError("partition 3"))
    events: list[NodeEvent] = []
    node.add_listener(events.append)
    request = new_request_id()
    message = WakuMessage(b"x", "/app/1/x/proto", timestamp=1)
    node._awaited.expect(Accepted(request, message, PUBSUB, Traffic.FIRST_SEGMENT), 0)
    node._follow_results(cast(Any, outages), outages)
    node._dispatcher.drain()
    assert outages.polls == []
    (failed,) = events
    assert isinstance(failed, SendFailed)
    assert (failed.request_id, failed.retriable) == (request, True)


def test_a_record_on_which_the_program_fails_is_named_and_the_next_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the thread, and after a restart once more."""
    node = _make_node()
    events: list[NodeEvent] = []
    node.add_listener(events.append)
    node.subscribe(["/app/1/x/proto"])
    node._dispatcher.start()
    sound = read_record
    for offset, payload in enumerate((b"bad", b"good")):
        record = envelope_record("", WakuMessage(payload, "/app/1/x/proto", timestamp=1), PUBSUB, None)
        monkeypatch.setattr(kafka, "read_record", fail_with(ValueError()) if payload == b"bad" else sound)
        node._take(3, offset, record.value, record.headers)
    node._dispatcher.stop()
    gone, received = events
    assert str(gone) == "offsets 0 to 0 of waku.envelopes, partition 3: a fault of this program (ValueError)"
    assert isinstance(received, Received)
    assert (received.envelope.message.payload, node._read) == (b"good", {3: 2})


def _make_node() -> KafkaNode:
    return KafkaNode(KafkaClients({}, {}, {}), NamedTopic(PUBSUB))


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
