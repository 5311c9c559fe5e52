"""Which alerts are raised and cleared, without tables."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.analysis.alerts.changes import OTHERS, AlertChange, AlertState, Key, find_changes
from reliable_channel.analysis.alerts.measure import Reading
from reliable_channel.analysis.alerts.rules import LossRate, Rule

LOSS = LossRate(alert="loss", kind="loss_rate", above=0.1, severity="critical")
OTHER = LossRate(alert="other", kind="loss_rate", above=0.1)


def reading(subject: str, value: float) -> Reading:
    return Reading(subject, value, f"{value}")


def applied(open_alerts: dict[Key, AlertChange], found: list[AlertChange]) -> dict[Key, AlertChange]:
    """What is open after changes."""
    after = {**open_alerts, **{(change.alert, change.subject): change for change in found}}
    return {key: change for key, change in after.items() if change.state == AlertState.RAISED}


def raised(*subjects: str, rule: Rule = LOSS) -> dict[Key, AlertChange]:
    return applied({}, find_changes({}, [(rule, [reading(subject, 0.5) for subject in subjects])], 100))


def test_above_the_threshold_it_is_raised_and_at_it_is_not() -> None:
    found = find_changes({}, [(LOSS, [reading("a", 0.1), reading("b", 0.1001)])], 100)
    assert [(c.subject, c.state, c.severity, c.threshold) for c in found] == [("b", AlertState.RAISED, "critical", 0.1)]


def test_what_is_raised_is_not_raised_again_and_is_cleared_once() -> None:
    assert find_changes(raised("a"), [(LOSS, [reading("a", 0.9)])], 100) == []
    (cleared,) = find_changes(raised("a"), [(LOSS, [reading("a", 0.05)])], 100)
    assert (cleared.state, cleared.value) == (AlertState.CLEARED, 0.05)


def test_what_cannot_be_measured_any_more_is_cleared() -> None:
    (cleared,) = find_changes(raised("a"), [(LOSS, [])], 100)
    assert (cleared.state, cleared.value, cleared.detail) == (
        AlertState.CLEARED,
        None,
        "there is nothing to measure any more",
    )


def test_a_rule_that_was_removed_clears_what_it_raised() -> None:
    (cleared,) = find_changes(raised("a"), [(OTHER, [reading("a", 0.05)])], 100)
    assert (cleared.alert, cleared.state, cleared.detail) == ("loss", AlertState.CLEARED, "the rule was removed")


def test_a_stranger_with_many_channels_fills_only_the_bound_and_the_worst_come_first() -> None:
    many = [reading(f"c{n:03}", 0.2 + n / 1000) for n in range(500)]
    found = find_changes({}, [(LOSS, many), (OTHER, [reading("a", 0.9)])], 100)
    assert len(found) == 102
    assert {c.subject for c in found if c.alert == "loss"} == {OTHERS, *(f"c{n:03}" for n in range(400, 500))}
    assert find_changes(applied({}, found), [(LOSS, many), (OTHER, [reading("a", 0.9)])], 100) == []


def test_those_without_an_alert_of_their_own_are_counted_until_all_have_one() -> None:
    """A stranger with a hundred channels hid the loss of everybody else."""
    invented = [reading(f"c{n}", 1.0) for n in range(3)]
    *first, others = find_changes({}, [(LOSS, [*invented, reading("alice", 0.4), reading("bob", 0.3)])], 3)
    assert {c.subject for c in first} == {"c0", "c1", "c2"}
    assert (others.subject, others.value, others.detail) == (OTHERS, 0.4, "2 more are above the threshold")
    state = applied({}, [*first, others])
    after = find_changes(state, [(LOSS, [*invented[:1], reading("alice", 0.4), reading("bob", 0.3)])], 3)
    assert [(c.subject, c.state) for c in after] == [
        *(("c1", AlertState.CLEARED), ("c2", AlertState.CLEARED)),
        *(("alice", AlertState.RAISED), ("bob", AlertState.RAISED), (OTHERS, AlertState.CLEARED)),
    ]


MEASURED = st.lists(
    st.tuples(st.sampled_from("abcde"), st.floats(0, 1)), max_size=5, unique_by=lambda pair: pair[0]
).map(lambda pairs: [reading(*pair) for pair in pairs])


@given(st.lists(MEASURED, max_size=8), st.integers(1, 4))
def test_after_any_history_the_same_measures_change_nothing_and_nothing_is_raised_twice(
    history: list[list[Reading]], most_open: int
) -> None:
    state: dict[Key, AlertChange] = {}
    for measured in history:
        found = find_changes(state, [(LOSS, measured)], most_open)
        for change in found:
            assert ((change.alert, change.subject) in state) == (change.state == AlertState.CLEARED)
        state = applied(state, found)
        own = {subject for _, subject in state} - {OTHERS}
        above = {r.subject for r in measured if r.value > LOSS.threshold}
        assert own <= above
        assert len(own) == min(most_open, len(above))
        assert (("loss", OTHERS) in state) == (len(above) > most_open)
        assert find_changes(state, [(LOSS, measured)], most_open) == []
