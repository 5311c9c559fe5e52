"""What a bridge dispatches for participants, and what it reports to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.bridge_outbound import Outbound
from reliable_channel.transport.dispatch_results import read_result
from reliable_channel.transport.kafka_consumer import RawRecord
from reliable_channel.transport.kafka_records import envelope_record
from reliable_channel.transport.waku_api import Published
from tests.support.bridge_parts import START_NS, TOPIC, Parts, outgoing_request, results
from tests.support.fake_waku_node import PUBSUB_TOPIC


def test_an_envelope_that_no_node_takes_is_given_up_although_the_clock_was_set_back(
    parts: Callable[..., Parts],
) -> None:
    bridge = parts()
    bridge.inbound.step()

    waits: list[float] = []

    class SetBack(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout
            waits.append(timeout)
            bridge.clock.advance(-86_400_000 if len(waits) == 1 else timeout * 1_000)
            return len(waits) > 100

    def publish(_topic: str, message: WakuMessage) -> Published:
        return Published(FailureReason.NO_PEERS, "nobody")

    Outbound(publish, bridge.context).dispatch([outgoing_request(b"x")], SetBack())
    assert [one.status for one in results(bridge)] == ["failed"]
    assert 600 <= sum(waits) < 620, "not at once, either"


@pytest.mark.parametrize("asleep_in", ["the wait", "the attempt"])
def test_an_envelope_that_waited_while_the_machine_slept_is_not_given_up_for_that(
    parts: Callable[..., Parts], asleep_in: str
) -> None:
    bridge = parts()
    bridge.inbound.step()
    answers = [Published(FailureReason.NO_PEERS, "nobody")] * 2

    class Asleep(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            bridge.clock.advance(86_400_000 if asleep_in == "the wait" else 500)
            return False

    def publish(_topic: str, message: WakuMessage) -> Published:
        bridge.clock.advance(86_400_000 if asleep_in == "the attempt" else 1)
        return answers.pop() if answers else Published()

    Outbound(publish, bridge.context).dispatch([outgoing_request(b"x")], Asleep())
    assert [one.status for one in results(bridge)] == ["accepted"]


def outgoing(payload: bytes, topic: str = PUBSUB_TOPIC) -> RawRecord:
    record = envelope_record("", WakuMessage(payload, TOPIC, timestamp=START_NS), topic, Source.SENDER)
    return RawRecord(0, 0, None, record.value, record.headers)


def test_the_first_publish_waits_until_the_node_has_joined(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", joined=())
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    stopping = threading.Event()
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.extend(outbound.dispatch([outgoing(b"first")], stopping)))
    thread.start()
    bridge.inbound.step()
    thread.join(120)
    assert len(done) == 1
    assert [message.payload for _, message in bridge.fake.published] == [b"first"]
    assert bridge.counts["failed"] == 0


def test_an_envelope_outlasts_a_node_that_has_forgotten_the_topic(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", joined=())
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    bridge.inbound.step()
    bridge.fake.restart()

    class Rejoining(threading.Event):
        """The wait before the next attempt, in which the reader joins again."""

        def wait(self, timeout: float | None = None) -> bool:
            bridge.inbound.step()
            return False

    assert len(outbound.dispatch([outgoing(b"kept")], Rejoining())) == 1
    assert [message.payload for _, message in bridge.fake.published] == [b"kept"]


def test_a_topic_that_the_bridge_does_not_read_is_refused_at_once(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku")
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    assert len(outbound.dispatch([outgoing(b"x", "/waku/2/rs/16/99")], threading.Event())) == 1
    assert bridge.counts["failed"] == 1


def test_a_stop_does_not_wait_for_a_node_that_never_answered(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    stopping = threading.Event()
    stopping.set()
    publish = cast(Any, None)  # never called
    assert Outbound(publish, bridge.context).dispatch([outgoing(b"x")], stopping) == []


@pytest.mark.parametrize("late_ns", [60_000_000_000, -60_000_000_000])
def test_the_sender_is_told_the_hash_of_the_envelope_that_went_out(parts: Callable[..., Parts], late_ns: int) -> None:
    """Stores refuse what is more than 20 s off, of a sender whose clock is ahead as well."""
    bridge = parts()
    bridge.inbound.step()
    old, fresh = outgoing_request(b"old", 0, at_ns=START_NS - late_ns), outgoing_request(b"fresh", 1)
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([old, fresh], threading.Event())
    published = {message.payload: message for _, message in bridge.fake.published}
    assert [(one.request_id, one.status) for one in results(bridge)] == [("old", "accepted"), ("fresh", "accepted")]
    assert [one.timestamp for one in results(bridge)] == [published[b"old"].timestamp, START_NS]
    assert published[b"old"].timestamp != START_NS - late_ns
    written = json.loads(next(record.value for record in bridge.written.records if record.topic == "dispatched"))
    assert written["envelope_hash"] == message_hash(PUBSUB_TOPIC, published[b"old"]).hex()


def test_a_record_whose_request_has_no_value_names_none(parts: Callable[..., Parts]) -> None:
    """Kafka has headers without a value; one such record ended the bridge, and every later one at its start."""
    bridge = parts()
    bridge.inbound.step()
    strange, usual = outgoing_request(b"strange", 0), outgoing_request(b"usual", 1)
    strange = replace(strange, headers=(*strange.headers, ("request_id", None)))
    done = Outbound(bridge.api.relay_publish, bridge.context).dispatch([strange, usual], threading.Event())
    assert done == [strange, usual]
    assert [one.request_id for one in results(bridge)] == ["usual"]


def test_the_sender_is_told_of_a_refusal(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.status, bridge.fake.faults.paths = 400, "/relay/v1/messages"
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([outgoing_request(b"refused")], threading.Event())
    assert [(one.status, one.reason) for one in results(bridge)] == [("failed", "refused")]


def test_what_went_before_is_reported_before_the_bridge_waits_for_the_node(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()

    class Waits(threading.Event):
        reported: list[str] | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.reported = [one.request_id for one in results(bridge)]
            return True

    def publish(_topic: str, message: WakuMessage) -> Published:
        return Published() if message.payload == b"first" else Published(FailureReason.NO_PEERS, "nobody")

    stopping = Waits()
    done = Outbound(publish, bridge.context).dispatch(
        [outgoing_request(b"first", 0), outgoing_request(b"second", 1)], stopping
    )
    assert stopping.reported == ["first"]
    assert [raw.offset for raw in done] == [0]


@pytest.mark.parametrize("status", [429, 503])
def test_an_envelope_waits_as_long_as_the_node_says(status: int, parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.status, bridge.fake.faults.paths = status, "/relay/v1/messages"
    bridge.fake.faults.retry_after = "40"
    waits: list[float | None] = []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            bridge.fake.faults.status = None
            return False

    Outbound(bridge.api.relay_publish, bridge.context).dispatch([outgoing_request(b"x")], Waits())
    assert [one.status for one in results(bridge)] == ["accepted"]
    assert waits == [40.0]


FIELDS = st.sampled_from(["request_id", "status", "at_ms", "timestamp", "reason", "until_ms", "near", "utilization"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.floats() | st.sampled_from(["accepted", "delayed", "failed"]),
    lambda inner: st.dictionaries(FIELDS, inner, max_size=8) | st.lists(inner, max_size=3),
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_a_hostile_dispatch_result_is_passed_over_or_bounded(value: bytes) -> None:
    result = read_result(value)
    assert result is None or (len(result.request_id) <= 64 and len(result.to_bytes()) < 4096)


RESULT = {"request_id": "r", "status": "accepted", "at_ms": 1, "timestamp": 2, "near": [1, 2, 3], "utilization": 0.5}


@pytest.mark.parametrize("field", [*RESULT, "reason", "detail", "until_ms"])
def test_a_dispatch_result_with_one_odd_field_is_passed_over_or_bounded(field: str) -> None:
    assert read_result(json.dumps(RESULT).encode()) is not None
    for odd in (None, True, -1, 10**400, 0.5, "", "x", [], [[]], {}):
        result = read_result(json.dumps({**RESULT, field: odd}).encode())
        assert result is None or len(result.to_bytes()) < 4096


def test_what_a_bridge_dispatches_it_says_it_dispatched(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([outgoing(b"mine")], threading.Event())
    assert [(source, node) for _, node, source, _ in bridge.written.sightings()] == [("sender", bridge.fake.url)]
