"""The check finds nothing where nothing is wrong, and every single wrong thing that is put into the tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reliable_channel.simulation.check.observed import (
    Acknowledgement,
    DeliveredMessage,
    DeliveredSegment,
    IncompleteMessage,
    Observed,
    Quarantined,
)
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.truth import TrueDependency
from tests.unit.simulation.true_conversation import CHANNEL, faultless, true_conversation

Mutation = Callable[[Observed], Observed]


def message(index: int, **changes: object) -> Mutation:
    def mutate(tables: Observed) -> Observed:
        rows = list(tables.messages)
        rows[index] = replace(rows[index], **changes)
        return replace(tables, messages=rows)

    return mutate


def segment(index: int, **changes: object) -> Mutation:
    def mutate(tables: Observed) -> Observed:
        rows = list(tables.segments)
        rows[index] = replace(rows[index], **changes)
        return replace(tables, segments=rows)

    return mutate


def without(kind: str, index: int) -> Mutation:
    return lambda tables: replace(tables, **{kind: [r for i, r in enumerate(getattr(tables, kind)) if i != index]})


def doubled(kind: str, index: int) -> Mutation:
    return lambda tables: replace(tables, **{kind: [*getattr(tables, kind), getattr(tables, kind)[index]]})


def added(kind: str, row: object) -> Mutation:
    return lambda tables: replace(tables, **{kind: [*getattr(tables, kind), row]})


def swapped(kind: str, field: str, one: int, other: int) -> Mutation:
    def mutate(tables: Observed) -> Observed:
        rows = list(getattr(tables, kind))
        a, b = getattr(rows[one], field), getattr(rows[other], field)
        rows[one], rows[other] = replace(rows[one], **{field: b}), replace(rows[other], **{field: a})
        return replace(tables, **{kind: rows})

    return mutate


MUTATIONS: dict[str, tuple[Mutation, str]] = {
    "a byte of a payload is flipped": (message(1, payload=b"B" * 29 + b"C"), "another byte at 29"),
    "a payload is cut": (message(1, payload=b"B" * 29), "29 bytes, 30 were sent"),
    "a payload is not there": (message(0, payload=None), "without its payload"),
    "a message is under another sender": (message(0, sender="mallory"), "as from 'mallory'"),
    "a message is called ephemeral": (message(0, ephemeral=True), "ephemeral=True"),
    "a message is missing": (without("messages", 0), "message 0 of alice: is not delivered"),
    "a message is doubled": (doubled("messages", 2), "is delivered 2 times"),
    "a message is invented": (added("messages", DeliveredMessage(CHANNEL, "m", b"!", 9, "x", 4)), "was never sent"),
    "an incomplete message is delivered": (
        added("messages", DeliveredMessage(CHANNEL, "alice", b"A" * 40, 2_000, "f0", 4)),
        "cannot be rebuilt",
    ),
    "two messages change places": (swapped("messages", "delivery_seq", 0, 1), "before message 0 of alice"),
    "a message stands at another Lamport time": (message(0, lamport=7), "stands at Lamport 7"),
    "a delivery number is used twice": (message(2, delivery_seq=2), "not numbered 1 … n"),
    "a row number has a gap": (without("row_numbers", 4), "not numbered 1 … n"),
    "a segment is missing": (without("segments", 3), "segment 2 of message 1 of bob: is not delivered"),
    "a segment is doubled": (doubled("segments", 0), "is delivered 2 times"),
    "a segment is invented": (added("segments", DeliveredSegment(CHANNEL, "g0", 8)), "never became known"),
    "two segments change places": (swapped("segments", "row_seq", 0, 1), "before what it depends on"),
    "a rebuilt segment is called received": (segment(2, repaired=False), "is not called repaired"),
    "a received segment is called repaired": (segment(0, repaired=True), "is called repaired"),
    "an incomplete message is not named": (without("incomplete", 0), "is not named as lacking"),
    "another segment is said to be missing": (
        lambda t: replace(t, incomplete=[replace(t.incomplete[0], missing_data=(0,))]),
        "is named as lacking",
    ),
    "a delivered message is called incomplete": (
        added("incomplete", IncompleteMessage(CHANNEL, "bob", "00", (1,), 2)),
        "is named as lacking",
    ),
    "a lost dependency is not named": (without("lost", 0), "l0 lost: is not named"),
    "a dependency that came is called lost": (added("lost", (CHANNEL, "b1", "lost")), "b1 lost: is named"),
    "a lost dependency is called older than the observation": (
        lambda t: replace(t, lost=[(CHANNEL, "l0", "before_observation")]),
        "l0 before_observation: is named",
    ),
    "a certain acknowledgement is missing": (without("acks", 0), "a0: by bob is not in the table"),
    "somebody acknowledges what they never had": (
        added("acks", Acknowledgement(CHANNEL, "c0", "alice", "filter", False)),
        "by alice, who never had it",
    ),
    "somebody acknowledges their own": (
        added("acks", Acknowledgement(CHANNEL, "a0", "alice", "causal_history", True)),
        "by alice, who sent it",
    ),
    "a bad record is not quarantined": (without("quarantine", 0), "is not quarantined as malformed_envelope"),
    "a bad record is quarantined twice": (doubled("quarantine", 0), "is quarantined 2 times"),
    "a good record is quarantined": (
        added("quarantine", Quarantined("waku.envelopes", 0, 0, "too_large", b"x")),
        "and is not bad",
    ),
    "the reason is another": (
        lambda t: replace(t, quarantine=[replace(t.quarantine[0], reason="too_large")]),
        "as too_large, not malformed_envelope",
    ),
    "the raw bytes are others": (
        lambda t: replace(t, quarantine=[replace(t.quarantine[0], raw=b"\xff\x00")]),
        "with other bytes",
    ),
}


def test_a_faultless_observer_differs_in_nothing() -> None:
    assert check(true_conversation(), faultless()) == []


@pytest.mark.parametrize("name", MUTATIONS)
def test_it_is_found_when(name: str) -> None:
    mutate, expected = MUTATIONS[name]
    found = [str(difference) for difference in check(true_conversation(), mutate(faultless()))]
    assert any(expected in line for line in found), found


def test_an_empty_table_is_no_success() -> None:
    promises = {difference.promise for difference in check(true_conversation(), Observed())}
    wanted = "delivered messages,delivered segments,incomplete messages,lost dependencies,acknowledgements,quarantine"
    assert promises == set(wanted.split(","))


@pytest.mark.parametrize(("waited_ms", "allowed"), [(299_999, False), (300_000, True)])
def test_what_came_after_its_time_was_up_may_stand_late(waited_ms: int, allowed: bool) -> None:
    truth = true_conversation()
    came_at = 1_050 + waited_ms  # 1 050 ms is when the first message that depends on it arrived
    truth = replace(
        truth,
        messages=[replace(truth.messages[0], complete_at_ms=came_at), *truth.messages[1:]],
        segments=[replace(truth.segments[0], arrived_at_ms=came_at), *truth.segments[1:]],
        dependencies=[*truth.dependencies, TrueDependency(CHANNEL, "a0", 1_050, False, came_at)],
    )
    late = swapped("segments", "row_seq", 0, 1)(swapped("messages", "delivery_seq", 0, 1)(faultless()))
    found = {difference.promise for difference in check(truth, late)}
    assert found == (set() if allowed else {"causal order", "message order"})


def test_what_is_older_than_the_observation_may_stand_late() -> None:
    truth = true_conversation()
    older = TrueDependency(CHANNEL, "a0", 1_050, True, 1_060)
    truth = replace(
        truth,
        messages=[replace(truth.messages[0], complete_at_ms=1_060), *truth.messages[1:]],
        segments=[replace(truth.segments[0], arrived_at_ms=1_060), *truth.segments[1:]],
        dependencies=[*truth.dependencies, older],
    )
    tables = swapped("segments", "row_seq", 0, 1)(swapped("messages", "delivery_seq", 0, 1)(faultless()))
    assert check(truth, tables) == []


@pytest.mark.parametrize("evidence", ["causal_history", "implied", "filter"])
def test_no_evidence_excuses_a_false_acknowledgement(evidence: str) -> None:
    claim = Acknowledgement(CHANNEL, "f0", "dave", evidence, evidence == "causal_history")
    found = check(true_conversation(), added("acks", claim)(faultless()))
    assert [d.what for d in found] == ["by dave, who never had it"]


def test_the_bounded_beginning_of_a_large_record_is_enough() -> None:
    tables = faultless()
    kept = replace(tables.quarantine[0], raw=b"\xff\xff")
    assert check(true_conversation(), replace(tables, quarantine=[kept])) == []
