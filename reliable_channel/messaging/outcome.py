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


class RetryDecision(StrEnum):
    """The next state of the request."""

    SENT = "sent"
    RETRY = "retry"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """The result of one attempt. ``reason``: why it failed, ``None`` when it was accepted; ``error``: the same as a
    short text for the record. ``in_doubt``: there was no answer, or a fault while answering (time-out, 5xx), so that
    the message may be on the network all the same. ``utilization`` is that of ``SendFailed``."""

    reason: FailureReason | None = None
    error: str = ""
    in_doubt: bool = False
    utilization: float = 0.0


ACCEPTED = AttemptResult()

_FINAL = frozenset({FailureReason.REFUSED, FailureReason.TOO_LARGE, FailureReason.DROPPED})
"""The same bytes fail again (400, 413, 421 …)."""


def result_of(event: SendFailed) -> AttemptResult:
    """The result of an attempt that the transport reports as failed."""
    error = f"{event.reason}: {event.detail}" if event.detail else str(event.reason)
    return AttemptResult(event.reason, error, event.reason is FailureReason.UNREACHABLE, event.utilization)


def decide(reason: FailureReason | None, retries_made: int, in_doubt: bool) -> RetryDecision:
    """The next state of a request after an attempt with this result and ``retries_made`` retries (0 for the initial
    attempt). ``in_doubt``: whether an earlier attempt was."""
    if reason is None or (reason is FailureReason.DUPLICATE and in_doubt):
        return RetryDecision.SENT
    if reason is FailureReason.STOPPED:  # it never reached a peer: no retry was made
        return RetryDecision.RETRY
    if reason in _FINAL or retries_made >= len(RETRY_DELAYS_MS):
        return RetryDecision.FAILED
    return RetryDecision.RETRY
