"""Decides the verdict on one message and its cause from its evidence, by one table of rules. No Spark, no clock.

The first rule that holds decides. The verdict is ``delivered``, ``missing``, or ``unknown`` if evidence may still be
incomplete; ``unknown`` is judged again at the next run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The verdict on a message at this observer."""

    DELIVERED = "delivered"
    MISSING = "missing"
    UNKNOWN = "unknown"


class Cause(StrEnum):
    """The cause of a verdict. The last five belong to the verdict ``unknown``."""

    NEVER_SENT = "never_sent"
    RATE_LIMITED = "rate_limited"
    PROPAGATED_NOT_STORED = "propagated_not_stored"
    SEGMENT_MISSING = "segment_missing"
    UNDECODABLE = "undecodable"
    UNDECRYPTABLE = "undecryptable"
    REFUSED = "refused"
    DEPENDENCY_MISSING = "dependency_missing"
    LATE = "late"
    HASH_MISMATCH = "hash_mismatch"
    SOURCE_GAP = "source_gap"
    NOT_FOLLOWED = "not_followed"
    UNSETTLED = "unsettled"
    BEFORE_OBSERVATION = "before_observation"
    CLAIMED_BY_ONE = "claimed_by_one"


@dataclass(frozen=True, slots=True)
class VerdictEvidence:
    """The evidence about one message, from all tables.

    ``needed``: k; ``received``: the number of its received segments; ``refused``: SDS refused one of them
    (``channel_events``); ``sent``: a sender's record shows that it was dispatched, or the log of a node that the
    network had it (``logged_by``: the names of these nodes);
    ``held_back``, ``given_up``: the sender reports that a rate limit delays it, or that it will not send it;
    ``known_to_others``: another participant acknowledges or requests it; ``store_has``: ``True`` if a store has
    an envelope of it, ``False`` if no queried store has one, ``None`` if none was queried or could say;
    ``store_error``: why a queried one could not; ``in_gap``: it may have been sent while no bridge listened;
    ``witnessed``: it left a trace of its own, or two participants name it, or its own sender does; ``followed``:
    its content topic is read, and configured for channels."""

    delivered: bool = False
    late: bool = False
    settled: bool = True
    needed: int = 1
    received: int = 0
    hash_mismatch: bool = False
    refused: bool = False
    sent: bool = False
    held_back: bool = False
    given_up: bool = False
    undecodable: bool = False
    undecryptable: bool = False
    known_to_others: bool = False
    store_has: bool | None = None
    in_gap: bool = False
    before_observation: bool = False
    followed: bool = True
    witnessed: bool = True
    store_error: str | None = None
    logged_by: tuple[str, ...] = ()


Rule = tuple[Callable[[VerdictEvidence], bool], Verdict, Cause | None]

RULES: tuple[Rule, ...] = (
    (lambda e: e.delivered and e.late, Verdict.DELIVERED, Cause.LATE),
    (lambda e: e.delivered, Verdict.DELIVERED, None),
    (lambda e: not e.followed and e.received == 0, Verdict.UNKNOWN, Cause.NOT_FOLLOWED),
    (
        lambda e: e.before_observation and e.received == 0 and (e.sent or not (e.held_back or e.given_up)),
        Verdict.UNKNOWN,
        Cause.BEFORE_OBSERVATION,
    ),
    (lambda e: not e.settled, Verdict.UNKNOWN, Cause.UNSETTLED),
    (lambda e: e.hash_mismatch, Verdict.MISSING, Cause.HASH_MISMATCH),
    (lambda e: e.received >= e.needed and e.refused, Verdict.MISSING, Cause.REFUSED),
    (lambda e: e.received >= e.needed, Verdict.MISSING, Cause.DEPENDENCY_MISSING),
    (lambda e: e.held_back and not (e.sent or e.store_has), Verdict.MISSING, Cause.RATE_LIMITED),
    (lambda e: e.given_up and not (e.sent or e.store_has), Verdict.MISSING, Cause.NEVER_SENT),
    (lambda e: e.undecryptable, Verdict.MISSING, Cause.UNDECRYPTABLE),
    (lambda e: e.undecodable, Verdict.MISSING, Cause.UNDECODABLE),
    (lambda e: e.store_has is True, Verdict.UNKNOWN, Cause.UNSETTLED),  # it can still be fetched
    (lambda e: e.in_gap, Verdict.UNKNOWN, Cause.SOURCE_GAP),
    (lambda e: e.received > 0, Verdict.MISSING, Cause.SEGMENT_MISSING),
    (lambda e: not (e.witnessed or e.sent), Verdict.UNKNOWN, Cause.CLAIMED_BY_ONE),  # names are free to invent
    (
        lambda e: (e.sent or e.known_to_others) and e.store_has is False,
        Verdict.MISSING,
        Cause.PROPAGATED_NOT_STORED,
    ),
    (lambda e: True, Verdict.MISSING, None),
)
"""The rules in order. The last one: a message is named, no one has it, and no evidence shows why."""


def decide(evidence: VerdictEvidence) -> tuple[Verdict, Cause | None]:
    """The verdict and cause of the first rule that holds."""
    return next((verdict, cause) for holds, verdict, cause in RULES if holds(evidence))
