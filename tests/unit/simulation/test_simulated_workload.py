"""Synthetic data depends on the message, not on where or in which order it is made."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.simulation.randomness import random_bytes, stream
from reliable_channel.simulation.scenario import ChannelPlan, Fault, SizeMix
from reliable_channel.simulation.workload import plan_message, plan_messages
from tests.support.examples import examples

PLAN = ChannelPlan(
    channel_id="c",
    content_topic="/t/1/c/proto",
    participants=("alice", "bob", "late"),
    messages=200,
    duration_ms=60_000,
    sizes=SizeMix(short=0.5, medium=0.2, large=0.3, max_segments=4),
    joins_at=(("late", 30_000),),
    ephemeral=0.1,
    repeats=0.3,
    faults=((7, Fault.SEGMENT_MISSING),),
)


@settings(deadline=None)
@given(st.permutations(range(40)))
def test_any_order_of_making_gives_the_same_messages(order: list[int]) -> None:
    made = {number: plan_message(PLAN, 3, number) for number in order}
    assert [made[n] for n in range(40)] == list(plan_messages(PLAN, 3))[:40]


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(), st.integers())
def test_another_seed_is_another_conversation(one: int, other: int) -> None:
    same = list(plan_messages(PLAN, one)) == list(plan_messages(PLAN, other))
    assert same == (one == other)


def test_nobody_speaks_before_joining() -> None:
    said = [m for m in plan_messages(PLAN, 3) if m.sender == "late"]
    assert said
    assert min(m.at_ms for m in said) >= 30_000


def test_the_mix_holds_short_medium_large_ephemeral_and_repeated_messages() -> None:
    made = list(plan_messages(PLAN, 3))
    sizes = [len(m.payload) for m in made]
    assert min(sizes) < 200 < PLAN.segment_size < max(sizes) <= 4 * PLAN.segment_size
    assert any(m.ephemeral for m in made)
    again = Counter(m.payload for m in made)
    assert any(count > 1 and len(payload) > PLAN.segment_size for payload, count in again.items())
    assert any(m.payload.endswith(b"\0\0\0") for m in made)


def test_a_fault_of_segments_meets_a_message_of_several() -> None:
    assert len(plan_message(PLAN, 3, 7).payload) > PLAN.segment_size


def test_places_do_not_run_into_each_other() -> None:
    assert random_bytes(8, 1, "ab", "c") != random_bytes(8, 1, "a", "bc")
    assert random_bytes(8, 1, "a", 1) != random_bytes(8, 1, "a", "1")
    assert stream(1, "a").random() != stream(2, "a").random()
