"""Computes the pipeline's capacity and cost from ``pipeline_metrics``: frames for the notebook ``capacity``.

================  ======================================================================================================
``throughput``    time (UTC, wall clock), query, rows_per_s (while the micro-batch ran), input_rows, took_ms
``lag``           time, query, lag, unit (records or commits)
``state``         time, query, state_rows, memory_bytes, disk_bytes
``phases``        query, phase, share (of the time of its micro-batches), ms (sum)
``summary``       query, micro_batches, rows, busy_s, rows_per_s (rows per busy second), p95_ms (of a micro-batch),
                  lag, state_bytes (newest)
``cost``          query, ms_per_record (busy time per record ingested), ms_per_message (per message delivered)
================  ======================================================================================================

Times are the wall clock of the driver, not event time.
"""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.alerts.heartbeat import OF_MICRO_BATCHES
from reliable_channel.analysis.report.source import TableWindow

_WIDE = f"""
    SELECT query, run_id, batch_id, max(recorded_at) AS time,
           any_value(value) FILTER (metric = 'input_rows') AS input_rows,
           any_value(value) FILTER (metric = 'trigger_execution_ms') AS took_ms,
           any_value(value) FILTER (metric = 'lag_offsets') AS lag_offsets,
           any_value(value) FILTER (metric = 'lag_commits') AS lag_commits,
           any_value(value) FILTER (metric = 'state_rows') AS state_rows,
           any_value(value) FILTER (metric = 'state_memory_bytes') AS memory_bytes,
           any_value(value) FILTER (metric = 'state_disk_bytes') AS disk_bytes
    FROM pipeline_metrics WHERE {OF_MICRO_BATCHES} GROUP BY query, run_id, batch_id
"""  # noqa: S608 - names of our own
PHASES = {
    "add_batch_ms": "compute and write",
    "query_planning_ms": "planning",
    "latest_offset_ms": "looking for new data",
    "get_batch_ms": "opening the batch",
    "wal_commit_ms": "write-ahead log",
    "commit_offsets_ms": "committing",
}
"""The phases of a micro-batch: Spark's name and its meaning."""


def throughput(source: TableWindow) -> pd.DataFrame:
    """Rows per second of every micro-batch that read rows."""
    return source.query(
        f"""SELECT time, query, input_rows / (took_ms / 1000) AS rows_per_s, input_rows, took_ms FROM ({_WIDE})
            WHERE input_rows > 0 AND took_ms > 0 ORDER BY time, query"""  # noqa: S608
    )


def lag(source: TableWindow) -> pd.DataFrame:
    """How far each query was behind its source after each micro-batch: Kafka records, or commits of a table."""
    return source.query(
        f"""SELECT time, query, round(coalesce(lag_offsets, lag_commits)) AS lag,
                   CASE WHEN lag_offsets IS NULL THEN 'commits' ELSE 'records' END AS unit
            FROM ({_WIDE}) WHERE coalesce(lag_offsets, lag_commits) IS NOT NULL ORDER BY time, query"""  # noqa: S608
    )


def state(source: TableWindow) -> pd.DataFrame:
    """The size of the state of the stateful queries after each micro-batch."""
    return source.query(
        f"""SELECT time, query, state_rows, memory_bytes, disk_bytes
            FROM ({_WIDE}) WHERE state_rows IS NOT NULL ORDER BY time, query"""  # noqa: S608
    )


def phases(source: TableWindow) -> pd.DataFrame:
    """The share of each phase in the time of micro-batches."""
    frame = source.query(
        """SELECT query, metric, sum(value) AS ms FROM pipeline_metrics
           WHERE list_contains($metrics, metric) GROUP BY ALL ORDER BY query, ms DESC""",
        metrics=list(PHASES),
    )
    frame["phase"] = frame["metric"].map(PHASES)
    frame["share"] = frame["ms"] / frame.groupby("query")["ms"].transform("sum")
    return frame[["query", "phase", "share", "ms"]]


def summary(source: TableWindow) -> pd.DataFrame:
    """One row per query."""
    return source.query(
        f"""SELECT query, count(*) AS micro_batches, sum(input_rows)::BIGINT AS rows, sum(took_ms) / 1000 AS busy_s,
                   sum(input_rows) / nullif(sum(took_ms) / 1000, 0) AS rows_per_s,
                   quantile_cont(took_ms, 0.95) AS p95_ms,
                   try_cast(arg_max(coalesce(lag_offsets, lag_commits), time) AS BIGINT) AS lag,
                   try_cast(arg_max(coalesce(memory_bytes, 0) + coalesce(disk_bytes, 0), time) AS BIGINT) AS state_bytes
            FROM ({_WIDE}) GROUP BY query ORDER BY busy_s DESC, query"""  # noqa: S608
    )


def cost(source: TableWindow) -> pd.DataFrame:
    """The cost of one record and one delivered message in ms during which a query's micro-batches ran: on a machine of
    c cores at most c times as much CPU. The window must hold whole runs, or numerator and denominator differ.
    Micro-batches have no channel and no sender, so the messages of all count."""
    everybody = replace(source.window, channel_id=None, content_topic=None, sender_id=None)
    if everybody != source.window:
        source = TableWindow(source.snapshot, everybody)
    return source.query(
        f"""
        WITH busy AS (SELECT query, sum(took_ms) AS ms FROM ({_WIDE}) GROUP BY query),
             records AS (SELECT sum(input_rows) AS n FROM ({_WIDE}) WHERE query = 'ingest'),
             delivered AS (SELECT count(*) AS n FROM delivered_messages)
        SELECT query, ms / nullif((SELECT n FROM records), 0) AS ms_per_record,
               ms / nullif((SELECT n FROM delivered), 0) AS ms_per_message
        FROM busy ORDER BY ms DESC, query
        """  # noqa: S608
    )


def describe(source: TableWindow) -> str:
    """The busiest query, the cost of a record, and what is behind, in one to three sentences."""
    queries = summary(source)
    if queries.empty:
        return "No micro-batch was recorded in this window."
    busiest, busy_s = queries.iloc[0], queries["busy_s"].sum()
    sentences = [
        f"{text.name(busiest['query'])} was busy longest, {text.duration(busiest['busy_s'] * 1000)}; all queries "
        f"together were busy for {text.duration(busy_s * 1000)}."
    ]
    per_record = cost(source)["ms_per_record"].sum()
    if per_record:
        sentences.append(f"A record cost {text.number(per_record)} ms of that.")
    behind = queries[queries["lag"] > 0]
    names = ", ".join(text.name(name) for name in behind["query"])
    if names:
        sentences.append(f"At the end these were behind: {names}.")
    elif queries["lag"].notna().any():
        sentences.append("At the end no query was behind.")
    return " ".join(sentences)
