"""Detects that a pipeline stopped. The alerts of a continuous run stop with it, so they cannot report that.

A continuous run records when its next round of verdicts and alerts is due, and its orderly end. It and a continuous job
of ingest record that ingest has not ended (:mod:`reliable_channel.lake.live`). The reader compares these times with the
clock. Tables of a run that ended, of a back-fill or of a demo never count as stopped.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.lake.read import open_table, select
from reliable_channel.lake.tables import CLOCK, PIPELINE_METRICS, micros
from reliable_channel.lake.tables.operations import CONTINUOUS, FAILING

ROUNDS = "verdicts"
NEXT_ROUND_MS = "next_round_ms"
"""The metric: ms from ``recorded_at`` to the time at which the next round must have ended; 0 after an orderly end."""
OF_MICRO_BATCHES = f"metric NOT IN ('{NEXT_ROUND_MS}', '{CONTINUOUS}', '{FAILING}')"
"""The condition for rows of ``pipeline_metrics`` of a micro-batch: not what runs declare."""
CLOCK_MS = 15 * 60 * 1000
"""A running pipeline writes the recorded clock more often than this, even if no record comes."""

_IS_START = "batch_id = 0 AND value > 0"
"""The condition for the declaration of a run that starts; the others are of its rounds and its end."""

# A run that dies again and again declares at each start that its first round is due in some minutes, and would put that
# off for ever. So the first start since the last round counts.
_LAST = f"""
    SELECT at, due_ms FROM (
        SELECT recorded_at AS at, value AS due_ms, batch_id AS number, {_IS_START} AS is_start,
            max(CASE WHEN {_IS_START} THEN NULL ELSE recorded_at END) OVER () AS round
        FROM past_metrics WHERE query = '{ROUNDS}' AND metric = '{NEXT_ROUND_MS}'
    ) WHERE round IS NULL OR at > round OR (at = round AND NOT is_start)
    ORDER BY is_start DESC, at, number DESC LIMIT 1
"""  # noqa: S608 - names of our own

_IS_LIVE = f"""
    SELECT value AS is_live FROM past_metrics WHERE query = 'ingest' AND metric = '{CONTINUOUS}'
    ORDER BY recorded_at DESC, batch_id DESC LIMIT 1
"""  # noqa: S608 - names of our own

_READING = "Reading Kafka"
_EFFECT = "What arrived since then is in no table, and no alert about it can be raised."
_EFFECT_OF_JOB = "It ended, or a micro-batch takes that long. What arrived since then may be called missing."

# Each tick of the clock is a micro-batch of reassembly and of ack. No metric shows their lag when they write none.
_WRITTEN = f"""
    SELECT part, written.at, coalesce(min(started.recorded_at), written.at) AS waited_since
    FROM (
        SELECT '{_READING}' AS part, max(recorded_at) AS at FROM past_clock UNION ALL
        SELECT 'The job ' || query AS part, max(recorded_at) AS at FROM past_metrics
        WHERE query IN ('reassembly', 'ack') AND {OF_MICRO_BATCHES} GROUP BY query
    ) AS written LEFT JOIN past_metrics AS started
    ON started.recorded_at > written.at AND {_IS_START} AND metric = '{CONTINUOUS}'
    WHERE written.at IS NOT NULL GROUP BY part, written.at ORDER BY part
"""  # noqa: S608 - names of our own


@dataclass(frozen=True, slots=True)
class StoppedPart:
    """A part of a continuous run that stopped without an orderly end: since when, and what that means."""

    part: str
    since: dt.datetime
    effect: str

    def __str__(self) -> str:
        return f"{self.part} stopped: nothing since {self.since:%Y-%m-%d %H:%M:%S} UTC. {self.effect}"


class Heartbeat:
    """Writes the rounds of one continuous run."""

    def __init__(self, paths: PathSettings) -> None:
        self._paths = paths
        self._run = str(uuid.uuid4())
        self._round = 0

    def start(self, due_ms: float) -> dt.datetime:
        """Record that the run starts, and that its first round ends within ``due_ms``; returns when a round must have
        ended. That is earlier if runs before this one died without a round."""
        now = dt.datetime.now(dt.UTC)
        self.record(due_ms, now)
        return next(due for _, due in _read_next_round(open_table(self._paths, PIPELINE_METRICS), now))

    def record(self, due_ms: float, now: dt.datetime | None = None) -> None:
        """Record that a round ended, and that the next one ends within ``due_ms``; 0 ends the run."""
        from reliable_channel.lake.live import write_metric  # all that writes, which readers need not load

        write_metric(self._paths, ROUNDS, self._run, self._round, NEXT_ROUND_MS, float(due_ms), now)
        self._round += 1


def due_ms(pause_s: float, round_s: float) -> float:
    """How long the next round may take to end, ms: after a pause of ``pause_s``, if it takes twice as long as the last
    one (``round_s``) and half a minute."""
    return 1000 * (pause_s + 2 * round_s + 30)


def _select(query: str, now: dt.datetime, **tables: DeltaTable) -> list[dict[str, Any]]:
    """The rows of a query over ``past_<name>``: the rows of tables up to ``now``."""
    # What is dated later is of a clock that was ahead for a while, and would hide for as long what came since.
    past = f"WHERE recorded_at <= to_timestamp_micros({micros(now)})"
    views = ", ".join(f"past_{name} AS (SELECT * FROM {name} {past})" for name in tables)  # noqa: S608 - names of our own
    return select(f"WITH {views} {query}", **tables)


def _read_next_round(metrics: DeltaTable, now: dt.datetime) -> list[tuple[dt.datetime, dt.datetime]]:
    """Since when no round has ended, and when the next one must have; empty if no run is to go on."""
    rows = (row for row in _select(_LAST, now, metrics=metrics) if row["due_ms"])
    return [(row["at"], row["at"] + dt.timedelta(milliseconds=row["due_ms"])) for row in rows]


def find_stopped(table: Callable[[str], DeltaTable | None], now: dt.datetime | None = None) -> list[StoppedPart]:
    """The parts of a continuous run that stopped, by ``now`` (the wall clock); none if no run was to go on. ``table``
    opens a table by name: ``None`` if it does not exist."""
    now = now or dt.datetime.now(dt.UTC)
    metrics, clocks = table(PIPELINE_METRICS.name), table(CLOCK.name)
    if metrics is None:
        return []
    parts = []
    for since, due in _read_next_round(metrics, now):
        if now > due:
            effect = "Since then no verdict was given, and alerts may have been neither raised nor cleared."
            parts.append(StoppedPart("The check of verdicts and alerts", since, effect))
    is_live = any(row["is_live"] for row in _select(_IS_LIVE, now, metrics=metrics))
    written = _select(_WRITTEN, now, metrics=metrics, clock=clocks) if is_live and clocks is not None else []
    read = next((row["at"] for row in written if row["part"] == _READING), None)
    for row in written if read is not None else ():
        end, effect = (now, _EFFECT) if row["part"] == _READING else (read, _EFFECT_OF_JOB)
        if end > row["waited_since"] + dt.timedelta(milliseconds=CLOCK_MS):
            parts.append(StoppedPart(row["part"], row["at"], effect))
    return parts
