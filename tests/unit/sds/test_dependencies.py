"""Dependencies (LIP-109): missing, found, lost, late, before observation; the sweep and its back-off."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from reliable_channel.core.sds import (
    Acknowledged,
    Buffered,
    Delivered,
    DependencyBeforeObservation,
    DependencyFound,
    DependencyLost,
    DuplicateSeen,
    EphemeralReceived,
    Evidence,
    MessageRefused,
    MissingDependency,
    RefetchDue,
    RefusalReason,
    SdsChannel,
    Tracking,
    TrackingEnded,
)
from reliable_channel.core.wire.sds import HistoryEntry
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import CHANNEL, T0, filter_of, message, of_type, opened, small_config

SWEEP = 5_000


def observing(**settings: object) -> SdsChannel:
    """An observer that has seen one message at T0."""
    observer = SdsChannel(CHANNEL, None, small_config(**settings))
    observer.receive(message("first", lamport=T0), T0)
    return observer


def test_a_chain_that_arrives_backwards_is_delivered_in_causal_order_at_once() -> None:
    observer = observing()
    for number in range(9, 1, -1):
        step = observer.receive(message(f"b{number}", lamport=T0 + number, history=(f"b{number - 1}",)), T0 + 100)
        assert of_type(step, Delivered) == []
        assert [event.waiting_for for event in of_type(step, Buffered)] == [(f"b{number - 1}",)]
    step = observer.receive(message("b1", lamport=T0 + 1, history=("first",)), T0 + 101)
    assert [event.message_id for event in of_type(step, Delivered)] == [f"b{number}" for number in range(1, 10)]
    assert [event.sequence for event in of_type(step, Delivered)] == list(range(2, 11))


def test_what_waited_side_by_side_is_delivered_in_log_order() -> None:
    observer = observing()
    for lamport, name in ((T0 + 5, "e"), (T0 + 3, "z"), (T0 + 3, "a"), (T0 + 4, "d")):
        observer.receive(message(name, lamport=lamport, history=("root",)), T0 + 10)
    step = observer.receive(message("root", lamport=T0 + 1), T0 + 11)
    assert [event.message_id for event in of_type(step, Delivered)] == ["root", "a", "z", "d", "e"]


def test_a_held_message_is_not_reported_missing() -> None:
    observer = observing()
    observer.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    step = observer.receive(message("b3", lamport=T0 + 3, history=("b2",)), T0 + 3)
    assert of_type(step, MissingDependency) == []
    assert observer.missing_ids() == ("b1",)


def test_a_missing_dependency_carries_what_the_naming_message_says() -> None:
    observer = observing()
    entries = (HistoryEntry("b1", b"h" * 32, "carol"), HistoryEntry("b0", b"", ""))
    naming = replace(message("b2", lamport=T0 + 2), causal_history=entries)
    step = observer.receive(naming, T0 + 2)
    assert [
        (event.message_id, event.named_by, event.named_by_sender, event.retrieval_hint, event.sender_id)
        for event in of_type(step, MissingDependency)
    ] == [("b1", "b2", "bob", b"h" * 32, "carol"), ("b0", "b2", "bob", None, None)]
    refetches = of_type(observer.tick(T0 + SWEEP), RefetchDue)
    assert [(event.message_id, event.retrieval_hint, event.attempt) for event in refetches] == [
        ("b0", None, 1),
        ("b1", b"h" * 32, 1),
    ]


def test_a_sync_message_reports_missing_ids_and_waits_for_nothing() -> None:
    observer = observing()
    step = observer.receive(message("s", lamport=T0 + 2, history=("b1",), content=None), T0 + 2)
    assert [event.message_id for event in of_type(step, MissingDependency)] == ["b1"]
    assert log_positions(observer) == ((T0, "first"),)
    found = observer.receive(message("b1", lamport=T0 + 1), T0 + 3)
    assert [event.missing_since for event in of_type(found, DependencyFound)] == [T0 + 2]


def test_refetches_back_off_and_end_with_lost() -> None:
    observer = observing(retrieve_max_interval_ms=40_000)
    observer.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    step = observer.tick(T0 + 1_000_000)
    refetches = of_type(step, RefetchDue)
    assert [event.attempt for event in refetches] == list(range(1, len(refetches) + 1))
    gaps = [later.at - earlier.at for earlier, later in pairwise(refetches)]
    assert gaps[:3] == [10_000, 20_000, 40_000]
    assert set(gaps[2:]) == {40_000}
    assert all(event.at % SWEEP == 0 for event in refetches)
    [lost] = of_type(step, DependencyLost)
    assert (lost.message_id, lost.waiting, lost.missing_since) == ("b1", ("b2",), T0 + 2)
    assert 300_000 <= lost.at - lost.missing_since <= 300_000 + SWEEP
    [delivered] = of_type(step, Delivered)
    assert (delivered.message_id, delivered.lost_dependencies, delivered.at) == ("b2", ("b1",), lost.at)
    assert delivered.received_at == T0 + 2
    assert observer.next_due() is None


def test_a_lost_message_keeps_the_hint_of_the_message_that_named_it() -> None:
    observer = observing(timeout_for_lost_messages_ms=10_000)
    for number, hint in enumerate((b"1" * 32, b"2" * 32), 2):
        named = (HistoryEntry("b1", hint, "bob"),)
        observer.receive(replace(message(f"b{number}", lamport=T0 + number), causal_history=named), T0 + number)
    [lost] = of_type(observer.tick(T0 + 60_000), DependencyLost)
    assert (lost.sender_id, lost.retrieval_hint) == ("bob", b"1" * 32)


def test_a_lost_message_that_comes_later_is_delivered_as_late() -> None:
    observer = observing(timeout_for_lost_messages_ms=10_000)
    observer.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    observer.tick(T0 + 60_000)
    [late] = of_type(observer.receive(message("b1", lamport=T0 + 1), T0 + 60_001), Delivered)
    assert (late.message_id, late.late) == ("b1", True)
    after = observer.receive(message("b3", lamport=T0 + 3, history=("b1",)), T0 + 60_002)
    assert [event.lost_dependencies for event in of_type(after, Delivered)] == [()]


def test_a_participant_waits_for_an_hour_unless_it_is_configured_otherwise() -> None:
    """SDS waits for ever, which would let a stranger hold messages with a dependency that never existed."""
    for settings in ({}, {"timeout_for_lost_messages_ms": 0}):
        alice = opened(**settings)
        alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
        step = alice.tick(T0 + 3_600_000)
        assert of_type(step, DependencyLost) == []
        assert len(of_type(step, RefetchDue)) > 5
        assert len(of_type(alice.tick(T0 + 3_610_000), DependencyLost)) == 1


def test_refetches_have_a_budget_per_sweep_and_sender() -> None:
    observer = observing(max_refetches_per_sweep=4, max_refetches_per_sender_and_sweep=3)
    for sender in ("bob", "carol"):
        for number in range(5):
            dependency = f"{sender}'s {number}"
            naming = message(f"{sender} {number}", sender, T0 + 2 + number, (dependency,))
            observer.receive(naming, T0 + 2)
    first = of_type(observer.tick(T0 + SWEEP), RefetchDue)
    assert [event.message_id for event in first] == ["bob's 0", "bob's 1", "carol's 0", "carol's 1"]
    later = of_type(observer.tick(T0 + 2 * SWEEP), RefetchDue)
    assert {event.message_id for event in first + later} >= {"bob's 3", "carol's 1", "carol's 2"}


def test_ids_that_strangers_invent_delay_no_look_up_of_what_others_name() -> None:
    """Look-ups were made in the order of the ids, which strangers choose: with three of them an honest one had none."""
    observer = observing(max_refetches_per_sweep=20, max_refetches_per_sender_and_sweep=10)
    observer.receive(message("b2", "bob", T0 + 2, ("gone",)), T0 + 2)
    asked: list[str] = []
    for sweep in range(1, 4):
        for name in ("mallory", "eve", "trudy"):
            invented = tuple(f"0{sweep}{name}{number}" for number in range(40))
            observer.receive(message(f"{name} {sweep}", name, T0 + 2 + sweep, invented), T0 + sweep * SWEEP - 1)
        asked += [event.message_id for event in of_type(observer.tick(T0 + sweep * SWEEP), RefetchDue)]
    assert asked.count("gone") == 2, "at 5 s and at 15 s, as ever"


def test_what_is_older_than_the_first_observation_is_not_missing() -> None:
    observer = SdsChannel(CHANNEL, None, small_config())
    step = observer.receive(message("b5", lamport=T0, history=("b4", "b3")), T0)
    assert [event.message_id for event in of_type(step, DependencyBeforeObservation)] == ["b4", "b3"]
    [delivered] = of_type(step, Delivered)
    assert delivered.before_observation == ("b4", "b3")
    again = observer.receive(message("b6", lamport=T0 + 1, history=("b4", "b5")), T0 + 1)
    assert of_type(again, DependencyBeforeObservation) == []
    assert [event.before_observation for event in of_type(again, Delivered)] == [("b4",)]
    older = observer.receive(message("b4", lamport=T0 - 1), T0 + 2)
    assert [event.late for event in of_type(older, Delivered)] == [True]


def test_a_participant_observes_from_its_first_call() -> None:
    alice = opened()
    step = alice.receive(message("b1", lamport=T0 - 5, history=("b0",)), T0 + 1)
    assert len(of_type(step, DependencyBeforeObservation)) == 1
    step = alice.receive(message("b3", lamport=T0 + 3, history=("b2",)), T0 + 3)
    assert len(of_type(step, MissingDependency)) == 1


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("waited_for", [False, True])
def test_what_is_asked_for_and_not_waited_for_is_late_and_named_by_what_precedes_it(
    waited_for: bool, restored: bool
) -> None:
    """Histories are in log order, so ``b2`` may have been sent since Alice began; ``b3`` is too old to wait for it."""
    alice = opened()
    alice.receive(message("b1", lamport=T0 - 3), T0 + 1)
    if waited_for:
        alice.receive(message("b4", lamport=T0 + 4, history=("b2",)), T0 + 2)
    step = alice.receive(message("b3", lamport=T0 - 1, history=("b1", "b2")), T0 + 3)
    if restored:
        alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    if waited_for:
        assert of_type(step, Delivered) == [], "it waits for nothing longer than another message does anyway"
    else:
        assert [event.message_id for event in of_type(step, MissingDependency)] == ["b2"]
        assert [event.before_observation for event in of_type(step, Delivered)] == [("b2",)]
        step = alice.receive(message("b4", lamport=T0 + 4, history=("b2",)), T0 + 4)
        assert of_type(step, Delivered) == [], "what is new waits"
    step = alice.receive(message("b2", lamport=T0 - 2), T0 + 5)
    came = [(event.message_id, event.late) for event in of_type(step, Delivered)]
    assert came == ([("b2", False), ("b3", False), ("b4", False)] if waited_for else [("b2", True), ("b4", False)])


@pytest.mark.parametrize("restored", [False, True])
def test_what_came_before_the_message_was_delivered_is_not_named_as_lost(restored: bool) -> None:
    """``b1`` was given up while ``b3`` waited on for ``b2``, and came late, but before ``b3`` was delivered."""
    observer = observing()
    observer.receive(message("b3", lamport=T0 + 3, history=("b1", "b2")), T0 + 1)
    observer.tick(T0 + 200_000)
    observer.receive(message("b4", lamport=T0 + 4, history=("b2",)), T0 + 200_000)
    observer.receive(message("b2", lamport=T0 + 2, history=("b0",)), T0 + 200_000)
    step = observer.tick(T0 + 310_000)
    assert [event.message_id for event in of_type(step, DependencyLost)] == ["b1"]
    if restored:
        observer = SdsChannel.from_bytes(observer.to_bytes(), observer.config)
    assert [event.late for event in of_type(observer.receive(message("b1"), T0 + 310_001), Delivered)] == [True]
    step = observer.receive(message("b0", lamport=T0 + 1), T0 + 310_002)
    assert [(event.message_id, event.lost_dependencies) for event in of_type(step, Delivered)] == [
        ("b0", ()),
        ("b2", ()),
        ("b3", ()),
        ("b4", ()),
    ]


def test_a_message_that_was_held_too_long_names_only_what_it_is_delivered_without() -> None:
    observer = observing()
    observer.receive(message("c5", lamport=T0 + 100, history=("c4", "b1")), T0)
    for number in range(4, 0, -1):  # each comes in time and names another one that is missing
        at = T0 + 290_000 * (5 - number)
        observer.tick(at)
        history = (f"c{number - 1}",)
        observer.receive(message(f"c{number}", lamport=T0 + 2 + number, history=history), at)
    observer.receive(message("b1"), at + 1)
    step = observer.tick(T0 + 1_200_000)
    assert [(event.message_id, event.lost_dependencies) for event in of_type(step, Delivered)] == [("c5", ("c4",))]


def test_a_lost_dependency_that_is_asked_for_again_is_waited_for_and_still_late() -> None:
    alice = opened(timeout_for_lost_messages_ms=20_000)
    alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    step = alice.tick(T0 + 30_000)
    assert [event.lost_dependencies for event in of_type(step, Delivered)] == [("b1",)]
    alice.ask_for(["b1"], "bob", "b2", T0 + 30_000)
    step = alice.receive(message("b3", lamport=T0 + 30_001, history=("b1",)), T0 + 30_002)
    assert of_type(step, Delivered) == []
    step = alice.receive(message("b1", lamport=T0 + 1), T0 + 30_003)
    assert [(event.message_id, event.late) for event in of_type(step, Delivered)] == [("b1", True), ("b3", False)]


def test_before_observation_can_be_switched_off() -> None:
    observer = SdsChannel(CHANNEL, None, small_config(before_observation=False))
    step = observer.receive(message("b5", lamport=T0, history=("b4",)), T0)
    assert [event.message_id for event in of_type(step, MissingDependency)] == ["b4"]


def test_a_verified_repair_closes_the_gap_and_the_original_is_then_a_copy() -> None:
    observer = observing()
    observer.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    step = observer.receive(message("b1", lamport=T0 + 1), T0 + 3, repaired=True)
    assert [event.repaired for event in of_type(step, DependencyFound)] == [True]
    assert [(event.message_id, event.repaired) for event in of_type(step, Delivered)] == [("b1", True), ("b2", False)]
    copy = observer.receive(message("b1", lamport=T0 + 1), T0 + 4)
    assert [type(event) for event in copy.events] == [DuplicateSeen]


def test_an_observer_tracks_everybodys_acknowledgements_of_everybody() -> None:
    observer = observing()
    observer.receive(message("a1", "alice", T0 + 1), T0 + 1)
    step = observer.receive(message("b1", "bob", T0 + 2, ("a1",)), T0 + 2)
    assert [(event.message_id, event.sender_id, event.by, event.since) for event in of_type(step, Acknowledged)] == [
        ("a1", "alice", "bob", T0 + 1)
    ]
    observer.receive(message("c0", "carol", T0), T0 + 3)
    answer = message("c1", "carol", T0 + 3, ("b1",), bloom_filter=filter_of("a1", "b1"))
    step = observer.receive(answer, T0 + 3)
    assert {(event.message_id, event.by, event.evidence) for event in of_type(step, Acknowledged)} == {
        ("b1", "carol", Evidence.CAUSAL_HISTORY),
        ("a1", "carol", Evidence.IMPLIED),
    }


def test_an_acknowledgement_that_came_before_its_message_is_not_lost() -> None:
    observer = observing()
    observer.receive(message("c0", "carol", T0), T0 + 3)
    observer.receive(message("c1", "carol", T0 + 3, ("b1",)), T0 + 3)
    observer.receive(message("d1", "dave", T0 + 4, ("c1",)), T0 + 4)
    observer.receive(message("b1", "bob", T0 + 2, ("a1",)), T0 + 5)
    step = observer.receive(message("a1", "alice", T0 + 1), T0 + 6)
    assert {(event.message_id, event.by) for event in of_type(step, Acknowledged)} >= {("a1", "bob")}
    both = filter_of("a1", "b1")
    for name in ("carol", "dave"):
        step = observer.receive(message(f"{name} 2", name, T0 + 9, bloom_filter=both), T0 + 9)
        implied = {event.message_id for event in of_type(step, Acknowledged) if event.evidence is Evidence.IMPLIED}
        # Dave was first heard after both had been sent.
        assert implied == ({"a1"} if name == "carol" else set())


def test_tracking_is_bounded_and_says_so() -> None:
    observer = observing(max_tracked=2)
    observer.receive(message("b1", lamport=T0 + 1), T0 + 1)
    step = observer.receive(message("b2", lamport=T0 + 2), T0 + 2)
    assert [event.message_id for event in of_type(step, TrackingEnded)] == ["first"]
    step = observer.receive(message("c1", "carol", T0 + 3, ("first", "b1")), T0 + 3)
    assert [event.message_id for event in of_type(step, Acknowledged)] == ["b1"]


def test_a_pipeline_with_a_participant_tracks_everyone_and_its_own_buffer() -> None:
    pipeline = opened("alice", tracking=Tracking.EVERYONE, sync_min_interval_ms=0, wait_for_sent=True)
    own = message("mine", "alice", T0 + 1)
    assert pipeline.observe_sent(own, T0 + 1, retrieval_hint=b"1" * 32).events == ()
    assert [outgoing.message.message_id for outgoing in pipeline.unacknowledged()] == ["mine"]
    assert pipeline.next_due() == T0 + 5_001
    again = pipeline.observe_sent(own, T0 + 3_000, retrieval_hint=b"2" * 32)
    assert [type(event) for event in again.events] == [DuplicateSeen]
    assert pipeline.next_due() == T0 + 8_000
    step = pipeline.receive(message("b1", "bob", T0 + 2, ("mine",)), T0 + 3_001)
    assert {type(event).__name__ for event in step.events} == {
        "Acknowledged", "SegmentAcknowledged", "SendDelivered", "RecipientAcknowledged", "Delivered",
    }  # fmt: skip
    pipeline.receive(message("c0", "carol", T0), T0 + 3_002)
    step = pipeline.receive(message("c1", "carol", T0 + 3, ("b1",), bloom_filter=filter_of("mine")), T0 + 3_002)
    assert {event.message_id for event in of_type(step, Acknowledged)} == {"b1", "mine"}


def test_an_own_message_seen_late_releases_what_waited_for_it() -> None:
    pipeline = opened("alice")
    pipeline.receive(message("b1", "bob", T0 + 2, ("mine",)), T0 + 2)
    step = pipeline.observe_sent(message("mine", "alice", T0 + 1), T0 + 3)
    assert [event.message_id for event in of_type(step, Delivered)] == ["b1"]
    assert [event.by for event in of_type(step, Acknowledged)] == ["bob"]


def test_only_own_timestamped_messages_are_observed_as_sent() -> None:
    pipeline = opened("alice")
    for other in (
        message("theirs", "bob"),
        message("typing", "alice", None),
        message("sync", "alice", T0 + 5, content=None),
        message("far", "alice", 2**63),
    ):
        assert pipeline.observe_sent(other, T0 + 1).events == ()
    assert pipeline.unacknowledged() == ()
    assert pipeline.clock == T0 + 5
    kept_elsewhere = message("mine", "alice", T0 + 6, content=None)
    pipeline.observe_sent(kept_elsewhere, T0 + 2, content_digest=b"d" * 32)
    assert len(log_positions(pipeline)) == 1


def test_an_ephemeral_message_is_delivered_at_once_and_remembered_nowhere() -> None:
    alice = opened()
    before = alice.to_bytes()
    for _ in range(2):
        step = alice.receive(message("typing", lamport=None, history=("unknown",)), T0 + 1)
        assert [(type(event), event.content) for event in step.events] == [(EphemeralReceived, b"content")]  # type: ignore[attr-defined]
    assert alice.to_bytes() == before


def test_a_hint_is_that_of_the_newest_envelope() -> None:
    alice = opened()
    alice.receive(message("b1"), T0 + 1, retrieval_hint=b"1" * 32)
    alice.receive(message("b1"), T0 + 2, retrieval_hint=b"2" * 32)
    history = alice.send(b"x", T0 + 3).outgoing[0].message.causal_history
    assert [(entry.message_id, entry.retrieval_hint, entry.sender_id) for entry in history] == [
        ("b1", b"2" * 32, "bob")
    ]
    alice.receive(message("b9", lamport=T0 + 9, history=("b8",)), T0 + 9)
    alice.set_retrieval_hint("b9", b"9" * 32)
    alice.set_retrieval_hint("unknown", b"9" * 32)
    step = alice.receive(message("b8", lamport=T0 + 8), T0 + 10)
    assert [event.retrieval_hint for event in of_type(step, Delivered)] == [None, b"9" * 32]


def test_a_copy_brings_the_acknowledgements_it_newly_carries() -> None:
    """The copy names a message that was not known here when the first came."""
    late = SdsChannel(CHANNEL, None, small_config())
    carrying = message("b2", "bob", T0, ("a1",))
    late.receive(carrying, T0)
    late.receive(message("a1", "alice", T0 - 1), T0 + 1)
    step = late.receive(carrying, T0 + 2)
    assert [(event.message_id, event.by) for event in of_type(step, Acknowledged)] == [("a1", "bob")]


def test_a_channel_that_was_forgotten_delivers_nothing_twice_and_begins_to_observe_anew() -> None:
    observer = observing()
    for number in (1, 2):
        observer.receive(message(f"b{number}", lamport=T0 + number), T0 + number)
    assert observer.is_past("b2", T0 + 2)
    assert not observer.is_past("b3", T0 + 3)
    observer.forget()
    observer = SdsChannel.from_bytes(observer.to_bytes(), observer.config)
    assert log_positions(observer) == ()
    assert observer.is_past("b2", T0 + 2)
    again = observer.receive(message("b2", lamport=T0 + 2), T0 + 1_000)
    assert [event.reason for event in of_type(again, MessageRefused)] == [RefusalReason.OLDER_THAN_LOG]
    step = observer.receive(message("b9", lamport=T0 + 9, history=("b2", "b8")), T0 + 2_000)
    assert [event.sequence for event in of_type(step, Delivered)] == [4], "numbers go on"
    assert of_type(step, MissingDependency) == [], "what it names is from before this observation"


@pytest.mark.parametrize("restored", [False, True])
def test_the_history_of_a_message_that_was_rebuilt_first_counts_when_it_comes(restored: bool) -> None:
    observer = opened(None, before_observation=False)
    rebuilt = message("b", "bob", T0 + 2)
    assert of_type(observer.receive(rebuilt, T0 + 3, repaired=True, id_verified=True), Delivered)
    if restored:
        observer = SdsChannel.from_bytes(observer.to_bytes(), observer.config)
    step = observer.receive(message("b", "bob", T0 + 2, ("a",)), T0 + 4)
    assert [event.message_id for event in of_type(step, MissingDependency)] == ["a"]
    step = observer.receive(message("a", "alice", T0 + 1), T0 + 5)
    assert [(event.sender_id, event.by) for event in of_type(step, Acknowledged)] == [("alice", "bob")]
    step = observer.receive(message("b", "bob", T0 + 2, ("x",)), T0 + 6)
    # Nothing says which history is Bob's: what any copy names is looked for, and acknowledges nothing but that.
    assert [event.message_id for event in of_type(step, MissingDependency)] == ["x"]
    assert of_type(step, Acknowledged) == []


def test_an_own_message_of_a_lost_state_meets_what_names_it_if_it_shows_that_it_is_ones_own() -> None:
    """It was ignored, and what named it without its sender waited for an hour. A stranger may use any sender id."""
    own = opened().send(b"mine", T0).outgoing[0].message
    alice = opened()
    alice.receive(message("b1", history=(own.message_id,)), T0 + 1)
    assert alice.receive(replace(own, content=b"forged"), T0 + 2, id_verified=False).events == ()
    assert alice.receive(own, T0 + 3, id_verified=None).events == ()
    step = alice.receive(own, T0 + 4, id_verified=True)
    assert [(event.message_id, event.lost_dependencies) for event in of_type(step, Delivered)] == [("b1", ())]
    assert alice.missing_ids() == ()
    assert alice.receive(own, T0 + 5, id_verified=True).events == ()
