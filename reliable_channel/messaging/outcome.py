"""Interprets the remote peer's response to one send attempt (MESSAGING-API, *Retry*).

The outcome is a table over the answer, whether an earlier attempt is *in doubt* (a time-out or 5xx: the peer may have
accepted it), and how many retries are left. No clock, no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.transport.base import FailureReason, SendFailed

RETRY_DELAYS_MS = (1_000, 2_000, 4_000)
"""Waits before the first, second and third retry."""


class PeerResponse(StrEnum):
    """The remote peer's answer, as far as retrying is concerned."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The peer has these bytes already."""
    REFUSED = "refused"
    """The peer refuses these bytes on this topic permanently (400, 413, 421 …): the same bytes fail again."""
    TRY_AGAIN = "try_again"
    """The peer refused them explicitly (429, no peers)."""
    IN_DOUBT = "in_doubt"
    """No answer, or a fault while answering (time-out, 5xx): the message may or may not be on the network."""


class RetryDecision(StrEnum):
    """The next state of the request."""

    SENT = "sent"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt. ``reason`` is a short cause for the record's error, empty when accepted;
    ``utilization`` is that of ``SendFailed``."""

    response: PeerResponse
    reason: str = ""
    utilization: float = 0.0


ACCEPTED = AttemptResult(PeerResponse.ACCEPTED)

_RESPONSES = {
    FailureReason.REFUSED: PeerResponse.REFUSED,
    FailureReason.TOO_LARGE: PeerResponse.REFUSED,
    FailureReason.DROPPED: PeerResponse.REFUSED,
    FailureReason.RATE_LIMITED: PeerResponse.TRY_AGAIN,
    FailureReason.NO_PEERS: PeerResponse.TRY_AGAIN,
    FailureReason.UNREACHABLE: PeerResponse.IN_DOUBT,
    FailureReason.DUPLICATE: PeerResponse.DUPLICATE,
}


def outcome_of(event: SendFailed) -> AttemptResult:
    """The outcome of a transport's failure. ``stopped`` never reached a peer: it is tried again."""
    response = _RESPONSES.get(event.reason, PeerResponse.TRY_AGAIN)
    reason = f"{event.reason}: {event.detail}" if event.detail else str(event.reason)
    return AttemptResult(response, reason, event.utilization)


def decide(response: PeerResponse, retries_made: int, in_doubt: bool) -> RetryDecision:
    """The outcome of an attempt after ``retries_made`` retries (0 for the initial attempt)."""
    if response is PeerResponse.ACCEPTED or (response is PeerResponse.DUPLICATE and in_doubt):
        return RetryDecision.SENT
    if response is PeerResponse.REFUSED or retries_made >= len(RETRY_DELAYS_MS):
        return RetryDecision.FAILED
    return RetryDecision.RETRY
