"""Compares the report with limits given on the command line, for cron and CI."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from typing import Any

from reliable_channel.core.errors import EnvironmentFault, LocalError


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The limits that must not be exceeded, and how many ``messages`` there must be; ``None`` is no limit. Shares are 0
    … 1. ``age_ms`` is how long ago the newest trace of a message may be."""

    loss: float | None = None
    latency_ms: float | None = None
    quarantine: float | None = None
    lag_records: float | None = None
    messages: float | None = None
    age_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """One limit and the measured value; ``value`` is None when there was nothing to measure, which does not cross the
    limit."""

    name: str
    limit: float
    value: float | None
    unit: str
    at_least: bool = False

    @property
    def crossed(self) -> bool:
        """Whether the value is above the limit, or below it for a minimum."""
        if self.value is None:
            return False
        return self.value < self.limit if self.at_least else self.value > self.limit

    def as_json(self) -> dict[str, Any]:
        """The check in the form of the JSON report."""
        value = self.value if self.value is not None and math.isfinite(self.value) else None
        return {"name": self.name, "limit": self.limit, "value": value, "unit": self.unit, "crossed": self.crossed}


def share(text: str) -> float:
    """``0.1%`` or ``0.001`` as 0.001. Raises :class:`LocalError` for what is not between 0 and 100 %."""
    words = text.strip()
    try:
        value = float(words.removesuffix("%")) / (100 if words.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise LocalError(f"{words[:40]!r} is not a share.", "Write it like 0.1% or 0.001.")
    return value


def checks(limits: Thresholds, report: dict[str, Any]) -> list[Check]:
    """Every given limit, compared with the report (:func:`summary.collect`). Raises :class:`EnvironmentFault` when the
    value to compare was never recorded: missing data must not look healthy."""
    results: list[Check] = []
    totals = report["totals"]
    if limits.messages is not None:
        known = max(totals["messages"], totals["delivered_rows"])
        results.append(Check("min_messages", limits.messages, known, "messages", at_least=True))
    if limits.age_ms is not None:
        newest, made = totals["newest_trace"], dt.datetime.fromisoformat(report["generated_at"])
        age = math.inf if newest is None else (made - dt.datetime.fromisoformat(newest)).total_seconds() * 1e3
        results.append(Check("max_age", limits.age_ms, age, "ms"))
    if limits.loss is not None:
        if not totals["messages"] and totals["delivered_rows"]:
            raise EnvironmentFault(
                "Loss cannot be judged: the messages in this window have no verdicts.",
                "`reliable-channel run --continuous` gives them once a minute, `run --once --verdicts` at its end.",
            )
        results.append(Check("max_loss", limits.loss, totals["loss"], "share"))
    if limits.latency_ms is not None:
        results.append(Check("max_latency", limits.latency_ms, report["latency_ms"]["p99"], "ms"))
    if limits.quarantine is not None:
        results.append(Check("max_quarantine", limits.quarantine, report["records"]["refused_share"], "share"))
    if limits.lag_records is not None:
        ingest = [row for row in report["pipeline"] if row["query"] == "ingest"]
        if not ingest or ingest[0]["lag"] is None:
            raise EnvironmentFault(
                "Lag cannot be judged: pipeline_metrics has no rows of ingest in this window.",
                "Leave out --max-lag, or widen --from and --to: metrics go by the wall clock.",
            )
        results.append(Check("max_lag", limits.lag_records, ingest[0]["lag"], "records"))
    return results
