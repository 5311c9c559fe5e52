"""Computes which alerts are raised and which are cleared, from the open alerts and the measurements. Pure.

Equal measurements give no change, so a run may be repeated at any time. An alert whose value can no longer be measured
(no messages in the window, a channel forgotten, a rule removed) is cleared, with that as its detail.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from reliable_channel.analysis.alerts.measure import Reading
from reliable_channel.analysis.alerts.rules import Rule

Key = tuple[str, str]
"""Name of the rule, and subject."""

OTHERS = "others"
"""The subject of the alert about those that have no alert of their own."""


class AlertState(StrEnum):
    """The kind of a row in ``alerts``."""

    RAISED = "raised"
    CLEARED = "cleared"


@dataclass(frozen=True, slots=True)
class AlertChange:
    """A future row of ``alerts``, without its number and times."""

    alert: str
    kind: str
    subject: str
    state: AlertState
    severity: str
    value: float | None
    threshold: float | None
    detail: str


def find_changes(
    open_alerts: Mapping[Key, AlertChange], measured: Sequence[tuple[Rule, Sequence[Reading]]], most_open: int
) -> list[AlertChange]:
    """The changes against ``open_alerts`` (raised and not cleared). At most ``most_open`` alerts of a rule are open at
    once, the largest values first, and one about all :data:`OTHERS`."""
    changed: list[AlertChange] = []
    known = {rule.alert for rule, _ in measured}
    for rule, readings in measured:
        by_subject = {reading.subject: reading for reading in readings}
        above = [reading for reading in readings if reading.value > rule.threshold and reading.subject != OTHERS]
        still = {reading.subject for reading in above}
        mine = {subject: old for (alert, subject), old in open_alerts.items() if alert == rule.alert}
        open_others = mine.pop(OTHERS, None)
        changed += [_clear_alert(old, by_subject.get(s), rule) for s, old in sorted(mine.items()) if s not in still]
        # Strangers can create channels without end, and each would be an alert. Those of others must not stay unsaid.
        room = max(0, most_open - len(still & mine.keys()))
        new = sorted((r for r in above if r.subject not in mine), key=lambda r: (-r.value, r.subject))
        others = (
            [Reading(OTHERS, left[0].value, f"{len(left)} more are above the threshold")]
            if (left := new[room:])
            else []
        )
        changed += [
            _make_change(rule, reading.subject, AlertState.RAISED, reading.value, reading.detail)
            for reading in new[:room] + (others if open_others is None else [])
        ]
        if open_others is not None and not others:
            detail = "all that are above the threshold have alerts of their own"
            changed.append(_make_change(rule, OTHERS, AlertState.CLEARED, None, detail))
    removed = [old for (alert, _), old in sorted(open_alerts.items()) if alert not in known]
    why = "the rule was removed"
    return changed + [replace(old, state=AlertState.CLEARED, value=None, threshold=None, detail=why) for old in removed]


def _clear_alert(old: AlertChange, reading: Reading | None, rule: Rule) -> AlertChange:
    value, detail = (reading.value, reading.detail) if reading else (None, "there is nothing to measure any more")
    return _make_change(rule, old.subject, AlertState.CLEARED, value, detail)


def _make_change(rule: Rule, subject: str, state: AlertState, value: float | None, detail: str) -> AlertChange:
    return AlertChange(rule.alert, rule.kind, subject, state, rule.severity, value, rule.threshold, detail)
