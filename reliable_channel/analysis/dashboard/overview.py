"""Builds the overview: verdict counts, the speed of the pipeline, and open alerts."""

from __future__ import annotations

from typing import Any

from reliable_channel.analysis import figures as shared
from reliable_channel.analysis.alerts.heartbeat import OF_MICRO_BATCHES, ROUNDS
from reliable_channel.analysis.conclusion import conclusion
from reliable_channel.analysis.dashboard.alerts import open_alerts
from reliable_channel.analysis.dashboard.sections import section
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import CAME, COUNTED, NEWEST, SEEN, VERDICTS, causes, drops, latencies, records
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables.operations import FAILING

TABLES = (
    "clock", "delivery_status", "delivered_messages", "acks", "envelopes", "quarantine", "pipeline_metrics", "alerts",
)  # fmt: skip
STAGES = {"network": "on the network", "waiting": "waiting", "acknowledgement": "acknowledgement"}

_METRICS = {
    "rows_per_s": "processed_rows_per_second",
    "batch_ms": "trigger_execution_ms",
    "lag_offsets": "lag_offsets",
    "lag_commits": "lag_commits",
    "state_rows": "state_rows",
}


def page(lake: TableSnapshot, window: TimeWindow) -> dict[str, Any]:
    """The parts of the page."""
    caused = section(lake, ("delivery_status",), lambda: lake.select(causes(SEEN), window.bounds))
    return {
        "figures": section(lake, ("delivery_status", "envelopes"), lambda: figures(lake, window)),
        "conclusion": section(lake, ("delivery_status",), lambda: summarize(lake, window, caused.data or [])),
        "latency": section(lake, ("delivered_messages", "acks"), lambda: latency(lake, window)),
        "odd_timestamps": section(lake, ("delivered_messages",), lambda: odd_timestamps(lake, window)),
        "causes": caused,
        "jobs": section(lake, ("pipeline_metrics",), lambda: jobs(lake)),
        "alerts": section(lake, ("alerts",), lambda: open_alerts(lake)),
    }


def figures(lake: TableSnapshot, window: TimeWindow) -> dict[str, Any]:
    """The numbers at the top."""
    row = lake.select(
        f"""
        SELECT {records(CAME)} AS records, {drops(CAME)} AS refused, j.*,
               (SELECT {NEWEST} FROM pipeline_metrics
                WHERE query = '{ROUNDS}' OR query = 'verdict' AND metric = '{FAILING}' AND value = 0) AS judged_at
        FROM (SELECT {VERDICTS}, (SELECT count(*) FROM (
                  SELECT pubsub_topic, content_topic, channel_id FROM delivery_status
                  WHERE {SEEN}
                  UNION SELECT pubsub_topic, content_topic, channel_id FROM delivered_messages WHERE {CAME}))
                  AS channels
              FROM delivery_status WHERE {SEEN}) j
        """,  # noqa: S608 - text of our own
        window.bounds,
    )[0]
    return row | {"judged": row["delivered"] + row["missing"]}


def summarize(lake: TableSnapshot, window: TimeWindow, caused: list[dict[str, Any]]) -> str | None:
    """The summary of the figures in words."""
    channels = lake.select(
        f"""SELECT channel_id, {VERDICTS} FROM delivery_status WHERE {SEEN}
            GROUP BY pubsub_topic, content_topic, channel_id ORDER BY channel_id""",  # noqa: S608 - constants of our own
        window.bounds,
    )
    totals = {name: sum(row[name] for row in channels) for name in ("delivered", "missing")}
    return conclusion(totals, channels, caused)


def latency(lake: TableSnapshot, window: TimeWindow) -> list[tuple[str, list[float]]]:
    """How long each part of the delivery took: the part, and its quantiles in ms."""
    by_stage = latencies(lake, CAME, window.bounds)
    return [(name, by_stage[stage]) for stage, name in STAGES.items() if by_stage[stage]]


def odd_timestamps(lake: TableSnapshot, window: TimeWindow) -> dict[str, Any]:
    """The messages whose sender's timestamp cannot be ns, their senders, and the units in which it may be."""
    return lake.select(
        f"""SELECT coalesce(sum(messages), 0)::BIGINT AS messages, count(DISTINCT sender_id) AS senders,
                   string_agg(DISTINCT nullif(guessed_unit, 'none'), ', ') AS units
            FROM ({shared.odd_timestamps(CAME)})""",  # noqa: S608 - constants of our own
        window.bounds,
    )[0]


def verdicts(lake: TableSnapshot, window: TimeWindow) -> dict[str, Any]:
    """Messages by outcome in bins of the time they were first seen: ``bins`` of ``seconds``."""
    span = lake.select(
        f"SELECT min(first_seen) AS first, max(first_seen) AS last FROM delivery_status WHERE {SEEN}",  # noqa: S608 - constants of our own
        window.bounds,
    )[0]
    seconds = window.bin_s(span["first"], span["last"])
    rows = lake.select(
        f"""
        SELECT time_bucket(to_seconds($seconds), first_seen) AS time, verdict, cause, count(*) AS messages
        FROM delivery_status WHERE {SEEN} AND {COUNTED} GROUP BY ALL ORDER BY ALL
        """,  # noqa: S608 - constants of our own
        window.bounds | {"seconds": seconds},
    )
    return {"seconds": seconds, "bins": rows}


def jobs(lake: TableSnapshot) -> list[dict[str, Any]]:
    """The state of every query after its last micro-batch."""
    newest = ", ".join(
        f"arg_max(value, (recorded_at, batch_id)) FILTER (metric = '{metric}') AS {name}"
        for name, metric in _METRICS.items()
    )
    return lake.select(
        f"""
        SELECT query, max(recorded_at) AS reported_at, {newest} FROM pipeline_metrics
        WHERE {OF_MICRO_BATCHES} AND recorded_at <= now()
          AND recorded_at > (SELECT {NEWEST} FROM pipeline_metrics) - INTERVAL 7 DAY
        GROUP BY query ORDER BY reported_at DESC, query LIMIT 50
        """  # noqa: S608 - text of our own
    )
