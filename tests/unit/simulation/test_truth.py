"""The truth follows from what the network did, and is the same after a trip through its files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.simulation.journal import ChannelJournal, EnvelopeDispatch, ObserverRecord, SentMessage, SentSds
from reliable_channel.simulation.judge import judge
from reliable_channel.simulation.observation import observe
from reliable_channel.simulation.scenario import ChannelPlan, Fault
from reliable_channel.simulation.truth import BadRecord, MessageOutcome, TrueMessage, TrueSegment, Truth

PLAN = ChannelPlan("c", "/t/1/c/proto", ("alice", "bob"), messages=3, duration_ms=1_000)


def arrival(sds_id: str, at_ms: int, reason: str | None = None) -> ObserverRecord:
    return ObserverRecord(at_ms, b"/t/1/c/proto", b"...", (), sds_id, reason)


def journal(*observed: ObserverRecord, fault: Fault | None = None) -> ChannelJournal:
    """Alice sends a message of k = 3, m = 1 (d0 d1 d2 p0), Bob then two bare ones (x, then y), which name the last two
    messages he had; ``observed`` is what reached the observer."""
    made = ChannelJournal(PLAN)
    ids = ("d0", "d1", "d2", "p0")
    made.messages[0] = SentMessage(0, "alice", 10, b"payload", False, 3, 1, ids, fault)
    made.messages[1] = SentMessage(1, "bob", 20, b"x", False, 1, 0, ("x",))
    made.messages[2] = SentMessage(2, "bob", 30, b"y", False, 1, 0, ("y",))
    before: tuple[str, ...] = ()
    for ordinal, sds_id in enumerate(ids):
        made.sds[sds_id] = SentSds(sds_id, "alice", 10 + ordinal, before[-2:], 10, 0, ordinal)
        before = (*before, sds_id)
    made.sds["x"] = SentSds("x", "bob", 20, ("p0", "d2"), 20, 1, 0)
    made.sds["y"] = SentSds("y", "bob", 30, ("x", "p0"), 30, 2, 0)
    made.dispatches = [EnvelopeDispatch(i, made.sds[i].sender, 10, b"") for i in (*ids, "x", "y")]
    made.heard[("bob", "p0")] = 15
    made.observed = list(observed)
    return made


def message(truth: Truth, number: int) -> TrueMessage:
    return next(m for m in truth.messages if m.number == number)


def segment(truth: Truth, sds_id: str) -> TrueSegment:
    return next(s for s in truth.segments if s.sds_id == sds_id)


def truth_of(*observed: ObserverRecord, fault: Fault | None = None) -> Truth:
    return judge([journal(*observed, fault=fault)], list(observed))


def test_all_messages_are_gone_through_once_however_many_arrive() -> None:
    """With every arrival it took 15 s to judge a conversation of 3 200 messages, and 28 times as long as for 800."""
    gone_through = 0

    class Counting(dict[int, SentMessage]):
        def values(self) -> Any:
            nonlocal gone_through
            gone_through += 1
            return super().values()

    made = journal(*(arrival(sds_id, 100) for sds_id in ("d0", "d1", "d2", "p0", "x", "y")))
    made.messages = Counting(made.messages)
    assert len(observe(made).complete) == 3
    assert gone_through == 1


def test_k_of_k_plus_m_segments_make_a_message_whole_at_the_moment_the_last_needed_one_comes() -> None:
    truth = truth_of(arrival("p0", 100), arrival("d0", 110), arrival("d2", 120))
    assert message(truth, 0).outcome == MessageOutcome.DELIVERED
    assert message(truth, 0).complete_at_ms == 120
    assert message(truth, 0).by_parity
    assert message(truth, 0).missing_data == [1]
    assert segment(truth, "d1").repaired_at_ms == 120
    assert segment(truth, "d1").known_at_ms == 120


def test_one_segment_too_few_names_what_is_missing() -> None:
    truth = truth_of(arrival("p0", 100), arrival("d0", 110), arrival("d0", 111))
    assert message(truth, 0).outcome == MessageOutcome.INCOMPLETE
    assert message(truth, 0).missing_data == [1, 2]
    assert segment(truth, "d0").observed_copies == 2


def test_parity_alone_rebuilds_nothing_and_is_still_a_trace() -> None:
    assert message(truth_of(arrival("p0", 100)), 0).outcome == MessageOutcome.INCOMPLETE


def test_a_message_that_only_others_name_is_told_from_one_that_left_no_trace() -> None:
    truth = truth_of(arrival("x", 100))
    assert [m.outcome for m in truth.messages] == [
        MessageOutcome.REFERENCED,
        MessageOutcome.DELIVERED,
        MessageOutcome.NO_TRACE,
    ]
    assert [(d.sds_id, d.first_named_ms, d.known_at_ms) for d in truth.dependencies] == [
        ("d2", 100, None),
        ("p0", 100, None),
    ]
    assert all(d.before_observation for d in truth.dependencies)


def test_only_what_the_first_observed_message_names_is_older_than_the_observation() -> None:
    truth = truth_of(arrival("d0", 100), arrival("y", 200), arrival("x", 900))
    assert [(d.sds_id, d.first_named_ms, d.before_observation, d.known_at_ms) for d in truth.dependencies] == [
        ("d2", 900, False, None),
        ("p0", 200, False, None),
        ("x", 200, False, 900),
    ]


def test_what_parity_made_known_is_not_lost() -> None:
    truth = truth_of(arrival("p0", 100), arrival("d0", 110), arrival("d1", 120), arrival("x", 130))
    assert [d.sds_id for d in truth.dependencies if d.known_at_ms is None] == []
    assert segment(truth, "d2").repaired_at_ms == 120


def test_what_arrives_after_its_repair_brings_no_dependencies() -> None:
    truth = truth_of(arrival("p0", 100), arrival("d0", 110), arrival("d1", 120), arrival("d2", 500))
    assert not segment(truth, "d2").history_seen
    assert segment(truth, "d2").known_at_ms == 120
    assert segment(truth, "d1").history_seen


def test_an_undecodable_record_is_no_arrival() -> None:
    cut = arrival("x", 100, reason="malformed_envelope")
    truth = truth_of(cut)
    assert message(truth, 1).outcome == MessageOutcome.NO_TRACE
    assert truth.bad == [BadRecord(0, "", "malformed_envelope", b"...")]


def test_segments_with_a_false_hash_never_make_a_message() -> None:
    every = [arrival(sds_id, 100) for sds_id in ("d0", "d1", "d2", "p0")]
    assert message(truth_of(*every), 0).outcome == MessageOutcome.DELIVERED
    assert message(truth_of(*every, fault=Fault.HASH_MISMATCH), 0).outcome == MessageOutcome.INCOMPLETE


def test_acknowledgements_are_what_arrived_histories_say_of_others_messages() -> None:
    truth = truth_of(arrival("x", 100), arrival("y", 200))
    assert [(a.sds_id, a.by, a.at_ms) for a in truth.acks] == [("d2", "bob", 100), ("p0", "bob", 100)]


def test_a_retransmission_that_saved_a_message_is_told() -> None:
    made = journal(arrival("x", 100))
    made.dispatches.append(replace(made.dispatches[-2], at_ms=5_000))
    assert message(judge([made], []), 1).by_retransmission


def test_the_files_give_back_the_same_truth(tmp_path: Path) -> None:
    truth = truth_of(arrival("p0", 100), arrival("d0", 110), arrival("x", 130, "malformed_envelope"), arrival("y", 140))
    truth = truth.locate([("t", 0, n) for n in range(4)])
    truth.save(tmp_path / "truth")
    assert Truth.load(tmp_path / "truth") == truth
    assert (truth.bad[0].topic, truth.bad[0].offset) == ("t", 2)


def test_a_missing_truth_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="simulate"):
        Truth.load(tmp_path)
