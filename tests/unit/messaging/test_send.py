"""Send, retry, cancel and pending requests of a messaging node, and what its records say meanwhile."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from reliable_channel.core.errors import EmptyMessage, LocalError, MessageTooLarge
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.messaging import Message, PlainEncoder, UnsupportedTopicError, sending
from reliable_channel.messaging.sender_events import SenderEvent, SenderEventKind
from reliable_channel.messaging.sending import PendingLimitError
from reliable_channel.transport.base import FailureReason, Queued, RequestId, SendFailed, Sent
from reliable_channel.transport.clock import now_ms
from reliable_channel.transport.health import Health, HealthState
from tests.support.messaging_world import CONTENT, OTHER, PUBSUB, STEP_MS, World

SICK = Health(HealthState.UNHEALTHY, "no peers")
WELL = Health(HealthState.HEALTHY, "peers again")


def test_send_returns_a_guid_and_the_record_goes_from_sending_to_sent(world: World) -> None:
    request_id = world.send()
    assert str(uuid.UUID(request_id)) == request_id
    record = world.record(request_id)
    assert (record.sending, record.sent, record.error) == (True, False, None)
    world.run()
    record = world.record(request_id)
    assert (record.sending, record.sent, record.request_id) == (False, True, request_id)
    assert world.transport.sent == [record.message]


@pytest.mark.parametrize(
    ("message", "said"), [(Message("text"), "Payload and meta are bytes"), (Message(b"x", bytes(65)), "Shorten it")]
)  # type: ignore[arg-type]
def test_what_no_envelope_can_hold_is_refused_with_a_remedy(world: World, message: Message, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        world.node.send(PlainEncoder(PUBSUB, CONTENT), message)


@pytest.mark.parametrize("asleep_ms", [600_000, 86_400_000])
def test_an_attempt_under_way_when_the_machine_slept_is_not_made_again(world: World, asleep_ms: int) -> None:
    """It would go out under a new timestamp, as another message: gossip no longer knows the old one."""
    world.run(STEP_MS)
    request_id = world.send()
    world.node.tick()
    world.clock.advance(asleep_ms)
    world.node.tick()  # before the transport's answer
    world.run(10_000)
    assert world.record(request_id).sent
    assert len(world.transport.sent) == 1


def test_a_request_and_its_attempt_are_one_transaction_and_its_end_another(world: World) -> None:
    transactions: list[str] = []
    world.node._ledger.records._connection.set_trace_callback(
        lambda statement: transactions.append(statement) if statement.startswith("BEGIN") else None
    )
    world.send()
    assert len(transactions) == 1
    world.run()
    assert world.transport.sent
    assert len(transactions) == 2


def test_an_attempt_that_was_cancelled_before_it_was_handed_over_is_not_made(world: World) -> None:
    request_id = world.send()
    world.node.cancel_request(request_id)
    world.run()
    assert world.transport.sent == []


def test_reports_on_what_this_node_did_not_send_are_not_kept(world: World) -> None:
    """Another user of the transport has sent them, or they come after the time-out of their attempt."""
    sender = world.node._sender
    strange = Sent(RequestId("of another"), WakuMessage(bytes(150_000), CONTENT, timestamp=1), PUBSUB, bytes(32), 1)
    sender.on_transport(strange)
    assert not sender._early
    send = world.transport.send

    def send_among_others(*arguments: Any, **options: Any) -> RequestId:
        for number in range(1_000):
            sender.on_transport(replace(strange, request_id=RequestId(f"of another {number}")))
        assert len(sender._early) * 150_000 <= sending.EARLY_BYTES
        own = send(*arguments, **options)
        sender.on_transport(replace(strange, request_id=own))
        return own

    world.transport.send = send_among_others  # type: ignore[method-assign]
    request_id = world.send()
    world.node.tick()
    assert world.record(request_id).sent
    assert not sender._early


def test_what_the_message_omits_is_supplied_and_what_it_gives_is_kept(world: World) -> None:
    encoder = PlainEncoder(PUBSUB, CONTENT, meta=b"default", ephemeral=True, version=1)
    supplied = world.record(world.node.send(encoder, Message(b"x")))
    assert (supplied.message.meta, supplied.message.ephemeral, supplied.message.version) == (b"default", True, 1)
    assert supplied.message.timestamp is not None
    given = world.record(world.node.send(encoder, Message(b"x", meta=b"mine", timestamp=7, ephemeral=False)))
    assert (given.message.meta, given.message.timestamp, given.message.ephemeral) == (b"mine", 7, False)


def test_a_timestamp_of_zero_counts_as_omitted(world: World) -> None:
    assert world.record(world.send(timestamp=0)).message.timestamp == world.clock.now_ns()


def test_the_record_carries_the_hash_of_the_envelope(world: World) -> None:
    record = world.record(world.send())
    assert record.message_hash == message_hash(PUBSUB, record.message)
    assert world.node.get_by_hash(record.hash_hex) == record


def test_an_unsupported_pubsub_topic_is_refused_by_name(world: World) -> None:
    with pytest.raises(UnsupportedTopicError) as caught:
        world.node.send(PlainEncoder("string", CONTENT), Message(b"x"))
    assert str(caught.value) == "Failed to send message. Target pubsubTopic 'string' not supported."
    assert world.node.get_by_content_topic(CONTENT) == []


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message(b""), EmptyMessage),
        (Message(b"x" * 150_000), MessageTooLarge),
        (Message(b"x", meta=b"m" * 65), LocalError),
        (Message(b"x", timestamp=2**63), LocalError),
        (Message("text"), LocalError),
        (Message(b"x", meta="text"), LocalError),
        (Message(b"x", timestamp="now"), LocalError),
    ],
)
def test_what_no_node_would_take_is_refused_at_once(world: World, message: Message, error: type[Exception]) -> None:
    with pytest.raises(error):
        world.node.send(PlainEncoder(PUBSUB, CONTENT), message)
    assert world.node.get_pending_requests() == []


def test_a_failing_network_is_tried_four_times_over_seven_seconds_and_then_given_up(world: World) -> None:
    world.transport.failing = FailureReason.NO_PEERS
    tried: list[int] = []
    send = world.transport.send

    def counted(*arguments: object, **options: object) -> object:
        tried.append(world.clock.now_ns() // 1_000_000)
        return send(*arguments, **options)  # type: ignore[arg-type]

    world.transport.send = counted  # type: ignore[assignment, method-assign]
    request_id = world.send()
    world.run(30_000)
    assert [moment - tried[0] for moment in tried] == [0, 1_000, 3_000, 7_000]
    record = world.record(request_id)
    assert (record.sending, record.sent) == (False, False)
    assert record.error is not None and record.error.startswith("no_peers")
    assert world.node.get_pending_requests() == []


def test_an_error_is_shown_while_retrying_and_cleared_by_a_later_success(world: World) -> None:
    world.transport.failing = FailureReason.NO_PEERS
    request_id = world.send()
    world.run()
    record = world.record(request_id)
    assert record.sending and record.error is not None
    world.transport.failing = None
    world.run(1_000)
    record = world.record(request_id)
    assert (record.sending, record.sent, record.error) == (False, True, None)
    assert world.names() == [
        "health:change", "message:change", "message:error", "message:change", "message:sent"
    ]  # fmt: skip


def test_what_the_peer_refuses_for_good_is_not_tried_again(world: World) -> None:
    world.transport.failing = FailureReason.REFUSED
    request_id = world.send()
    world.run()
    record = world.record(request_id)
    assert (record.sending, record.sent) == (False, False)
    assert record.error is not None and record.error.startswith("refused")


def test_after_a_time_out_duplicate_counts_as_sent(world: World) -> None:
    world.transport.failing = FailureReason.UNREACHABLE
    request_id = world.send()
    world.run()
    first = world.record(request_id).message
    world.transport.failing = FailureReason.DUPLICATE
    world.run(1_000)
    record = world.record(request_id)
    assert (record.sent, record.error) == (True, None)
    assert record.message == first, "retries repeat the bytes, else no peer could know them as a duplicate"


def test_duplicate_without_a_doubtful_attempt_is_no_success(world: World) -> None:
    world.transport.failing = FailureReason.DUPLICATE
    request_id = world.send()
    world.run(30_000)
    assert not world.record(request_id).sent


def test_retry_sends_a_failed_request_again_under_the_same_id(world: World) -> None:
    world.transport.failing = FailureReason.REFUSED
    request_id = world.send()
    world.run(60_000)
    world.transport.failing = None
    assert world.node.retry(request_id)
    assert world.node.get_pending_requests() == [request_id]
    world.run()
    record = world.record(request_id)
    assert (record.sending, record.sent, record.error) == (False, True, None)
    assert abs(world.clock.now_ns() - record.message.timestamp) < 10_000_000_000, "stores refuse old timestamps"
    assert world.node.get_by_hash("0x" + message_hash(PUBSUB, world.transport.sent[0]).hex()) == record


def test_a_timestamp_of_the_caller_is_never_renewed(world: World) -> None:
    world.transport.failing = FailureReason.REFUSED
    request_id = world.send(timestamp=5)
    world.run(60_000)
    world.transport.failing = None
    world.node.retry(request_id)
    world.run()
    assert world.transport.sent[0].timestamp == 5


def test_retry_is_refused_for_what_is_pending_sent_or_unknown(world: World) -> None:
    request_id = world.send()
    assert not world.node.retry(request_id)
    world.run()
    assert not world.node.retry(request_id)
    assert not world.node.retry("unknown")


def test_a_cancelled_request_is_not_sent_and_cancelling_it_again_is_ignored(world: World) -> None:
    request_id = world.send()
    world.node.cancel_request(request_id)
    world.node.cancel_request(request_id)
    world.run(10_000)
    assert world.transport.sent == []
    record = world.record(request_id)
    assert (record.sending, record.sent) == (False, False)
    assert world.node.get_pending_requests() == []


def test_cancelling_what_is_fulfilled_or_unknown_is_ignored(world: World) -> None:
    request_id = world.send()
    world.run()
    before = world.record(request_id)
    world.node.cancel_request(request_id)
    world.node.cancel_request("unknown")
    assert world.record(request_id) == before


def test_a_cancelled_request_that_was_already_on_its_way_is_recorded_as_sent(world: World) -> None:
    request_id = world.send()
    world.node.tick()
    world.node.cancel_request(request_id)
    world.run()
    assert world.record(request_id).sent, "the record says what happened"


def test_pending_requests_are_those_that_are_scheduled_retrying_or_halted(world: World) -> None:
    world.transport.failing = FailureReason.NO_PEERS
    retrying = world.send()
    world.run()
    fresh = world.send()
    assert world.node.get_pending_requests() == [retrying, fresh]


def test_requests_beyond_the_configured_number_are_refused(new_world: Callable[..., World]) -> None:
    world = new_world(max_pending_requests=1)
    world.send()
    with pytest.raises(PendingLimitError):
        world.send()


def test_retries_stop_while_unhealthy_and_resume_when_healthy_again(world: World) -> None:
    world.transport.failing = FailureReason.NO_PEERS
    request_id = world.send()
    world.run()
    world.transport.report(SICK)
    record = world.record(request_id)
    assert not record.sending and record.error is not None, "halted, and the reason shows"
    world.transport.failing = None
    world.run(60_000)
    assert world.transport.sent == []
    assert world.node.get_pending_requests() == [request_id]
    world.transport.report(WELL)
    world.run()
    assert (world.record(request_id).sent, world.record(request_id).error) == (True, None)


def test_a_transport_that_raises_changes_nothing_for_the_caller_but_the_error(world: World) -> None:
    send, world.transport.send = world.transport.send, _raising  # type: ignore[method-assign]
    request_id = world.send()
    world.run()
    assert "not sent" in (world.record(request_id).error or "")
    world.transport.send = send  # type: ignore[method-assign]
    world.run(1_000)
    assert world.record(request_id).sent


def _raising(*_: object, **__: object) -> str:
    raise OSError("broken pipe")


def test_a_transport_that_never_answers_counts_as_unreachable(new_world: Callable[..., World]) -> None:
    world = new_world(attempt_timeout_ms=5_000)
    world.transport.send = lambda *_, **__: "lost"  # type: ignore[assignment, method-assign]
    request_id = world.send()
    world.run(5_000)
    assert (world.record(request_id).error or "").startswith("unreachable")


def answer_in_turn(world: World, answer_ms: int) -> None:
    """Let the node take one envelope after the other, and ``answer_ms`` for each."""
    dispatch, free_at = world.transport._dispatch, 0

    def dispatch_later(request_id: RequestId, message: WakuMessage, pubsub_topic: str) -> None:
        nonlocal free_at
        now = now_ms(world.clock)
        free_at = max(free_at, now) + answer_ms
        world.network.schedule(free_at - now, lambda: dispatch(request_id, message, pubsub_topic))

    world.transport._dispatch = dispatch_later  # type: ignore[method-assign]


def test_attempts_that_wait_behind_a_slow_node_are_not_counted_as_made(world: World) -> None:
    """Their 120 s began with the hand-over: ten of twelve used up their retries and failed, and then all were sent."""
    answer_in_turn(world, 60_000)
    request_ids = [world.send(b"%d" % number) for number in range(12)]
    world.run(12 * 60_000)
    assert [(world.record(each).sent, world.record(each).error) for each in request_ids] == [(True, None)] * 12
    assert len(world.transport.sent) == 12
    kinds = {row.event for row in world.feed.rows if isinstance(row, SenderEvent)}
    assert kinds == {SenderEventKind.QUEUED, SenderEventKind.SENT}


def test_an_answer_that_comes_before_send_returns_is_not_lost(world: World) -> None:
    def at_once(message: WakuMessage, pubsub_topic: str, **_: object) -> str:
        event = Sent("inner", message, pubsub_topic, message_hash(pubsub_topic, message), 0)  # type: ignore[arg-type]
        world.node._on_transport(event)
        return "inner"

    world.transport.send = at_once  # type: ignore[assignment, method-assign]
    request_id = world.send()
    world.run()
    assert world.record(request_id).sent


def test_the_node_port_tells_of_each_request_exactly_once(world: World) -> None:
    events: list[object] = []
    world.node.port.add_listener(events.append)
    sent = world.node.port.send(WakuMessage(b"port", CONTENT))
    world.run()
    world.transport.failing = FailureReason.NO_PEERS
    failed = world.node.port.send(WakuMessage(b"port", OTHER), PUBSUB)
    world.run(30_000)
    assert [type(event) for event in events] == [Sent, SendFailed]
    assert [event.request_id for event in events] == [sent, failed]  # type: ignore[attr-defined]
    assert events[1].reason is FailureReason.NO_PEERS  # type: ignore[attr-defined]


def test_the_senders_own_records_tell_the_whole_story(world: World) -> None:
    world.transport.failing = FailureReason.RATE_LIMITED
    request_id = world.send()
    world.run(30_000)
    kinds = [row.event for row in world.feed.rows]
    assert kinds == [SenderEventKind.QUEUED, *[SenderEventKind.RATE_LIMITED] * 3, SenderEventKind.FAILED]
    assert {row.request_id for row in world.feed.rows} == {request_id}
    cancelled = world.send()
    world.node.cancel_request(cancelled)
    assert world.feed.rows[-1].event is SenderEventKind.DROPPED
    world.transport.failing = None
    world.send()
    world.run()
    assert world.feed.rows[-1].event is SenderEventKind.SENT
    assert world.feed.envelopes == [("sender", world.transport.sent[0])]


def test_what_waits_in_kafka_is_queued_until_a_bridge_has_dispatched_it(new_world: Callable[..., World]) -> None:
    world = new_world(attempt_timeout_ms=5_000)
    inner: list[WakuMessage] = []

    def queued(message: WakuMessage, pubsub_topic: str, **_: object) -> str:
        inner.append(message)
        world.node._on_transport(Queued("inner", 0))  # type: ignore[arg-type]
        return "inner"

    world.transport.send = queued  # type: ignore[assignment, method-assign]
    request_id = world.send()
    world.run(60_000)
    record = world.record(request_id)
    assert (record.sending, record.queued, record.sent, record.error) == (True, True, False, None)
    assert len(inner) == 1, "a queued message has no time-out"
    assert world.node.get_pending_requests() == [request_id]
    restamped = replace(inner[0], timestamp=5)
    found = message_hash(PUBSUB, restamped)
    world.node._on_transport(Sent("inner", restamped, PUBSUB, found, 0))  # type: ignore[arg-type]
    record = world.record(request_id)
    assert (record.sending, record.queued, record.sent) == (False, False, True)
    assert (record.message_hash, record.message.timestamp) == (found, 5), "the envelope that went out"


def test_a_queued_message_that_a_bridge_refuses_carries_the_error(world: World) -> None:
    def queued(*_: object, **__: object) -> str:
        world.node._on_transport(Queued("inner", 0))  # type: ignore[arg-type]
        return "inner"

    world.transport.send = queued  # type: ignore[assignment, method-assign]
    request_id = world.send()
    world.run()
    world.node._on_transport(SendFailed("inner", FailureReason.REFUSED, "spam", 0))  # type: ignore[arg-type]
    record = world.record(request_id)
    assert (record.sending, record.queued, record.sent, record.error) == (False, False, False, "refused: spam")


def test_what_waited_while_the_clock_was_set_back_has_the_time_of_its_attempt(world: World) -> None:
    world.transport.failing = FailureReason.NO_PEERS
    world.clock.advance(3_600_000)
    request_id = world.send()
    world.run()
    world.clock.advance(-3_600_000)
    world.transport.failing = None
    world.run(10_000)
    assert world.record(request_id).sent
    assert (world.transport.sent[-1].timestamp or 0) <= world.clock.now_ns()


def test_a_node_that_stops_before_the_last_retry_was_made_makes_it_at_its_next_start(world: World) -> None:
    """The request was given up, although the attempt had reached nobody."""
    world.transport.failing = FailureReason.NO_PEERS
    request_id = world.send()
    world.run(6_500)
    while (stored := world.node._ledger.requests.find(request_id)) and stored.retries < 3:
        world.network.pump()
        world.clock.advance(250)
        world.node.tick()
    world.node.stop()
    assert world.node.get_pending_requests() == [request_id]
    world.transport.failing = None
    world.node.start(background=False)
    world.run(5_000)
    assert world.record(request_id).sent
