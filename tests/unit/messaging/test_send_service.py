"""The send service: the order of requests, the times of retries, and what each answer means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.messaging.send_service import (
    ACCEPTED,
    RETRY_DELAYS_MS,
    TRANSITIONS,
    AttemptResult,
    RequestState,
    SendService,
    decide,
)
from reliable_channel.transport.base import FailureReason

IN_DOUBT = AttemptResult(FailureReason.UNREACHABLE, "time-out", in_doubt=True)
TRY_AGAIN = AttemptResult(FailureReason.NO_PEERS, "no peers")
REFUSED = AttemptResult(FailureReason.REFUSED, "bad message")
DUPLICATE = AttemptResult(FailureReason.DUPLICATE, "duplicate")


def service(usable: bool = True, max_in_flight: int = 100) -> SendService:
    made = SendService(max_in_flight, attempt_timeout_ms=100_000)
    made.set_usable(usable)
    return made


def taken(made: SendService, now: int) -> str | None:
    request = made.take(now)
    return request.request_id if request else None


def reach(state: RequestState) -> SendService:
    """A service whose request "a" is in this state."""
    made = service()
    made.submit("a")
    if state not in (RequestState.FRESH, RequestState.CANCELLED):
        made.take(0)
    lead(made, state)
    return made


def lead(made: SendService, state: RequestState) -> None:
    """Do with the request "a" what leads to this state."""
    match state:
        case RequestState.FRESH:
            pass  # a request begins so, and nothing leads back
        case RequestState.IN_FLIGHT:
            made.take(60_000)
        case RequestState.QUEUED:
            made.note_queued("a")
        case RequestState.WAITING:
            made.outcome("a", TRY_AGAIN, 0)
        case RequestState.SENT:
            made.outcome("a", ACCEPTED, 0)
        case RequestState.FAILED:
            made.outcome("a", REFUSED, 0)
        case RequestState.CANCELLED:
            made.cancel("a")


FINAL = {RequestState.SENT, RequestState.FAILED, RequestState.CANCELLED}
OF_ATTEMPTS = {RequestState.QUEUED, RequestState.WAITING, *FINAL}
EXPECTED = {
    RequestState.FRESH: {RequestState.IN_FLIGHT, RequestState.CANCELLED},
    RequestState.IN_FLIGHT: OF_ATTEMPTS,
    RequestState.QUEUED: OF_ATTEMPTS - {RequestState.QUEUED},
    RequestState.WAITING: {RequestState.IN_FLIGHT, RequestState.CANCELLED},
}


@pytest.mark.parametrize("following", RequestState)
@pytest.mark.parametrize("state", RequestState)
def test_of_all_pairs_of_states_only_those_of_the_life_of_a_request_follow(
    state: RequestState, following: RequestState
) -> None:
    made = reach(state)
    request = made.find("a")
    assert (request is None) == (state in FINAL), "a request that has ended is forgotten"
    assert request is None or request.state is state
    lead(made, following)
    afterwards = made.find("a")
    if following in EXPECTED.get(state, set()):
        assert request is not None and request.state is following
        assert (afterwards is None) == (following in FINAL)
    else:
        assert afterwards is request
        assert request is None or request.state is state
    assert (following in TRANSITIONS[state]) == (following in EXPECTED.get(state, set()))


def test_three_retries_follow_after_one_two_and_four_seconds() -> None:
    made, now, waits = service(), 0, []
    made.submit("a")
    assert taken(made, now) == "a"
    while made.outcome("a", TRY_AGAIN, now) is RequestState.WAITING:
        due = made.next_due()
        assert due is not None
        assert taken(made, due - 1) is None, "not before it is due"
        assert taken(made, due) == "a"
        waits.append(due - now)
        now = due
    assert waits == [1_000, 2_000, 4_000]
    assert made.pending() == []


def test_retries_and_time_outs_follow_a_clock_that_was_set_back() -> None:
    made, ahead = service(), 86_400_000
    for name in ("a", "b"):
        made.submit(name)
        assert taken(made, ahead) == name
    assert made.outcome("a", TRY_AGAIN, ahead) is RequestState.WAITING
    assert made.list_overdue(ahead) == made.list_overdue(0) == []
    assert taken(made, RETRY_DELAYS_MS[0]) == "a"
    assert made.list_overdue(100_000) == ["b"]


def test_an_answer_renews_the_time_out_of_the_attempts_behind_it_alone() -> None:
    """The transport has them in a queue. One that it overtook has lost its answer."""
    made = service()
    for name in ("lost", "answered", "behind"):
        made.submit(name)
        made.take(0)
    made.outcome("answered", TRY_AGAIN, 60_000)
    assert made.list_overdue(100_000) == ["lost"]
    made.outcome("lost", IN_DOUBT, 100_000)
    assert made.list_overdue(160_000) == ["behind"], "a time-out is no answer"


def test_fresh_requests_go_before_retries_and_in_the_order_of_submission() -> None:
    made = service()
    made.submit("retried")
    made.take(0)
    made.outcome("retried", TRY_AGAIN, 0)
    made.submit("fresh 1")
    made.submit("fresh 2")
    assert [taken(made, 5_000) for _ in range(4)] == ["fresh 1", "fresh 2", "retried", None]


@given(st.permutations(range(6)))
def test_of_due_retries_the_most_recently_scheduled_goes_first(order: list[int]) -> None:
    made = service()
    for number in range(6):
        made.submit(str(number))
        made.take(0)
    for moment, number in enumerate(order):
        made.outcome(str(number), TRY_AGAIN, moment)
    assert [taken(made, 60_000) for _ in range(6)] == [str(number) for number in reversed(order)]


def test_no_retry_while_unhealthy_and_all_resume_afterwards() -> None:
    made = service()
    made.submit("a")
    made.take(0)
    made.outcome("a", TRY_AGAIN, 0)
    assert made.set_usable(False) == ["a"]
    assert taken(made, 1_000_000) is None
    assert made.next_due() is None, "an unhealthy node has nothing to wake up for"
    assert made.pending() == ["a"]
    assert made.set_usable(True) == ["a"]
    assert taken(made, 1_000_000) == "a"


def test_a_fresh_request_gets_its_first_attempt_while_unhealthy_and_then_waits() -> None:
    made = service(usable=False)
    made.submit("a")
    assert taken(made, 0) == "a"
    assert made.outcome("a", IN_DOUBT, 0) is RequestState.WAITING
    assert made.is_halted("a")
    assert taken(made, 60_000) is None


def test_a_cancelled_request_is_never_attempted_and_its_answer_no_longer_counts() -> None:
    made = service()
    made.submit("waiting")
    made.submit("in flight")
    assert made.cancel("waiting")
    assert taken(made, 0) == "in flight"
    assert made.cancel("in flight")
    assert made.outcome("in flight", ACCEPTED, 0) is None
    assert made.take(0) is None
    assert not made.cancel("in flight"), "cancelling twice is ignored"
    assert not made.cancel("unknown")


@pytest.mark.parametrize("retries", range(len(RETRY_DELAYS_MS) + 1))
def test_duplicate_counts_as_sent_only_after_an_attempt_in_doubt(retries: int) -> None:
    assert decide(FailureReason.DUPLICATE, retries, in_doubt=True) is RequestState.SENT
    assert decide(FailureReason.DUPLICATE, retries, in_doubt=False) is not RequestState.SENT


def test_a_time_out_followed_by_duplicate_is_sent() -> None:
    made = service()
    made.submit("a")
    made.take(0)
    made.outcome("a", IN_DOUBT, 0)
    made.take(1_000)
    assert made.outcome("a", DUPLICATE, 1_000) is RequestState.SENT


def test_new_bytes_are_in_doubt_no_longer() -> None:
    made = service()
    made.submit("a")
    made.take(0)
    made.outcome("a", IN_DOUBT, 0)
    again = made.take(1_000)
    assert again is not None
    again.in_doubt = False
    assert made.outcome("a", DUPLICATE, 1_000) is RequestState.WAITING


def test_what_the_peer_refuses_for_good_is_not_tried_again() -> None:
    made = service()
    made.submit("a")
    made.take(0)
    assert made.outcome("a", REFUSED, 0) is RequestState.FAILED


def test_an_answer_counts_once() -> None:
    made = service()
    made.submit("a")
    made.take(0)
    assert made.outcome("a", TRY_AGAIN, 0) is RequestState.WAITING
    assert made.outcome("a", ACCEPTED, 0) is None


def test_a_new_round_has_one_attempt_and_three_retries() -> None:
    made, now, attempts = service(), 0, 0
    made.reschedule("a", now)
    while (due := made.next_due()) is not None:
        assert taken(made, due) == "a"
        attempts += 1
        made.outcome("a", TRY_AGAIN, due)
    assert attempts == 1 + len(RETRY_DELAYS_MS)


def test_an_attempt_that_is_never_answered_becomes_overdue() -> None:
    made = service()
    made.submit("a")
    made.take(0)
    assert made.list_overdue(99_999) == []
    assert made.next_due() == 100_000
    assert made.list_overdue(100_000) == ["a"]


def test_attempts_in_flight_are_bounded() -> None:
    made = service(max_in_flight=1)
    made.submit("a")
    made.submit("b")
    assert taken(made, 0) == "a"
    assert taken(made, 0) is None
    made.outcome("a", ACCEPTED, 0)
    assert taken(made, 0) == "b"


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "take", "accept", "again", "doubt", "refuse", "cancel", "ill", "well", "retry"]),
        st.integers(0, 4),
        st.integers(0, 5_000),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_a_request_is_pending_until_exactly_one_end(steps: list[tuple[str, int, int]]) -> None:
    made, now, known, ended = service(), 0, set(), set()
    answers = {"accept": ACCEPTED, "again": TRY_AGAIN, "doubt": IN_DOUBT, "refuse": REFUSED}
    for what, which, wait in steps:
        now, request_id = now + wait, str(which)
        if what == "submit" and request_id not in known:
            known.add(request_id)
            made.submit(request_id)
        elif what == "take":
            request = made.take(now)
            assert request is None or (request.request_id in known - ended and request.retries <= 3)
        elif what in answers:
            if made.outcome(request_id, answers[what], now) in (RequestState.SENT, RequestState.FAILED):
                ended.add(request_id)
        elif what == "cancel":
            if made.cancel(request_id):
                ended.add(request_id)
        elif what in ("ill", "well"):
            made.set_usable(what == "well")
        elif what == "retry" and request_id in ended:
            made.reschedule(request_id, now)
            ended.discard(request_id)
        assert set(made.pending()) == known - ended
        assert len(made.pending()) == len(set(made.pending()))
