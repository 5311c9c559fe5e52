"""Builds the page of alerts: those raised now, and every change."""

from __future__ import annotations

from typing import Any

from reliable_channel.analysis.alerts.log import OPEN
from reliable_channel.analysis.dashboard.sections import Rows, section
from reliable_channel.analysis.report.snapshot import TableSnapshot

TABLES = ("clock", "alerts")
MOST_OPEN = 200


def page(lake: TableSnapshot, number: int) -> dict[str, Any]:
    """The parts of the page."""
    return {
        "alerts": section(lake, ("alerts",), lambda: open_alerts(lake)),
        "history": section(lake, ("alerts",), lambda: history(lake, number)),
    }


def open_alerts(lake: TableSnapshot) -> list[dict[str, Any]]:
    """The alerts that are raised, the most severe first; ``raised``: how many there are, also without a row here."""
    return lake.select(
        f"""
        SELECT *, count(*) OVER () AS raised FROM ({OPEN})
        ORDER BY list_position(['critical', 'warning', 'info'], severity), alert, value DESC LIMIT {MOST_OPEN}
        """  # noqa: S608 - constants of our own
    )


def history(lake: TableSnapshot, number: int) -> Rows:
    """Every change, newest first."""
    return Rows.of(lake, "SELECT * FROM alerts ORDER BY sequence DESC", {}, number)
