"""Formats the result of a run for a terminal and as JSON. Subjects come from strangers: they are escaped and cut."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reliable_channel.analysis.alerts.changes import AlertChange
from reliable_channel.analysis.alerts.check import CheckResult
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.text import printable


def lines(outcome: CheckResult) -> list[str]:
    """The changes and the open alerts as lines of text."""
    clock = f"as of {outcome.as_of:%Y-%m-%d %H:%M:%S} UTC" if outcome.as_of else "no recorded clock yet"
    parts = [
        f"{len(outcome.open_alerts)} {'alert is' if len(outcome.open_alerts) == 1 else 'alerts are'} raised ({clock})"
    ]
    parts += [f"  {part}" for part in outcome.stopped]
    parts += [f"  {_format_change(change)}" for change in outcome.open_alerts]
    parts += ["Changed now:", *(f"  {change.state}: {_format_change(change)}" for change in outcome.changed)] * bool(
        outcome.changed
    )
    return parts + ([f"{outcome.sent} changes were sent to the webhook."] if outcome.sent else [])


def summary(outcome: CheckResult) -> str:
    """One line for a log."""
    fault = f"; {outcome.fault}" if outcome.fault else ""
    return f"{len(outcome.open_alerts)} raised, {len(outcome.changed)} changed{fault}"


def as_values(outcome: CheckResult) -> dict[str, Any]:
    """Plain values for JSON."""
    return {
        "as_of": outcome.as_of.isoformat() if outcome.as_of else None,
        "raised": [
            {name: value for name, value in asdict(change).items() if name != "state"} for change in outcome.open_alerts
        ],
        "changed": [asdict(change) for change in outcome.changed],
        "stopped": [asdict(part) | {"since": part.since.isoformat()} for part in outcome.stopped],
        "sent_to_webhook": outcome.sent,
        "fault": str(outcome.fault) if outcome.fault else None,
    }


def _format_change(change: AlertChange) -> str:
    return f"{change.severity:8} {change.alert}  {_describe_subject(change.subject)}: {change.detail}"


def _describe_subject(subject: str) -> str:
    key = ChannelFilter.from_subject(subject)
    if key is None:
        return printable(subject, 120)
    return f"channel {printable(key.channel_id or '–', 60)} of {printable(key.content_topic or '–', 120)}"
