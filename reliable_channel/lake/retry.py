"""Repeats a write that conflicted with another writer of the same table."""

from __future__ import annotations

from deltalake.exceptions import CommitFailedError
from tenacity import RetryCallState, retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from reliable_channel.core.errors import EnvironmentFault


def _raise_fault(state: RetryCallState) -> None:
    fault = state.outcome.exception() if state.outcome else None
    raise EnvironmentFault(
        f"Another writer changed the table in each of {state.attempt_number} attempts.",
        "Try again when no other maintenance or requeue runs; changes made so far are kept.",
    ) from fault


retry_on_conflict = retry(
    retry=retry_if_exception_type(CommitFailedError),
    stop=stop_after_attempt(6),
    wait=wait_random_exponential(multiplier=0.5, max=10),
    retry_error_callback=_raise_fault,
)
"""Decorates a function whose commit may conflict with another rewrite, or with a compaction, of the same files.

The function is called up to six times. Raises ``EnvironmentFault`` if it conflicts every time."""
