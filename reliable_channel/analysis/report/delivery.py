"""Computes what was delivered and how fast: frames for the notebook ``delivery``, the report and the dashboard.

============================  ==========================================================================================
``by_channel``                content_topic, channel_id, messages, delivered, late, missing, unknown, loss (share of
                              what is settled), payload_bytes, repaired, last_seen (UTC)
``totals``                    one row: messages, delivered, late, missing, unknown, loss and more
``overall_latency``           one row: messages, p50_ms, p90_ms, p99_ms, max_ms
``rate``                      time (UTC, start of the bin), name, messages, payload_bytes; ``seconds`` in ``attrs``
``latency``, ``waiting``      name, messages, p50_ms, p90_ms, p99_ms, max_ms
``latency_curve``             name, share (0 … 1), ms: 101 points for each of the seven names with most messages
``odd_timestamps``            channel_id, sender_id, guessed_unit (s, ms, µs or none), messages, least, most (as sent)
``acknowledgement_latency``   name, acknowledgements, p50_ms, p90_ms, p99_ms, max_ms
``acknowledgement_curve``     name, share, ms
============================  ==========================================================================================

``name`` is the value of the dimension that was asked for (``dimensions.py``), for acknowledgements also ``evidence``.
Latencies are ms. The *latency* runs from the sender's own timestamp (untrusted) to the delivery here, so it may be
negative; messages with timestamps that cannot be ns are in none (``figures.PLAUSIBLE``). *Waiting* runs from
the first segment's arrival to the delivery of any message, both in event time.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from reliable_channel.analysis import figures
from reliable_channel.analysis.figures import COUNTED, LOSS, PLAUSIBLE, REPAIRED, VERDICTS, WAITING_MS
from reliable_channel.analysis.report.dimensions import Dimension, bin_seconds, expression
from reliable_channel.analysis.report.source import TableWindow, Window

_QUANTILES = "quantile_cont({v}, 0.5) AS p50_ms, quantile_cont({v}, 0.9) AS p90_ms, quantile_cont({v}, 0.99) AS p99_ms"
_POINTS = "[i / 100 FOR i IN range(0, 101)]"
MOST_LINES = 7
"""Lines of a distribution. A chart shows no more, and 20 000 channels have two million points."""


def by_channel(source: TableWindow) -> pd.DataFrame:
    """One row per channel, the one with the most losses first: verdicts, loss, bytes, repairs, last trace."""
    seen, values = source.window.where("first_seen")
    return source.query(
        f"""SELECT content_topic, channel_id, messages, delivered, late, missing, unknown, loss, payload_bytes,
                   repaired, last_seen
            FROM ({figures.by_channel(("content_topic", "channel_id"), seen)})
            ORDER BY missing DESC, messages DESC, channel_id, content_topic""",  # noqa: S608 - text of our own
        **values,
    )


def totals(source: TableWindow) -> pd.DataFrame:
    """One row over all channels: messages, delivered, late, missing, unknown (verdicts), claimed (counted in none of
    these), loss (missing of missing and delivered; null without any), judged_as_of (UTC), payload_bytes of
    delivered_messages, repaired, channels, senders (of messages and deliveries), first_seen and last_seen (UTC)."""
    return source.query(
        f"""
        SELECT *, {LOSS} AS loss FROM (
            SELECT {VERDICTS},
                   (SELECT count(*) FROM (SELECT content_topic, channel_id FROM delivery_status
                       UNION SELECT content_topic, channel_id FROM delivered_messages)) AS channels,
                   (SELECT count(sender_id) FROM (SELECT sender_id FROM delivery_status WHERE {COUNTED}
                       UNION SELECT sender_id FROM delivered_messages)) AS senders,
                   min(first_seen) AS first_seen, max(first_seen) AS last_seen, max(as_of) AS judged_as_of
            FROM delivery_status),
            (SELECT coalesce(sum(payload_bytes), 0)::BIGINT AS payload_bytes FROM delivered_messages),
            (SELECT {REPAIRED} AS repaired FROM reassembled_messages)
        """  # noqa: S608 - constants of our own
    )


def overall_latency(source: TableWindow) -> pd.DataFrame:
    """One row: messages, p50_ms, p90_ms, p99_ms, max_ms of :func:`latency` over all channels; null without messages."""
    return source.query(
        f"""SELECT count(*) AS messages, {_QUANTILES.format(v="ms")}, max(ms)::DOUBLE AS max_ms
            FROM ({_LATENCY})"""  # noqa: S608 - text of our own
    )


def rate(source: TableWindow, by: Dimension = "channel_id", seconds: int | None = None) -> pd.DataFrame:
    """Messages and bytes delivered in bins of ``seconds``, by default as wide as the time span needs."""
    width = seconds or bin_seconds(source, "delivered_messages")
    frame = source.query(
        f"""
        SELECT time_bucket(to_seconds($seconds), event_time) AS time, {expression(by)} AS name, count(*) AS messages,
               sum(payload_bytes)::BIGINT AS payload_bytes
        FROM delivered_messages GROUP BY ALL ORDER BY time, name
        """,  # noqa: S608 - text of our own
        seconds=width,
    )
    frame.attrs["seconds"] = width
    return frame


# Columns by name: of ``*`` the window would read all that are named anywhere in the statement.
_DELIVERED = """SELECT channel_id, sender_id, payload_bytes, event_time, first_seen, {ms} AS ms
                FROM delivered_messages"""
_LATENCY = f"{_DELIVERED.format(ms='(epoch_ns(event_time)::HUGEINT - sender_timestamp_ns) / 1e6')} WHERE {PLAUSIBLE}"
_WAITING = _DELIVERED.format(ms=WAITING_MS)


def latency(source: TableWindow, by: Dimension = "channel_id") -> pd.DataFrame:
    """How long messages took from their sender's timestamp to their delivery here."""
    return source.query(_distribution(_LATENCY, by, "messages"))


def waiting(source: TableWindow, by: Dimension = "channel_id") -> pd.DataFrame:
    """How long messages waited here, from their first segment to their delivery: for segments, and for dependencies."""
    return source.query(_distribution(_WAITING, by, "messages"))


def latency_curve(source: TableWindow, by: Dimension = "channel_id") -> pd.DataFrame:
    """The distribution of :func:`latency` as a line per value: the share of messages that took at most so long."""
    return source.query(_curve(_LATENCY, expression(by)))


def acknowledgement_latency(source: TableWindow, by: Dimension | str = "channel_id") -> pd.DataFrame:
    """How long each participant's first acknowledgement of an SDS message took, from the first sight of the message;
    ``by`` may also be ``evidence``."""
    return _query_first_acks(source, by, lambda rows: _distribution(rows, by, "acknowledgements"))


def acknowledgement_curve(source: TableWindow, by: Dimension | str = "evidence") -> pd.DataFrame:
    """The distribution of :func:`acknowledgement_latency` as a line per value."""
    return _query_first_acks(source, by, lambda rows: _curve(rows, _value(by)))


_FIRST_ACKS = """
    SELECT content_topic, channel_id, any_value(sender_id) AS sender_id, {more}
           arg_min(evidence, latency_ms) AS evidence, min(latency_ms) AS ms, min(event_time) AS event_time
    FROM acks WHERE latency_ms IS NOT NULL GROUP BY content_topic, channel_id, sds_id, acknowledged_by
"""
_SIZED_FIRST_ACKS = f"""
    SELECT a.*, m.payload_bytes
    FROM ({_FIRST_ACKS.format(more="any_value(entire_message_hash) AS entire_message_hash,")}) a
    LEFT JOIN (SELECT entire_message_hash, max(payload_bytes) AS payload_bytes FROM delivered_messages GROUP BY ALL) m
        USING (entire_message_hash)
"""  # noqa: S608 - text of our own


def _query_first_acks(source: TableWindow, by: str, make: Callable[[str], str]) -> pd.DataFrame:
    """The result of a query that is made from the SQL of each participant's first acknowledgements. Evidence of which
    there was some before the window is not the first. Only sizes need the hashes, which are most of what is read."""
    earlier = source.beforehand()
    in_window, values = Window(since=source.window.since).where()
    name = "sized_first_acks" if by == "size" else "first_acks"
    earlier.keep(name, _SIZED_FIRST_ACKS if by == "size" else _FIRST_ACKS.format(more=""))
    return earlier.query(make(f"FROM {name} WHERE {in_window}"), **values)


def odd_timestamps(source: TableWindow) -> pd.DataFrame:
    """The senders of delivered messages whose timestamps cannot be ns (``PLAUSIBLE``), most messages first."""
    return source.query(f"{figures.odd_timestamps()} ORDER BY messages DESC, channel_id, sender_id, guessed_unit")


def _value(by: str) -> str:
    return "evidence" if by == "evidence" else expression(by)


def _distribution(rows: str, by: str, count: str) -> str:
    # Sizes have an order of their own; of names, those with most rows come first.
    first = "min(payload_bytes)" if by == "size" else f"{count} DESC"
    return f"""
        SELECT {_value(by)} AS name, count(*) AS {count}, {_QUANTILES.format(v="ms")}, max(ms)::DOUBLE AS max_ms
        FROM ({rows}) GROUP BY ALL ORDER BY {first} NULLS LAST, name
    """  # noqa: S608 - text of our own


def _curve(rows: str, value: str) -> str:
    return f"""
        SELECT name, unnest({_POINTS}) AS share, unnest(points) AS ms FROM (
            SELECT {value} AS name, quantile_cont(ms::DOUBLE, {_POINTS}) AS points
            FROM ({rows}) GROUP BY ALL ORDER BY count(*) DESC, name LIMIT {MOST_LINES})
        ORDER BY name, share
    """  # noqa: S608 - text of our own
