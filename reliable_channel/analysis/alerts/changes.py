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


def changes(
    open_alerts: Mapping[Key, AlertChange], measured: Sequence[tuple[Rule, Sequence[Reading]]], most_open: int
) -> list[AlertChange]:
    """The changes against ``open_alerts`` (raised and not cleared). At most ``most_open`` alerts of a rule are open at
    once, the largest values first."""
    changed: list[AlertChange] = []
    known = {rule.alert for rule, _ in measured}
    for rule, readings in measured:
        by_subject = {reading.subject: reading for reading in readings}
        above = [reading for reading in readings if reading.value > rule.threshold]
        still = {reading.subject for reading in above}
        mine = {subject: old for (alert, subject), old in open_alerts.items() if alert == rule.alert}
        changed += [_clear_alert(old, by_subject.get(s), rule) for s, old in sorted(mine.items()) if s not in still]
        # Strangers can create channels without end, and each would be an alert.
        room = most_open - len(still & mine.keys())
        new = sorted((r for r in above if r.subject not in mine), key=lambda r: (-r.value, r.subject))
        changed += [
            _change(rule, reading.subject, AlertState.RAISED, reading.value, reading.detail)
            for reading in new[: max(0, room)]
        ]
    removed = [old for (alert, _), old in sorted(open_alerts.items()) if alert not in known]
    why = "the rule was removed"
    return changed + [replace(old, state=AlertState.CLEARED, value=None, threshold=None, detail=why) for old in removed]


def _clear_alert(old: AlertChange, reading: Reading | None, rule: Rule) -> AlertChange:
    if reading is None:
        return _change(rule, old.subject, AlertState.CLEARED, None, "there is nothing to measure any more")
    return _change(rule, old.subject, AlertState.CLEARED, reading.value, reading.detail)


def _change(rule: Rule, subject: str, state: AlertState, value: float | None, detail: str) -> AlertChange:
    return AlertChange(rule.alert, rule.kind, subject, state, rule.severity, value, rule.threshold, detail)
