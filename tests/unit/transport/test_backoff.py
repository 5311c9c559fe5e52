"""The waits between attempts: doubling, bounded, and counted."""

from __future__ import annotations

import pytest

from reliable_channel.transport.backoff import Backoff, delay, make_retrying


def test_the_wait_doubles_up_to_the_longest() -> None:
    assert [delay(attempts, 0.5, 3.0) for attempts in (1, 2, 3, 4, 100_000)] == [0.5, 1.0, 2.0, 3.0, 3.0]


def test_a_first_wait_beyond_the_longest_is_the_longest() -> None:
    """``node.max_backoff_ms`` may be less than the first wait of the bridge's loops."""
    assert Backoff(0.5, 0.1).next_wait() == 0.1


def test_a_success_begins_again_with_the_first_wait() -> None:
    backoff = Backoff(1.0, 10.0)
    assert [backoff.next_wait(), backoff.next_wait(), backoff.faults] == [1.0, 2.0, 2]
    backoff.reset()
    assert [backoff.faults, backoff.next_wait()] == [0, 1.0]


def test_the_wait_that_a_node_asked_for_is_the_shortest() -> None:
    backoff = Backoff(1.0, 10.0)
    assert [backoff.next_wait(30.0), backoff.next_wait(1.5), backoff.next_wait()] == [30.0, 2.0, 4.0]


def test_an_attempt_waits_as_long_as_the_error_says() -> None:
    waits: list[float] = []

    def fail() -> None:
        error = OSError()
        error.retry_after_s = 30.0  # type: ignore[attr-defined]
        raise error

    attempt = make_retrying(2, 1.0, 8.0, retry_if=lambda error: isinstance(error, OSError), sleep=waits.append)
    with pytest.raises(OSError):
        attempt(fail)
    assert 30.0 <= waits[0] <= 31.0


def test_attempts_end_with_the_last_error_and_wait_between() -> None:
    waits: list[float] = []
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        raise OSError(len(calls))

    attempt = make_retrying(3, 1.0, 8.0, retry_if=lambda error: isinstance(error, OSError), sleep=waits.append)
    with pytest.raises(OSError, match="3"):
        attempt(fail)
    assert len(calls) == 3
    assert 1.0 <= waits[0] <= 2.0 <= waits[1] <= 3.0
    assert len(waits) == 2


def test_other_errors_are_raised_at_once() -> None:
    def fail() -> None:
        raise ValueError

    attempt = make_retrying(3, 1.0, 8.0, retry_if=lambda error: isinstance(error, OSError), sleep=pytest.fail)
    with pytest.raises(ValueError):
        attempt(fail)
