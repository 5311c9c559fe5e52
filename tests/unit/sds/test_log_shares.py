"""The log under a flood of names: what was just delivered, and what known senders have in it, stays."""

from __future__ import annotations

from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds import Delivered, DependencyLost, MissingDependency, SdsChannel
from reliable_channel.core.sds.log import NEWEST_RESERVE, SENIOR_ENTRIES, LogEntry, MessageLog
from reliable_channel.core.wire._pb import sds_state_pb2 as pb
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import T0, message, of_type, opened, small_config

MAX_ENTRIES = 320
NAMES = MAX_ENTRIES + MAX_ENTRIES // 16 + 5


def entry(number: int, sender_id: str) -> LogEntry:
    return LogEntry(f"m{number}", T0 + number, sender_id, (), b"digest", None)


def filled(senders: list[str]) -> MessageLog:
    log = MessageLog(MAX_ENTRIES, MAX_ENTRIES * 1_000)
    for number, sender_id in enumerate(senders):
        log.add(entry(number, sender_id), T0 + number)
    return log


def restore(log: MessageLog) -> MessageLog:
    state = pb.SdsState(version=5)
    log.write(state)
    return MessageLog.read(state, MAX_ENTRIES, MAX_ENTRIES * 1_000)


@pytest.mark.parametrize("participant", ["bob", None], ids=["participant", "observer"])
@pytest.mark.parametrize("name", ["aaa {:05}", "zzz {:05}"], ids=["names before", "names after"])
def test_a_flood_of_names_makes_nothing_new_or_known_a_replay(participant: str | None, name: str) -> None:
    """More sender ids than the log has entries: honest messages that are replayed are copies, not new messages."""
    channel = opened(participant, max_log_entries=MAX_ENTRIES, max_log_bytes=MAX_ENTRIES * 1_000)
    honest = [message(f"h{number}", "alice", T0 + number) for number in range(5)]
    for number, one in enumerate(honest):
        channel.receive(one, T0 + number)
    for number in range(NAMES):
        channel.receive(message(f"e{number}", name.format(number), T0 + 10 + number), T0 + 10 + number)
    newest = message("new", "alice", T0 + 10 + NAMES)
    channel.receive(newest, T0 + 10 + NAMES)
    replayed = [event for one in honest for event in of_type(channel.receive(one, T0 + 20 + NAMES), Delivered)]
    assert replayed == []
    step = channel.receive(message("reply", "carol", T0 + 20 + NAMES, ("new",)), T0 + 30 + NAMES)
    assert len(of_type(step, Delivered)) == 1
    assert not of_type(step, MissingDependency)
    assert not of_type(channel.tick(T0 + 600_000), DependencyLost)


@given(st.integers(1, 2 * NAMES))
def test_the_newest_entries_are_never_dropped(count: int) -> None:
    log = filled([f"name {number}" for number in range(count)])
    newest = min(count, MAX_ENTRIES // NEWEST_RESERVE)
    assert all(f"m{count - 1 - back}" in log for back in range(newest))
    assert len(log) <= MAX_ENTRIES + MAX_ENTRIES // 16
    assert len(log) >= min(count, MAX_ENTRIES), "room is made for what comes, no more"


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60), st.integers(1, 3))
def test_known_senders_keep_their_share_whatever_number_of_names_comes(known: list[str], floods: int) -> None:
    names = [f"name {number}" for number in range(floods * NAMES)]
    log = filled([*known, *names])
    for sender_id in set(known):
        own = [f"m{number}" for number, each in enumerate(known) if each == sender_id]
        assert all(sds_id in log for sds_id in own[-SENIOR_ENTRIES:])


@given(st.lists(st.sampled_from([*"abcdefgh", *(f"name {n}" for n in range(400))]), max_size=900), st.integers(0, 900))
def test_a_restored_log_drops_the_same_entries(senders: list[str], cut: int) -> None:
    whole = filled(senders)
    log = MessageLog(MAX_ENTRIES, MAX_ENTRIES * 1_000)
    for number, sender_id in enumerate(senders):
        if number == cut:
            log = restore(log)
        log.add(entry(number, sender_id), T0 + number)
    assert log.positions() == whole.positions()
    assert (log.horizons.common, log.horizons.of) == (whole.horizons.common, whole.horizons.of)


def test_a_small_config_still_makes_room() -> None:
    channel = SdsChannel("test-channel", None, small_config(max_log_entries=2))
    for number in range(50):
        channel.receive(message(f"m{number}", f"s{number}", T0 + number), T0 + number)
    assert len(log_positions(channel)) <= 3


def test_a_send_whose_predecessor_left_the_log_searches_no_other_own_message() -> None:
    """With 50 000 segments of finished sends, each send looked through all of them."""

    class NotSearched(dict):
        def __reversed__(self) -> Never:
            raise AssertionError

    alice = opened(max_log_entries=32, sync_min_interval_ms=0)
    alice.receive(message("first", lamport=T0 + 1), T0 + 1)
    own = alice.send(b"mine", T0 + 2).outgoing[0].message.message_id
    for number in range(64):
        alice.receive(message(f"m{number}", f"name {number}", T0 + 3 + number), T0 + 3 + number)
    assert own not in [message_id for _, message_id in log_positions(alice)]
    alice._state.outgoing.segments = NotSearched(alice._state.outgoing.segments)
    named = [entry.message_id for entry in alice.send(b"next", T0 + 100).outgoing[0].message.causal_history]
    assert named == ["m62", "m63"]
