"""Compares the headline figures of report, dashboard, metrics and alerts with verdicts that match the truth, so that no
stranger's words are counted anywhere."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from reliable_channel.analysis.alerts.measure import measure_rule
from reliable_channel.analysis.alerts.rules import LossRate
from reliable_channel.analysis.dashboard import overview
from reliable_channel.analysis.dashboard.windows import window
from reliable_channel.analysis.figures import CLAIMED_BY_ONE, outcome, read_clock
from reliable_channel.analysis.report.delivery import totals
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.config import PathSettings
from reliable_channel.simulation.check.observed import Difference
from reliable_channel.simulation.check.verdicts import Judged

PROMISE = "headline figures"
ALWAYS_MS = 100 * 365 * 86_400_000


def check_headline(judged: Sequence[Judged], paths: PathSettings) -> list[Difference]:
    """Return the figures that are not those of ``judged``, rows of ``delivery_status`` that
    :func:`~reliable_channel.simulation.check.verdicts.check_verdicts` has compared with the truth."""
    expected = count(judged)
    return [
        Difference(PROMISE, "", surface, f"shows {name} {figures[name]}, and {expected[name]} are true")
        for surface, figures in read_surfaces(paths).items()
        for name in expected.keys() & figures.keys()
        if figures[name] != expected[name]
    ]


def count(judged: Sequence[Judged]) -> dict[str, int]:
    """Messages by verdict, without ids that one participant alone claims; these apart."""
    ours = [row for row in judged if row.cause != CLAIMED_BY_ONE]
    verdicts = [row.verdict for row in ours]
    figures = {name: verdicts.count(name) for name in ("delivered", "missing", "unknown")}
    return {**figures, "messages": len(ours), "claimed": len(judged) - len(ours)}


def read_surfaces(paths: PathSettings) -> dict[str, Mapping[str, Any]]:
    """The figures that each surface shows."""
    lake = TableSnapshot(paths)
    (report,) = totals(TableWindow(lake)).to_dict("records")
    rule = LossRate(alert="headline", kind="loss_rate", above=0, per="all", at_least=1, window_ms=ALWAYS_MS)
    loss_readings = measure_rule(lake, rule, read_clock(lake), dt.datetime.now(dt.UTC))
    alerts = {"missing": int(loss_readings[0].detail.split()[0])} if loss_readings else {}
    return {
        "report": report,
        "dashboard": overview.figures(lake, window(lake, "all")),
        "metrics": outcome(lake, ALWAYS_MS // 3_600_000).verdicts,
        "alerts": alerts,
    }
