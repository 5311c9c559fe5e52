"""The verdicts' check finds nothing where nothing is wrong, and each wrong verdict that is put into the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reliable_channel.simulation.check.verdicts import Judged, check_verdicts
from reliable_channel.simulation.truth import MessageOutcome, TrueAttack, TrueMessage, Truth
from tests.unit.simulation.true_conversation import CHANNEL, true_conversation

Mutation = Callable[[list[Judged]], list[Judged]]


def ids(truth: Truth, number: int) -> tuple[str, ...]:
    return tuple(segment.sds_id for segment in truth.segments if segment.message == number)


def cause_of(message: TrueMessage) -> str | None:
    if message.outcome == MessageOutcome.DELIVERED:
        return None
    return message.fault or "propagated_not_stored"


def right(truth: Truth) -> list[Judged]:
    return [
        Judged(
            message.channel_id,
            ids(truth, message.number),
            "delivered" if message.outcome == MessageOutcome.DELIVERED else "missing",
            cause_of(message),
        )
        for message in truth.messages
    ]


def example() -> Truth:
    """The conversation, one of its lost messages with an injected fault."""
    truth = true_conversation()
    lost = next(m for m in truth.messages if m.outcome == MessageOutcome.INCOMPLETE)
    return replace(
        truth,
        messages=[replace(m, fault="segment_missing") if m is lost else m for m in truth.messages],
    )


def changed(number: int, **changes: object) -> Mutation:
    return lambda rows: [replace(row, **changes) if i == number else row for i, row in enumerate(rows)]


LOST = next(i for i, m in enumerate(example().messages) if m.fault == "segment_missing")
REFERENCED = next(i for i, m in enumerate(example().messages) if m.outcome == MessageOutcome.REFERENCED)
MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "a message has no verdict": (lambda rows: rows[1:], "has no verdict"),
    "a message has two": (lambda rows: [*rows, replace(rows[0], verdict="missing")], "has 2 verdicts"),
    "a delivered one is called missing": (changed(0, verdict="missing"), "was delivered and is called missing"),
    "a lost one is called delivered": (changed(LOST, verdict="delivered"), "was not delivered and is called delivered"),
    "a lost one is called unsettled": (changed(LOST, verdict="unknown", cause="unsettled"), "is called unknown"),
    "the cause is another": (changed(LOST, cause="undecodable"), "the cause is said to be undecodable"),
    "no cause is named": (changed(LOST, cause=None), "the cause is said to be None"),
    "none is named where the truth knows none either": (changed(REFERENCED, cause=None), "no cause is named"),
    "what never was is judged": (lambda rows: [*rows, Judged(CHANNEL, ("zz",), "missing", None)], "was never sent"),
}


def test_right_verdicts_differ_in_nothing() -> None:
    assert check_verdicts(example(), right(example())) == []


def test_what_is_older_than_the_observation_may_stay_unknown() -> None:
    truth = true_conversation()
    number = next(i for i, m in enumerate(truth.messages) if m.outcome == MessageOutcome.REFERENCED)
    rows = changed(number, verdict="unknown", cause="before_observation")(right(truth))
    assert check_verdicts(truth, rows) == []


@pytest.mark.parametrize(("copies", "expected"), [(0, "segment_missing"), (1, "undecodable")])
def test_a_segment_that_would_have_been_cut_and_never_arrived_is_only_missing(copies: int, expected: str) -> None:
    truth = example()
    messages = [replace(m, fault="undecodable") if i == LOST else m for i, m in enumerate(truth.messages)]
    cut = next(s for s in truth.segments if s.message == messages[LOST].number and s.arrived_at_ms is None)
    segments = [replace(s, observed_copies=copies) if s is cut else s for s in truth.segments]
    truth = replace(truth, messages=messages, segments=segments)
    accepted = [
        cause
        for cause in ("segment_missing", "undecodable")
        if not check_verdicts(truth, changed(LOST, cause=cause)(right(truth)))
    ]
    assert expected in accepted
    assert copies == 0 or accepted == [expected]


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_found_when(name: str) -> None:
    mutate, expected = MUTATIONS[name]
    found = [str(difference) for difference in check_verdicts(example(), mutate(right(example())))]
    assert any(expected in line for line in found), found


def forgery_of(message: TrueMessage) -> TrueAttack:
    """Another content under the id of a message's first segment."""
    about = (message.channel_id, "content_under_victims_id", "any", message.first_sds_id, message.sender, 1, b"?")
    return TrueAttack(*about, payload_hash=None, names=[], before_observation=False, at_ms=1, record=0)


@pytest.mark.parametrize("number", [LOST, REFERENCED])
def test_a_forgery_explains_a_verdict_about_a_lost_message_and_one_beside_the_right_one(number: int) -> None:
    truth = example()
    message = truth.messages[number]
    attacked = replace(truth, attacks=[forgery_of(message)])
    forged = Judged(message.channel_id, (message.first_sds_id,), "delivered", None)
    others = [row for i, row in enumerate(right(truth)) if i != number]
    for mine in ([forged], [replace(forged, verdict="missing", cause="undecodable")], [right(truth)[number], forged]):
        assert check_verdicts(attacked, [*others, *mine]) == []
        assert check_verdicts(truth, [*others, *mine]) != [] or mine[0].verdict == "missing"
    assert check_verdicts(attacked, others) != []
    assert check_verdicts(attacked, [*others, replace(forged, verdict="unknown")]) != []


def test_a_forgery_explains_nothing_about_a_message_that_was_delivered() -> None:
    truth = example()
    attacked = replace(truth, attacks=[forgery_of(truth.messages[0])])
    assert check_verdicts(attacked, changed(0, verdict="missing", cause="undecodable")(right(truth))) != []


def test_what_only_hostile_senders_name_is_not_missing() -> None:
    truth = example()
    attacked = replace(truth, attacks=[replace(forgery_of(truth.messages[0]), names=["invented"])])
    claimed = Judged(CHANNEL, ("invented",), "unknown", "claimed_by_one")
    assert check_verdicts(attacked, [*right(truth), claimed]) == []
    (difference,) = check_verdicts(attacked, [*right(truth), replace(claimed, verdict="missing", cause=None)])
    assert "only one hostile sender names it" in str(difference)
