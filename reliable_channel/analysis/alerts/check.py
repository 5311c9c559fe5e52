"""Runs the alerts once: rules, readings, changes, table, webhook."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from reliable_channel.analysis.alerts.changes import AlertChange, changes
from reliable_channel.analysis.alerts.log import AlertLog
from reliable_channel.analysis.alerts.measure import as_of, readings
from reliable_channel.analysis.alerts.rules import Rule, load_rules
from reliable_channel.analysis.alerts.webhook import PAGE, Webhook
from reliable_channel.analysis.report import delta
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.tables import BY_NAME

_ATTEMPTS = 10
"""Runs at the same time that may come in between."""
MOST_PAGES = 100


@dataclass(frozen=True)
class CheckResult:
    """``changed``: rows appended now. ``open_alerts``: what is raised after it. ``sent``: how many changes the webhook
    took; ``fault``: why it did not take the rest."""

    as_of: dt.datetime | None
    changed: tuple[AlertChange, ...]
    open_alerts: tuple[AlertChange, ...]
    sent: int
    fault: EnvironmentFault | None = None


def check(
    settings: Settings,
    now: dt.datetime | None = None,
    rules: tuple[Rule, ...] | None = None,
    webhook: Webhook | None = None,
) -> CheckResult:
    """Evaluate the rules over the tables, append what changed to ``alerts``, tell the webhook what it does not know.

    Raises ``ConfigurationError`` for a wrong rules file and ``EnvironmentFault`` for tables that cannot be read, or
    where there is not one; a webhook that fails is part of the outcome, since the changes stand in the table and
    are sent by the next run."""
    now = now or dt.datetime.now(dt.UTC)
    rules = load_rules(settings.alerts.rules) if rules is None else rules
    lake = TableSnapshot(settings.paths)
    if not any(lake.table(name) for name in BY_NAME):
        raise delta.none_at_all(settings.paths.data_dir)
    clock = as_of(lake)
    measured = [(rule, readings(lake, rule, clock, now)) for rule in rules]
    for _ in range(_ATTEMPTS):
        log = AlertLog(settings.paths)
        changed = changes(log.open_alerts(), measured, settings.alerts.most_open)
        if log.append(changed, clock, now):
            break
    else:
        raise EnvironmentFault("Others write the table alerts all the time.", "Run one check at a time.")
    webhook = webhook or Webhook(settings.alerts)
    sent, fault = (0, None) if settings.alerts.webhook_url is None else _send(settings, webhook)
    still_open = AlertLog(settings.paths).open_alerts()
    return CheckResult(clock, tuple(changed), tuple(still_open[key] for key in sorted(still_open)), sent, fault)


def _send(settings: Settings, webhook: Webhook) -> tuple[int, EnvironmentFault | None]:
    """Page by page; what was taken is recorded before the next one, so little is said twice after a crash."""
    sent = 0
    for _ in range(MOST_PAGES):
        log = AlertLog(settings.paths)
        page = log.unsent(PAGE)
        if not page:
            break
        try:
            webhook.tell(page)
        except EnvironmentFault as fault:
            return sent, fault
        log.record_sent(page[-1]["sequence"])
        sent += len(page)
    return sent, None
