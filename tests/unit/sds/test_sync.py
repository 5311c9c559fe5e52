"""Sync messages (protocol.md §5, *Sync*): what they carry, and the shared random back-off."""

from __future__ import annotations

import pytest
from sds_network import CHANNEL, T0, Network, message, of_type, opened

from reliable_channel.errors import ConfigurationError
from reliable_channel.sds import (
    FilterRolledOver,
    OutgoingReason,
    SdsChannel,
    SdsConfig,
    SendDelivered,
    SendError,
    deterministic_jitter,
)
from reliable_channel.wire.bloom import FilterFormat
from reliable_channel.wire.sds import SdsKind

HALF = {"jitter": lambda channel, participant, counter: 0.5}
INTERVAL = 30_000


def test_a_sync_carries_history_and_filter_and_enters_nothing() -> None:
    alice = opened(**HALF)
    alice.receive(message("b1"), T0 + 10)
    before, clock = alice.log_positions(), alice.clock
    step = alice.send_sync(T0 + 20)
    [outgoing] = step.outgoing
    assert (outgoing.reason, outgoing.message.kind) == (OutgoingReason.SYNC, SdsKind.SYNC)
    assert [entry.message_id for entry in outgoing.message.causal_history] == ["b1"]
    words = alice.config.filter_format.decode(outgoing.message.bloom_filter or b"")
    assert alice.config.filter_format.contains(words, "b1")  # type: ignore[arg-type]
    assert (outgoing.message.lamport_timestamp, alice.clock) == (T0 + 20, T0 + 20)
    assert clock is not None and clock < T0 + 20
    assert alice.log_positions() == before
    assert alice.unacknowledged() == ()


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
    assert SendError not in kinds


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
    assert all(filter_format.contains(words, f"b{number}") for number in range(11, 26))  # type: ignore[arg-type]
    assert sum(filter_format.contains(words, f"b{number}") for number in range(1, 11)) <= 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "settings",
    [
        {"causal_history_size": -1},
        {"possible_acks_threshold": 0},
        {"retransmission_backoff": 0.5},
        {"repair_t_min_ms": 10, "repair_t_max_ms": 10},
        {"max_log_entries": 1, "causal_history_size": 2},
    ],
)
def test_an_impossible_setting_is_refused_by_name(settings: dict) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings)).split("_t_")[0]):
        SdsConfig(**settings)


def test_a_channel_tells_who_and_what_it_is() -> None:
    observer = SdsChannel(CHANNEL, None)
    assert (observer.channel_id, observer.participant_id, observer.clock) == (CHANNEL, None, None)
    assert observer.config == SdsConfig()
    assert observer.tick(T0).events == ()
    assert observer.next_due() is None
