"""Sync messages (LIP-109, *Sync*): what they carry, and the shared random back-off."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.sds import (
    DeliveryError,
    FilterRolledOver,
    OutgoingReason,
    SdsChannel,
    SdsParameters,
    SdsStep,
    SendDelivered,
    deterministic_jitter,
)
from reliable_channel.core.sds.sync import MAX_OWED, MAX_OWED_KEPT
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.sds import SdsKind, SdsMessage
from tests.support.examples import examples
from tests.support.sds_inside import has_id, log_positions
from tests.unit.sds.sds_network import CHANNEL, T0, Network, message, of_type, opened

HALF = {"jitter": lambda channel, participant, counter: 0.5, "acknowledge_within_ms": 0}
INTERVAL = 30_000


def test_a_sync_carries_history_and_filter_and_enters_nothing() -> None:
    alice = opened(**HALF)
    alice.receive(message("b1"), T0 + 10)
    before, clock = log_positions(alice), alice.clock
    step = alice.send_sync(T0 + 20)
    [outgoing] = step.outgoing
    assert (outgoing.reason, outgoing.message.kind) == (OutgoingReason.SYNC, SdsKind.SYNC)
    assert [entry.message_id for entry in outgoing.message.causal_history] == ["b1"]
    words = alice.config.filter_format.decode(outgoing.message.bloom_filter or b"")
    assert has_id(alice.config.filter_format, words, "b1")  # type: ignore[arg-type]
    assert (outgoing.message.lamport_timestamp, alice.clock) == (T0 + 20, T0 + 20)
    assert clock is not None and clock < T0 + 20
    assert log_positions(alice) == before
    assert alice.unacknowledged() == ()


def names(step: SdsStep) -> list[str]:
    """The causal history of the sync message of a step."""
    [outgoing] = step.outgoing
    return [entry.message_id for entry in outgoing.message.causal_history]


def test_a_sync_names_only_what_has_left() -> None:
    """A sync message overtakes content that waits for a rate limit. Peers asked for what it named, which nobody had,
    and called it lost after an hour."""
    alice = opened(wait_for_sent=True, causal_history_size=2, **HALF)
    [first] = (outgoing.message.message_id for outgoing in alice.send(b"leaves at once", T0).outgoing)
    alice.record_sent(first, T0)
    alice.receive(message("b1", lamport=T0 + 10), T0 + 10)
    alice.receive(message("b2", lamport=T0 + 11), T0 + 11)
    waiting = [outgoing.message for n in range(3) for outgoing in alice.send(b"waits %d" % n, T0 + 20).outgoing]
    assert [entry.message_id for entry in waiting[2].causal_history] == [each.message_id for each in waiting[:2]]
    assert names(alice.send_sync(T0 + 30)) == [first, "b1", "b2"]
    alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    alice.reopen(T0 + 40)
    assert names(alice.send_sync(T0 + 40)) == [first, "b1", "b2"]
    alice.record_sent(waiting[0].message_id, T0 + 50)
    assert names(alice.send_sync(T0 + 50)) == ["b2", waiting[0].message_id]


def test_a_sync_names_no_segment_that_has_not_left_of_a_message_that_is_delivered() -> None:
    alice = opened(wait_for_sent=True, **HALF)
    sent, spare = (outgoing.message.message_id for outgoing in alice.send([b"1", b"2"], T0, required=1).outgoing)
    alice.record_sent(sent, T0)
    step = alice.receive(message("b1", lamport=T0 + 9, history=(sent,)), T0 + 9)
    assert of_type(step, SendDelivered)
    assert [outgoing.message.message_id for outgoing in alice.unacknowledged()] == [spare]
    assert names(alice.send_sync(T0 + 20)) == [sent, "b1"]
    alice.receive(message("b2", lamport=T0 + 25, history=(spare,)), T0 + 25)  # its dispatch was not reported, only
    assert spare in names(alice.send_sync(T0 + 30))


def test_content_that_waits_puts_off_no_request_and_no_sync_message() -> None:
    """Who sent more than a rate limit allows asked for nothing: the requests were in what left an hour later."""
    alice = opened(wait_for_sent=True, **HALF)
    alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    alice.send(b"waits for the rate limit", T0 + 10)
    requests, syncs = [], []
    for now in range(T0 + 1_000, T0 + 200_000, 1_000):
        step = alice.tick(now)
        syncs += [outgoing.message for outgoing in step.outgoing if outgoing.reason is OutgoingReason.SYNC]
        for outgoing in step.outgoing:
            alice.record_sent(outgoing.message.message_id, now)
        (waiting,) = alice.send(b"%d" % now, now).outgoing
        requests += waiting.message.repair_request
    assert requests == []
    assert len(syncs) >= 3
    assert {entry.message_id for sync in syncs for entry in sync.repair_request} == {"b1"}


@given(st.lists(st.sampled_from(("send", "send", "leave", "hear", "acknowledge", "restart", "sync")), max_size=40))
@settings(max_examples=examples(60), deadline=None)
def test_whatever_happens_a_sync_names_what_others_can_have(actions: list[str]) -> None:
    alice = opened(wait_for_sent=True, acknowledgement_timeout_ms=10_000, **HALF)
    waiting: deque[str] = deque()
    left, heard, now = [], [], T0
    for action in [*actions, "sync"]:
        now += 1_000
        alice.tick(now)
        match action:
            case "send":
                sent = alice.send([b"%d" % now, b"%d of the same" % now], now, required=1)
                waiting.extend(outgoing.message.message_id for outgoing in sent.outgoing)
            case "leave" if waiting:
                left.append(waiting.popleft())
                alice.record_sent(left[-1], now)
            case "hear" | "acknowledge":
                heard.append(f"b{now}")
                acknowledged = tuple(left[-1:]) if action == "acknowledge" else ()
                alice.receive(message(heard[-1], lamport=now, history=acknowledged), now)
            case "restart":
                alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
                alice.reopen(now)
            case "sync" if left or heard:
                named = names(alice.send_sync(now))
                assert set(named) <= {*left, *heard}
                assert set(left[-1:]) <= set(named), "who lacks the last own message learns of it"


def test_nothing_to_say_is_not_sent() -> None:
    alice = opened(**HALF)
    clock = alice.clock
    assert alice.send_sync(T0 + 5).outgoing == ()
    assert alice.tick(T0 + 200_000).outgoing == ()
    assert alice.clock == clock


def test_a_due_repair_request_is_something_to_say() -> None:
    alice = opened(**HALF)
    alice.receive(message("s", lamport=T0 + 1, history=("gone",), content=None), T0 + 1)
    [outgoing] = alice.send_sync(T0 + 130_000).outgoing
    assert [entry.message_id for entry in outgoing.message.repair_request] == ["gone"]


def test_the_back_off_is_shorter_after_content_and_with_repairs_pending() -> None:
    plain = opened(**HALF)
    assert plain.next_due() == T0 + 1.5 * INTERVAL
    plain.receive(message("s", content=None), T0 + 100)
    assert plain.next_due() == T0 + 100 + 1.5 * INTERVAL
    plain.receive(message("b1"), T0 + 200)
    assert plain.next_due() == T0 + 200 + 0.5 * 1.5 * INTERVAL
    pending = opened(sweep_in_buf_interval_ms=3_600_000, **HALF)
    pending.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 200)
    assert pending.next_due() == T0 + 200 + 0.3 * 1.5 * INTERVAL


def test_a_sync_heard_restarts_the_back_off() -> None:
    alice = opened(**HALF)
    alice.receive(message("b1"), T0 + 1)
    alice.receive(message("s", "carol", T0 + 5, ("b1",), content=None), T0 + 10_000)
    assert alice.next_due() == T0 + 10_000 + 1.5 * INTERVAL


def test_a_listener_syncs_within_one_interval_even_if_content_never_pauses() -> None:
    """Restarted by every content message, a recipient that only listens would never acknowledge."""
    alice = opened(**HALF)
    synced = []
    for second in range(1, 200):
        now = T0 + second * 1_000
        synced += [outgoing for outgoing in alice.tick(now).outgoing if outgoing.reason is OutgoingReason.SYNC]
        alice.receive(message(f"b{second}", lamport=now), now)
    assert len(synced) >= 5


def test_a_sender_that_never_pauses_and_a_listener_end_without_a_send_error() -> None:
    network = Network(("alice", "bob"))
    for number in range(60):
        network.send("alice", b"%d" % number)
        network.run(5_000)
    network.run(120_000)
    kinds = [type(event) for event in network.events["alice"]]
    assert kinds.count(SendDelivered) == 60
    assert DeliveryError not in kinds


def test_zero_disables_sync_messages() -> None:
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("b1"), T0 + 1)
    assert alice.next_due() is None
    assert alice.tick(T0 + 1_000_000).outgoing == ()


def test_participants_share_the_interval() -> None:
    """Five quiet participants together send about as many syncs as one alone would, not five times as many."""
    network = Network(("a", "b", "c", "d", "e"))
    network.send("a", b"hello")
    network.run(300_000)
    start = len([outgoing for outgoing in network.sent if outgoing.reason is OutgoingReason.SYNC])
    network.run(3_600_000)
    syncs = len([outgoing for outgoing in network.sent if outgoing.reason is OutgoingReason.SYNC]) - start
    assert 3_600 / 60 <= syncs <= 3_600 / 30 + 1


def test_after_a_long_sleep_the_missed_syncs_are_not_sent() -> None:
    alice = opened(**HALF)
    alice.receive(message("b1"), T0 + 1)
    assert len(alice.tick(T0 + 100 * 86_400_000).outgoing) == 1


def test_jitter_is_the_same_in_every_run_and_differs_between_participants() -> None:
    values = [deterministic_jitter(CHANNEL, name, counter) for name in ("a", "b") for counter in range(50)]
    assert len(set(values)) == 100
    assert all(0 <= value < 1 for value in values)
    assert deterministic_jitter(CHANNEL, "a", 0) == values[0]


def test_the_filter_rolls_over_at_capacity_to_the_recent_log() -> None:
    alice = opened(filter_format=FilterFormat(capacity=20), **HALF)
    rolled = []
    for number in range(1, 26):
        step = alice.receive(message(f"b{number}", lamport=T0 + number), T0 + number)
        rolled += of_type(step, FilterRolledOver)
    assert [event.kept for event in rolled] == [10]
    filter_format = alice.config.filter_format
    words = filter_format.decode(alice.send_sync(T0 + 100).outgoing[0].message.bloom_filter or b"")
    assert all(has_id(filter_format, words, f"b{number}") for number in range(11, 26))  # type: ignore[arg-type]
    assert sum(has_id(filter_format, words, f"b{number}") for number in range(1, 11)) <= 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"causal_history_size": -1},
        {"possible_acks_threshold": 0},
        {"retransmission": "doubling"},
        {"retrieve_backoff": 0.5},
        {"repair_t_min_ms": 10, "repair_t_max_ms": 10},
        {"max_log_entries": 1, "causal_history_size": 2},
    ],
)
def test_an_impossible_setting_is_refused_by_name(settings: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings)).split("_t_")[0]):
        SdsParameters(**settings)


def test_a_channel_tells_who_and_what_it_is() -> None:
    observer = SdsChannel(CHANNEL, None)
    assert (observer.channel_id, observer.participant_id, observer.clock) == (CHANNEL, None, None)
    assert observer.config == SdsParameters()
    assert observer.tick(T0).events == ()
    assert observer.next_due() is None


# ---- acknowledging in time -------------------------------------------------------------------------------------------


def syncs(step: SdsStep) -> list[SdsMessage]:
    """The sync messages of a step."""
    return [outgoing.message for outgoing in step.outgoing if outgoing.reason is OutgoingReason.SYNC]


def named(sync: SdsMessage) -> list[str]:
    return [entry.message_id for entry in sync.causal_history]


def test_content_that_is_held_is_acknowledged_by_name_before_the_sender_sends_again() -> None:
    alice = opened()
    burst = [f"b{number}" for number in range(1, 10)]
    for number, message_id in enumerate(burst, start=1):
        alice.receive(message(message_id, lamport=T0 + number), T0 + 10)
    [sync] = syncs(alice.tick(T0 + 10 + alice.config.acknowledge_within_ms))
    assert named(sync) == burst
    assert syncs(alice.tick(T0 + 10 + alice.config.acknowledgement_timeout_ms)) == []


def test_own_content_acknowledges_what_it_names_and_the_rest_follows() -> None:
    alice = opened(causal_history_size=2)
    for number in range(1, 4):
        alice.receive(message(f"b{number}", lamport=T0 + number), T0 + 10)
    alice.send(b"answer", T0 + 20)
    [sync] = syncs(alice.tick(T0 + 5_000))
    assert "b1" in named(sync)
    assert "b2" not in named(sync)


def test_another_who_names_the_content_spares_the_listener_its_sync_but_its_own_sender_does_not() -> None:
    by_another, by_its_sender = opened(), opened()
    for alice, by in ((by_another, "carol"), (by_its_sender, "bob")):
        alice.receive(message("b1"), T0 + 10)
        alice.receive(message("s", by, T0 + 5, ("b1",), content=None), T0 + 20)
    assert syncs(by_another.tick(T0 + 5_000)) == []
    assert named(syncs(by_its_sender.tick(T0 + 5_000))[0]) == ["b1"]


def test_a_copy_is_acknowledged_again() -> None:
    """The sender sends again because the acknowledgement was lost."""
    alice = opened()
    alice.receive(message("b1"), T0 + 10)
    assert len(syncs(alice.tick(T0 + 5_000))) == 1
    alice.receive(message("b1"), T0 + 5_010)
    assert len(syncs(alice.tick(T0 + 10_000))) == 1


def test_what_waits_for_a_dependency_is_named_when_it_is_delivered() -> None:
    alice = opened(repair=False)
    alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 10)
    assert "b2" not in [name for sync in syncs(alice.tick(T0 + 5_000)) for name in named(sync)]
    alice.receive(message("b1"), T0 + 5_010)
    assert named(syncs(alice.tick(T0 + 10_000))[0]) == ["b1", "b2"]


def test_more_than_one_sync_can_name_is_acknowledged_by_several() -> None:
    alice = opened()
    ids = [f"b{number}" for number in range(1, 2 * MAX_OWED + 2)]
    for number, message_id in enumerate(ids, start=1):
        alice.receive(message(message_id, lamport=T0 + number), T0 + 500)
    sent = syncs(alice.tick(T0 + 8_000))
    assert all(len(sync.causal_history) <= MAX_OWED + alice.config.causal_history_size for sync in sent)
    assert {name for sync in sent for name in named(sync)} == set(ids)


def test_whoever_sends_much_delays_nobody_elses_acknowledgement() -> None:
    """It was put off until all that came before was named, and beyond the bound not named at all."""
    alice = opened()
    alice.receive(message("c1", "carol", T0 + 1), T0 + 500)
    for number in range(MAX_OWED_KEPT + MAX_OWED_KEPT // 8 + 10):
        alice.receive(message(f"m{number}", "mallory", T0 + 2 + number), T0 + 500)
    first = syncs(alice.tick(T0 + 8_000))[0]
    assert "c1" in named(first)


def test_ids_that_leave_no_room_for_others_delay_them_and_no_more() -> None:
    alice = opened()
    ids = [f"{number:01000}" for number in range(100)] + ["c1"]
    for number, message_id in enumerate(ids, start=1):
        alice.receive(message(message_id, "mallory", lamport=T0 + number), T0 + 500)
    sent = syncs(alice.tick(T0 + 8_000))
    assert {name for sync in sent for name in named(sync)} == set(ids)


def test_what_is_owed_survives_a_restart() -> None:
    network = Network(("alice", "bob"))
    network.send("bob", b"hello")
    network.deliver_all()
    network.restart("alice")
    network.run(5_000)
    assert [type(event) for event in network.events["bob"]].count(SendDelivered) == 1


def test_zero_leaves_acknowledging_to_the_interval() -> None:
    alice = opened(acknowledge_within_ms=0)
    alice.receive(message("b1"), T0 + 10)
    assert syncs(alice.tick(T0 + 5_000)) == []


@pytest.mark.parametrize("listeners", [1, 5, 20])
@pytest.mark.parametrize("contents", [1, 9])
def test_quiet_listeners_answer_a_burst_before_anything_is_sent_twice(listeners: int, contents: int) -> None:
    network = Network(("alice", *(f"listener-{number}" for number in range(listeners))))
    network.send("alice", *(b"%d" % number for number in range(contents)))
    network.run(10_000)
    reasons = [outgoing.reason for outgoing in network.sent]
    assert OutgoingReason.RESEND not in reasons
    assert reasons.count(OutgoingReason.SYNC) == 1  # here an answer reaches everybody at once
    assert SendDelivered in [type(event) for event in network.events["alice"]]


def test_each_message_names_the_one_that_its_sender_sent_before() -> None:
    """Two newest entries alone would leave out what nobody who heard it has named."""
    alice = opened()
    (first,) = alice.send(b"first", T0 + 1).outgoing
    for number in range(3):
        alice.receive(message(f"b{number}", lamport=T0 + 10 + number), T0 + 20)
    alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    (second,) = alice.send(b"second", T0 + 30).outgoing
    named = [entry.message_id for entry in second.message.causal_history]
    assert named == [first.message.message_id, "b1", "b2"]
    (sync,) = alice.send_sync(T0 + 31).outgoing
    assert second.message.message_id in [entry.message_id for entry in sync.message.causal_history]


def test_a_waiting_sync_is_outdated_once_a_newer_one_could_acknowledge_more() -> None:
    alice = opened(wait_for_sent=True, **{**HALF, "acknowledge_within_ms": 1_000})
    alice.receive(message("b1", lamport=T0 + 1), T0 + 10)
    [first] = alice.tick(T0 + 2_000).outgoing
    assert alice.tick(T0 + 60_000).outgoing == (), "there is one already"
    assert not alice.is_outdated(first, T0 + 60_000)
    alice.receive(message("b2", lamport=T0 + 2), T0 + 60_000)
    assert not alice.is_outdated(first, T0 + 60_000)
    assert alice.is_outdated(first, T0 + 61_000)
    alice.withdraw_sync()
    [second] = alice.tick(T0 + 61_000).outgoing
    assert {entry.message_id for entry in second.message.causal_history} >= {"b1", "b2"}
    alice.record_sent(second.message.message_id, T0 + 61_001)
    assert not alice.is_outdated(second, T0 + 200_000)
    assert not alice.is_outdated(first, T0 + 200_000)


def test_a_waiting_retransmission_is_outdated_once_it_is_acknowledged() -> None:
    alice = opened(wait_for_sent=True, sync_min_interval_ms=0)
    [content] = alice.send(b"hello", T0).outgoing
    sds_id = content.message.message_id
    alice.record_sent(sds_id, T0 + 1)
    [again] = alice.tick(T0 + 10_000).outgoing
    assert again.reason is OutgoingReason.RESEND
    assert not alice.is_outdated(again, T0 + 10_000)
    alice.receive(message("b1", lamport=T0 + 9_000, history=(sds_id,)), T0 + 10_001)
    assert alice.is_outdated(again, T0 + 10_001)
    assert not alice.is_outdated(content, T0 + 10_001), "content is never taken back"
