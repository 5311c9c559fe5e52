"""A machine's clock that is set back, and what a participant that leaves still owes (LIP-109, *Sync*)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds import OutgoingReason
from reliable_channel.core.wire.sds import WireFamily
from tests.unit.sds.sds_network import T0, message, opened

TOLERANCE = 300_000
DAY = 86_400_000


def test_a_clock_that_nobody_would_accept_follows_the_machine_back() -> None:
    alice = opened()
    [early] = alice.send(b"before", T0 + 1_000).outgoing
    alice.send(b"while the clock was a day ahead", T0 + DAY)
    assert alice.clock == T0 + DAY
    alice.follow_clock_back(T0 + 2_000)
    assert alice.clock == T0 + 2_000
    [late] = alice.send(b"after", T0 + 2_001).outgoing
    assert early.message.lamport_timestamp < late.message.lamport_timestamp <= T0 + 2_001 + TOLERANCE


def test_it_follows_no_further_than_what_peers_still_accept() -> None:
    """A Lamport timestamp is never used twice, so a clock that is ahead but accepted stays."""
    alice = opened()
    alice.receive(message("b1", lamport=T0 + 200_000), T0 + 1_000)
    alice.send(b"while the clock was a day ahead", T0 + DAY)
    alice.follow_clock_back(T0 + 2_000)
    assert alice.clock == T0 + 200_000, "the newest that everybody accepts"
    alice.follow_clock_back(T0 + 3_000)
    assert alice.clock == T0 + 200_000


def test_a_clock_that_counts_messages_says_nothing_about_time() -> None:
    peer = opened(wire_family=WireFamily.NIM)
    peer.receive(message("b1", lamport=T0), T0 + 10)
    before = peer.clock
    peer.follow_clock_back(0)
    assert peer.clock == before


@given(st.integers(0, 2 * DAY), st.integers(0, 2 * DAY))
def test_a_timestamp_may_be_an_own_one_up_to_the_clock_and_where_a_wrong_clock_was_set_back(sent_at, lamport) -> None:
    alice = opened()
    alice.send(b"content", T0 + sent_at)
    alice.follow_clock_back(T0)
    assert alice.has_reached(T0 + lamport, T0) == (T0 + lamport <= alice.clock or lamport > TOLERANCE)


def test_who_leaves_acknowledges_what_nobody_has_named_and_nothing_twice() -> None:
    alice = opened(wait_for_sent=True)
    assert alice.send_owed(T0).outgoing == ()
    alice.receive(message("b1"), T0 + 10)
    [sync] = alice.send_owed(T0 + 20).outgoing
    assert sync.reason is OutgoingReason.SYNC
    assert [entry.message_id for entry in sync.message.causal_history] == ["b1"]
    alice.record_sent(sync.message.message_id, T0 + 21)
    assert alice.send_owed(T0 + 30).outgoing == ()


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_outgoing_buffer_is_counted_in_messages_and_bytes(count: int) -> None:
    alice = opened()
    sent = [alice.send(b"content %d" % number, T0 + number).outgoing[0] for number in range(count)]
    assert alice.count_unacknowledged() == count
    assert alice.count_unacknowledged_bytes() == sum(len(each.data) for each in sent)
