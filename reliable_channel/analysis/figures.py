"""Defines the figures that report, pages, alerts, metrics and commands share: one definition for each, as SQL.

Callers add the time range, the channel and the grouping. ``where`` is text of this package, with bound parameters for
values.

=================  ===================================================================================================
``VERDICTS``       over ``delivery_status``: messages (known to exist), delivered, late (delivered after it was given
                   up), missing, unknown (see ``cause``); apart from these, claimed: ids that only one participant
                   names, and not as its own
``LOSS``           of the same row: missing of missing and delivered; null where there are none
``REPAIRED``       over ``reassembled_messages``: messages put together although some of their segments did not arrive
``NETWORK_MS``     over ``delivered_messages``: from the sender's timestamp to the first segment here, ms
``PLAUSIBLE``      of the same row: whether the sender's timestamp can be one; only then it has a network time
``WAITING_MS``     of the same row: from the first segment to the delivery, ms: for other segments and for the past
``by_channel``     a row per channel: its verdicts, loss, bytes, repairs, senders and families, and the last trace
``causes``         a row per verdict and cause: messages
``records``        records that were read from Kafka, whatever became of them
``refused``        records among them that were quarantined and not used
=================  ===================================================================================================
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reliable_channel.analysis.report.snapshot import TableSnapshot

SEEN = "first_seen > $since AND first_seen <= $until"
"""The condition for rows first seen between the parameters ``since`` (itself not) and ``until``."""
CAME = "event_time > $since AND event_time <= $until"
"""The same of the event time."""
CLAIMED_BY_ONE = "claimed_by_one"
NO_CAUSE = "none"
"""The cause, in the address of a page, of messages that have none."""
_CLAIMED = f"cause IS NOT DISTINCT FROM '{CLAIMED_BY_ONE}'"
COUNTED = f"NOT {_CLAIMED}"
"""The condition for rows of ``delivery_status`` that count as messages."""
VERDICTS = f"""count(*) FILTER ({COUNTED}) AS messages, count(*) FILTER (verdict = 'delivered') AS delivered,
    count(*) FILTER (verdict = 'delivered' AND cause = 'late') AS late,
    count(*) FILTER (verdict = 'missing') AS missing,
    count(*) FILTER (verdict = 'unknown' AND {COUNTED}) AS unknown,
    count(*) FILTER ({_CLAIMED}) AS claimed"""
PASSED = "event_time NOT IN (SELECT event_time FROM clock WHERE kind = 'closing')"
"""The condition for the times of ``clock`` that passed. What a store returns after a closing tick has the tick's time,
since event time never decreases."""
RECORDED_CLOCK = f"(SELECT max(event_time) FROM clock WHERE {PASSED})"  # noqa: S608 - constants of our own
"""The largest event time of any partition, except closing ticks; null without one. The tick that ends a back-fill or a
demo fires every timer as if time had passed. No channel was silent during that time, and messages lost before it count
as just lost."""
NEWEST = "max(recorded_at) FILTER (recorded_at <= now())"
"""When `clock` or `pipeline_metrics` was written last. A later time is of a wall clock that was ahead for a while."""
LOSS = "missing / nullif(missing + delivered, 0)"
REPAIRED = "count(*) FILTER (len(repaired) > 0)"
_AGE_NS = "(epoch_ns(first_seen)::HUGEINT - sender_timestamp_ns)"
NETWORK_MS = f"{_AGE_NS} / 1e6"
WAITING_MS = "epoch_ms(event_time) - epoch_ms(first_seen)"
_DAY_NS = 86_400 * 10**9
PLAUSIBLE = f"{_AGE_NS} BETWEEN {-_DAY_NS} AND {30 * _DAY_NS}"
"""Whether a sender's timestamp can be one in ns: at most a day after the first segment was seen here, and at most 30
days before it, longer than stores keep envelopes. Senders also write s, ms or µs, or nonsense; these are in no
latency."""
_GUESSED_UNIT = "CASE {} ELSE 'none' END".format(
    " ".join(
        f"WHEN abs(epoch_ns(first_seen)::HUGEINT - sender_timestamp_ns::HUGEINT * {factor}) < {30 * _DAY_NS}"
        f" THEN '{unit}'"
        for unit, factor in (("s", 10**9), ("ms", 10**6), ("µs", 10**3))
    )
)
"""The unit in which an implausible timestamp would be one; ``none`` of these."""
QUANTILES = (0.5, 0.9, 0.99)
BEFORE = dt.timedelta(hours=1)
"""How long before a window it is looked for the first evidence of an acknowledgement. Stronger evidence may come
minutes later, and is no acknowledgement of its own."""
_PLACE = "kafka_topic, kafka_partition, kafka_offset"


def by_channel(key: Sequence[str], seen: str = "true", came: str = "true") -> str:
    """One row per channel that has verdicts or deliveries. ``key``: the columns that tell channels apart; ``seen``: the
    condition on ``first_seen``, ``came``: on ``event_time`` of ``delivered_messages`` and ``reassembled_messages``.
    Without a verdict, the messages of a channel are those delivered of them that were first seen then."""
    names = ", ".join(key)
    return f"""
        SELECT {names}, coalesce(any_value(messages), any_value(came)) AS messages,
               coalesce(any_value(delivered), any_value(came)) AS delivered,
               coalesce(any_value(late), any_value(came_late)) AS late,
               coalesce(any_value(missing), 0) AS missing, coalesce(any_value(unknown), 0) AS unknown,
               any_value(missing) / nullif(any_value(missing) + any_value(delivered), 0) AS loss,
               coalesce(any_value(payload_bytes), 0) AS payload_bytes, coalesce(any_value(repaired), 0) AS repaired,
               coalesce(any_value(senders), 0) AS senders, any_value(families) AS families,
               max(last_seen) AS last_seen
        FROM (SELECT {names}, {VERDICTS}, max(first_seen) AS last_seen
              FROM delivery_status WHERE {seen} GROUP BY {names}
              UNION ALL BY NAME
              SELECT {names}, count(*) FILTER ({seen}) AS came, count(*) FILTER (late AND {seen}) AS came_late,
                     sum(payload_bytes)::BIGINT AS payload_bytes, count(DISTINCT sender_id) AS senders,
                     string_agg(DISTINCT family, ', ' ORDER BY family) AS families, max(first_seen) AS last_seen
              FROM delivered_messages WHERE {came} GROUP BY {names}
              UNION ALL BY NAME
              SELECT {names}, {REPAIRED} AS repaired FROM reassembled_messages WHERE {came} GROUP BY {names})
        GROUP BY {names} HAVING coalesce(any_value(messages), any_value(came)) IS NOT NULL"""  # noqa: S608 - text of our own


def causes(where: str) -> str:
    """Over ``delivery_status``: verdict, cause, messages, the most frequent first."""
    return f"""SELECT verdict, cause, count(*) AS messages FROM delivery_status WHERE {where}
               GROUP BY ALL ORDER BY messages DESC, verdict, cause"""  # noqa: S608 - names of columns; values are bound


def odd_timestamps(where: str = "true") -> str:
    """Over ``delivered_messages``: channel_id, sender_id, guessed_unit, messages, and the least and most timestamps
    sent, of those that are implausible."""
    return f"""SELECT channel_id, sender_id, {_GUESSED_UNIT} AS guessed_unit, count(*) AS messages,
                      min(sender_timestamp_ns) AS least, max(sender_timestamp_ns) AS most
               FROM delivered_messages WHERE NOT ({PLAUSIBLE}) AND {where} GROUP BY ALL"""  # noqa: S608 - names of columns; values are bound


def records(where: str = "true") -> str:
    """Records read: those with an envelope, and those without. A record may have several rows in quarantine."""
    return f"""((SELECT count(*) FROM envelopes WHERE {where})
        + (SELECT count(*) FROM (SELECT DISTINCT {_PLACE} FROM quarantine WHERE {where})
           ANTI JOIN (SELECT {_PLACE} FROM envelopes WHERE {where}) USING ({_PLACE})))"""  # noqa: S608 - names of columns; values are bound


def drops(where: str = "true") -> str:
    """Records that were dropped: each once, however many reasons it has."""
    return (
        f"(SELECT count(*) FROM (SELECT DISTINCT {_PLACE} FROM quarantine WHERE disposition = 'dropped' AND {where}))"  # noqa: S608 - names of columns; values are bound
    )


def read_clock(lake: TableSnapshot) -> dt.datetime | None:
    """The :data:`RECORDED_CLOCK`. ``None`` without one."""
    (clock,) = lake.select(f"SELECT {RECORDED_CLOCK} AS at")
    latest: dt.datetime | None = clock["at"]
    return latest


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the messages of a time span. ``latency_ms``: ``network``, ``waiting`` and ``acknowledgement`` →
    the :data:`QUANTILES`. ``newest``: when ingest last wrote its clock, ``None`` before it did."""

    verdicts: dict[str, int]
    causes: dict[str, int]
    latency_ms: dict[str, list[float]]
    newest: dt.datetime | None


def outcome(lake: TableSnapshot, hours: int = 24) -> Outcome:
    """The outcome of the last hours by the recorded clock."""
    (clock,) = lake.select(f"SELECT {RECORDED_CLOCK} AS at, {NEWEST} AS newest FROM clock")  # noqa: S608 - constants of our own
    since = {"since": (clock["at"] or dt.datetime.now(dt.UTC)) - dt.timedelta(hours=hours)}
    (judged,) = lake.select(f"SELECT {VERDICTS} FROM delivery_status WHERE first_seen > $since", since)  # noqa: S608 - constants of our own
    causes = lake.select(
        """SELECT coalesce(cause, 'unexplained') AS cause, count(*) AS messages FROM delivery_status
           WHERE verdict = 'missing' AND first_seen > $since GROUP BY ALL""",
        since,
    )
    return Outcome(
        {name: judged[name] for name in ("delivered", "missing", "unknown")},
        {row["cause"]: row["messages"] for row in causes},
        latencies(lake, "event_time > $since", since),
        clock["newest"],
    )


def latencies(lake: TableSnapshot, where: str, parameters: dict[str, Any]) -> dict[str, list[float]]:
    """``network``, ``waiting``, ``acknowledgement`` → the quantiles in ms; empty where there is nothing to measure.
    ``where``: the condition on ``event_time``; :data:`BEFORE` its parameter ``since`` it is looked for the first
    evidence of acknowledgements."""
    looked_at = "true"
    if "since" in parameters:
        looked_at, parameters = "event_time > $before", {**parameters, "before": parameters["since"] - BEFORE}
    (row,) = lake.select(
        f"""SELECT network, waiting, acknowledgement FROM
            (SELECT quantile_cont({NETWORK_MS}, {[*QUANTILES]}) FILTER ({PLAUSIBLE}) AS network,
                    quantile_cont({WAITING_MS}, {[*QUANTILES]}) AS waiting FROM delivered_messages WHERE {where}),
            (SELECT quantile_cont(ms, {[*QUANTILES]}) AS acknowledgement FROM
                (SELECT min(latency_ms) AS ms, min(event_time) AS event_time
                 FROM acks WHERE latency_ms IS NOT NULL AND {looked_at}
                 GROUP BY content_topic, channel_id, sds_id, acknowledged_by) WHERE {where})""",  # noqa: S608 - names of columns; values are bound
        parameters,
    )
    return {name: [float(value) for value in values or ()] for name, values in row.items()}
