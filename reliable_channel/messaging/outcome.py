"""What the remote peer's answer to one send attempt means (seed ``003…``, *Retry*; protocol.md §8).

A table over the answer, whether an earlier attempt is *in doubt* (a time-out or 5xx: the peer may have taken it), and
how many retries are left. No clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.transport.base import FailureReason, SendFailed

RETRY_DELAYS_MS = (1_000, 2_000, 4_000)
"""Waits before the first, second and third retry."""


class Answer(StrEnum):
    """The remote peer's answer, as far as retrying is concerned."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """It has these bytes already."""
    REFUSED = "refused"
    """These bytes, on this topic, are refused for good (400, 413, 421 …): the same bytes fail again."""
    TRY_AGAIN = "try_again"
    """It did not take them, and said so (429, no peers)."""
    IN_DOUBT = "in_doubt"
    """No answer, or a fault while answering (time-out, 5xx): the message may or may not be on the network."""


class Verdict(StrEnum):
    """What becomes of the request."""

    SENT = "sent"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one attempt. ``reason`` is a short cause for the record's error, empty when accepted."""

    answer: Answer
    reason: str = ""


ACCEPTED = Outcome(Answer.ACCEPTED)

_ANSWERS = {
    FailureReason.REFUSED: Answer.REFUSED,
    FailureReason.TOO_LARGE: Answer.REFUSED,
    FailureReason.RATE_LIMITED: Answer.TRY_AGAIN,
    FailureReason.NO_PEERS: Answer.TRY_AGAIN,
    FailureReason.UNREACHABLE: Answer.IN_DOUBT,
    FailureReason.DUPLICATE: Answer.DUPLICATE,
}


def outcome_of(event: SendFailed) -> Outcome:
    """The outcome that a transport's failure stands for. ``stopped`` never reached a peer: it is tried again."""
    answer = _ANSWERS.get(event.reason, Answer.TRY_AGAIN)
    return Outcome(answer, f"{event.reason}: {event.detail}" if event.detail else str(event.reason))


def decide(answer: Answer, retries_made: int, in_doubt: bool) -> Verdict:
    """The verdict over an attempt, with ``retries_made`` retries before it (0 for the initial attempt)."""
    if answer is Answer.ACCEPTED or (answer is Answer.DUPLICATE and in_doubt):
        return Verdict.SENT
    if answer is Answer.REFUSED or retries_made >= len(RETRY_DELAYS_MS):
        return Verdict.FAILED
    return Verdict.RETRY
