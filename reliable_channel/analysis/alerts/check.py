"""Runs the alerts once: rules, readings, changes, table, webhook."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace

from reliable_channel.analysis.alerts.changes import AlertChange, find_changes
from reliable_channel.analysis.alerts.heartbeat import StoppedPart, find_stopped
from reliable_channel.analysis.alerts.log import AlertLog
from reliable_channel.analysis.alerts.measure import Reading, measure_rule
from reliable_channel.analysis.alerts.rules import Rule, load_rules
from reliable_channel.analysis.alerts.webhook import PAGE, Webhook
from reliable_channel.analysis.figures import read_clock
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault

_ATTEMPTS = 10
"""The number of concurrent runs that may append in between."""
MOST_PAGES = 100


@dataclass(frozen=True)
class CheckResult:
    """``changed``: rows appended now. ``open_alerts``: alerts raised after it, with what was measured now; a row of the
    table keeps what was measured when it was raised. ``sent``: how many changes the webhook accepted; ``fault``: why it
    did not accept the rest. ``stopped``: the parts of the pipeline that no longer write their tables."""

    as_of: dt.datetime | None
    changed: tuple[AlertChange, ...]
    open_alerts: tuple[AlertChange, ...]
    sent: int
    fault: EnvironmentFault | None = None
    stopped: tuple[StoppedPart, ...] = ()


def check(
    settings: Settings,
    now: dt.datetime | None = None,
    rules: tuple[Rule, ...] | None = None,
    webhook: Webhook | None = None,
) -> CheckResult:
    """Evaluate the rules over the tables, append the changes to ``alerts``, and send unsent changes to the webhook.

    Raises ``ConfigurationError`` for a wrong rules file and ``EnvironmentFault`` for tables that cannot be read, or if
    there are none; a webhook that fails is part of the outcome, since the changes are in the table and the next run
    sends them."""
    now = now or dt.datetime.now(dt.UTC)
    rules = load_rules(settings.alerts.rules) if rules is None else rules
    lake = TableSnapshot(settings.paths)
    lake.require_any()
    clock = read_clock(lake)
    measured = [(rule, measure_rule(lake, rule, clock, now)) for rule in rules]
    # What was measured stays as it is; only what another run appended meanwhile is read again (:mod:`.log`).
    for _ in range(_ATTEMPTS):
        log = AlertLog(settings.paths)
        changed = find_changes(log.open_alerts(), measured, settings.alerts.most_open)
        if log.append(changed, clock, now):
            break
    else:
        raise EnvironmentFault("Other processes keep changing the table alerts.", "Run one check at a time.")
    webhook = webhook or Webhook(settings.alerts)
    sent, fault = (0, None) if settings.alerts.webhook_url is None else _send(settings, webhook)
    still_open = AlertLog(settings.paths).open_alerts()
    now_by_key = {(rule.alert, reading.subject): reading for rule, found in measured for reading in found}
    open_now = tuple(_update(still_open[key], now_by_key.get(key)) for key in sorted(still_open))
    return CheckResult(clock, tuple(changed), open_now, sent, fault, tuple(find_stopped(lake.table, now)))


def _update(alert: AlertChange, reading: Reading | None) -> AlertChange:
    return alert if reading is None else replace(alert, value=reading.value, detail=reading.detail)


def _send(settings: Settings, webhook: Webhook) -> tuple[int, EnvironmentFault | None]:
    """Send changes page by page."""
    sent = 0
    for _ in range(MOST_PAGES):
        log = AlertLog(settings.paths)
        page = log.read_unsent(PAGE)
        if not page:
            break
        try:
            webhook.send(page)
        except EnvironmentFault as fault:
            return sent, fault
        log.record_sent(page[-1]["sequence"])  # before the next page: a crash repeats one page at most
        sent += len(page)
    return sent, None
