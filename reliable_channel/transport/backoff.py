"""How long to wait before trying again: the wait doubles from fault to fault, up to a longest one."""

from __future__ import annotations

from collections.abc import Callable

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_random


def delay(attempts: int, first: float, longest: float) -> float:
    """The wait after ``attempts`` (1 or more) attempts that failed in a row, in the unit of ``first`` and
    ``longest``."""
    # 2**60 exceeds every longest wait; the number of attempts has no bound.
    return min(first * 2.0 ** min(attempts - 1, 60), longest)


class Backoff:
    """The waits of a loop that goes on until it succeeds, in seconds."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s, self._longest_s = first_s, longest_s
        self.faults = 0
        """Faults in a row."""

    def next_wait(self, retry_after_s: float = 0.0) -> float:
        """Count one more fault; returns the seconds to wait: at least ``retry_after_s``, which the node asked for."""
        self.faults += 1
        return max(delay(self.faults, self._first_s, self._longest_s), retry_after_s)

    def reset(self) -> None:
        """The fault is over."""
        self.faults = 0


def make_retrying(
    attempts: int,
    first_s: float,
    longest_s: float,
    *,
    retry_if: Callable[[BaseException], bool],
    sleep: Callable[[float], None],
) -> Retrying:
    """Calls a function up to ``attempts`` times while it raises what ``retry_if`` accepts; then raises the last error.
    After an error with ``retry_after_s`` the wait is at least that. The waits have a random part of up to ``first_s``,
    so that many clients do not return at the same moment."""
    jitter = wait_random(0, first_s)

    def wait(state: RetryCallState) -> float:
        error = None if state.outcome is None else state.outcome.exception()
        retry_after_s = getattr(error, "retry_after_s", 0.0)
        return max(delay(state.attempt_number, first_s, longest_s), retry_after_s) + jitter(state)

    return Retrying(
        stop=stop_after_attempt(attempts), wait=wait, retry=retry_if_exception(retry_if), sleep=sleep, reraise=True
    )
