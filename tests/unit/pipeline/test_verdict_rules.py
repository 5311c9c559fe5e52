"""The rules of verdicts: for each cause the evidence that names it, and nothing less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.pipeline.verdict.judge import STORE_ERRORS, describe
from reliable_channel.pipeline.verdict.rules import Cause, Verdict, VerdictEvidence, decide
from reliable_channel.transport.store.rest_node import StoreFault

MISSING = Verdict.MISSING
CASES: dict[str, tuple[VerdictEvidence, Verdict, Cause | None]] = {
    "delivered": (VerdictEvidence(delivered=True, received=1), Verdict.DELIVERED, None),
    "delivered after all": (VerdictEvidence(delivered=True, late=True), Verdict.DELIVERED, Cause.LATE),
    "too early to say": (VerdictEvidence(settled=False, received=1, needed=3), Verdict.UNKNOWN, Cause.UNSETTLED),
    "before we listened": (VerdictEvidence(before_observation=True), Verdict.UNKNOWN, Cause.BEFORE_OBSERVATION),
    "never sent, before we listened": (
        VerdictEvidence(before_observation=True, given_up=True),
        MISSING,
        Cause.NEVER_SENT,
    ),
    "wrong hash": (VerdictEvidence(hash_mismatch=True, received=3, needed=3), MISSING, Cause.HASH_MISMATCH),
    "a clock far ahead": (VerdictEvidence(refused=True, received=2, needed=2), MISSING, Cause.REFUSED),
    "refused, and a segment lacks": (
        VerdictEvidence(refused=True, received=1, needed=2),
        MISSING,
        Cause.SEGMENT_MISSING,
    ),
    "waits for another": (VerdictEvidence(received=1), MISSING, Cause.DEPENDENCY_MISSING),
    "held by a rate limit": (VerdictEvidence(held_back=True), MISSING, Cause.RATE_LIMITED),
    "given up by its sender": (VerdictEvidence(given_up=True), MISSING, Cause.NEVER_SENT),
    "no key opens it": (VerdictEvidence(undecryptable=True, sent=True), MISSING, Cause.UNDECRYPTABLE),
    "garbled": (VerdictEvidence(undecodable=True, received=1, needed=2), MISSING, Cause.UNDECODABLE),
    "a segment lacks": (VerdictEvidence(received=2, needed=3, sent=True), MISSING, Cause.SEGMENT_MISSING),
    "a store still has it": (VerdictEvidence(sent=True, store_has=True), Verdict.UNKNOWN, Cause.UNSETTLED),
    "held back at first, and in a store": (
        VerdictEvidence(held_back=True, given_up=True, store_has=True),
        Verdict.UNKNOWN,
        Cause.UNSETTLED,
    ),
    "we were not listening": (VerdictEvidence(sent=True, in_gap=True), Verdict.UNKNOWN, Cause.SOURCE_GAP),
    "a topic that nobody reads": (VerdictEvidence(sent=True, followed=False), Verdict.UNKNOWN, Cause.NOT_FOLLOWED),
    "others had it, no store": (VerdictEvidence(sent=True, store_has=False), MISSING, Cause.PROPAGATED_NOT_STORED),
    "only forged histories name it": (VerdictEvidence(witnessed=False), Verdict.UNKNOWN, Cause.CLAIMED_BY_ONE),
    "no store has what is only claimed": (
        VerdictEvidence(witnessed=False, known_to_others=True, store_has=False),
        Verdict.UNKNOWN,
        Cause.CLAIMED_BY_ONE,
    ),
    "named, and nobody knows": (VerdictEvidence(known_to_others=True), MISSING, None),
}


@pytest.mark.parametrize(("evidence", "verdict", "cause"), CASES.values(), ids=CASES.keys())
def test_evidence_names_its_cause(evidence: VerdictEvidence, verdict: Verdict, cause: Cause | None) -> None:
    assert decide(evidence) == (verdict, cause)


def test_every_cause_has_a_case() -> None:
    assert {cause for _, _, cause in CASES.values() if cause is not None} == set(Cause)


flags = {name: st.booleans() for name in ("delivered", "late", "settled", "sent", "held_back", "given_up", "in_gap")}


@given(st.builds(VerdictEvidence, **flags, received=st.integers(0, 5), needed=st.integers(1, 5)))
def test_only_the_delivered_are_called_delivered(evidence: VerdictEvidence) -> None:
    verdict, _ = decide(evidence)
    assert (verdict is Verdict.DELIVERED) == evidence.delivered


@given(st.builds(VerdictEvidence, **flags, received=st.integers(0, 5), needed=st.integers(1, 5)))
def test_what_is_not_settled_is_never_called_missing(evidence: VerdictEvidence) -> None:
    verdict, _ = decide(evidence)
    assert verdict is not Verdict.MISSING or evidence.settled


NAMED = VerdictEvidence(known_to_others=True)
DETAILS: dict[str, tuple[VerdictEvidence, bool, str]] = {
    "no store has it": (replace(NAMED, store_has=False, sent=True), True, "no store node that was asked has it"),
    "one names it": (replace(NAMED, witnessed=False), True, "only one participant names it"),
    "a segment lacks": (VerdictEvidence(received=1, needed=2, sent=True), True, "1 of 2 needed segments arrived"),
    "not known whether it was sent": (VerdictEvidence(store_has=False), True, "its sender does not say"),
    "no store to ask": (NAMED, False, "no store node is configured"),
    "no store was asked": (NAMED, True, "no store node was asked for it yet"),
    **{
        f"a store was asked: {fault}": (replace(NAMED, store_error=fault), True, "none could say: " + words)
        for fault, words in STORE_ERRORS.items()
    },
}


@pytest.mark.parametrize(("evidence", "ask_stores", "words"), DETAILS.values(), ids=DETAILS.keys())
def test_the_detail_says_what_was_done_for_the_message(evidence: VerdictEvidence, ask_stores: bool, words: str) -> None:
    _, cause = decide(evidence)
    assert words in describe(evidence, cause, ask_stores)


def test_every_fault_of_a_store_has_words() -> None:
    assert {*StoreFault} <= {*STORE_ERRORS}
